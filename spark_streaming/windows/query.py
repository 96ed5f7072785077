"""The query of windows, which runs beside the audit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streaming.configuration.audit_config import AuditConfig
from spark_streaming.records import sources
from spark_streaming.records.logs import existing
from spark_streaming.windows.samples import samples
from spark_streaming.windows.sums import lags, windowed


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSink:
    """Writes finished windows: ``<output_dir>/windows/batch=<n>`` and ``<output_dir>/lags/batch=<n>``, as Parquet."""

    output_dir: Path

    def __call__(self, windows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; nothing for an empty one."""
        windows.persist()
        try:
            if not windows.isEmpty():
                for name, frame in (("windows", windows), ("lags", lags(windows))):
                    path = str(self.output_dir / name / f"batch={batch_id}")
                    frame.coalesce(1).write.mode("overwrite").parquet(path)
        finally:
            windows.unpersist()


def start_windows(session: SparkSession, config: AuditConfig) -> StreamingQuery:
    """Start the query of windows beside the audit, with a checkpoint of its own."""
    servers = config.bootstrap_servers
    logs = existing(servers, config.logs)
    found = samples(
        sources.stream(session, sources.log_source(servers, logs), per_trigger=config.records_per_trigger),
        sources.stream(session, sources.reports_source(servers, logs), per_trigger=config.reports_per_trigger),
    )
    writer = windowed(found, seconds=config.window_seconds).writeStream.queryName("windows").outputMode("append")
    writer = writer.foreachBatch(WindowSink(output_dir=config.output_dir))
    writer = writer.option("checkpointLocation", str(config.windows_checkpoint_dir.resolve()))
    return writer.trigger(processingTime=f"{config.windows_trigger_ms} milliseconds").start()
