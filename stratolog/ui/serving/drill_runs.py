"""Drills that the page has started: each is a ``stratolog drill`` of its own, and its output is kept.

One at a time. A drill gets SIGTERM when it is stopped, or when the dashboard ends: it then puts back what it touched
(``stratolog/commands/drill.py``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from stratolog.configuration.loading import without_variables
from stratolog.errors import Unavailable, UsageError
from stratolog.local import state
from stratolog.ui.core.drill_desk import DrillDesk, DrillRun

STARTABLE = (
    "kill-leader", "kill-follower", "zombie-leader", "poison-request", "replay", "corrupt-replica", "lost-broker",
    "rolling-upgrade", "bootstrap", "expired-log", "restore",
)  # fmt: skip
"""Drills that run without options of their own, in the page's order."""
ABOUT_A_SHARD = STARTABLE[:7]
STOP_TIMEOUT_S = 30.0
"""How long a drill may take to put back what it touched."""
LOCKS = Path("/proc/locks")


class DrillRuns:
    """Starts drills on the stack in ``data_dir``."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self.desk = DrillDesk()

    def start(self, name: str, shard: int | None) -> DrillRun:
        """Start a drill; raises UsageError for one that cannot be started here, Unavailable if one runs."""
        if name not in STARTABLE:
            raise UsageError(f"no drill {name!r} that can be started here; there are: {', '.join(STARTABLE)}")
        state.running_state(self._data_dir)
        with self._lock:
            if self.desk.running is not None or self.runs_elsewhere():
                raise Unavailable("a drill runs on this stack already")
            shard = (shard or 0) if name in ABOUT_A_SHARD else None
            run = self.desk.begin(name, shard, _now_ms())
            words = [] if shard is None else ["--shard", str(shard)]
            command = [sys.executable, "-m", "stratolog", "drill", name, *words]
            environment = {**without_variables(os.environ), "STRATOLOG_DATA_DIR": str(self._data_dir)}
            try:
                self._child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    errors="replace", env=environment, cwd=self._data_dir, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                run.end(-1, _now_ms())
                raise Unavailable(f"the drill cannot be started: {error.strerror}") from error
        threading.Thread(target=self._follow, args=(run, self._child), name="ui-drill", daemon=True).start()
        return run

    def _follow(self, run: DrillRun, child: subprocess.Popen[str]) -> None:
        if child.stdout is not None:
            for line in child.stdout:
                run.say(line)
        run.end(child.wait(), _now_ms())

    def stop(self) -> bool:
        """Ask the running drill to end; return whether there is one."""
        child = self._child
        if child is None or child.poll() is not None:
            return False
        child.send_signal(signal.SIGTERM)
        return True

    def close(self) -> None:
        """End the running drill, and wait until it has put back what it touched."""
        if self.stop() and self._child is not None:
            try:
                self._child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._child.kill()

    def runs_elsewhere(self) -> bool:
        """Say whether a drill runs that was not started here.

        The lock is looked at, never taken: that could refuse a drill that is just starting.
        """
        if self.desk.running is not None:
            return False
        try:
            number = (self._data_dir / state.DRILL_LOCK_FILE).stat().st_ino
            lines = LOCKS.read_text().splitlines()
        except OSError:
            return False  # no drill ever ran, or not on Linux: the drill itself refuses to be the second
        return any(" FLOCK " in line and line.split()[5].rpartition(":")[2] == str(number) for line in lines)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
