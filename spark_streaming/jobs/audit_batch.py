"""The audit at once: ``python -m spark_streaming.jobs.audit_batch --config FILE``.

Reads both topics to their current end through the same operator as the running audit (a fresh checkpoint, thrown away)
and judges every replica at the last barrier of its shard; the oracle then computes that barrier's digest the long way.
Progress goes to stderr; the last line of stdout is one JSON object::

    {"ok": bool, "shards": [{"shard", "barrier_offset", "index", "log_digest" (hex16), "log_chain" (hex),
      "oracle_digest", "oracle_rows", "oracle_agrees" (null if "late"), "late", "broken" (reason or null), "false_counters": [...],
      "replicas": [{"node", "verdict", "basis", "differing_slots", "differences", "evidence", "reason"}]}]}

"late": the log holds requests to be executed by each replica (late validation), so nobody can compute its rows from it; then
``log_digest`` is null until a DigestBase, and the verdicts say in ``basis`` that they rest on the replicas alone.

Exit status 0 only if every shard of the cluster has a barrier, all its replicas are ``equal`` there (a replica that
has not reported is ``unknown``), the oracle agrees with the log's sums, and no log is broken. 1 otherwise, 2 for a
wrong configuration. The barrier is the last one of a first pass over the topics; further passes, which read only what
is new, wait up to ``report_timeout_ms`` for its reports.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from schemas.messages import Verdict
from spark_streaming import digests, oracle, sources
from spark_streaming.jobs.config import AuditConfig, load_config
from spark_streaming.jobs.queries import start
from spark_streaming.matching import DIVERGED, EQUAL, LOG, SCRUBBED, UNKNOWN
from spark_streaming.reading import GENESIS, MEMBERS
from spark_streaming.session import build_session
from spark_streaming.sinks import FindingSink
from spark_streaming.state import sums_from

PAUSE_SECONDS = 0.5
"""Between passes that wait for reports."""


@dataclasses.dataclass(slots=True)
class _Gathered:
    """What the passes have found: barriers, and verdicts by (shard, node, basis).

    While ``fixed`` is false the last barrier of a shard replaces the one before it; then it is the one to judge.
    """

    barriers: dict[int, Row] = dataclasses.field(default_factory=dict)
    verdicts: dict[tuple[int, str, str], Verdict] = dataclasses.field(default_factory=dict)
    replicas: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    fixed: bool = False

    def observe(self, _batch_id: int, verdicts: list[Verdict], barriers: list[Row]) -> None:
        """Take a micro-batch."""
        if not self.fixed:
            for row in sorted(barriers, key=lambda row: row.offset):
                self.barriers[row.shard] = row
        for verdict in verdicts:
            key = (verdict.shard, verdict.node, verdict.basis)
            known = self.verdicts.get(key)
            last = self.barriers.get(verdict.shard)
            past = last is not None and verdict.barrier_offset > last.offset and verdict.basis != LOG
            if not past and (known is None or verdict.barrier_offset >= known.barrier_offset):
                self.verdicts[key] = verdict

    def judged(self, shard: int, node: str) -> Verdict | None:
        """Return what counts for a replica: the worst verdict at the barrier; a broken log before it counts too."""
        last = self.barriers[shard].offset if shard in self.barriers else -1
        found = [
            verdict
            for (of, name, basis), verdict in self.verdicts.items()
            if of == shard and name in (node, "") and (verdict.barrier_offset == last or basis == LOG)
        ]
        rank = {DIVERGED: 0, UNKNOWN: 1, EQUAL: 2}
        # Of equally bad ones the one that rests on a scrub says more.
        return min(
            found, key=lambda verdict: (rank[verdict.verdict], not verdict.basis.endswith(SCRUBBED)), default=None
        )

    def settled(self) -> bool:
        """Whether every replica has a verdict at the barrier of its shard."""
        return all(
            (verdict := self.judged(shard, node)) is not None and verdict.verdict != UNKNOWN
            for shard, nodes in self.replicas.items()
            for node in nodes
        )


def audit_once(session: SparkSession, config: AuditConfig) -> dict[str, Any]:
    """Audit to the topics' current end; return the result described above. ``config.work_dir`` is written to."""
    gathered = _Gathered()
    config.work_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = Path(tempfile.mkdtemp(prefix="audit-once-", dir=config.work_dir))
    once = dataclasses.replace(config, work_dir=checkpoint)
    sink = FindingSink(
        bootstrap_servers=config.bootstrap_servers, topic=None, output_dir=None, observe=gathered.observe
    )
    try:
        start(session, once, sink, once=True).awaitTermination()
        gathered.fixed = True
        source = sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topic=config.log_topic)
        records = sources.bounded(session, source)
        effective = oracle.effective_records(records).persist()
        facts = _shard_facts(effective)
        gathered.replicas = {shard: fact.replicas for shard, fact in facts.items()}
        deadline = time.monotonic() + config.report_timeout_ms / 1000
        while not gathered.settled() and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            start(session, once, sink, once=True).awaitTermination()
        until = {
            shard: (row.offset, row["index"])
            for shard, row in gathered.barriers.items()
            if not _is_late(facts.get(shard, _ShardFacts()), row.offset)
        }
        computed, counters = oracle.check(records, config.column_families, effective, until)
        effective.unpersist()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    shards = max((fact.shards for fact in facts.values()), default=0)
    results = []
    for shard in sorted(set(range(shards)) | set(facts)):
        entry = _shard_result(shard, gathered, computed.get(shard), facts.get(shard, _ShardFacts()))
        entry["false_counters"] = [_counter(difference) for difference in counters if difference.shard == shard]
        results.append(entry)
    return {"ok": bool(results) and all(map(_is_ok, results)), "shards": results}


