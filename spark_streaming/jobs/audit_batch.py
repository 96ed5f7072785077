"""The audit at once: ``python -m spark_streaming.jobs.audit_batch --config FILE``.

Reads all topics to their current ends through the same operator as the running audit (a fresh checkpoint, thrown away)
and judges every replica at the last barrier of its shard; the oracle then computes that barrier's digest the long way. The partitions
of dn.log that have a Genesis are judged alike, as ``pipelines``; of each the oracle also computes what the members' stored bytes must
be at the newest index that a majority of them has reported, and compares their reports with it.
Progress goes to stderr; the last line of stdout is one JSON object::

    {"ok": bool, "shards": [{"shard", "barrier_offset", "index", "log_digest" (hex16), "log_chain" (hex),
      "oracle_digest", "oracle_rows", "oracle_agrees" (null if "late"), "late", "broken" (reason or null), "false_counters": [...],
      "replicas": [{"node", "verdict", "basis", "differing_slots", "differences", "evidence", "reason"}]}],
     "pipelines": [as shards, and "blocks": {"log_offset", "index", "containers", "members": [{"node", "verdict", "reason",
      "containers": [{"container_id", "expected", "found", "blocks": [block keys, hex]}]}]}]}

"late": the log holds requests to be executed by each replica (late validation), so nobody can compute its rows from it; then
``log_digest`` is null until a DigestBase, and the verdicts say in ``basis`` that they rest on the replicas alone.

Exit status 0 only if every shard of the cluster and every pipeline has a barrier, all its replicas are ``equal`` there (a replica that
has not reported is ``unknown``), the oracle agrees with the log's sums, no log is broken and no member's stored bytes are ``diverged``.
Scans of stored bytes are rare, so ``unknown`` does not count there unless the configuration says ``require_blocks``. 1 otherwise, 2 for a
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

from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.codec import decode_as
from schemas.column_families import BLOCK_TABLE
from schemas.records.datanode import BlockReport
from schemas.records.messages import Verdict
from spark_streaming.batch import oracle
from spark_streaming.config import AuditConfig, load_config
from spark_streaming.queries import start
from spark_streaming.records import sources
from spark_streaming.records.core.reading import GENESIS, MEMBERS
from spark_streaming.records.decode import RECORD_TYPE, column_of, decoded
from spark_streaming.records.logs import AuditedLog, existing
from spark_streaming.records.session import build_session
from spark_streaming.records.transforms import BLOCK_REPORT, without_fields
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.matching import BLOCKS, DIVERGED, EQUAL, LOG, SCRUBBED, UNKNOWN
from spark_streaming.verdicts.core.scans import ScanVerdict, against_log
from spark_streaming.verdicts.sinks import FindingSink
from spark_streaming.verdicts.state import sums_from

Partition = tuple[str, int]
"""A partition of a log, by the log's name."""

PAUSE_SECONDS = 0.5
"""Between passes that wait for reports."""


@dataclasses.dataclass(slots=True)
class _Gathered:
    """What the passes have found: barriers, and verdicts by (partition, node, basis).

    While ``fixed`` is false the last barrier of a shard replaces the one before it; then it is the one to judge.
    """

    barriers: dict[Partition, Row] = dataclasses.field(default_factory=dict)
    verdicts: dict[tuple[Partition, str, str], Verdict] = dataclasses.field(default_factory=dict)
    replicas: dict[Partition, list[str]] = dataclasses.field(default_factory=dict)
    fixed: bool = False

    def observe(self, _batch_id: int, verdicts: list[Verdict], barriers: list[Row]) -> None:
        """Take a micro-batch."""
        if not self.fixed:
            for row in sorted(barriers, key=lambda row: row.offset):
                self.barriers[row.log, row.shard] = row
        for verdict in verdicts:
            if verdict.basis.endswith(BLOCKS):
                continue  # among the members alone; here the log's rows are asked
            partition = (verdict.log, verdict.shard)
            key = (partition, verdict.node, verdict.basis)
            known = self.verdicts.get(key)
            last = self.barriers.get(partition)
            past = last is not None and verdict.barrier_offset > last.offset and verdict.basis != LOG
            if not past and (known is None or verdict.barrier_offset >= known.barrier_offset):
                self.verdicts[key] = verdict

    def judged(self, partition: Partition, node: str) -> Verdict | None:
        """Return what counts for a replica: the worst verdict at the barrier; a broken log before it counts too."""
        last = self.barriers[partition].offset if partition in self.barriers else -1
        found = [
            verdict
            for (of, name, basis), verdict in self.verdicts.items()
            if of == partition and name in (node, "") and (verdict.barrier_offset == last or basis == LOG)
        ]
        rank = {DIVERGED: 0, UNKNOWN: 1, EQUAL: 2}
        # Of equally bad ones the one that rests on a scrub says more.
        return min(
            found, key=lambda verdict: (rank[verdict.verdict], not verdict.basis.endswith(SCRUBBED)), default=None
        )

    def settled(self) -> bool:
        """Whether every replica has a verdict at the barrier of its shard."""
        return all(
            (verdict := self.judged(partition, node)) is not None and verdict.verdict != UNKNOWN
            for partition, nodes in self.replicas.items()
            for node in nodes
        )


