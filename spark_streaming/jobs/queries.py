"""The audit's streaming query, as both jobs start it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streaming import sources
from spark_streaming.audit import audit
from spark_streaming.jobs.config import AuditConfig
from spark_streaming.sinks import FindingSink
from spark_streaming.transforms import audit_rows


def findings(session: SparkSession, config: AuditConfig, *, timers: bool) -> DataFrame:
    """Return the stream of findings over the configured topics."""
    log = sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topic=config.log_topic)
    reports = sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topic=config.audit_topic)
    rows = audit_rows(
        sources.stream(session, log, per_trigger=config.records_per_trigger),
        sources.stream(session, reports, per_trigger=config.reports_per_trigger),
        config.column_families,
    )
    return audit(rows, config.column_families, config.limits, timers=timers)


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
