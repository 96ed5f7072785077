"""When the audit needs a micro-batch though nothing is new: a report is missing, and nothing else happens.

A partition's deadlines are looked at when it has rows (``verdicts/audit.py``). If it has none, the job makes one: a
record without a value on the topic of windows, whose key names the partition. The audit's query reads it; readers of
windows leave it out.

The operator says of each partition when it is due. What partitions wait for that have had no rows since a start is not
known: all partitions are woken up once for each delay (:class:`MatchingLimits`) after the start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.transforms import WAKE_UP_PREFIX

MARGIN_S = 1.0
"""How much later than a deadline a partition is woken up for it."""


def wake_up(partition: ReportedPartition) -> tuple[bytes, None]:
    """Return the record that wakes a partition up, as key and value.

    >>> wake_up(ReportedPartition("om.log", 3))
    (b'wake-up:om.log/3', None)
    """
    return f"{WAKE_UP_PREFIX}{partition.log}/{partition.shard}".encode(), None


class DueWakeUps(NamedTuple):
    """What is to be woken up: some partitions, or ``everywhere`` all that there are."""

    partitions: frozenset[ReportedPartition]
    everywhere: bool

    def __bool__(self) -> bool:
        return self.everywhere or bool(self.partitions)


class WakeUps:
    """Says when to wake the query up; times are seconds of one clock. Thread-safe."""

    def __init__(self, delays_ms: Iterable[int], now_s: float) -> None:
        """``delays_ms``: how long after the start, at ``now_s``, a report is judged that has been missing before."""
        self._unknown_s = tuple(now_s + delay_ms / 1000 + MARGIN_S for delay_ms in delays_ms)
        self._waiting_s: dict[ReportedPartition, float] = {}
        self._lock = threading.Lock()

    def note(self, waiting_ms: Mapping[ReportedPartition, int | None], now_ms: int, now_s: float) -> None:
        """Take note of a micro-batch: when partitions are due, in ms of ``now_ms``'s clock, None if never."""
        with self._lock:
            for partition, due_ms in waiting_ms.items():
                self._waiting_s.pop(partition, None)
                if due_ms is not None:
                    self._waiting_s[partition] = now_s + (due_ms - now_ms) / 1000 + MARGIN_S

    def due(self, now_s: float) -> DueWakeUps:
        """Return what is to be woken up now, until :meth:`woken` is called."""
        with self._lock:
            partitions = (partition for partition, due_s in self._waiting_s.items() if due_s <= now_s)
            return DueWakeUps(frozenset(partitions), any(due_s <= now_s for due_s in self._unknown_s))

    def woken(self, now_s: float) -> None:
        """Take note that what was due at ``now_s`` has been woken up."""
        with self._lock:
            self._unknown_s = tuple(due_s for due_s in self._unknown_s if due_s > now_s)
            self._waiting_s = {partition: due_s for partition, due_s in self._waiting_s.items() if due_s > now_s}
