"""The samples of records added up by window, row and bucket, within one micro-batch and partition. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

from spark_streaming.windows.core.window_book import BUCKET_RATIO, RowKey, Sample, WindowStream

LOG = "log"
REPORTS = "reports"
KNOWN_BUCKETS = 65_536
"""Amounts whose buckets are remembered: latencies repeat."""

RecordSamples = Mapping[tuple[RowKey, int], int]
"""Row and amount, and how often the record gives it."""

Group = tuple[str, int, RowKey, int]
"""Source, beginning of the window in ms, row, bucket."""


@lru_cache(KNOWN_BUCKETS)
def bucket_of(amount: int) -> int:
    """Return the bucket of an amount (:func:`amount_of`): 0 for 0 and less.

    >>> [bucket_of(amount) for amount in (-5, 0, 1, 2, 1015)]
    [0, 0, 1, 18, 177]
    """
    return max(1, math.ceil(math.log(amount) / math.log(BUCKET_RATIO))) if amount > 0 else 0


class Sampling:
    """Adds up the samples of one micro-batch of a partition."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._groups: dict[Group, list[int]] = {}

    def add(self, source: str, appended_ms: int, samples: RecordSamples) -> None:
        """Add the samples of a record that was appended at ``appended_ms``."""
        start_ms = appended_ms // self._window_ms * self._window_ms
        for (row, amount), count in samples.items():
            place = (source, start_ms, row, bucket_of(amount))
            group = self._groups.get(place)
            if group is None:
                self._groups[place] = [count, amount * count, amount]
                continue
            group[0] += count
            group[1] += amount * count
            group[2] = max(group[2], amount)

    def samples(self, log: str, shard: int) -> Iterator[Sample]:
        """Yield all groups of a partition as the book takes them."""
        for (source, start_ms, row, bucket), (count, total, greatest) in self._groups.items():
            yield Sample(
                stream=WindowStream(log, shard, source), start_ms=start_ms, row=row, bucket=bucket, samples=count,
                total=total, greatest=greatest,
            )  # fmt: skip
