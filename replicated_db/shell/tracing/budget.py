"""The bounds of tracing: whoever may send requests may ask for spans. It imports nothing of OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Callable

TRACED_PER_S = 1_000
"""Traced requests, or records with traced requests, in a second at most; the others leave no spans here."""

MAX_OPEN = 1_000
"""Traced requests of a shard that are at work at the same time; further ones leave no spans."""

MAX_HEADERS = 16
"""Traced requests that a record of the log names; followers leave no spans of further ones."""

TRACED_FOR_MS = 10 * 60 * 1000
"""How old a record of the log may be when its requests still leave spans."""


class SpanBudget:
    """Counts what is traced in each second; for one thread.

    >>> budget = SpanBudget(2, now_s=lambda: 7.0)
    >>> [budget.allows() for _ in range(3)]
    [True, True, False]
    """

    def __init__(self, per_s: int = TRACED_PER_S, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._second = -1
        self._used = 0

    def allows(self) -> bool:
        """Whether one more may be traced now; it counts if so."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._used = second, 0
        if self._used >= self._per_s:
            return False
        self._used += 1
        return True
