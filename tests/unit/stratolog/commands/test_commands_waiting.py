"""What is said while a command waits, and when it is interrupted: the program itself, at a node that never answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from stratolog.commands.common import waiting
from stratolog.commands.common.waiting import interruptible, waits_told
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import EXIT_INTERRUPTED
from stratolog.local.processes import wait_until

ROOT = Path(__file__).parents[4]
PATIENCE_S = 60.0


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def settings(silent: str) -> Settings:
    return load_settings(environment={"STRATOLOG_NODES": f"om1={silent}", "STRATOLOG_BOOTSTRAP_SERVERS": silent})


@pytest.mark.parametrize("json_too", [False, True])
def test_a_wait_is_explained_and_its_interrupt_says_what_was_done(json_too: bool, silent: str, tmp_path: Path) -> None:
    variables = {"STRATOLOG_NODES": f"om1={silent}", "STRATOLOG_BOOTSTRAP_SERVERS": silent, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "stratolog", "sh", "volume", "list", *(["--json"] if json_too else [])]
    log = tmp_path / "err"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words, cwd=tmp_path, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        if json_too:
            assert wait_until(lambda: _connections(process.pid) > 0, PATIENCE_S)
        else:
            assert wait_until(lambda: b"read: waiting: no node answers: om1" in log.read_bytes(), PATIENCE_S)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    said = log.read_text()
    assert (process.returncode, output) == (EXIT_INTERRUPTED, b"")
    assert "Traceback" not in said
    if json_too:
        assert json.loads(said) == {"error": "Interrupted", "message": "nothing was changed"}
    else:
        assert "interrupted: nothing was changed" in said


def _connections(pid: int) -> int:
    """Return how many sockets a process has: it asks by now."""
    try:
        return sum("socket:" in os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def test_nothing_is_said_while_results_come(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "WORD_AFTER_S", 0.01)
    monkeypatch.setattr(waiting, "LOOK_INTERVAL_S", 0.01)
    count = 0
    looked = threading.Event()

    def moving() -> int:
        nonlocal count
        count += 1
        if count > 20:
            looked.set()
        return count

    with waits_told(settings, "list", moving=moving):
        assert looked.wait(PATIENCE_S)
    assert capsys.readouterr().err == ""


def test_the_same_reason_is_said_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "WORD_AFTER_S", 0.01)
    monkeypatch.setattr(waiting, "LOOK_INTERVAL_S", 0.01)
    looks: list[str] = []
    done = threading.Event()

    def reasons(_: object) -> list[str]:
        looks.append("look")
        if len(looks) == 9:
            done.set()
        return [f"dn1 is STALE, last heard of {len(looks)} s ago" if len(looks) < 5 else "dn1 is DEAD"]

    monkeypatch.setattr(waiting, "look", lambda *_, **__: None)
    monkeypatch.setattr(waiting, "amiss", reasons)
    with waits_told(settings, "put"):
        assert done.wait(PATIENCE_S)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["put: waiting: dn1 is STALE, last heard of 1 s ago", "put: waiting: dn1 is DEAD"]


def test_an_interrupt_ends_with_the_sentence_of_that_moment(capsys: pytest.CaptureFixture[str]) -> None:
    done = ["a"]

    def work() -> None:
        done.append("b")
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended, interruptible(lambda: f"done: {', '.join(done)}"):
        work()
    assert ended.value.exit_code == EXIT_INTERRUPTED
    assert "interrupted: done: a, b" in capsys.readouterr().err
