"""Pausing a process for certain: SIGSTOP takes its time, and until then some of its threads go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from stratolog.local.processes import wait_until

STOPS_WITHIN_S = 30.0
STOPPED = frozenset("Tt")
"""States of a thread that a signal or a debugger holds, in /proc."""


def pause(pid: int) -> None:
    """Send SIGSTOP; returns once every thread has stopped. Raises ProcessLookupError if there is no such process."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")

    def stopped() -> bool:
        return all(
            (one / "stat").read_text().rpartition(")")[2].split()[0] in STOPPED for one in list(threads.iterdir())
        )

    assert wait_until(stopped, STOPS_WITHIN_S, interval_s=0.001), f"process {pid} goes on after SIGSTOP"