def audit_once(session: SparkSession, config: AuditConfig) -> dict[str, Any]:
    """Audit to the topics' current end; return the result described above. ``config.work_dir`` is written to."""
    gathered = _Gathered()
    config.work_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = Path(tempfile.mkdtemp(prefix="audit-once-", dir=config.work_dir))
    once = dataclasses.replace(config, work_dir=checkpoint, logs=existing(config.bootstrap_servers, config.logs))
    sink = FindingSink(
        bootstrap_servers=config.bootstrap_servers, topic=None, output_dir=None, observe=gathered.observe
    )
    views: list[_LogView] = []
    try:
        start(session, once, sink, once=True).awaitTermination()
        gathered.fixed = True
        views += [_view(session, config, log) for log in once.logs]
        gathered.replicas = {
            (view.log.name, shard): fact.replicas for view in views for shard, fact in view.facts.items()
        }
        deadline = time.monotonic() + config.report_timeout_ms / 1000
        while not gathered.settled() and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            start(session, once, sink, once=True).awaitTermination()
        results = {view.log.name: _log_results(session, config, view, gathered) for view in views}
    finally:
        for view in views:
            view.effective.unpersist()
        shutil.rmtree(checkpoint, ignore_errors=True)
    shards = [entry for view in views if view.log.every_partition for entry in results[view.log.name]]
    pipelines = [entry for view in views if not view.log.every_partition for entry in results[view.log.name]]
    wanted = shards if any(view.log.every_partition for view in views) else pipelines
    ok = bool(wanted) and all(map(_is_ok, shards)) and all(map(_is_ok, pipelines))
    blocks_ok = all(_blocks_ok(entry, required=config.require_blocks) for entry in pipelines)
    return {"ok": ok and blocks_ok, "shards": shards, "pipelines": pipelines}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _LogView:
    """A log as the oracle reads it: raw records, what counts of them, and what they say of each partition."""

    log: AuditedLog
    records: DataFrame
    effective: DataFrame
    facts: dict[int, _ShardFacts]


def _view(session: SparkSession, config: AuditConfig, log: AuditedLog) -> _LogView:
    source = sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topics={log.topic: log.name})
    records = sources.bounded(session, source)
    effective = oracle.effective_records(records).persist()
    return _LogView(log=log, records=records, effective=effective, facts=_shard_facts(effective))


def _log_results(
    session: SparkSession, config: AuditConfig, view: _LogView, gathered: _Gathered
) -> list[dict[str, Any]]:
    """Return what is found of each partition of a log."""
    until = {
        shard: (row.offset, row["index"])
        for (log, shard), row in gathered.barriers.items()
        if log == view.log.name and not _is_late(view.facts.get(shard, _ShardFacts()), row.offset)
    }
    computed, counters = oracle.check(view.records, view.log.column_families, view.effective, until)
    blocks = _blocks(session, config, view)
    shards = max((fact.shards for fact in view.facts.values()), default=0) if view.log.every_partition else 0
    results = []
    for shard in sorted(set(range(shards)) | set(view.facts)):
        fact = view.facts.get(shard, _ShardFacts())
        entry = _shard_result((view.log.name, shard), gathered, computed.get(shard), fact)
        entry["false_counters"] = [_counter(difference) for difference in counters if difference.shard == shard]
        if not view.log.every_partition:
            entry["blocks"] = blocks.get(shard) or _no_blocks(fact.replicas)
        results.append(entry)
    return results


# Stored bytes.


