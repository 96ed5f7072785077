"""When the audit needs a micro-batch though nothing is new: a report is missing, and nothing else happens.

Spark would run a micro-batch at every trigger for a query with timers, also on a quiet cluster. So micro-batches
without data are switched off, and the job makes a datum itself: a record without a value on the topic of windows, which
the audit's query reads and leaves out. It does so once for each delay (:class:`MatchingLimits`) after the last
micro-batch that found anything. All timers that are due fire then. If they give verdicts, another one follows.
"""

from __future__ import annotations

from collections.abc import Iterable

WAKE_UP: tuple[bytes, None] = (b"wake-up", None)
"""The record, as key and value: readers of windows skip what is no window."""

MARGIN_S = 1.0
"""Timers are rounded up to half a second."""


class WakeUps:
    """Says when to wake the query up; times are seconds of one clock."""

    def __init__(self, delays_ms: Iterable[int]) -> None:
        self._delays_s = [delay_ms / 1000 + MARGIN_S for delay_ms in delays_ms]
        self._due_s: list[float] = []

    def note(self, now_s: float) -> None:
        """Take note of a start, or of a micro-batch that has found something: barriers, or verdicts."""
        self._due_s = [now_s + delay_s for delay_s in self._delays_s]

    def is_near(self, now_s: float) -> bool:
        """Say whether :meth:`is_due` would say so."""
        return any(due_s <= now_s for due_s in self._due_s)

    def is_due(self, now_s: float) -> bool:
        """Say whether to wake the query up now; once for each delay."""
        left = [due_s for due_s in self._due_s if due_s > now_s]
        was_due, self._due_s = len(left) < len(self._due_s), left
        return was_due
