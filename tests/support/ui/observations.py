"""Observations of a cluster with three nodes and two shards, all of them well unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schemas.records.messages import Verdict, WindowRow, WindowStats
from spark_streaming.records.core.freshness import ReportedPartition
from stratolog.ui.core.observed import Observed

NOW_MS = 1_700_000_000_000
NODES = ("om1", "om2", "om3")
INDEX = 1_234


def verdict(
    node: str = "om1", shard: int = 0, said: str = "equal", basis: str = "incremental", **given: Any
) -> Verdict:
    values = {
        "cluster": "c", "shard": shard, "node": node, "barrier_offset": 100, "index": INDEX, "verdict": said,
        "basis": basis, "differences": [], "differing_slots": 0, "evidence": None, "reason": "",
        "decided_at_ms": NOW_MS - 4_000,
    }  # fmt: skip
    return Verdict(**{**values, **given})


def all_equal(**given: Any) -> list[Verdict]:
    return [
        verdict(node, shard, basis=basis, **given)
        for node in NODES
        for shard in (0, 1)
        for basis in ("incremental", "scrubbed")
    ]


def view(shard: int, role: str = "follower", **given: Any) -> dict[str, Any]:
    return {
        "shard": shard, "role": role, "leader": "om1", "term": 3, "applied_index": INDEX, "applied_offset": 200,
        "chain": "ab" * 32, "digest": "f" * 16, "flagged": False, "members": list(NODES), "records_void": 0, **given,
    }  # fmt: skip


def status(node: str) -> dict[str, Any]:
    return {"node": node, "shards": [view(shard, "leader" if node == "om1" else "follower") for shard in (0, 1)]}


def window(
    start_ms: int, count: int = 500, *, result: str = "OK", shard: int = 0, kind: str = "CreateKey"
) -> WindowStats:
    row = WindowRow(metric="request", kind=kind, status=result, count=count, total=count, greatest=90, p50=12, p99=40)
    return WindowStats(
        cluster="c", log="om.log", shard=shard, source="log", start_ms=start_ms, seconds=10, rows=[row], late=0,
        counted_at_ms=start_ms + 12_000,
    )  # fmt: skip


def datanode(name: str = "dn1", **given: Any) -> dict[str, Any]:
    return {
        "datanode": name, "address": "h:1", "http_address": "h:2", "rack": "/r", "state": "IN_SERVICE",
        "health": "HEALTHY", "silent_ms": 300, "capacity_bytes": 1000, "free_bytes": 250, "active_streams": 2,
        "containers": 3, "pipelines": [0], "open_pipelines": 1, "faults": [], **given,
    }  # fmt: skip


def bucket(name: str, used: int, keys: int = 1, quota: int = -1, quota_keys: int = -1) -> dict[str, Any]:
    return {
        "volume": "v", "bucket": name, "quota_in_bytes": quota, "quota_in_namespace": quota_keys,
        "usage": {"used_bytes": used, "used_namespace": keys},
    }  # fmt: skip


WELL = Observed(
    now_ms=NOW_MS, cluster="c", shards=2, nodes={node: status(node) for node in NODES}, verdicts=all_equal(),
    reported_ms={ReportedPartition("om.log", shard): NOW_MS - 5_000 for shard in (0, 1)},
)  # fmt: skip


def seen(**given: Any) -> Observed:
    return replace(WELL, **given)