def _blocks(session: SparkSession, config: AuditConfig, view: _LogView) -> dict[int, dict[str, Any]]:
    """Compare the members' reports of stored bytes with what the log's rows say; nothing for a pipeline without one."""
    if BLOCK_TABLE not in view.log.column_families:
        return {}
    topics = {view.log.reports_topic: view.log.name}
    records = sources.bounded(session, sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topics=topics))
    reports = _newest_scans(records, {shard: set(fact.replicas) for shard, fact in view.facts.items()})
    until = {shard: max(report.log_offset for report in found) for shard, found in reports.items()}
    indexes = oracle.indexes_at(view.effective, until)
    expected = oracle.container_digests(view.records, view.log.column_families, view.effective, until)
    return {
        shard: _blocks_result(view.facts[shard].replicas, until[shard], indexes.get(shard, 0), found, expected[shard])
        for shard, found in reports.items()
    }


def _newest_scans(records: DataFrame, members: dict[int, set[str]]) -> dict[int, list[BlockReport]]:
    """Return of each partition the reports at the newest offset that a majority of its members has reported.

    If none has a majority's reports, those at the newest offset of all.
    """
    light = {BLOCK_REPORT: without_fields(BLOCK_REPORT, "containers")}
    head = F.col(column_of(BLOCK_REPORT))
    heads = decoded(records, [BLOCK_REPORT], light).where(F.col(RECORD_TYPE) == BLOCK_REPORT)
    named = heads.select("shard", "offset", head["datanode"].alias("node"), head["log_offset"].alias("at"))
    latest: dict[int, dict[int, dict[str, int]]] = {}
    for row in named.orderBy("shard", "offset").collect():
        if row.node in members.get(row.shard, ()):
            latest.setdefault(row.shard, {}).setdefault(row.at, {})[row.node] = row.offset
    wanted: list[tuple[int, int]] = []
    for shard, scans in latest.items():
        majority = len(members[shard]) // 2 + 1
        at = max(scans, key=lambda offset: (len(scans[offset]) >= majority, offset))
        wanted += [(shard, offset) for offset in scans[at].values()]
    if not wanted:
        return {}
    chosen = records.sparkSession.createDataFrame(wanted, "shard int, offset long")
    found: dict[int, list[BlockReport]] = {}
    for row in records.join(F.broadcast(chosen), ["shard", "offset"]).select("shard", "value").collect():
        found.setdefault(row.shard, []).append(decode_as(BlockReport, bytes(row.value)))
    return found


def _blocks_result(
    members: list[str], at: int, index: int, reports: list[BlockReport], expected: dict[int, int]
) -> dict[str, Any]:
    found = {report.datanode: report for report in reports}
    judged = []
    for node in members:
        report = found.get(node)
        if report is None:
            said = ScanVerdict(verdict=UNKNOWN, reason="no report of its stored bytes at that index")
        elif report.index != index:
            said = ScanVerdict(
                verdict=UNKNOWN, reason=f"names index {report.index}, at that offset the log's is {index}"
            )
        else:
            said = against_log(report, expected)
        containers = [
            dataclasses.asdict(one) | {"blocks": [key.hex() for key in one.blocks]} for one in said.containers
        ]
        judged.append({"node": node, "verdict": said.verdict, "reason": said.reason, "containers": containers})
    return {"log_offset": at, "index": index, "containers": len(expected), "members": judged}


def _no_blocks(members: list[str]) -> dict[str, Any]:
    reason = "no member has reported its stored bytes yet"
    judged = [{"node": node, "verdict": UNKNOWN, "reason": reason, "containers": []} for node in members]
    return {"log_offset": None, "index": None, "containers": None, "members": judged}


def _blocks_ok(entry: dict[str, Any], *, required: bool) -> bool:
    verdicts = [member["verdict"] for member in entry["blocks"]["members"]]
    return all(verdict == EQUAL if required else verdict != DIVERGED for verdict in verdicts)


# Partitions.


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
    partition: Partition, gathered: _Gathered, computed: oracle.ShardDigest | None, fact: _ShardFacts
) -> dict[str, Any]:
    barrier = gathered.barriers.get(partition)
    late = barrier is not None and _is_late(fact, barrier.offset)
    sums = sums_from(barrier.value) if barrier is not None and barrier.value is not None else None
    return {
        "shard": partition[1],
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
        "replicas": [_replica_result(partition, node, gathered) for node in gathered.replicas.get(partition, [])],
    }


def _replica_result(partition: Partition, node: str, gathered: _Gathered) -> dict[str, Any]:
    verdict = gathered.judged(partition, node)
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
    parser.add_argument("--config", type=Path, required=True, help=f"JSON file (see {AuditConfig.__module__})")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
        session = build_session(config.spark())
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        result = audit_once(session, config)
    except (PySparkException, KafkaException, oracle.OracleError) as error:
        print(f"audit failed: {str(error)[:2000]}", file=sys.stderr)
        return 1
    finally:
        session.stop()
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
