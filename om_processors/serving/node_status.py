"""A node's report on itself: health, status, and metrics in Prometheus' text format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from prometheus_client.core import Metric

from om_processors.config import NodeConfig
from om_processors.intake.core.backlog import Backlog
from om_processors.serving.request_metrics import (
    LATENCY,
    REQUESTS,
    RequestMetrics,
    latency_family,
    requests_family,
)
from om_processors.serving.views import Json
from replicated_db.core.applying.replica import Replica
from replicated_db.shell.bootstrap.bootstrap import installed_of
from replicated_db.shell.leader_loop import LeaderLoop
from schemas import features
from transport.web.metrics import Metrics, family

_METRICS = (
    ("stratolog_applied_index", "gauge", "Managed index applied.", lambda r, _: r.position.index),
    (
        "stratolog_applied_offset",
        "gauge",
        "Offset of the last record that took effect.",
        lambda r, _: r.position.offset,
    ),
    ("stratolog_term", "gauge", "Current term.", lambda r, _: r.position.term),
    (
        "stratolog_records_applied_total",
        "counter",
        "Records that took effect since start.",
        lambda r, _: r.records_applied,
    ),
    ("stratolog_records_void_total", "counter", "Void records read since start.", lambda r, _: r.records_void),
    (
        "stratolog_flagged",
        "gauge",
        "1 if the replica has found a divergence.",
        lambda r, _: int(r.evidence is not None),
    ),
    (
        "stratolog_late_requests_total",
        "counter",
        "Logged requests that this replica has executed since start (late validation).",
        lambda r, _: r.late.requests,
    ),
    (
        "stratolog_late_invalid_requests_total",
        "counter",
        "Logged requests that this replica has found invalid since start.",
        lambda r, _: r.late.invalid,
    ),
    ("stratolog_leading", "gauge", "1 if this node leads the shard.", lambda _, loop: int(loop.leading)),
    ("stratolog_leader_requests_total", "counter", "Requests executed as leader.", lambda _, loop: loop.requests),
    ("stratolog_leader_batches_total", "counter", "Batches made effective as leader.", lambda _, loop: loop.batches),
)
_LABELS = ("node", "shard")
_OVERLOADED = ("stratolog_refused_overloaded_total", "counter", "Requests refused with OVERLOADED.", _LABELS)

FAMILIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    *((name, kind, text, _LABELS) for name, kind, text, _ in _METRICS),
    REQUESTS,
    LATENCY,
    _OVERLOADED,
)
"""Name, kind, meaning and labels of each metric of a node."""


class NodeStatus:
    """Reads the figures of the replicas and loops; changes nothing."""

    def __init__(
        self, config: NodeConfig, replicas: Mapping[int, Replica], loops: Mapping[int, LeaderLoop],
        roles: Callable[[int], Json], requests: Mapping[int, RequestMetrics], backlogs: Mapping[int, Backlog],
        rolling_scrub: Callable[[int], Json | None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``roles`` and ``rolling_scrub`` say of a shard's number what the leadership and the scan know."""
        self._config = config
        self._roles = roles
        self._rolling_scrub = rolling_scrub
        self._requests = requests
        self._backlogs = backlogs
        self._replicas = replicas
        self._loops = loops
        self._metrics = Metrics(self._families)

    def health(self) -> tuple[int, Json]:
        """Return 200 if every replica serves reads, else 503 with the flagged shards."""
        flagged = [shard for shard, replica in self._replicas.items() if replica.evidence is not None]
        if flagged:
            return 503, {"status": "flagged", "shards": flagged}
        return 200, {"status": "ok"}

    def status(self) -> Json:
        """Return the node and each of its shards."""
        return {
            "node": self._config.node,
            "cluster": self._config.cluster,
            "address": self._config.address,
            "pid": os.getpid(),
            "known_feature_level": features.LATEST,
            "shards": [self._shard(shard, replica) for shard, replica in self._replicas.items()],
        }

    def _shard(self, shard: int, replica: Replica) -> Json:
        with replica.lock:
            position, digest, evidence = replica.position, replica.digests.total(), replica.evidence
            late_types, late_requests, late_invalid = replica.state.late, replica.late.requests, replica.late.invalid
        role = "leader" if self._loops[shard].leading else "follower"
        return {
            "shard": shard, "role": role, "leader": position.leader, "leader_address": position.address,
            "term": position.term, "applied_offset": position.offset, "applied_index": position.index,
            "read_offset": replica.read_offset, "timestamp_ms": position.timestamp_ms,
            "digest": f"{digest:016x}", "chain": position.chain.hex(), "flagged": evidence is not None,
            "evidence": None if evidence is None else {**asdict(evidence), "key": evidence.key.hex()},
            "records_applied": replica.records_applied, "records_void": replica.records_void,
            "members": list(replica.state.replicas), "feature_level": replica.state.feature_level,
            "prepared": replica.state.prepared, **self._roles(shard),
            "installed": installed_of(replica.store), "rolling_scrub": self._rolling_scrub(shard),
            "late_types": sorted(late_types), "late_requests": late_requests, "late_invalid": late_invalid,
        }  # fmt: skip

    def metrics(self) -> str:
        """Return the metrics as Prometheus' text, with those of the process."""
        return self._metrics.text()

    def _families(self) -> Iterable[Metric]:
        for name, kind, text, value in _METRICS:
            yield family(
                name, kind, text,
                [(self._labels(shard), value(replica, self._loops[shard]))
                 for shard, replica in self._replicas.items()],
            )  # fmt: skip
        # Requests of the shards that this node led: summed over all nodes, each request counts once.
        yield requests_family((self._labels(shard), requests) for shard, requests in self._requests.items())
        yield latency_family((self._labels(shard), requests) for shard, requests in self._requests.items())
        yield family(
            *_OVERLOADED[:3],
            [(self._labels(shard), self._backlogs[shard].refused) for shard in self._requests],
        )  # fmt: skip

    def _labels(self, shard: int) -> dict[str, str]:
        return {"node": self._config.node, "shard": str(shard)}
