"""Processes: start, recognise and stop them, by process id and start time.

The system reuses process ids, so a :class:`Process` is known by its id and its start time. A process that does not
match is some other one, and is left alone.

Two ways to start:

- *detached*: own session, outlives the command that started it (``stratolog up``);
- *tethered*: the kernel kills the process when the thread that started it ends, for whatever reason. Tests do so, and
  ``stratolog demo`` without ``--keep``. Start such processes from a thread that lives on. Only Linux can do this;
  elsewhere the caller's own clean-up is all there is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stratolog.errors import Unavailable
from stratolog.security.private_files import FILE_MODE, FOLDER_MODE, PRIVATE_UMASK
from transport.waiting.deadline import Deadline

POLL_INTERVAL_S = 0.05
KILL_WAIT_S = 10.0
LOG_TAIL_LINES = 20
_TETHER = Path(__file__).with_name("tether.py")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of this machine; ``started`` tells it from a later one with the same id."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this id now, None if there is none (or only its unreaped remains)."""
        started = _start_time(pid)
        return None if started is None else cls(pid=pid, started=started)

    def is_running(self) -> bool:
        """Say whether this very process still runs; a paused process counts as running."""
        _reap(self.pid)
        return _start_time(self.pid) == self.started

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; return False if it is gone."""
        if not self.is_running():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def stop(self, timeout_s: float) -> None:
        """End the process: SIGTERM, after ``timeout_s`` SIGKILL; returns once it is gone."""
        stop_all([self], timeout_s)

    def kill(self) -> None:
        """End the process with SIGKILL; returns once it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(KILL_WAIT_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; return False if it still runs after ``timeout_s``."""
        return wait_until(lambda: not self.is_running(), timeout_s)


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    detached: bool,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start a process, its output appended to ``log``; raises Unavailable if it cannot be started.

    What it makes, and its log, is for its account alone.
    """
    argv = [str(word) for word in command]
    if not detached and sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *argv]
    log.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE), "ab") as output:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                umask=PRIVATE_UMASK,
            )
        except OSError as error:
            raise Unavailable(f"cannot start {argv[0]}: {error.strerror}") from error
    started = _start_time(child.pid)
    child.returncode = 0  # this module reaps children itself; without this, Popen would warn of a child that still runs
    return Process(pid=child.pid, started=started or "ended at once")


def stop_all(processes: Sequence[Process], timeout_s: float) -> None:
    """End processes together: SIGTERM to all, and SIGKILL to those that remain after ``timeout_s``."""
    for process in processes:
        if process.signal(signal.SIGTERM):
            process.signal(signal.SIGCONT)  # a paused process acts on SIGTERM only after this
    wait_until(lambda: not any(process.is_running() for process in processes), timeout_s)
    for process in processes:
        process.kill()


def wait_until(condition: Callable[[], bool], timeout_s: float, *, interval_s: float = POLL_INTERVAL_S) -> bool:
    """Poll ``condition`` until it holds; return whether it did within ``timeout_s``."""
    deadline = Deadline.after_s(timeout_s)
    while not condition():
        if deadline.has_passed:
            return False
        time.sleep(interval_s)
    return True


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log file, or a word on why there are none."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 64 * 1024))
            text = handle.read().decode(errors="replace")
    except OSError as error:
        return f"({log}: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or f"({log} is empty)"


def _start_time(pid: int) -> str | None:
    """Return when a process started, as an opaque text; None if it is gone or only waits to be reaped."""
    if not _PROC.joinpath("self/stat").exists():
        return _start_time_by_ps(pid)
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX" and not _has_other_threads(pid):
        return None
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{fields[18]}"  # field 22 of proc(5), in clock ticks since boot


def _has_other_threads(pid: int) -> bool:
    """Say whether a process whose first thread has ended still has others: until they end, it holds its files."""
    try:
        return len(os.listdir(_PROC / str(pid) / "task")) > 1
    except FileNotFoundError:
        return False


def _start_time_by_ps(pid: int) -> str | None:
    """Return the same as :func:`_start_time`, where there is no /proc."""
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = done.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def _reap(pid: int) -> None:
    """Collect the process if it is a child of ours that has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
