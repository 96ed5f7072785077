"""What a node says of itself: health, status, and metrics in Prometheus' text format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict

from om_processors.backlog import Backlog
from om_processors.config import NodeConfig
from om_processors.request_metrics import RequestMetrics
from om_processors.views import Json
from replicated_db.leader_loop import LeaderLoop
from replicated_db.replica import Replica
from schemas import features

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

_REQUEST_METRICS = (
    ("stratolog_requests_total", "counter", "Requests of effective batches by type and result, on the node that led."),
    ("stratolog_request_seconds", "histogram", "From a request's first sending until it was effective and applied."),
    ("stratolog_refused_overloaded_total", "counter", "Requests refused with OVERLOADED."),
)


class NodeStatus:
    """Reads the replicas' and loops' own figures; changes nothing."""

    def __init__(
        self, config: NodeConfig, replicas: Mapping[int, Replica], loops: Mapping[int, LeaderLoop],
        roles: Callable[[int], Json], requests: Mapping[int, RequestMetrics], backlogs: Mapping[int, Backlog],
    ) -> None:  # fmt: skip
        self._config = config
        self._roles = roles
        self._requests = requests
        self._backlogs = backlogs
        self._replicas = replicas
        self._loops = loops

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
            "late_types": sorted(late_types), "late_requests": late_requests, "late_invalid": late_invalid,
        }  # fmt: skip

    def metrics(self) -> str:
        """Return the metrics."""
        lines = []
        for name, kind, text, value in _METRICS:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for shard, replica in self._replicas.items():
                figure = value(replica, self._loops[shard])
                lines.append(f'{name}{{node="{self._config.node}",shard="{shard}"}} {figure}')
        lines += self._request_metrics()
        return "\n".join(lines) + "\n"

    def _request_metrics(self) -> list[str]:
        """Return what was asked of the shards that this node led: summed over all nodes, each request counts once."""
        by_metric: dict[str, list[str]] = {name: [] for name, _, _ in _REQUEST_METRICS}
        for shard, requests in self._requests.items():
            labels = f'node="{self._config.node}",shard="{shard}"'
            for name, line in requests.lines(labels):
                by_metric[name].append(line)
            by_metric["stratolog_refused_overloaded_total"].append(
                f"stratolog_refused_overloaded_total{{{labels}}} {self._backlogs[shard].refused}"
            )
        found = []
        for name, kind, text in _REQUEST_METRICS:
            found += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *by_metric[name]]
        return found
