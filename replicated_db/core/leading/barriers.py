"""When a leader's barriers are due: each interval while there are writes, once when they cease, and for each scrub."""

from __future__ import annotations

NEVER_MS = 1 << 62
"""A time since boot that is never reached."""


class Barriers:
    """The barriers of one claim, which begins with a scrub.

    Times are milliseconds since boot. With a ``scrub_interval_ms`` of 0 no further scrub follows.
    """

    def __init__(self, *, interval_ms: int, scrub_interval_ms: int, elapsed_ms: int) -> None:
        self._interval_ms = interval_ms
        self._scrub_interval_ms = scrub_interval_ms
        self._at_ms = elapsed_ms
        self._scrub_at_ms = elapsed_ms
        self.written = False
        """Whether there have been writes since the last barrier. The leader sets it."""

    def is_due(self, elapsed_ms: int) -> bool:
        """Whether to append a barrier now."""
        return elapsed_ms >= self._scrub_at_ms or (self.written and elapsed_ms >= self._at_ms)

    def take(self, elapsed_ms: int) -> bool:
        """Say whether the barrier appended now is a scrub; set the times of the next barrier and the next scrub."""
        scrub = elapsed_ms >= self._scrub_at_ms
        self._at_ms = elapsed_ms + self._interval_ms
        if scrub:
            self._scrub_at_ms = elapsed_ms + self._scrub_interval_ms if self._scrub_interval_ms else NEVER_MS
        self.written = False
        return scrub
