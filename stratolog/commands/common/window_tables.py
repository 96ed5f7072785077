"""Tables of windows: throughput, latency and lag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_streaming.records.core.freshness import age_words
from spark_streaming.windows.core.reading_windows import lags, rows_of
from stratolog.commands.common.output import print_table

if TYPE_CHECKING:
    from schemas.records.messages import WindowRow, WindowStats

Cells = tuple[object, ...]


def print_windows(windows: Sequence[WindowStats], now_ms: int) -> None:
    """Print windows for people."""
    logs = [one for one in windows if one.source == "log"]
    columns = ("log", "shard", "window", "requests/s", "operations/s", "KB/s", "batches/s", "late")
    less = ("batches/s", "KB/s", "log")
    print_table("Throughput, from the logs", columns, [_throughput(one, now_ms) for one in logs], less)
    requests = [_request(one, row) for one in logs for row in rows_of(one, "request")]
    if requests:
        names = ("shard", "request", "result", "per s", "p50 ms", "p99 ms", "longest ms")
        print_table("Requests: from the client's sending to the log", names, requests, ("longest ms",))
    behind = [(log, shard, node, lag) for (log, shard, node), lag in lags(windows).items()]
    if behind:
        print_table("Replicas: indexes behind the log in that window", ("log", "shard", "node", "behind"), behind)


def _throughput(one: WindowStats, now_ms: int) -> Cells:
    def rate(amount: float) -> str:
        return f"{amount / one.seconds:,.1f}"

    requests = sum(row.total for row in rows_of(one, "batch") if row.kind == "requests")
    operations = sum(row.total for row in rows_of(one, "operation"))
    size = sum(row.total for row in rows_of(one, "record"))
    batches = sum(row.count for row in _of_kind(rows_of(one, "record"), ("Batch", "RequestBatch")))
    ago = f"{one.seconds} s, {age_words(now_ms - one.start_ms)} ago"
    return one.log, one.shard, ago, rate(requests), rate(operations), rate(size / 1000), rate(batches), one.late


def _of_kind(rows: Iterable[WindowRow], kinds: Sequence[str]) -> list[WindowRow]:
    return [row for row in rows if row.kind in kinds]


def _request(one: WindowStats, row: WindowRow) -> Cells:
    return one.shard, row.kind, row.status, f"{row.count / one.seconds:,.1f}", row.p50, row.p99, row.greatest
