"""The audit's streaming query, as both jobs start it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streaming.config import AuditConfig
from spark_streaming.records import sources
from spark_streaming.records.logs import AuditedLog, existing
from spark_streaming.records.transforms import audit_rows
from spark_streaming.verdicts.audit import audit
from spark_streaming.verdicts.sinks import FindingSink


def findings(session: SparkSession, config: AuditConfig, *, timers: bool) -> DataFrame:
    """Return the stream of findings over the configured topics."""
    logs = existing(config.bootstrap_servers, config.logs)
    log, reports = kafka_sources(config, logs)
    rows = audit_rows(
        sources.stream(session, log, per_trigger=config.records_per_trigger),
        sources.stream(session, reports, per_trigger=config.reports_per_trigger),
        logs,
    )
    return audit(rows, logs, config.limits, timers=timers)


def kafka_sources(
    config: AuditConfig, logs: Sequence[AuditedLog] | None = None
) -> tuple[sources.KafkaSource, sources.KafkaSource]:
    """Return the sources of the logs and of their reports; without ``logs`` of those that exist."""
    found = existing(config.bootstrap_servers, config.logs) if logs is None else logs
    topics = {log.topic: log.name for log in found}, {log.reports_topic: log.name for log in found}
    log, reports = (sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topics=t) for t in topics)
    return log, reports


def start(session: SparkSession, config: AuditConfig, sink: FindingSink, *, once: bool) -> StreamingQuery:
    """Start the audit; with ``once`` it ends at the topics' current end, else it runs until stopped."""
    # A query keeps the number of its first start in its checkpoint.
    session.conf.set("spark.sql.shuffle.partitions", str(config.shuffle_partitions))
    rows = findings(session, config, timers=not once)
    writer = rows.writeStream.queryName("audit").outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(config.checkpoint_dir.resolve()))
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{config.trigger_ms} milliseconds").start()
