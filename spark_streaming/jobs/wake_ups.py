"""When the audit needs a micro-batch though nothing is new: a report is missing, and nothing else happens.

Spark would run a micro-batch at every trigger for a query with timers, also on a quiet cluster. So micro-batches
without data are switched off, and the job makes a datum itself: a record without a value on the topic of windows, which
the audit's query reads and leaves out. All timers that are due fire then.

The operator says of each partition when its timer is due. What partitions wait for that have had no rows since a start
is not known: until they do, the query is woken up once for each delay (:class:`MatchingLimits`) after the start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from spark_streaming.records.core.freshness import ReportedPartition

WAKE_UP: tuple[bytes, None] = (b"wake-up", None)
"""The record, as key and value: readers of windows skip what is no window."""

MARGIN_S = 1.0
"""How much later than a timer a micro-batch begins that fires it."""


class WakeUps:
    """Says when to wake the query up; times are seconds of one clock. Thread-safe."""

    def __init__(self, delays_ms: Iterable[int], now_s: float) -> None:
        """``delays_ms``: how long after the start, at ``now_s``, a report is judged that has been missing before."""
        self._unknown_s = tuple(now_s + delay_ms / 1000 + MARGIN_S for delay_ms in delays_ms)
        self._waiting_s: dict[ReportedPartition, float] = {}
        self._lock = threading.Lock()

    def note(self, waiting_ms: Mapping[ReportedPartition, int | None], now_ms: int, now_s: float) -> None:
        """Take note of a micro-batch: when partitions' timers are due, in ms of ``now_ms``'s clock, None if never."""
        with self._lock:
            for partition, due_ms in waiting_ms.items():
                self._waiting_s.pop(partition, None)
                if due_ms is not None:
                    self._waiting_s[partition] = now_s + (due_ms - now_ms) / 1000 + MARGIN_S

    def is_near(self, now_s: float) -> bool:
        """Say whether :meth:`is_due` would say so."""
        with self._lock:
            return self._are_due(now_s)

    def is_due(self, now_s: float) -> bool:
        """Say whether to wake the query up now; once for each timer."""
        with self._lock:
            were_due = self._are_due(now_s)
            self._unknown_s = tuple(due_s for due_s in self._unknown_s if due_s > now_s)
            self._waiting_s = {partition: due_s for partition, due_s in self._waiting_s.items() if due_s > now_s}
            return were_due

    def _are_due(self, now_s: float) -> bool:
        return any(due_s <= now_s for due_s in (*self._unknown_s, *self._waiting_s.values()))
