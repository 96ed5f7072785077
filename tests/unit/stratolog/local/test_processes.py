"""Processes: recognised by id and start time, started detached or tethered, stopped for certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratolog.errors import Unavailable
from stratolog.local.processes import Process, log_tail, spawn, stop_all, wait_until

PATIENCE_S = 30.0
SLEEPER = [sys.executable, "-S", "-c", "import time; print('ready', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable, "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]  # fmt: skip


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()


def start(started: list[Process], folder: Path, command: list[str] = SLEEPER, *, detached: bool = False) -> Process:
    log = folder / f"{len(started)}.log"
    process = spawn(command, log=log, detached=detached)
    started.append(process)
    assert wait_until(lambda: b"ready" in log.read_bytes(), PATIENCE_S)
    return process


@pytest.mark.parametrize("detached", [True, False])
def test_a_started_process_runs_until_it_is_stopped(detached: bool, started: list[Process], tmp_path: Path) -> None:
    process = start(started, tmp_path, detached=detached)
    assert process.is_running()
    assert Process.of(process.pid) == process
    process.stop(PATIENCE_S)
    assert not process.is_running()
    assert Process.of(process.pid) is None


def test_a_process_that_ignores_sigterm_is_killed(started: list[Process], tmp_path: Path) -> None:
    process = start(started, tmp_path, STUBBORN)
    process.stop(0.2)
    assert not process.is_running()


def test_a_paused_process_runs_and_can_be_stopped(started: list[Process], tmp_path: Path) -> None:
    process = start(started, tmp_path)
    process.signal(signal.SIGSTOP)
    assert process.is_running()
    process.stop(PATIENCE_S)
    assert not process.is_running()


def test_another_process_with_the_same_id_is_a_stranger(started: list[Process], tmp_path: Path) -> None:
    process = start(started, tmp_path)
    stale = replace(process, started="some other time")
    assert not stale.is_running()
    assert not stale.signal(signal.SIGKILL)
    stop_all([stale], 0.1)
    stale.kill()
    assert process.is_running()


def test_an_unreaped_child_does_not_count_as_running(tmp_path: Path) -> None:
    process = spawn([sys.executable, "-S", "-c", ""], log=tmp_path / "log", detached=True)
    assert process.wait(PATIENCE_S)
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def test_stop_all_stops_all(started: list[Process], tmp_path: Path) -> None:
    for _ in range(3):
        start(started, tmp_path)
    stop_all(started, PATIENCE_S)
    assert not any(process.is_running() for process in started)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tether")
@pytest.mark.parametrize(("detached", "survives"), [(True, True), (False, False)])
def test_what_happens_when_the_parent_is_killed(detached: bool, survives: bool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import time
from pathlib import Path
from stratolog.local.processes import spawn
child = spawn({SLEEPER!r}, log=Path({str(tmp_path / "log")!r}), detached={detached})
Path({str(tmp_path / "half")!r}).write_text(str(child.pid))
Path({str(tmp_path / "half")!r}).rename({str(pid_file)!r})
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert wait_until(lambda: pid_file.exists() and b"ready" in (tmp_path / "log").read_bytes(), PATIENCE_S)
        child = Process.of(int(pid_file.read_text()))
        assert child is not None
    finally:
        parent.kill()
        parent.wait()
    if survives:
        time.sleep(0.3)
        assert child.is_running()
        child.kill()
    assert child.wait(PATIENCE_S)


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    code = "import sys; print('to stdout', flush=True); print('to stderr', file=sys.stderr)"
    process = spawn([sys.executable, "-S", "-c", code], log=log, detached=True)
    assert process.wait(PATIENCE_S)
    assert log.read_text() == "to stdout\nto stderr\n"


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot start /no/such/program: No such file"):
        spawn(["/no/such/program"], log=tmp_path / "log", detached=True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tether")
def test_a_tethered_program_that_is_not_there_is_named_in_the_log(tmp_path: Path) -> None:
    process = spawn(["/no/such/program"], log=tmp_path / "log", detached=False)
    assert process.wait(PATIENCE_S)
    assert "cannot start /no/such/program" in (tmp_path / "log").read_text()


def test_log_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert "No such file" in log_tail(log)
    log.write_text("")
    assert "is empty" in log_tail(log)
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert log_tail(log, 2) == "line 99998\nline 99999"
    log.write_bytes(b"\xff\xfe broken\n")
    assert "broken" in log_tail(log)


def test_wait_until_gives_up() -> None:
    assert not wait_until(lambda: False, 0.05)
    assert wait_until(lambda: True, 0.0)
