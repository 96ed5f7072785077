"""The query of windows, which runs beside the audit: from micro-batches to records of om.stats."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from schemas.codecs.codec import encode
from schemas.records.messages import WindowRow, WindowStats
from spark_streaming.configuration.audit_config import AuditConfig
from spark_streaming.records import sources
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.sender import Sender
from spark_streaming.windows import book_file
from spark_streaming.windows.core.window_book import ChangedWindow
from spark_streaming.windows.samples import samples
from spark_streaming.windows.sums import added_up, sample_of


class WindowSink:
    """Adds micro-batches of samples to the book, and sends the windows that change; call it from ``foreachBatch``.

    The book is kept in ``state`` after they are sent. A micro-batch that was interrupted in between is sent once more,
    with the same content.
    """

    def __init__(self, *, sender: Sender, state: Path, seconds: int, cluster: str, gate: BatchGate) -> None:
        self._sender = sender
        self._state = state
        self._seconds = seconds
        self._cluster = cluster
        self._gate = gate

    def __call__(self, found: DataFrame, batch_id: int) -> None:
        """Add one micro-batch."""
        with self._gate.passing():
            window_ms = self._seconds * 1000
            book = book_file.load(self._state, window_ms)
            changed = book.take(batch_id, map(sample_of, added_up(found, window_ms=window_ms).collect()))
            now_ms = time.time_ns() // 1_000_000
            self._sender.send([(key_of(one), encode(self._stats(one, now_ms))) for one in changed])
            book_file.save(book, self._state)

    def _stats(self, changed: ChangedWindow, now_ms: int) -> WindowStats:
        rows = [
            WindowRow(
                metric=row.metric, kind=row.kind, status=row.status, count=one.count, total=one.total, greatest=one.greatest or 0, p50=one.percentile(0.5),
                p99=one.percentile(0.99),
            )
            for row, one in sorted(changed.rows.items())
        ]  # fmt: skip
        return WindowStats(
            cluster=self._cluster, log=changed.stream.log, shard=changed.stream.shard, source=changed.stream.source,
            start_ms=changed.start_ms, seconds=self._seconds, rows=rows, late=changed.late, counted_at_ms=now_ms,
        )  # fmt: skip


def key_of(changed: ChangedWindow) -> bytes:
    """Return the key of a window's records: its partition's."""
    return f"{changed.stream.log}/{changed.stream.shard}".encode()


def start_windows(session: SparkSession, config: AuditConfig, gate: BatchGate) -> StreamingQuery:
    """Start the query of windows beside the audit, with a checkpoint of its own."""
    servers = config.bootstrap_servers
    found = samples(
        sources.stream(session, sources.log_source(servers, config.logs), per_trigger=config.records_per_trigger),
        sources.stream(session, sources.reports_source(servers, config.logs), per_trigger=config.reports_per_trigger),
    )
    sink = WindowSink(
        sender=Sender(servers, config.stats_topic), state=config.window_state, seconds=config.window_seconds,
        cluster=config.cluster, gate=gate,
    )  # fmt: skip
    writer = found.writeStream.queryName("windows").outputMode("append").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(config.windows_checkpoint_dir.resolve()))
    return writer.trigger(processingTime=f"{config.windows_trigger_ms} milliseconds").start()
