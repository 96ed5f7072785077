"""Numbers of requests by type and result, and their latencies, on the node that led.

A node counts the record of a batch that it wrote when it applies it (still leading, or deposed and reading the log).
A record counts once, under one claim, and a claim belongs to one node: summed over nodes, each request counts once.
Repeats, and refusals that are in no batch, do not count; OVERLOADED has a counter of its own. Counters live as long as
the process.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from replicated_db.core.leading.leader import Effective, Reply
from schemas.codecs.codec import decode_as
from schemas.records.log import Batch, RequestBatch
from schemas.records.messages import Response
from schemas.result_codes import OK

BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)
"""Upper bounds of the latency histogram, in ms; slower requests are in a last, unbounded bucket."""

_SUCCESS = re.compile(rb".{26}(?:[\x80-\xff]*[\x00-\x7f]){3}\x04OK\x00", re.DOTALL)
"""How the encoded Response of a success begins, which need not be decoded.

Avro writes the header and the client's id, three numbers, each of which ends at its first byte below 128, then status
OK and an empty message.
"""


def status_of(response: bytes) -> str:
    """Return the result code of an encoded Response."""
    if _SUCCESS.match(response):
        return OK
    return decode_as(Response, response).status


def executed(effective: Effective) -> Iterator[tuple[int, Reply]]:
    """Yield (index, reply) of each request of a batch, without the repeats that are answered with it."""
    record = effective.record
    if isinstance(record, Batch):
        entries: Any = record.results
    elif isinstance(record, RequestBatch):
        entries = record.requests
    else:
        return
    following = iter(entries)
    entry = next(following, None)
    for reply in effective.replies:
        if entry is None:
            return
        proposal = reply.proposal
        if proposal.call_id == entry.call_id and proposal.client_id == entry.client_id:
            yield entry.index, reply
            entry = next(following, None)


class RequestMetrics:
    """The counters of one shard on one node."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """(request type, result) -> number."""
        self.slower: list[int] = [0] * (len(BUCKETS_MS) + 1)
        """Number of requests by latency bucket, not cumulative."""
        self.total_ms = 0

    def count(self, batch: Batch, now_ms: int) -> None:
        """Count a batch that took effect; ``now_ms``: wall clock, as the requests' first sending."""
        self._count_all(
            (result.request_type, result.response, now_ms - result.first_sent_at_ms) for result in batch.results
        )

    def count_late(self, effective: Effective, now_ms: int) -> None:
        """Count a RequestBatch that took effect. Its record holds no results, so the leader's answers are counted."""
        self._count_all(
            (reply.proposal.request_type, reply.response, now_ms - reply.proposal.first_sent_at_ms)
            for _, reply in executed(effective)
        )

    def _count_all(self, requests: Iterable[tuple[str, bytes, int]]) -> None:
        """Count requests, each with its type, its response and its latency. Those of a batch have few latencies."""
        latencies: dict[int, int] = {}
        for kind, response, latency_ms in requests:
            self.counts[kind, status_of(response)] += 1
            latencies[latency_ms] = latencies.get(latency_ms, 0) + 1
        for latency_ms, number in latencies.items():
            self.slower[bisect_left(BUCKETS_MS, max(0, latency_ms))] += number
            self.total_ms += max(0, latency_ms) * number

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound in seconds, requests up to it) of the latency histogram, the unbounded one last."""
        bounds = [*(f"{bound_ms / 1000:g}" for bound_ms in BUCKETS_MS), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self.slower)), strict=True))


Labelled = Iterable[tuple[Mapping[str, str], RequestMetrics]]
"""Labels of a shard (``node``, ``shard``), and its counters."""


REQUESTS = (
    "stratolog_requests_total", "counter", "Requests of effective batches by type and result, on the node that led.",
    ("node", "shard", "type", "result"),
)  # fmt: skip
LATENCY = (
    "stratolog_request_seconds", "histogram", "From a request's first sending until it was effective and applied.",
    ("node", "shard"),
)  # fmt: skip
"""Name, kind, meaning and labels of the two metrics."""


def requests_family(shards: Labelled) -> Metric:
    """Return the number of requests by type and result."""
    name, _, text, names = REQUESTS
    found = CounterMetricFamily(name, text, labels=names)
    for labels, requests in shards:
        for (kind, status), number in sorted(requests.counts.items()):
            found.add_metric([labels["node"], labels["shard"], kind, status], number)
    return found


def latency_family(shards: Labelled) -> Metric:
    """Return the latencies of requests."""
    name, _, text, names = LATENCY
    found = HistogramMetricFamily(name, text, labels=names)
    for labels, requests in shards:
        found.add_metric([labels["node"], labels["shard"]], requests.buckets(), requests.total_ms / 1000)
    return found
