"""The command: what it prints, where, and with which exit code. Every case is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from producers.errors import NotConnected, OutcomeUnknown, RequestFailed
from stratolog.cli import exit_code_of
from stratolog.errors import EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE, Unavailable, UsageError, UserError

ROOT = Path(__file__).parents[3]


def stratolog(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}
    return subprocess.run(
        [sys.executable, "-m", "stratolog", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_help_lists_the_commands_and_the_exit_codes(tmp_path: Path) -> None:
    done = stratolog("--help", folder=tmp_path)
    assert done.returncode == 0
    for word in ("up", "down", "status", "node", "topics", "jars", "version", "Exit status"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "command",
    [("up",), ("down",), ("status",), ("node", "run"), ("topics", "ensure"), ("jars", "fetch"), ("version",)],
)
def test_every_command_explains_itself(command: tuple[str, ...], tmp_path: Path) -> None:
    done = stratolog(*command, "--help", folder=tmp_path)
    assert done.returncode == 0
    assert "Usage: stratolog" in done.stdout


def test_version(tmp_path: Path) -> None:
    done = stratolog("version", "--json", folder=tmp_path)
    assert json.loads(done.stdout).keys() == {"stratolog", "kafka", "spark"}


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("up", "--nonsense"), ("up", "--brokers", "two"), ("node", "run")]
)
def test_wrong_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = stratolog(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status",), "unknown setting 'STRATOLOG_SHARD' in the environment"),
        (("--config", "absent.toml", "up"), "absent.toml: No such file"),
        (("up", "--brokers", "2"), "must be 1 or 3, not 2"),
        (("node", "run", "om7"), "no node 'om7'"),
    ],
)
def test_a_wrong_setting(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    variables = {"STRATOLOG_SHARD": "3"} if arguments == ("status",) else {}
    done = stratolog(*arguments, folder=tmp_path, **variables)
    assert done.returncode == EXIT_USAGE
    assert words in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_no_stack(tmp_path: Path) -> None:
    nodes = "om1=127.0.0.1:1"
    done = stratolog("status", folder=tmp_path, STRATOLOG_NODES=nodes)
    assert (done.returncode, done.stdout) == (EXIT_UNAVAILABLE, "")
    assert "start one with 'stratolog up'" in done.stderr
    for_programs = stratolog("status", "--json", folder=tmp_path, STRATOLOG_NODES=nodes)
    assert for_programs.returncode == EXIT_UNAVAILABLE
    assert json.loads(for_programs.stderr)["error"] == "Unavailable"


def test_down_without_a_stack_is_no_error(tmp_path: Path) -> None:
    done = stratolog("down", "--json", folder=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["stopped"]) == (0, [])


def test_down_removes_its_data_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("kafka", "nodes", "mine"):
        (data / name).mkdir(parents=True)
    done = stratolog("down", "--remove-data", folder=tmp_path, STRATOLOG_DATA_DIR=str(data))
    assert done.returncode == 0
    assert os.listdir(data) == ["mine"]


def test_no_java(tmp_path: Path) -> None:
    done = stratolog("up", folder=tmp_path, PATH=str(tmp_path))
    assert done.returncode == EXIT_UNAVAILABLE
    assert "'java' not found: install Java 17 or newer" in done.stderr


def test_an_old_java(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    done = stratolog("up", folder=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == EXIT_UNAVAILABLE
    assert 'Java 17 or newer is needed, found: openjdk version "11.0.2"' in done.stderr


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stratolog", "version"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, complaint = process.communicate()
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), EXIT_FAILED),
        (UsageError("x"), EXIT_USAGE),
        (Unavailable("x"), EXIT_UNAVAILABLE),
        (RequestFailed("VOLUME_NOT_FOUND", "x"), EXIT_FAILED),
        (OutcomeUnknown("REQUEST_EXPIRED", "x"), EXIT_FAILED),
        (NotConnected("NOT_CONNECTED", "x"), EXIT_UNAVAILABLE),
        (KeyError("x"), None),
    ],
)
def test_exit_codes(error: Exception, code: int | None) -> None:
    assert exit_code_of(error) == code
