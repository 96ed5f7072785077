"""Kafka topics as DataFrames: streams for the running audit, bounded reads for the batch one.

Every frame has the columns ``value`` (binary), ``key`` (binary), ``shard`` (int, the partition), ``offset`` (long),
``timestamp`` (timestamp: LogAppendTime for logs). Records are never skipped: lost data fails the query.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

RECORDS_PER_TRIGGER = 2_000
"""Log records in a micro-batch, all shards together: bounds the memory of a shard's operator."""

REPORTS_PER_TRIGGER = 2_000
"""Reports in a micro-batch, all shards together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A topic on a cluster of brokers, read from its beginning."""

    bootstrap_servers: str
    topic: str


def stream(session: SparkSession, source: KafkaSource, *, per_trigger: int) -> DataFrame:
    """Return the topic as a stream from its beginning, at most ``per_trigger`` records in a micro-batch."""
    reader = session.readStream.format("kafka").options(**_options(source))
    return _columns(reader.option("maxOffsetsPerTrigger", per_trigger).load())


def bounded(session: SparkSession, source: KafkaSource) -> DataFrame:
    """Return the topic from its beginning to its current end."""
    reader = session.read.format("kafka").options(**_options(source))
    return _columns(reader.option("endingOffsets", "latest").load())


def _options(source: KafkaSource) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
        "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    }


def _columns(frame: DataFrame) -> DataFrame:
    return frame.select("value", "key", F.col("partition").alias("shard"), "offset", "timestamp")
