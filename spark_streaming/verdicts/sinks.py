"""Sinks of the findings: verdicts to Kafka and Parquet, the log's digests at barriers to Parquet.

Each micro-batch is collected once and written from here, by a plain producer and plain files: a Spark job for each
would cost far more than the operator. It holds at most one row for each barrier and each report that the trigger limits
admit. A micro-batch that is repeated after a crash replaces its Parquet (:mod:`batch_files`). Kafka may get its
verdicts twice: a reader takes the last one for a (log, shard, node, barrier, basis).

    <output_dir>/verdicts/    the fields of Verdict
    <output_dir>/barriers/    log, shard, offset, index, chain, digest (16 hex digits), sums
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row

from schemas.codecs.codec import decode_as
from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.topics import OM_LOG
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.sender import Sender
from spark_streaming.verdicts.audit import (
    BARRIER_ROW,
    NO_DEADLINE,
    PARTITION_ROW,
    SAMPLES_ROW,
    VERDICT_ROW,
    verdict_value,
)
from spark_streaming.verdicts.batch_files import BatchFiles
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.written import LogBarrier, WrittenBatch
from spark_streaming.verdicts.parquet_schemas import BARRIERS, VERDICTS
from spark_streaming.windows.core.window_book import Sample
from spark_streaming.windows.sample_text import decoded_samples


class FindingSink:
    """Writes the findings of micro-batches; call it from ``foreachBatch``. For one thread.

    ``topic``: None writes nothing to Kafka. ``on_written`` is called with each micro-batch after it is
    written. ``complete`` may add to a verdict before it is written. ``on_samples`` is
    called with each micro-batch's number and samples for the windows. Raises GateClosed if ``gate`` is closed.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: Brokers,
        topic: str | None,
        output_dir: Path | None,
        on_written: Callable[[WrittenBatch], None],
        gate: BatchGate | None = None,
        complete: Callable[[Verdict], Verdict] = lambda verdict: verdict,
        on_samples: Callable[[int, Iterable[Sample]], None] | None = None,
    ) -> None:
        self._on_samples = on_samples
        self._complete = complete
        self._sender = None if topic is None else Sender(bootstrap_servers, topic)
        self._verdicts = None if output_dir is None else BatchFiles(output_dir / "verdicts", VERDICTS)
        self._barriers = None if output_dir is None else BatchFiles(output_dir / "barriers", BARRIERS)
        self._on_written = on_written
        self._gate = gate or BatchGate()

    def __call__(self, findings: DataFrame, batch_id: int) -> None:
        """Compute and write one micro-batch."""
        with self._gate.passing():
            self._write(findings.collect(), batch_id)

    def _write(self, rows: Sequence[Row], batch_id: int) -> None:
        barriers = [_barrier(row) for row in rows if row.finding == BARRIER_ROW]
        verdicts = [self._complete(decode_as(Verdict, bytes(row.value))) for row in rows if row.finding == VERDICT_ROW]
        if self._sender is not None:
            self._sender.send(list(map(verdict_record, verdicts)))
        if self._on_samples is not None:
            self._on_samples(batch_id, _samples(rows))
        if self._verdicts is not None and self._barriers is not None:
            self._verdicts.write(batch_id, list(map(asdict, verdicts)))
            self._barriers.write(batch_id, list(map(barrier_fields, barriers)))
        partitions = [row for row in rows if row.finding == PARTITION_ROW]
        written = WrittenBatch(
            batch_id=batch_id, verdicts=verdicts, barriers=barriers, news=sum(row.offset for row in partitions),
            deadlines={ReportedPartition(row.log, row.shard): _deadline_ms(row) for row in partitions},
        )  # fmt: skip
        if written.has_news:
            self._gate.note()
        self._on_written(written)


def _samples(rows: Sequence[Row]) -> Iterator[Sample]:
    for row in rows:
        if row.finding == SAMPLES_ROW:
            yield from decoded_samples(row.log, row.shard, bytes(row.value))


def _deadline_ms(row: Row) -> int | None:
    due_ms: int = row["index"]
    return None if due_ms == NO_DEADLINE else due_ms


def verdict_record(verdict: Verdict) -> tuple[bytes, bytes]:
    """Return key and value of a verdict's record."""
    return verdict_key(verdict.log, verdict.shard), verdict_value(verdict)


def verdict_key(log: str, shard: int) -> bytes:
    """Return the key of a shard's verdicts: the shard; the log's name too, except for om.log."""
    return str(shard).encode() if log == OM_LOG else f"{log}/{shard}".encode()


def _barrier(row: Row) -> LogBarrier:
    sums = None if row.value is None else digests.from_bytes(row.value)
    # A Row is a tuple: its attribute ``index`` is a method.
    return LogBarrier(
        log=row.log, shard=row.shard, offset=row.offset, index=row["index"], chain=bytes(row.chain), sums=sums
    )


def barrier_fields(barrier: LogBarrier) -> dict[str, Any]:
    """Return the log's digest at a barrier as a row for Parquet; after a RequestBatch the log has none."""
    slots, sums = (None, None) if barrier.sums is None else digests.to_sparse(barrier.sums)
    return {
        "log": barrier.log, "shard": barrier.shard, "offset": barrier.offset, "index": barrier.index,
        "chain": barrier.chain, "digest": None if barrier.sums is None else digests.total(barrier.sums),
        "slots": slots, "sums": sums,
    }  # fmt: skip
