"""Which records of a log count, by the auditor's own reading rule, and where they end (design, section 3).

The rule runs over headers alone, one shard after another. All functions take records of one log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from spark_streaming.batch.core.computed import LogPoint
from spark_streaming.records.core.reading import BARRIER, BASE, REQUEST_BATCH, AuditPosition, LogBroken, Ruling, read
from spark_streaming.records.transforms import header_rows
from spark_streaming.verdicts.audit import log_row

EFFECTIVE = "shard int, offset long, kind string, last_index long, shards int, replicas array<string>, broken string"
"""``shards``: of Genesis. ``replicas``: of Genesis and Members. ``broken``: why a log is broken. A row of kind BASE
stands for the base of a trimmed log.
"""


def effective_records(records: DataFrame) -> DataFrame:
    """Run the reading rule over raw records of a log; return those that count, with ``last_index`` (EFFECTIVE).

    A log that breaks its contract has one last row of kind null, whose ``broken`` says why.
    """
    return header_rows(records).groupBy("shard").applyInPandas(_effective_of_shard, EFFECTIVE)


def _effective_of_shard(headers: pd.DataFrame) -> pd.DataFrame:
    """Read one shard's headers in order."""
    columns = ["shard", "offset", "kind", "last_index", "shards", "replicas", "broken"]
    return pd.DataFrame(list(_read_all(headers.sort_values("offset"))), columns=columns)


def _read_all(headers: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    position = AuditPosition()
    shard, offset = 0, -1
    for row in headers.itertuples(index=False):
        shard, offset, sought = row.shard, row.offset, position.seeks_base
        try:
            position, outcome = read(position, log_row(row).header)
        except LogBroken as broken:
            yield row.shard, row.offset, None, position.last_index, 0, None, broken.reason
            return
        if sought and position.has_begun:
            yield row.shard, position.base_offset, BASE, position.base_index, 0, None, None
        if outcome is Ruling.COUNTS:
            yield row.shard, row.offset, row.kind, position.last_index, row.shards, row.replicas, None
    if position.seeks_base:
        reason = f"the log begins at offset {position.trimmed_to}, and no base follows from which it could be judged"
        yield shard, offset, None, position.last_index, 0, None, reason


def ends(effective: DataFrame, at: str = "end") -> dict[int, LogPoint]:
    """Return the point of each shard's last effective record, or of its last ``barrier``.

    Shards without such a record are left out.
    """
    counting = effective.where(F.col("kind") == BARRIER if at == "barrier" else F.col("kind").isNotNull())
    rows = counting.groupBy("shard").agg(F.max("offset").alias("at"), F.max("last_index").alias("last")).collect()
    return {row.shard: LogPoint(row.at, row["last"]) for row in rows}


def first_bases(effective: DataFrame) -> dict[int, LogPoint]:
    """Return the base of each shard whose log was trimmed: the oracle cannot compute its rows."""
    rows = effective.where(F.col("kind") == BASE).collect()
    return {row.shard: LogPoint(row.offset, row.last_index) for row in rows}


def indexes_at(effective: DataFrame, until: Mapping[int, int]) -> dict[int, int]:
    """Return each shard's last index up to offset ``until``; shards without an effective record there are left out."""
    if not until:
        return {}
    bounds = effective.sparkSession.createDataFrame(list(until.items()), "shard int, until long")
    read_until = effective.join(F.broadcast(bounds), "shard").where(F.col("offset") <= F.col("until"))
    return {
        row.shard: row["last"] for row in read_until.groupBy("shard").agg(F.max("last_index").alias("last")).collect()
    }


def first_logged_requests(effective: DataFrame) -> dict[int, int]:
    """Return the offset of each shard's first RequestBatch, if any: the oracle cannot compute the rows after it."""
    late = effective.where(F.col("kind") == REQUEST_BATCH).groupBy("shard").agg(F.min("offset").alias("at"))
    return {row.shard: row.at for row in late.collect()}
