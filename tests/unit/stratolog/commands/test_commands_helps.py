"""What ``--help`` shows, and what a shell completes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stratolog.cli import build_app
from stratolog.commands.common.helps import tidied
from stratolog.commands.common.names import datanode_names, node_names
from tests.support.command import warm
from tests.support.om.snapshot_node import SnapshotNode
from tests.support.sdk.snapshot_server import SnapshotServer

ROOT = Path(__file__).parents[4]
OURS = re.compile(r"``|<Address>|<dict|list\[|<function|&lt;")


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*words, name))


ALL = list(commands(typer.main.get_command(build_app())))


@pytest.mark.parametrize("words", ALL, ids=lambda words: " ".join(words) or "stratolog")
def test_help_speaks_to_people(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    tidied(build_app(words)).main([*words, "--help"], standalone_mode=False, prog_name="stratolog")
    shown = capsys.readouterr().out
    assert "Usage: stratolog" in shown
    assert OURS.findall(shown) == []


def test_names_are_completed_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRATOLOG_NODES", "om1=a:1,om2=b:1,other=c:1")
    monkeypatch.setenv("STRATOLOG_DATANODES", "dn1=a:2:3,dn2=b:2:3")
    assert node_names("om") == ["om1", "om2"]
    assert node_names("") == ["om1", "om2", "other"]
    assert datanode_names("dn2") == ["dn2"]
    monkeypatch.setenv("STRATOLOG_SHARDS", "nonsense")
    assert node_names("") == datanode_names("") == []


def test_names_of_snapshots_are_completed_by_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = SnapshotNode(tmp_path)
    for name in ("monday", "tuesday", "moon"):
        node.snapshot(name)
    server = SnapshotServer(node)
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {
        "STRATOLOG_NODES": "om1=" + server.address.removeprefix("http://"), "PYTHONPATH": str(ROOT),
        "_STRATOLOG_COMPLETE": "complete_bash",
    }  # fmt: skip

    def completed(*words: str) -> list[str]:
        """Return what a shell offers for the last of the words that were typed."""
        typed = {"COMP_WORDS": " ".join(("stratolog", *words)), "COMP_CWORD": str(len(words))}
        return warm.run(env=environment | typed, cwd=tmp_path, timeout_s=60).stdout.split()

    assert completed("sh", "snapshot", "delete", "/vol1/bucket1", "mo") == ["monday", "moon"]
    assert completed("sh", "snapshot", "rename", "/vol1/bucket1", "tu") == ["tuesday"]
    assert completed("sh", "snapshot", "delete", "/vol1/nosuch", "mo") == []
    assert completed("sh", "snapshot", "re") == ["rename"]
    server.close()
    node.close()
    assert completed("sh", "snapshot", "delete", "/vol1/bucket1", "mo") == []
