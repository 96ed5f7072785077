"""The command: what it prints, where, and with which exit code. Every case is a process of its own.

Those that are about its start are started cold, the others are forked from a process that has imported the command.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from producers.errors import NotConnected, OutcomeUnknown, RequestFailed
from stratolog.cli import exit_code_of
from stratolog.configuration.loading import load_settings
from stratolog.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    Unavailable,
    UsageError,
    UserError,
)
from stratolog.local import stack
from stratolog.local.processes import wait_until
from tests.support.command import warm

ROOT = Path(__file__).parents[3]
NOBODY = 1_000_650_000
"""A user id as OpenShift gives it: nobody has a name for it."""
NOBODY_ANSWERS = {"STRATOLOG_NODES": "om1=127.0.0.1:1", "STRATOLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def environment_of(**variables: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
    return environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}


def cold(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command by an interpreter of its own, as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "stratolog", *arguments],
        cwd=folder, env=environment_of(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def stratolog(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return warm.run(*arguments, env=environment_of(**variables), cwd=folder)


def test_help_lists_the_commands_and_the_exit_codes(tmp_path: Path) -> None:
    done = cold("--help", folder=tmp_path)
    assert done.returncode == 0
    assert "--version" in done.stdout
    for word in ("up", "down", "status", "node", "topics", "jars", "version", "Exit status"):
        assert word in done.stdout


OTHER_COMMANDS = [("up",), ("down",), ("status",), ("topics", "ensure"), ("jars", "fetch"), ("version",)]


@pytest.mark.parametrize(
    "command", [("node", "run"), *(pytest.param(command, marks=pytest.mark.slow) for command in OTHER_COMMANDS)]
)
def test_every_command_explains_itself(command: tuple[str, ...], tmp_path: Path) -> None:
    """One stands for all: the help of every command is read in one process by ``test_commands_helps``."""
    done = cold(*command, "--help", folder=tmp_path)
    assert done.returncode == 0
    assert "Usage: stratolog" in done.stdout


def test_the_version_in_the_way_of_other_commands(tmp_path: Path) -> None:
    done = cold("--version", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout == f"stratolog {metadata.version('stratolog')}\n"


def test_version(tmp_path: Path) -> None:
    done = cold("version", "--json", folder=tmp_path)
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


def test_down_without_a_stack_says_where_it_looked_and_makes_nothing(tmp_path: Path) -> None:
    """From another directory it said "nothing was running", with status 0, and left an empty .stratolog there."""
    done = stratolog("down", folder=tmp_path)
    assert (done.returncode, done.stdout) == (EXIT_UNAVAILABLE, "")
    assert f"there is no stack in {tmp_path}/.stratolog, nor in a directory above it" in done.stderr
    assert os.listdir(tmp_path) == []


def test_down_of_a_stack_that_does_not_run_is_no_error(tmp_path: Path) -> None:
    (tmp_path / ".stratolog" / "nodes").mkdir(parents=True)
    (tmp_path / ".stratolog" / "stack.toml").write_text("")
    (tmp_path / "below").mkdir()
    done = stratolog("down", "--json", folder=tmp_path / "below")
    assert (done.returncode, json.loads(done.stdout)["stopped"]) == (0, [])
    assert json.loads(done.stdout)["data_dir"] == f"{tmp_path}/.stratolog"
    said = stratolog("down", "--remove-data", folder=tmp_path / "below").stdout
    assert said == f"nothing was running (stack in {tmp_path}/.stratolog); its data is deleted\n"
    assert os.listdir(tmp_path) == ["below"]


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that others may enter: pytest closes its own to them at the start of every run."""
    folder = Path(tempfile.mkdtemp(prefix="stratolog-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_down_says_what_could_not_be_deleted(open_path: Path) -> None:
    """It said that the data was removed, whatever had become of it."""
    data = open_path / "data"
    (data / "kafka" / "broker-1").mkdir(parents=True)
    (data / "kafka" / "broker-1" / "file").write_text("x")
    (data / "stack.toml").write_text("")
    data.chmod(0o755)
    (data / "kafka").chmod(0o555)
    done = as_nobody("down", "--remove-data", folder=open_path, data=data)
    assert done.returncode == EXIT_FAILED
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert (data / "stack.toml").exists()  # so that it can be tried again
    (data / "kafka").chmod(0o755)


def as_nobody(
    *arguments: str, folder: Path, data: Path, owner: int = NOBODY, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user without a name, who owns ``data`` but nothing below it, and whose home is not his own."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv")
    if data.exists():
        os.chown(data, owner, owner)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "HOME": "/",
        **NOBODY_ANSWERS,
        **variables,
    }
    return subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-m", "stratolog", *arguments],
        cwd=folder, env={**environment, "STRATOLOG_DATA_DIR": str(data)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0o555, 0o700], ids=["read-only", "closed"])
