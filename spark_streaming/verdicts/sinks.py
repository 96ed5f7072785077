"""Sinks of the findings: verdicts to Kafka and Parquet, the log's digests at barriers to Parquet.

Each micro-batch is collected once and written from there. It holds at most one row for each barrier and each report
that the trigger limits admit. Running the stateful operator twice would be wrong, and caching its output would cost
more. Parquet is written under the micro-batch's number, so a micro-batch that is repeated after a crash replaces
itself. Kafka may get its verdicts twice: a reader takes the last one for a (log, shard, node, barrier, basis).

    <output_dir>/verdicts/batch=<n>/     the fields of Verdict
    <output_dir>/barriers/batch=<n>/     log, shard, offset, index, chain, digest (16 hex digits), sums
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.codec import decode_as
from schemas.records.messages import Verdict
from schemas.topics import OM_LOG
from spark_streaming.records.decode import column_of, decoded
from spark_streaming.verdicts.audit import BARRIER_ROW, FINDING_SCHEMA, VERDICT_ROW
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.shard_state import LogBarrier


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSink:
    """Writes the findings of micro-batches; call it from ``foreachBatch``.

    ``topic``: None writes nothing to Kafka. ``on_written`` is called with each micro-batch's number, verdicts and
    barriers after they are written.
    """

    bootstrap_servers: str
    topic: str | None
    output_dir: Path | None
    on_written: Callable[[int, list[Verdict], list[LogBarrier]], None]

    def __call__(self, findings: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        rows = findings.collect()
        verdicts = [row for row in rows if row.finding == VERDICT_ROW]
        barriers = [_barrier(row) for row in rows if row.finding == BARRIER_ROW]
        session = findings.sparkSession
        if verdicts and self.topic is not None:
            self._to_kafka(session, verdicts)
        if verdicts and self.output_dir is not None:
            _write(verdict_fields(_frame(session, verdicts)), self.output_dir / "verdicts", batch_id)
        if barriers and self.output_dir is not None:
            _write(barrier_fields(session, barriers), self.output_dir / "barriers", batch_id)
        self.on_written(batch_id, [decode_as(Verdict, bytes(row.value)) for row in verdicts], barriers)

    def _to_kafka(self, session: SparkSession, verdicts: list[Row]) -> None:
        """Send the verdicts, in order within a shard. Key: the shard; the log's name too, except for om.log."""
        shard = F.col("shard").cast("string")
        key = F.when(F.col("log") == OM_LOG, shard).otherwise(F.concat("log", F.lit("/"), shard))
        frame = _frame(session, verdicts).select(key.alias("key"), "value")
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.bootstrap_servers)
        writer.option("topic", self.topic).save()


def verdict_fields(findings: DataFrame) -> DataFrame:
    """Decode the verdicts among findings into their fields."""
    return decoded(findings.select("value"), ["Verdict"]).select(F.col(column_of("Verdict")).alias("v")).select("v.*")


def _barrier(row: Row) -> LogBarrier:
    sums = None if row.value is None else digests.from_bytes(row.value)
    # A Row is a tuple: its attribute ``index`` is a method.
    return LogBarrier(
        log=row.log, shard=row.shard, offset=row.offset, index=row["index"], chain=bytes(row.chain), sums=sums
    )


def barrier_fields(session: SparkSession, barriers: list[LogBarrier]) -> DataFrame:
    """Return the log's digests at barriers as a frame for Parquet."""
    rows: list[tuple[object, ...]] = []
    for barrier in barriers:
        position = (barrier.log, barrier.shard, barrier.offset, barrier.index, barrier.chain)
        if barrier.sums is None:  # after a RequestBatch the log has no digest
            rows.append((*position, None, None, None))
            continue
        slots, values = digests.to_sparse(barrier.sums)
        rows.append((*position, digests.total(barrier.sums), slots, values))
    schema = (
        "log string, shard int, offset long, index long, chain binary, digest string, "
        "slots array<int>, sums array<long>"
    )
    return session.createDataFrame(rows, schema)


def _frame(session: SparkSession, rows: list[Row]) -> DataFrame:
    return session.createDataFrame(rows, FINDING_SCHEMA).coalesce(1)


def _write(frame: DataFrame, folder: Path, batch_id: int) -> None:
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder / f"batch={batch_id}"))
