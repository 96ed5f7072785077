"""The gate before the sinks: a stop lets the micro-batch inside end, and none begin.

Spark's own ``stop`` interrupts a query wherever it is. Interrupted within a sink it would leave half a file, and
verdicts that are sent once more after the next start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class GateClosed(Exception):
    """The job is stopping: this micro-batch is not written, and will be run again by the next start."""


class BatchGate:
    """Lets micro-batches pass until it is closed; thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._noted_at_s = time.monotonic()
        self.passed = 0
        """How many micro-batches have passed."""

    def note(self) -> None:
        """Take note that there was something to audit: the gate is not quiet."""
        self._noted_at_s = time.monotonic()

    def quiet_s(self) -> float:
        """Return the seconds since something was noted; 0 while a micro-batch is inside."""
        return 0.0 if self._inside else time.monotonic() - self._noted_at_s

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Write a micro-batch within this context; raises GateClosed if none may begin."""
        with self._changed:
            if self._is_closed:
                raise GateClosed("the audit is stopping")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self.passed += 1
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Let no further micro-batch in, and wait for those inside; return whether they have ended in time."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: not self._inside, timeout_s)
