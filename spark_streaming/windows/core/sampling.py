"""The samples of records added up by window, row and bucket, within one micro-batch and partition. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from spark_streaming.windows.core.window_book import BUCKET_RATIO, RowKey, Sample, WindowStream

SEPARATOR = "\t"
"""Between metric, kind and status in a sample's name."""

LOG = "log"
REPORTS = "reports"

Amounts64 = NDArray[np.int64]
Group = tuple[str, int, str, int]
"""Source, beginning of the window in ms, name, bucket."""


def buckets_of(amounts: Amounts64) -> NDArray[np.int64]:
    """Return the bucket of each amount (:func:`amount_of`): 0 for 0 and less.

    >>> buckets_of(np.array([-5, 0, 1, 2, 1015])).tolist()
    [0, 0, 1, 18, 177]
    """
    logarithms = np.log(np.maximum(amounts, 1)) / math.log(BUCKET_RATIO)
    return np.where(amounts > 0, np.maximum(1, np.ceil(logarithms)), 0).astype(np.int64)


class Sampling:
    """Adds up the samples of one micro-batch of a partition."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._groups: dict[Group, list[int]] = {}

    def add(self, source: str, appended_ms: int, names: Sequence[str], amounts: Amounts64) -> None:
        """Add the samples of a record that was appended at ``appended_ms``."""
        start_ms = appended_ms // self._window_ms * self._window_ms
        for name, amount, bucket in zip(names, amounts.tolist(), buckets_of(amounts).tolist(), strict=True):
            group = self._groups.get((source, start_ms, name, bucket))
            if group is None:
                self._groups[source, start_ms, name, bucket] = [1, amount, amount]
                continue
            group[0] += 1
            group[1] += amount
            group[2] = max(group[2], amount)

    def samples(self, log: str, shard: int) -> Iterator[Sample]:
        """Yield all groups of a partition as the book takes them."""
        for (source, start_ms, name, bucket), (count, total, greatest) in self._groups.items():
            metric, kind, status = (*name.split(SEPARATOR, 2), "", "")[:3]
            yield Sample(
                stream=WindowStream(log, shard, source), start_ms=start_ms, row=RowKey(metric, kind, status),
                bucket=bucket, samples=count, total=total, greatest=greatest,
            )  # fmt: skip
