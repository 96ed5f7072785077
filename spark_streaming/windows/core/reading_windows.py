"""What a reader of ``om.stats`` takes from its records: the last of each window, rates, and the replicas' lag. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.records.messages import WindowRow, WindowStats
from schemas.records.verdict_words import EVIDENCE

MAX_WINDOWS = 8_192
"""Most windows that a reader keeps: those of an hour of a cluster with eight shards and three pipelines."""


class WindowPlace(NamedTuple):
    """The subject of a record: a window of what was read of a partition."""

    start_ms: int
    log: str
    shard: int
    source: str


@dataclass(slots=True)
class LatestWindows:
    """The last record of each window; beyond MAX_WINDOWS the oldest windows are dropped."""

    windows: dict[WindowPlace, WindowStats] = field(default_factory=dict)

    def take(self, records: Iterable[WindowStats]) -> None:
        """Take records in the order in which they were written."""
        for one in records:
            self.windows[WindowPlace(one.start_ms, one.log, one.shard, one.source)] = one
        while len(self.windows) > MAX_WINDOWS:
            del self.windows[min(self.windows)]

    def of_each_partition(self) -> list[WindowStats]:
        """Return the newest window of each partition and source whose next one has begun, or else its only one.

        The window that is being counted is not full yet.
        """
        found: dict[tuple[str, int, str], list[WindowStats]] = {}
        for place in sorted(self.windows):
            found.setdefault((place.log, place.shard, place.source), []).append(self.windows[place])
        return [windows[-2] if len(windows) > 1 else windows[-1] for _, windows in sorted(found.items())]


def rows_of(stats: WindowStats, metric: str) -> list[WindowRow]:
    """Return the rows of one metric."""
    return [row for row in stats.rows if row.metric == metric]


def lags(windows: Iterable[WindowStats]) -> dict[tuple[str, int, str], int]:
    """Return how many indexes each replica is behind the last batch: (log, shard, node) -> at least 0.

    A partition whose windows have no batch, or no report of a replica, is left out.
    """
    last: dict[tuple[str, int], int] = {}
    reached: dict[tuple[str, int, str], int] = {}
    for one in windows:
        for row in rows_of(one, "log_index"):
            last[one.log, one.shard] = max(row.greatest, last.get((one.log, one.shard), 0))
        for row in rows_of(one, "replica"):
            if row.status != EVIDENCE:
                key = one.log, one.shard, row.kind
                reached[key] = max(row.greatest, reached.get(key, 0))
    return {
        (log, shard, node): max(0, last[log, shard] - index)
        for (log, shard, node), index in sorted(reached.items())
        if (log, shard) in last
    }
