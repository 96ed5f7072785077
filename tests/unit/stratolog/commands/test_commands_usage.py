"""Every command explains itself, and wrong usage is refused before anything is asked. In this process, without a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratolog.cli import COMMANDS as TOP
from stratolog.cli import build_app
from stratolog.commands.drill import COMMANDS as DRILLS
from stratolog.errors import EXIT_USAGE, Unavailable, UsageError, UserError

SHELL = [
    *(("sh", kind, verb) for kind in ("volume", "bucket")
      for verb in ("create", "info", "list", "delete", "update", "set-quota", "clear-quota", "setquota", "clrquota")),
    *(("sh", "key", verb) for verb in ("create", "info", "list", "delete", "rename")),
    *(("sh", "snapshot", verb) for verb in ("create", "info", "list", "ls", "delete", "rename", "set", "diff")),
]  # fmt: skip
COMMANDS = [
    *SHELL, ("quota", "repair"), ("ingest",), ("demo",), ("bench",), ("audit",), ("debug", "log"), ("debug", "digest"),
    *(("drill", name) for name in ("list", *DRILLS)), ("admin", "digest-base"), ("admin", "rebuild"), ("admin", "stop-node"), ("admin", "start-node"),
    ("admin", "mode"), ("admin", "block-tokens", "roll"), ("admin", "block-tokens", "show"), ("backup",), ("restore",), ("tables",), ("sql",),
]  # fmt: skip


@pytest.fixture
def stratolog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A runner in a directory without a stack, whose nodes and broker nobody can reach."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("STRATOLOG_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("STRATOLOG_NODES", "om1=127.0.0.1:1")
    return CliRunner()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...], stratolog: CliRunner) -> None:
    result = stratolog.invoke(build_app(command), [*command, "--help"])
    assert result.exit_code == 0
    assert f"{' '.join(command)} [OPTIONS]" in result.stdout
    assert "--json" in result.stdout


@pytest.mark.parametrize("before", [(), ("--config", "drill"), ("--config=drill",)], ids=" ".join)
def test_a_command_that_is_named_is_imported_alone(before: tuple[str, ...], stratolog: CliRunner) -> None:
    words = [*before, "debug"]
    assert [group.name for group in build_app(words).registered_groups] == ["debug"]
    assert "digest" in stratolog.invoke(build_app(words), ["debug", "--help"]).stdout


@pytest.mark.parametrize("words", [(), ("--help",), ("nonsense", "debug"), ("version",), ("--config",)], ids=" ".join)
def test_all_commands_are_there_when_none_is_named(words: tuple[str, ...], stratolog: CliRunner) -> None:
    listed = stratolog.invoke(build_app(words), ["--help"]).stdout
    assert [name for name in (*TOP, "version") if f" {name} " not in listed] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sh", "volume", "info", "/v/b"), "is not the address of a volume"),
        (("sh", "bucket", "create", "/v"), "is not the address of a bucket"),
        (("sh", "key", "delete", "/v/b"), "is not the address of a key"),
        (("sh", "volume", "create", "/v", "--quota", "much"), "'much' is not a size"),
        (("sh", "volume", "create", "/v", "--namespace-quota", "0"), "greater than or equal to 1"),
        (("sh", "key", "create", "/v/b/k", "--metadata", "x"), "'x' is not NAME=VALUE"),
        (("sh", "key", "list", "/v/b", "--consistency", "strong"), "'strong' is not one of"),
        (("sh", "key", "info", "/v/b/k", "--session", "x"), "'x' is not SHARD:INDEX"),
        (("sh", "snapshot", "create", "/v"), "is not the address of a bucket"),
        (("sh", "snapshot", "delete", "/v/b"), "Missing argument 'SNAPSHOT'"),
        (("sh", "snapshot", "rename", "/v/b", "one"), "Missing argument 'NEW_NAME'"),
        (("sh", "snapshot", "diff", "/v"), "is not the address of a bucket"),
        (("sh", "snapshot", "diff", "/v/b", "one", "--page-size", "0"), "greater than or equal to 1"),
        (("sh", "snapshot", "set", "/v/b", "one", "x"), "'x' is not NAME=VALUE"),
        (("sh", "snapshot", "set", "/v/b", "one", "=x"), "'=x' is not NAME=VALUE"),
        (("ingest", "absent"), "'absent' does not exist"),
        (("ingest", ".", "--max-in-flight", "0"), "greater than or equal to 1"),
        (("demo", "--tree", "absent"), "'absent' does not exist"),
        (("backup", "b", "--prune", "0"), "greater than or equal to 1"),
        (("restore", "b", "--at", "noon"), "'noon' is not a time"),
        (("restore", "b", "--until-index", "7"), "'7' is not SHARD:INDEX"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, stratolog: CliRunner) -> None:
    result = stratolog.invoke(build_app(arguments), arguments)
    assert (result.exit_code, result.stdout) == (EXIT_USAGE, "")
    assert words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sh", "volume", "set-quota", "/v"), "which quota?"),
        (("sh", "bucket", "clear-quota", "/v/b"), "which quota?"),
        (("ingest", ".", "--prefix", "Not_Legal"), "not 'Not_Legal'"),
        *(
            (("admin", "user", verb, "stratolog-block-tokens"), "has the keys of block tokens")
            for verb in ("add", "rotate", "remove")
        ),
        (("bench", "--in-flight", "1,x"), "'1,x' is not a list of numbers"),
        (("bench", "--in-flight", "0"), "'0' is not a list of numbers"),
        (("audit",), "give one of --once, --follow and --windows"),
        (("audit", "--once", "--follow"), "give one of --once, --follow and --windows"),
        (("admin", "digest-base", "2"), "no shard 2; there are 0..1"),
        (("admin", "mode"), "a request type and a mode are needed, or --show"),
        (("admin", "mode", "CreateKey"), "a request type and a mode are needed, or --show"),
        (("admin", "mode", "NoSuch", "late"), "no request type 'NoSuch'; there are: CreateVolume, "),
        (("admin", "mode", "Finalize", "late"), "no request type 'Finalize'"),
        (("admin", "mode", "CreateKey", "lazy"), "mode 'lazy' is none of leader, late"),
        (("admin", "mode", "CreateKey", "--show"), "--show takes no request type"),
        (("admin", "mode", "--show", "--shard", "2"), "no shard 2; there are 0..1"),
        (("bench", "--mode", "lazy"), "--mode 'lazy' is none of leader, late"),
        (("admin", "rebuild", "om1", "2"), "no shard 2; there are 0..1"),
        (("admin", "stop-node", "om7"), "no node 'om7'"),
        (("admin", "start-node", "om7"), "no node 'om7'"),
        (("sh", "volume", "list", "--node", "om7"), "no node 'om7'"),
        (("backup", "b", "--list", "--verify"), "--list, --verify and --prune exclude each other"),
        (("backup", "b", "--blocks", "some"), "--blocks 'some': it is one of none, reference, whole"),
        (("sql", "SELECT 1", "--at", "now"), "--at: 'now' is no index and no SHARD:INDEX"),
        (("sql", "SELECT 1", "--at", "7,1:3"), "names an index of all shards beside others"),
        (("restore", "b", "--at", "2026-11-23", "--to-end"), "--until-index, --at and --to-end exclude each other"),
        (("restore", "b", "--node", "om1"), "--node needs --no-start"),
        (("restore", "b", "--no-start", "--datanodes", "3"), "--datanodes needs a new local stack"),
    ],
)
def test_wrong_values(arguments: tuple[str, ...], words: str, stratolog: CliRunner) -> None:
    error = stratolog.invoke(build_app(arguments), arguments).exception
    assert isinstance(error, UsageError)
    assert words in str(error)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sh", "volume", "list"), ("sh", "volume", "create", "/v"), ("sh", "key", "info", "/v/b/k"), ("ingest", "."),
        ("bench",), ("tables",), ("admin", "rebuild", "om1", "0"), ("admin", "stop-node", "om1"), ("admin", "start-node", "om1"),
    ],
)  # fmt: skip
def test_without_a_stack_every_command_says_so_at_once(arguments: tuple[str, ...], stratolog: CliRunner) -> None:
    error = stratolog.invoke(build_app(arguments), arguments).exception
    assert isinstance(error, Unavailable)
    assert "start one with 'stratolog up'" in str(error)


def test_a_query_without_tables_says_at_once_what_makes_them(stratolog: CliRunner, tmp_path: Path) -> None:
    error = stratolog.invoke(build_app(["sql"]), ["sql", "SELECT 1"]).exception
    assert isinstance(error, UserError)
    assert str(error) == f"there are no tables in {tmp_path}/.stratolog/tables: 'stratolog tables' makes and keeps them"


def test_nothing_is_rebuilt_without_knowing_the_stack(stratolog: CliRunner, tmp_path: Path) -> None:
    folder = tmp_path / ".stratolog" / "nodes" / "om1" / "shard-0"
    folder.mkdir(parents=True)
    error = stratolog.invoke(build_app(["admin"]), ["admin", "rebuild", "om1", "0"]).exception
    assert isinstance(error, UserError)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sh", "snapshot", "diff", "/v/b"), "give the snapshot FROM which to compare"),
        (("sh", "snapshot", "diff", "/v/b", "one", "--cancel", "0"), "one of both"),
        (("sh", "--at", ".", "snapshot", "diff", "/v/b", "one"), "a state directory"),
    ],
)
def test_a_diff_without_sense(arguments: tuple[str, ...], words: str, stratolog: CliRunner) -> None:
    result = stratolog.invoke(build_app(arguments), arguments)
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)