@dataclasses.dataclass(slots=True)
class _ShardFacts:
    """What a shard's Genesis and its last Members record say, and how its log is broken, if it is."""

    shards: int = 0
    replicas: list[str] = dataclasses.field(default_factory=list)
    broken: str | None = None
    late_from: int | None = None
    """Offset of its first RequestBatch: from there on the oracle cannot compute it."""


def _shard_facts(effective: DataFrame) -> dict[int, _ShardFacts]:
    facts: dict[int, _ShardFacts] = {}
    told = effective.where(f"kind in ('{GENESIS}', '{MEMBERS}') or broken is not null")
    for row in told.orderBy("offset").collect():
        fact = facts.setdefault(row.shard, _ShardFacts())
        if row.broken is not None:
            fact.broken = f"offset {row.offset}: {row.broken}"
        else:
            fact.replicas = list(row.replicas)
            if row.kind == GENESIS:
                fact.shards = row.shards
    for shard, offset in oracle.first_logged_requests(effective).items():
        facts.setdefault(shard, _ShardFacts()).late_from = offset
    return facts


def _is_late(fact: _ShardFacts, offset: int) -> bool:
    return fact.late_from is not None and fact.late_from < offset


def _shard_result(
    shard: int, gathered: _Gathered, computed: oracle.ShardDigest | None, fact: _ShardFacts
) -> dict[str, Any]:
    barrier = gathered.barriers.get(shard)
    late = barrier is not None and _is_late(fact, barrier.offset)
    sums = sums_from(barrier.value) if barrier is not None and barrier.value is not None else None
    return {
        "shard": shard,
        "barrier_offset": barrier.offset if barrier is not None else None,
        "index": barrier["index"] if barrier is not None else None,
        "log_digest": digests.total(sums) if sums is not None else None,
        "log_chain": bytes(barrier.chain).hex() if barrier is not None else None,
        "oracle_digest": computed.digest if computed is not None else None,
        "oracle_rows": computed.rows if computed is not None else None,
        "oracle_agrees": None
        if late
        else computed is not None and sums is not None and bool((computed.sums == sums).all()),
        "late": late,
        "broken": fact.broken,
        "replicas": [_replica_result(shard, node, gathered) for node in gathered.replicas.get(shard, [])],
    }


def _replica_result(shard: int, node: str, gathered: _Gathered) -> dict[str, Any]:
    verdict = gathered.judged(shard, node)
    evidence = verdict.evidence if verdict is not None else None
    if verdict is None:
        return {
            "node": node, "verdict": UNKNOWN, "basis": "incremental", "differing_slots": 0, "differences": [],
            "evidence": None, "reason": "no report at the last barrier",
        }  # fmt: skip
    return {
        "node": node,
        "verdict": verdict.verdict,
        "basis": verdict.basis,
        "differing_slots": verdict.differing_slots,
        "differences": [dataclasses.asdict(difference) for difference in verdict.differences],
        "evidence": _plain(dataclasses.asdict(evidence)) if evidence is not None else None,
        "reason": verdict.reason,
    }


def _counter(difference: oracle.CounterDifference) -> dict[str, Any]:
    return _plain(dataclasses.asdict(difference))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Bytes as hex, for JSON."""
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def _is_ok(entry: dict[str, Any]) -> bool:
    verdicts: Iterable[str] = [replica["verdict"] for replica in entry["replicas"]]
    return (
        entry["broken"] is None
        and entry["oracle_agrees"] is not False
        and not entry["false_counters"]
        and bool(entry["replicas"])
        and all(verdict == EQUAL for verdict in verdicts)
    )


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, audit, print the result."""
    parser = argparse.ArgumentParser(description="Audit the logs to their current end and say whether all agree.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file (spark_streaming/jobs/config.py)")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
        session = build_session(config.spark())
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        result = audit_once(session, config)
    except PySparkException as error:
        print(f"audit failed: {str(error)[:2000]}", file=sys.stderr)
        return 1
    finally:
        session.stop()
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
