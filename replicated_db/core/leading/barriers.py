"""When a leader's barriers are due: each interval while there are writes, once when they cease, and for each scrub."""

from __future__ import annotations

NEVER_MS = 1 << 62
"""A time since boot that is never reached."""


class Barriers:
    """The barriers of one claim, which begins with a scrub.

    Times are milliseconds since boot. With a ``scrub_interval_ms`` of 0 no further scrub follows. A log to which
    nothing has been written since its last scrub has the next one when the log's time is a multiple of the interval,
    but not before half of it has passed. Logs at rest then wake the audit together, and once.
    """

    def __init__(self, *, interval_ms: int, scrub_interval_ms: int, elapsed_ms: int) -> None:
        self._interval_ms = interval_ms
        self._scrub_interval_ms = scrub_interval_ms
        self._at_ms = elapsed_ms
        self._scrub_at_ms = elapsed_ms
        self._is_at_rest = False
        self.written = False
        """Whether there have been writes since the last barrier. The leader sets it."""

    def is_due(self, elapsed_ms: int) -> bool:
        """Whether to append a barrier now."""
        return elapsed_ms >= self._scrub_at_ms or (self.written and elapsed_ms >= self._at_ms)

    def due_in_ms(self, elapsed_ms: int) -> int:
        """Return how many milliseconds there are until a barrier is due, if nothing is written meanwhile."""
        due_ms = min(self._scrub_at_ms, self._at_ms) if self.written else self._scrub_at_ms
        return max(0, due_ms - elapsed_ms)

    def take(self, elapsed_ms: int, timestamp_ms: int) -> bool:
        """Say whether the barrier appended now is a scrub; set the times of the next barrier and the next scrub.

        ``timestamp_ms``: the log's time, since the epoch.
        """
        scrub = elapsed_ms >= self._scrub_at_ms
        self._at_ms = elapsed_ms + self._interval_ms
        self._is_at_rest &= not self.written
        if scrub:
            self._scrub_at_ms = elapsed_ms + self._until_scrub_ms(timestamp_ms)
            self._is_at_rest = True
        self.written = False
        return scrub

    def _until_scrub_ms(self, timestamp_ms: int) -> int:
        if not self._scrub_interval_ms:
            return NEVER_MS
        if not self._is_at_rest:
            return self._scrub_interval_ms
        until_ms = self._scrub_interval_ms - timestamp_ms % self._scrub_interval_ms
        # The log's time stands still where an earlier leader's clock was ahead of this one's.
        return until_ms if until_ms > self._scrub_interval_ms // 2 else until_ms + self._scrub_interval_ms
