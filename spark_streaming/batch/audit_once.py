"""The audit of all logs to their current ends: the passes of the streaming operator, the oracle, one result.

Each shard is judged at the last barrier that the first pass over the topics finds. Further passes read only what is
new; they wait up to ``audit_report_timeout_ms`` for that barrier's reports.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_streaming.batch import oracle
from spark_streaming.batch.block_reports import judge_blocks
from spark_streaming.batch.core.computed import LogPoint
from spark_streaming.batch.core.gathering import GatheredVerdicts, LogPartition, PartitionFacts
from spark_streaming.batch.core.results import Json, partition_result, whole_result, with_meaning
from spark_streaming.batch.core.stored_bytes import no_blocks
from spark_streaming.batch.log_view import LogView, open_view
from spark_streaming.batch.meaning import check_meaning
from spark_streaming.configuration.audit_config import AuditConfig
from spark_streaming.records.logs import existing
from spark_streaming.verdicts.query import SLOW_STARTS, SLOW_WORKER, start
from spark_streaming.verdicts.sinks import FindingSink
from transport.waiting.deadline import Deadline

PAUSE_SECONDS = 0.5
"""Pause between passes that wait for reports."""


def audit_once(session: SparkSession, config: AuditConfig) -> Json:
    """Audit to the topics' current end; return the result (:mod:`results`). Writes to ``config.work_dir``."""
    gathered = GatheredVerdicts()
    shared = config.checkpoint or config.work_dir
    shared.mkdir(parents=True, exist_ok=True)
    checkpoint = Path(tempfile.mkdtemp(prefix="audit-once-", dir=shared))
    once = replace(config, work_dir=checkpoint, checkpoint=None, logs=existing(config.bootstrap_servers, config.logs))
    sink = FindingSink(
        bootstrap_servers=config.bootstrap_servers, topic=None, output_dir=None, on_written=gathered.on_written
    )
    views: list[LogView] = []
    try:
        _read_on(session, once, sink)
        gathered.fixed = True
        read_at_ms = time.time_ns() // 1_000_000
        views += [open_view(session, config.bootstrap_servers, log) for log in once.logs]
        gathered.replicas = {
            LogPartition(view.log.name, shard): fact.replicas for view in views for shard, fact in view.facts.items()
        }
        deadline = Deadline.after_ms(config.audit_report_timeout_ms)
        while not gathered.is_settled() and not deadline.has_passed:
            time.sleep(PAUSE_SECONDS)
            _read_on(session, once, sink)
        results = {view.log.name: _log_results(session, config, view, gathered) for view in views}
        meaning = check_meaning(session, config.bootstrap_servers, views, read_at_ms) if config.semantics else None
    finally:
        for view in views:
            view.effective.unpersist()
        shutil.rmtree(checkpoint, ignore_errors=True)
    result = whole_result(
        [entry for view in views if view.log.every_partition for entry in results[view.log.name]],
        [entry for view in views if not view.log.every_partition for entry in results[view.log.name]],
        shards_wanted=any(view.log.every_partition for view in views),
        blocks_required=config.require_blocks,
    )
    return result if meaning is None else with_meaning(result, meaning)


def _read_on(session: SparkSession, config: AuditConfig, sink: FindingSink) -> None:
    """Audit to the topics' current end; on a busy machine Spark's Python may start too slowly, and is started again."""
    for slow_starts in range(SLOW_STARTS + 1):
        try:
            start(session, config, sink, once=True).awaitTermination()
        except StreamingQueryException as error:
            if SLOW_WORKER not in str(error) or slow_starts == SLOW_STARTS:
                raise
        else:
            return


def _log_results(session: SparkSession, config: AuditConfig, view: LogView, gathered: GatheredVerdicts) -> list[Json]:
    """Return the findings on each partition of a log."""
    until = {
        partition.shard: LogPoint(barrier.offset, barrier.index)
        for partition, barrier in gathered.barriers.items()
        if partition.log == view.log.name
        and (fact := view.facts.get(partition.shard, PartitionFacts())).base is None
        and not fact.is_late(barrier.offset)
    }
    computed, counters = oracle.check(view.records, view.log.column_families, view.effective, until)
    blocks = judge_blocks(session, config.bootstrap_servers, view)
    results = []
    for shard in view.partitions():
        fact = view.facts.get(shard, PartitionFacts())
        partition = LogPartition(view.log.name, shard)
        entry = partition_result(partition, gathered, computed.get(shard), counters, fact)
        if not view.log.every_partition:
            entry["blocks"] = blocks.get(shard) or no_blocks(fact.replicas)
        results.append(entry)
    return results
