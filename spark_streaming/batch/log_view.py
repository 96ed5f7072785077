"""A log as the oracle reads it, from its start to its current end."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from schemas.kafka.connection import Brokers
from spark_streaming.batch import counting
from spark_streaming.batch.core.gathering import FactRow, PartitionFacts, facts_from
from spark_streaming.records import sources
from spark_streaming.records.core.reading import BASE, GENESIS, MEMBERS
from spark_streaming.records.logs import AuditedLog, topic_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """Raw records of a log, those of them that count (persisted), and the facts of each partition.

    ``partition_count``: the topic's partitions.
    """

    log: AuditedLog
    records: DataFrame
    effective: DataFrame
    facts: dict[int, PartitionFacts]
    partition_count: int

    def partitions(self) -> list[int]:
        """Return the partitions to judge: those with facts and, if every partition counts, all that Genesis counts.

        If no Genesis is left, because the logs were trimmed, all partitions of the topic count.
        """
        counted = max((fact.shards for fact in self.facts.values()), default=0)
        shards = (counted or self.partition_count) if self.log.every_partition and self.facts else 0
        return sorted(set(range(shards)) | set(self.facts))


def open_view(session: SparkSession, bootstrap_servers: Brokers, log: AuditedLog) -> LogView:
    """Read a log to its current end; close the view with ``effective.unpersist()``."""
    records = sources.bounded(session, sources.log_source(bootstrap_servers, [log]))
    effective = counting.effective_records(records).persist()
    return LogView(
        log=log, records=records, effective=effective, facts=facts_of(effective),
        partition_count=topic_partitions(bootstrap_servers, log.topic),
    )  # fmt: skip


def facts_of(effective: DataFrame) -> dict[int, PartitionFacts]:
    """Return each partition's facts from the records that count."""
    told = effective.where(f"kind in ('{GENESIS}', '{MEMBERS}', '{BASE}') or broken is not null").orderBy("offset")
    rows = [
        FactRow(row.shard, row.offset, row.kind, row.shards, tuple(row.replicas or ()), row.broken)
        for row in told.collect()
    ]
    return facts_from(rows, counting.first_logged_requests(effective), counting.first_bases(effective))
