"""The book of windows: what micro-batches add up to, for each partition of each log by itself.

Rules:

1. A *stream* is a partition of a log and what was read of it: the log's records, or the replicas' reports. Kafka gives
   its records in order, so its own newest window says how far it has come. No stream waits for another, and none closes
   another's windows: on a backlog they are hours apart.
2. A window stays open until its stream has reached one that begins KEPT_WINDOWS windows later. Append times within a
   partition go back by a broker's clock at most, reports' times by the difference of the nodes' clocks.
3. What comes for a closed window is *late*: it is in no window, and is counted. Nothing is left out in silence.
4. A micro-batch gives, for each window that it changes, all that the window holds by then. So a reader takes the last,
   and a micro-batch that is repeated does no harm.
5. Amounts are integers, and sums exact. Percentiles come from buckets whose bounds grow by BUCKET_RATIO.
6. A window has ROWS_OF_A_WINDOW rows at most. Further ones are added up in one row of the kind OTHER.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

KEPT_WINDOWS = 6
"""Open windows behind a stream's newest."""

ROWS_OF_A_WINDOW = 1_000
"""Most rows of a window; request types times result codes are some hundreds."""

OTHER = "(other)"
"""Kind and status of what has no row of its own."""

ONE_A_RECORD = ("record", "replica")
"""Metrics of which each record gives one sample."""

BUCKET_RATIO = 1.04
"""A percentile is within 2 percent of the amount that it stands for."""


class WindowStream(NamedTuple):
    """A partition of a log, and the records that were counted: ``log`` or ``reports``."""

    log: str
    shard: int
    source: str


class RowKey(NamedTuple):
    """A row within a window."""

    metric: str
    kind: str
    status: str


class Sample(NamedTuple):
    """Samples of one row and bucket, added up within a micro-batch; ``start_ms``: the window's beginning."""

    stream: WindowStream
    start_ms: int
    row: RowKey
    bucket: int
    samples: int
    total: int
    greatest: int


@dataclass(slots=True)
class Amounts:
    """What a row holds: samples, their sum, the greatest, and how many are in each bucket."""

    count: int = 0
    total: int = 0
    greatest: int | None = None
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Add samples of one bucket."""
        self.count += sample.samples
        self.total += sample.total
        self.greatest = sample.greatest if self.greatest is None else max(self.greatest, sample.greatest)
        self.buckets[sample.bucket] = self.buckets.get(sample.bucket, 0) + sample.samples

    def percentile(self, share: float) -> int:
        """Return the amount that ``share`` of the samples (0..1) do not exceed; 0 without samples."""
        wanted, seen = math.ceil(share * self.count), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(amount_of(bucket), self.greatest or 0)
        return 0


def amount_of(bucket: int) -> int:
    """Return the amount that stands for a bucket: bucket n > 0 has those above RATIO^(n-1), up to RATIO^n.

    >>> amount_of(0), amount_of(1), amount_of(177)
    (0, 1, 1015)
    """
    return 0 if bucket <= 0 else round(BUCKET_RATIO**bucket * 2 / (1 + BUCKET_RATIO))


@dataclass(slots=True)
class StreamWindows:
    """The open windows of one stream by their beginnings, its newest, and how many records came too late."""

    newest_ms: int = 0
    late: int = 0
    windows: dict[int, dict[RowKey, Amounts]] = field(default_factory=dict)


class ChangedWindow(NamedTuple):
    """All that a window holds after a micro-batch that has changed it."""

    stream: WindowStream
    start_ms: int
    rows: dict[RowKey, Amounts]
    late: int


class WindowBook:
    """Open windows of all streams. ``batch_id``: the last micro-batch that was taken, -1 before the first."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.batch_id = -1
        self.streams: dict[WindowStream, StreamWindows] = {}

    def take(self, batch_id: int, samples: Iterable[Sample]) -> list[ChangedWindow]:
        """Add a micro-batch's samples; return the windows that it has changed, none if it was taken before.

        Spark may repeat the last one only. One that lies further back is of another checkpoint, which begins anew.
        """
        if batch_id == self.batch_id:
            return []
        if batch_id < self.batch_id:
            self.streams.clear()
        changed: dict[tuple[WindowStream, int], None] = {}
        for sample in sorted(samples, key=lambda sample: (sample.stream, sample.start_ms, sample.row, sample.bucket)):
            changed[sample.stream, self._add(sample)] = None
        self.batch_id = batch_id
        found = [
            ChangedWindow(stream, start_ms, self.streams[stream].windows[start_ms], self.streams[stream].late)
            for stream, start_ms in changed
        ]
        for stream in {stream for stream, _ in changed}:
            self._close(self.streams[stream])
        return found

    def _add(self, sample: Sample) -> int:
        """Add a sample to its window, or count it as late; return the beginning of the window that this changes."""
        held = self.streams.setdefault(sample.stream, StreamWindows(newest_ms=sample.start_ms))
        if sample.start_ms < self._closed_before(held):
            held.late += sample.samples if sample.row.metric in ONE_A_RECORD else 0
            return held.newest_ms
        held.newest_ms = max(held.newest_ms, sample.start_ms)
        rows, row = held.windows.setdefault(sample.start_ms, {}), sample.row
        if row not in rows and len(rows) >= ROWS_OF_A_WINDOW:
            row = RowKey(row.metric, OTHER, OTHER)
        rows.setdefault(row, Amounts()).add(sample)
        return sample.start_ms

    def _closed_before(self, held: StreamWindows) -> int:
        return held.newest_ms - KEPT_WINDOWS * self.window_ms

    def _close(self, held: StreamWindows) -> None:
        for start_ms in [start for start in held.windows if start < self._closed_before(held)]:
            del held.windows[start_ms]

    def holds(self, stream: WindowStream, start_ms: int) -> bool:
        """Say whether a window is open."""
        return stream in self.streams and start_ms in self.streams[stream].windows

    def open_windows(self) -> Iterator[ChangedWindow]:
        """Yield all that is open, as it is."""
        for stream, held in self.streams.items():
            for start_ms, rows in held.windows.items():
                yield ChangedWindow(stream, start_ms, rows, held.late)

    def __iter__(self) -> Iterator[tuple[WindowStream, StreamWindows]]:
        """Iterate over the streams."""
        return iter(self.streams.items())
