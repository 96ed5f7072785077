"""The real clock and the real randomness."""

from __future__ import annotations

import os
import time

from replicated_db.core.ports import Clock
from transport.waiting.deadline import Deadline


class SystemClock:
    """CLOCK_BOOTTIME (it counts on while the machine sleeps) and the wall clock."""

    def elapsed_ms(self) -> int:
        """Return milliseconds since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


def deadline_by(clock: Clock, timeout_s: float) -> Deadline:
    """Return the deadline ``timeout_s`` seconds from now on a node's own clock."""
    return Deadline.after_s(timeout_s, lambda: clock.elapsed_ms() / 1000)


class SystemIds:
    """Random bits from the operating system."""

    def nonce(self) -> bytes:
        """Return 16 random bytes."""
        return os.urandom(16)
