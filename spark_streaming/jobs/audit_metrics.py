"""Metrics of the running audit in Prometheus' text format: what its queries read, and what its verdicts say.

The job hands in the progress of its query, and the verdicts that its sink has written. Figures are put together when
somebody asks, as in the other processes (``transport.web.metrics``).
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from schemas.records.messages import Verdict
from transport.topics.core.latest_verdicts import LatestVerdicts
from transport.web.metrics import Metrics, family

_QUERY, _SOURCE, _REPLICA = ("query",), ("query", "topic", "partition"), ("log", "shard", "node", "basis")

FAMILIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("stratolog_audit_query_active", "gauge", "1 while the query runs.", _QUERY),
    ("stratolog_audit_batch_id", "gauge", "Number of the last micro-batch that had news.", _QUERY),
    ("stratolog_audit_batches_total", "counter", "Micro-batches with news since start.", _QUERY),
    ("stratolog_audit_rows_total", "counter", "Records and reports read since start.", _QUERY),
    ("stratolog_audit_batch_seconds", "gauge", "How long the last micro-batch took.", _QUERY),
    ("stratolog_audit_rows_per_second", "gauge", "Rows that the last micro-batch took in a second.", _QUERY),
    ("stratolog_audit_state_bytes", "gauge", "Memory of the query's state.", _QUERY),
    ("stratolog_audit_progress_timestamp_seconds", "gauge", "When the query last said anything.", _QUERY),
    ("stratolog_audit_offset", "gauge", "Next offset that the query reads.", _SOURCE),
    ("stratolog_audit_lag_records", "gauge", "Records that the query had not read at its last progress.", _SOURCE),
    ("stratolog_audit_verdicts_total", "counter", "Verdicts given since start.", ("log", "verdict", "basis")),
    (
        "stratolog_audit_replica_verdict", "gauge", "1 at the latest verdict on a replica, as its label says.",
        (*_REPLICA, "verdict"),
    ),
    ("stratolog_audit_replica_index", "gauge", "Managed index of the latest verdict on a replica.", _REPLICA),
    ("stratolog_audit_verdict_timestamp_seconds", "gauge", "When a partition's latest verdict was decided.", ("log", "shard")),
)  # fmt: skip
"""Name, kind, meaning and labels of each metric of the audit."""

Labels = tuple[str, ...]


class AuditMetrics:
    """The figures of one audit; safe for the threads that report and those that ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: dict[str, Mapping[str, Any]] = {}
        self._heard_at: dict[str, float] = {}
        self._active: dict[str, bool] = {}
        self._sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._given: Counter[Labels] = Counter()
        self._latest = LatestVerdicts()

    # -- what the audit tells ------------------------------------------------------------------------------------------

    def on_active(self, query: str, *, active: bool) -> None:
        """Note that a query has begun or ended."""
        with self._lock:
            self._active[query] = active
            self._heard_at[query] = time.time()

    def on_idle(self, query: str) -> None:
        """Note that a query lives, and has nothing to read."""
        with self._lock:
            self._heard_at[query] = time.time()

    def on_progress(self, query: str, progress: Mapping[str, Any]) -> None:
        """Note a micro-batch; ``progress`` as in Spark's JSON. One without rows says that the query waits."""
        rows = _number(progress.get("numInputRows"))
        with self._lock:
            self._heard_at[query] = time.time()
            if rows:
                self._progress[query] = progress
                self._sums["batches", query] += 1
                self._sums["rows", query] += rows

    def on_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Note verdicts that are written."""
        given = list(verdicts)
        with self._lock:
            self._given.update((one.log, one.verdict, one.basis) for one in given)
            self._latest.take(given)

    # -- what Prometheus asks ------------------------------------------------------------------------------------------

    def shown(self) -> Metrics:
        """Return all metrics of this process: the audit's, and those of the process itself."""
        return Metrics(self._families)

    def _families(self) -> Iterator[Metric]:
        with self._lock:
            samples = {name: list(self._samples(name)) for name, *_ in FAMILIES}
        for name, kind, text, labels in FAMILIES:
            found = ((dict(zip(labels, values, strict=True)), figure) for values, figure in samples[name])
            yield family(name, kind, text, found)

    def _samples(self, name: str) -> Iterator[tuple[Labels, float]]:
        short = name.removeprefix("stratolog_audit_")
        if short in _OF_QUERIES:
            yield from (((query,), _OF_QUERIES[short](found)) for query, found in self._progress.items())
        elif short in {"batches_total", "rows_total"}:
            wanted = short.removesuffix("_total")
            yield from (((query,), figure) for (what, query), figure in self._sums.items() if what == wanted)
        elif short == "query_active":
            yield from (((query,), float(active)) for query, active in self._active.items())
        elif short == "progress_timestamp_seconds":
            yield from (((query,), at_s) for query, at_s in self._heard_at.items())
        elif short in {"offset", "lag_records"}:
            for query, found in self._progress.items():
                for topic, partition, offset, lag in places(found):
                    yield (query, topic, partition), float(offset if short == "offset" else lag)
        else:
            yield from self._of_verdicts(short)

    def _of_verdicts(self, short: str) -> Iterator[tuple[Labels, float]]:
        if short == "verdicts_total":
            yield from ((labels, float(count)) for labels, count in self._given.items())
        elif short == "verdict_timestamp_seconds":
            newest: dict[Labels, int] = {}
            for one in self._latest:
                place = (one.log, str(one.shard))
                newest[place] = max(newest.get(place, 0), one.decided_at_ms)
            yield from ((place, at_ms / 1000) for place, at_ms in newest.items())
        else:
            for one in self._latest:
                replica = (one.log, str(one.shard), one.node, one.basis)
                yield ((*replica, one.verdict), 1.0) if short == "replica_verdict" else (replica, float(one.index))


_OF_QUERIES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "batch_id": lambda found: _number(found.get("batchId")),
    "batch_seconds": lambda found: _number((found.get("durationMs") or {}).get("triggerExecution")) / 1000,
    "rows_per_second": lambda found: _number(found.get("processedRowsPerSecond")),
    "state_bytes": lambda found: sum(_number(one.get("memoryUsedBytes")) for one in found.get("stateOperators") or ()),
}
"""Figures that a progress holds, by the metric's name."""


def _number(value: Any) -> float:
    """Return a figure of Spark's, 0 for one that is missing, no number, or not finite (Spark writes "NaN")."""
    return float(value) if isinstance(value, int | float) and abs(value) < float("inf") else 0.0


def places(progress: Mapping[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    """Yield topic, partition, next offset and lag of each partition that a progress names."""
    for source in progress.get("sources") or ():
        reached, newest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
        for topic, partitions in reached.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset, max(0, newest.get(topic, {}).get(partition, offset) - offset)


def _offsets(found: Any) -> dict[str, dict[str, int]]:
    """Return the offsets of a source, which Spark writes as JSON or as text of JSON; none if it has none yet."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}
