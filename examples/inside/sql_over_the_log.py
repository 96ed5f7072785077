"""Spark SQL over the log: who writes how much, and into which tables. Start a stack first: ``stratolog up``.

python examples/inside/sql_over_the_log.py [BROKERS]

The log is data: each record of ``om.log`` is Avro, and ``decoded`` gives a column of structs for each record type. The
view includes void records; the reading rule (``spark_streaming/records/core/reading.py``) says which records count.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from schemas.topics import OM_LOG
from spark_streaming.records.decode import decoded
from spark_streaming.records.session import SparkSettings, build_session
from spark_streaming.records.sources import KafkaSource, bounded
from stratolog.local.jars import spark_jars

BATCHES = """
    SELECT shard, count(*) AS batches, sum(size(as_batch.results)) AS requests, max(as_batch.last_index) AS last_index
    FROM log WHERE record_type = 'Batch' GROUP BY shard ORDER BY shard
"""

OPERATIONS = """
    SELECT coalesce(op.member_put.cf, op.member_delete.cf, op.member_merge.cf) AS family,
           count(op.member_put) AS puts, count(op.member_delete) AS deletes, count(op.member_merge) AS merges
    FROM (SELECT explode(as_batch.operations) AS op FROM log WHERE record_type = 'Batch')
    GROUP BY family HAVING family IS NOT NULL ORDER BY family
"""


def log_view(session: SparkSession, brokers: str, topic: str = OM_LOG) -> DataFrame:
    """Register the log up to its present end as the view ``log``."""
    source = KafkaSource(bootstrap_servers=brokers, topics={topic: OM_LOG})
    frame = decoded(bounded(session, source), ["Batch", "LeaderClaim"])
    frame.createOrReplaceTempView("log")
    return frame


def main(brokers: str = "127.0.0.1:9092") -> int:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as scratch:
        session = build_session(SparkSettings(jars=tuple(spark_jars()), work_dir=Path(scratch), app_name="sql"))
        try:
            log_view(session, brokers)
            session.sql(BATCHES).show()
            session.sql(OPERATIONS).show(truncate=False)
        finally:
            session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