@pytest.mark.parametrize(
    "command",
    [
        ("up", "--no-audit"),
        ("demo",),
        ("down", "--remove-data"),
        ("status",),
        ("sh", "volume", "list"),
        ("drill", "replay"),
    ],
)
def test_a_directory_of_somebody_else(command: tuple[str, ...], mode: int, open_path: Path) -> None:
    """Each of these ended in a traceback."""
    data = open_path / "data"
    (data / "nodes").mkdir(parents=True)
    (data / "stack.json").write_text("{}")
    (data / "stack.json").chmod(0o600)
    data.chmod(mode)
    done = as_nobody(*command, folder=open_path, data=data, owner=0)
    assert done.returncode in (EXIT_FAILED, EXIT_UNAVAILABLE)
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr


def test_a_read_only_directory_names_the_remedy(open_path: Path) -> None:
    done = as_nobody("up", "--no-audit", folder=open_path, data=Path("/proc/stratolog"))
    assert done.returncode == EXIT_FAILED
    assert "/proc/stratolog: " in done.stderr
    assert "choose a directory that you may write: STRATOLOG_DATA_DIR" in done.stderr


def test_a_cache_that_cannot_be_written_names_the_remedy(open_path: Path) -> None:
    """Under an arbitrary user id HOME is often /, where nobody may write."""
    done = as_nobody("jars", "fetch", folder=open_path, data=open_path / "data")
    assert done.returncode == EXIT_FAILED
    assert "the jars' cache /.cache/stratolog cannot be used" in done.stderr
    assert "set STRATOLOG_CACHE_DIR" in done.stderr


def test_a_user_without_a_name_or_a_home(open_path: Path) -> None:
    done = as_nobody("version", folder=open_path, data=open_path / "data", HOME="")
    assert done.returncode == 0
    status = as_nobody("status", folder=open_path, data=open_path / "data", HOME="", STRATOLOG_NODES="om1=127.0.0.1:1")
    assert status.returncode == EXIT_UNAVAILABLE
    assert "start one with 'stratolog up'" in status.stderr


def test_down_removes_its_data_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("kafka", "nodes", "mine"):
        (data / name).mkdir(parents=True)
    (data / "stack.toml").write_text("")
    done = stratolog("down", "--remove-data", folder=tmp_path, STRATOLOG_DATA_DIR=str(data))
    assert done.returncode == 0
    assert done.stdout.endswith("; its data is deleted, the directory itself stays\n")
    assert os.listdir(data) == ["mine"]


def test_down_deletes_nothing_where_there_never_was_a_stack(tmp_path: Path) -> None:
    """A data_dir that was set to a project's directory lost the project's own logs."""
    data = tmp_path / "project"
    for name in ("kafka", "nodes", "datanodes", "audit", "logs", "drills"):
        (data / name).mkdir(parents=True)
    done = stratolog("down", "--remove-data", folder=tmp_path, STRATOLOG_DATA_DIR=str(data))
    assert done.returncode == EXIT_UNAVAILABLE
    assert f"there is no stack in {data}" in done.stderr
    assert stack.down(load_settings(environment={"STRATOLOG_DATA_DIR": str(data)}), remove_data=True) == ()
    assert len(os.listdir(data)) == 6


@pytest.mark.parametrize("name", ["stack.toml", "stack.json", "stack.unreadable"])
def test_a_data_directory_that_cannot_go_itself_is_emptied(name: str, tmp_path: Path) -> None:
    """A mount point, or a link: it ended as an error although all was deleted."""
    volume = tmp_path / "volume"
    (volume / "nodes").mkdir(parents=True)
    (volume / name).write_text("")
    (tmp_path / "data").symlink_to(volume)
    done = stratolog("down", "--remove-data", folder=tmp_path, STRATOLOG_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0
    assert done.stdout.endswith("; its data is deleted, the directory itself stays\n")
    assert os.listdir(volume) == []


def test_no_java(tmp_path: Path) -> None:
    done = stratolog("up", folder=tmp_path, PATH=str(tmp_path))
    assert os.listdir(tmp_path) == []
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


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
def test_an_interrupt_while_the_command_is_loaded(tmp_path: Path) -> None:
    """It showed a traceback of whatever was just being imported."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stratolog", "sh", "volume", "list"],
        cwd=tmp_path, env={**os.environ, **NOBODY_ANSWERS, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    maps = Path(f"/proc/{process.pid}/maps")
    assert wait_until(lambda: process.poll() is not None or "_json." in maps.read_text(), 60.0, interval_s=0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (EXIT_INTERRUPTED, EXIT_UNAVAILABLE)
    assert "Traceback" not in said
