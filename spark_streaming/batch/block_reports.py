"""The datanodes' reports of their stored bytes, found among all of a topic and compared with the log's rows."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.codec import decode_as
from schemas.column_families import BLOCK_TABLE
from schemas.kafka.connection import Brokers
from schemas.records.datanode import BlockReport
from spark_streaming.batch import counting, oracle
from spark_streaming.batch.core.stored_bytes import Json, ScanHead, blocks_result, newest_scans
from spark_streaming.batch.log_view import LogView
from spark_streaming.records import sources
from spark_streaming.records.decode import RECORD_TYPE, column_of, decoded
from spark_streaming.records.transforms import BLOCK_REPORT, without_fields


def judge_blocks(session: SparkSession, bootstrap_servers: Brokers, view: LogView) -> dict[int, Json]:
    """Compare the members' reports of stored bytes with the log's rows; a pipeline without a report has no entry.

    A trimmed log does not give the rows: there the members are compared with each other.
    """
    if BLOCK_TABLE not in view.log.column_families:
        return {}
    records = sources.bounded(session, sources.reports_source(bootstrap_servers, [view.log]))
    reports = newest_reports(records, {shard: set(fact.replicas) for shard, fact in view.facts.items()})
    until = {shard: max(report.log_offset for report in found) for shard, found in reports.items()}
    indexes = counting.indexes_at(view.effective, until)
    whole = {shard: offset for shard, offset in until.items() if view.facts[shard].base is None}
    expected = oracle.container_digests(view.records, view.log.column_families, view.effective, whole)
    return {
        shard: blocks_result(
            view.facts[shard].replicas, until[shard], indexes.get(shard, 0), found,
            expected[shard] if shard in whole else None,
        )
        for shard, found in reports.items()
    }  # fmt: skip


def newest_reports(records: DataFrame, members: dict[int, set[str]]) -> dict[int, list[BlockReport]]:
    """Return each partition's reports to compare. Reads the heads of all reports, and the bodies of the chosen."""
    light = {BLOCK_REPORT: without_fields(BLOCK_REPORT, "containers")}
    report = F.col(column_of(BLOCK_REPORT))
    known = decoded(records, [BLOCK_REPORT], light).where(F.col(RECORD_TYPE) == BLOCK_REPORT)
    heads = known.select("shard", "offset", report["datanode"], report["log_offset"]).orderBy("shard", "offset")
    wanted = newest_scans((ScanHead(*row) for row in heads.collect()), members)
    if not wanted:
        return {}
    chosen = records.sparkSession.createDataFrame(wanted, "shard int, offset long")
    found: dict[int, list[BlockReport]] = {}
    for row in records.join(F.broadcast(chosen), ["shard", "offset"]).select("shard", "value").collect():
        found.setdefault(row.shard, []).append(decode_as(BlockReport, bytes(row.value)))
    return found
