"""Samples on their way from the operator to the sink: a row of findings holds those of a partition, as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from spark_streaming.windows.core.window_book import RowKey, Sample, WindowStream


def encoded_samples(samples: Iterable[Sample]) -> bytes | None:
    """Return the samples of one partition as text, None if there are none."""
    rows = [
        [one.stream.source, one.start_ms, *one.row, one.bucket, one.samples, one.total, one.greatest] for one in samples
    ]
    return json.dumps(rows).encode() if rows else None


def decoded_samples(log: str, shard: int, value: bytes) -> Iterator[Sample]:
    """Yield the samples of a partition."""
    for source, start_ms, metric, kind, status, bucket, count, total, greatest in json.loads(value):
        yield Sample(
            stream=WindowStream(log, shard, source), start_ms=start_ms, row=RowKey(metric, kind, status), bucket=bucket,
            samples=count, total=total, greatest=greatest,
        )  # fmt: skip
