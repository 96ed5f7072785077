"""Kafka topics as DataFrames: streams for the running audit, bounded reads for the batch one.

Every frame has the columns ``value`` (binary), ``key`` (binary), ``log`` (string, the log's name), ``shard`` (int, the
partition), ``offset`` (long), ``timestamp`` (timestamp: LogAppendTime for logs). Records of logs are never skipped:
lost data fails the query. Reports are kept for a bounded time: one that is gone is missing, and its replica
``unknown``.

A stream finds topics and partitions that are made while it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.kafka.client_settings import spark_options
from schemas.kafka.connection import Brokers
from spark_streaming.records.logs import AuditedLog

FETCH_WAIT_MS = 10
"""How long a broker keeps a fetch waiting at a partition's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """Topics on a cluster of brokers, read from their beginnings; ``topics`` gives for each the name of its log.

    ``may_lose``: whether records may be gone before they are read.
    """

    bootstrap_servers: Brokers
    topics: Mapping[str, str]
    may_lose: bool = False


def log_source(bootstrap_servers: Brokers, logs: Iterable[AuditedLog]) -> KafkaSource:
    """Return the topics of logs."""
    return KafkaSource(bootstrap_servers=bootstrap_servers, topics={log.topic: log.name for log in logs})


def reports_source(bootstrap_servers: Brokers, logs: Iterable[AuditedLog]) -> KafkaSource:
    """Return the topics of the reports of logs' replicas."""
    topics = {log.reports_topic: log.name for log in logs}
    return KafkaSource(bootstrap_servers=bootstrap_servers, topics=topics, may_lose=True)


def stream(session: SparkSession, source: KafkaSource, *, per_trigger: int) -> DataFrame:
    """Return the topics as a stream from their beginnings, at most ``per_trigger`` records in a micro-batch."""
    reader = session.readStream.format("kafka").options(**kafka_options(source))
    return _columns(reader.option("maxOffsetsPerTrigger", per_trigger).load(), source.topics)


def wake_ups(session: SparkSession, bootstrap_servers: Brokers, topic: str) -> DataFrame:
    """Return a topic as a stream of what comes after the query's first start (``transforms.wake_up_rows``)."""
    source = KafkaSource(bootstrap_servers=bootstrap_servers, topics={topic: topic}, may_lose=True)
    options = kafka_options(source) | {"startingOffsets": "latest"}
    return session.readStream.format("kafka").options(**options).load()


def bounded(session: SparkSession, source: KafkaSource) -> DataFrame:
    """Return the topics from their beginnings to their current ends."""
    reader = session.read.format("kafka").options(**kafka_options(source))
    return _columns(reader.option("endingOffsets", "latest").load(), source.topics)


def kafka_options(source: KafkaSource) -> dict[str, str]:
    """Return Spark's options for reading topics."""
    return {
        **spark_options(source.bootstrap_servers),
        # A pattern, so that a topic may be made later: a cluster gets its first datanodes when it likes.
        "subscribePattern": "|".join(map(re.escape, source.topics)),
        "startingOffsets": "earliest",
        "failOnDataLoss": str(not source.may_lose).lower(),
        # As the replicas read. Otherwise a stranger's open transaction would stop the audit, and an aborted one would
        # make it read another log.
        "kafka.isolation.level": "read_uncommitted",
        "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
        "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
        # After each fetch Spark asks for a partition's bounds, on a connection where the next fetch already waits for
        # records. At the default of 500 ms every task that reads a partition to its end would lose a second.
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
    }


def _columns(frame: DataFrame, topics: Mapping[str, str]) -> DataFrame:
    names = F.create_map(*(F.lit(text) for pair in topics.items() for text in pair))
    log = names[F.col("topic")].alias("log")
    return frame.select("value", "key", log, F.col("partition").alias("shard"), "offset", "timestamp")
