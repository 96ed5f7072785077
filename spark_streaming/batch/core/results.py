"""The result of the audit of a whole log, partition by partition, as plain values. Pure.

One entry for each shard and each pipeline::

    {"shard", "barrier_offset", "index", "log_digest" (hex16), "log_chain" (hex), "oracle_digest", "oracle_rows",
     "oracle_agrees" (null if "late" or "base"), "late", "base" (null or {"offset", "index"}: the log was trimmed, and
     is judged from there on), "broken" (reason or null), "false_counters": [...],
     "replicas": [{"node", "verdict", "basis", "differing_slots", "differences", "evidence", "reason"}]}

A pipeline's entry also has "blocks" (:mod:`stored_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from schemas.records.verdict_words import EQUAL, INCREMENTAL, UNKNOWN
from spark_streaming.batch.core.computed import CounterDifference, ShardDigest
from spark_streaming.batch.core.gathering import GatheredVerdicts, LogPartition, PartitionFacts
from spark_streaming.batch.core.stored_bytes import are_blocks_ok
from spark_streaming.verdicts.core import digests

Json = dict[str, Any]


def partition_result(
    partition: LogPartition,
    gathered: GatheredVerdicts,
    computed: ShardDigest | None,
    counters: Iterable[CounterDifference],
    fact: PartitionFacts,
) -> Json:
    """Return the findings on a partition; ``computed`` is the oracle's result for its barrier, if there is one."""
    barrier = gathered.barriers.get(partition)
    late = barrier is not None and fact.is_late(barrier.offset)
    sums = barrier.sums if barrier is not None else None
    agrees = computed is not None and sums is not None and bool((computed.sums == sums).all())
    return {
        "shard": partition.shard,
        "barrier_offset": barrier.offset if barrier is not None else None,
        "index": barrier.index if barrier is not None else None,
        "log_digest": digests.total(sums) if sums is not None else None,
        "log_chain": barrier.chain.hex() if barrier is not None else None,
        "oracle_digest": computed.digest if computed is not None else None,
        "oracle_rows": computed.rows if computed is not None else None,
        "oracle_agrees": None if late or fact.base is not None else agrees,
        "late": late,
        "base": None if fact.base is None else {"offset": fact.base.offset, "index": fact.base.index},
        "broken": fact.broken,
        "replicas": [_replica_result(partition, node, gathered) for node in gathered.replicas.get(partition, [])],
        "false_counters": [_plain(asdict(one)) for one in counters if one.shard == partition.shard],
    }


def _replica_result(partition: LogPartition, node: str, gathered: GatheredVerdicts) -> Json:
    verdict = gathered.judged(partition, node)
    if verdict is None:
        return {
            "node": node, "verdict": UNKNOWN, "basis": INCREMENTAL, "differing_slots": 0, "differences": [],
            "evidence": None, "reason": "no report at the last barrier",
        }  # fmt: skip
    return {
        "node": node,
        "verdict": verdict.verdict,
        "basis": verdict.basis,
        "differing_slots": verdict.differing_slots,
        "differences": [asdict(difference) for difference in verdict.differences],
        "evidence": _plain(asdict(verdict.evidence)) if verdict.evidence is not None else None,
        "reason": verdict.reason,
    }


def _plain(values: Json) -> Json:
    """Bytes as hex, for JSON."""
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def whole_result(
    shards: Sequence[Json], pipelines: Sequence[Json], *, shards_wanted: bool, blocks_required: bool
) -> Json:
    """Assemble the entries and say whether all is well; what is wanted must have at least one entry."""
    wanted = shards if shards_wanted else pipelines
    ok = bool(wanted) and all(map(is_ok, shards)) and all(map(is_ok, pipelines))
    blocks_ok = all(are_blocks_ok(entry, required=blocks_required) for entry in pipelines)
    return {"ok": ok and blocks_ok, "shards": list(shards), "pipelines": list(pipelines)}


def with_meaning(result: Json, meaning: Json) -> Json:
    """Add what the rows say of each other: ``semantics``, {"findings": [...], "left_out": [why, ...]}."""
    return {**result, "ok": result["ok"] and not meaning["findings"], "semantics": meaning}


def is_ok(entry: Json) -> bool:
    """Say whether a partition's log is whole, the oracle agrees with it, and all its replicas are equal."""
    return (
        entry["broken"] is None
        and entry["oracle_agrees"] is not False
        and not entry["false_counters"]
        and bool(entry["replicas"])
        and all(replica["verdict"] == EQUAL for replica in entry["replicas"])
    )
