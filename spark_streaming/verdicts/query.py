"""The audit's streaming query, as both jobs start it."""

from __future__ import annotations

import sys
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streaming.configuration.audit_config import AuditConfig
from spark_streaming.records import sources
from spark_streaming.records.transforms import audit_rows, wake_up_rows, with_tasks
from spark_streaming.verdicts.audit import audit
from spark_streaming.verdicts.sinks import FindingSink

QUERY_NAME = "audit"
"""As metrics and Spark's progress name it."""

SLOW_WORKER = "Python worker failed to connect back"
"""What Spark says if a Python process has not started within ten seconds, which cannot be configured."""

SLOW_STARTS = 10
"""How often in a row a query is started again that has failed so: the machine is busy, and nothing is wrong."""


def findings(session: SparkSession, config: AuditConfig, *, deadlines: bool, windows: bool = False) -> DataFrame:
    """Return the stream of findings over the configured topics, with samples for ``windows`` if they are wanted."""
    servers = config.bootstrap_servers
    logs = config.logs
    rows = audit_rows(
        sources.stream(session, sources.log_source(servers, logs), per_trigger=config.audit_records_per_trigger),
        sources.stream(session, sources.reports_source(servers, logs), per_trigger=config.audit_reports_per_trigger),
    )
    if deadlines:
        wake_ups = sources.wake_ups(session, servers, config.stats_topic)
        rows = rows.unionByName(wake_up_rows(wake_ups, [log.name for log in logs]))
    # Nothing else would take the rest of what was held back.
    limits = config.limits if deadlines else replace(config.limits, taken_back=sys.maxsize)
    return audit(
        with_tasks(rows, config.shuffle_partitions), logs, limits, deadlines=deadlines, cluster=config.cluster, bootstrap_servers=servers,
        window_ms=config.audit_window_s * 1000 if windows else 0,
    )  # fmt: skip


def start(
    session: SparkSession, config: AuditConfig, sink: FindingSink, *, once: bool, windows: bool = False
) -> StreamingQuery:
    """Start the audit; with ``once`` it ends at the topics' current end, else it runs until stopped."""
    # The checkpoint fixes the number of partitions that a query had at its first start.
    session.conf.set("spark.sql.shuffle.partitions", str(config.shuffle_partitions))
    rows = findings(session, config, deadlines=not once, windows=windows)
    writer = rows.writeStream.queryName(QUERY_NAME).outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(config.checkpoint_dir.absolute()))
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{config.audit_trigger_ms} milliseconds").start()
