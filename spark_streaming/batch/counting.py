"""Which records of a log count, by the auditor's own reading rule, and where they end (design, section 3).

The rule runs over headers alone, one shard after another. All functions take records of one log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from spark_streaming.batch.core.computed import LogPoint
from spark_streaming.records.core.reading import (
    BARRIER,
    BASE,
    GENESIS,
    REQUEST_BATCH,
    AuditPosition,
    GenesisFacts,
    Header,
    LogBroken,
    Ruling,
    read,
)
from spark_streaming.records.transforms import header_rows

EFFECTIVE = "shard int, offset long, kind string, last_index long, shards int, replicas array<string>, broken string"
"""``shards``: of Genesis. ``replicas``: of Genesis and Members. ``broken``: why a log is broken. A row of kind BASE
stands for the base of a trimmed log.
"""


def effective_records(records: DataFrame) -> DataFrame:
    """Run the reading rule over raw records of a log; return those that count, with ``last_index`` (EFFECTIVE).

    A log that breaks its contract has one last row of kind null, whose ``broken`` says why. Spark sorts each shard's
    headers, on disk if need be, and hands them over piece by piece: a log of any length takes the memory of one piece.
    """
    ordered = header_rows(records).repartition("shard").sortWithinPartitions("shard", "offset")
    return ordered.mapInPandas(_effective, EFFECTIVE)


def _effective(pieces: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Read headers of one shard after the other, each in order."""
    reader: _ShardReader | None = None
    for headers in pieces:
        found: list[_EffectiveRow] = []
        for row in headers.itertuples(index=False):
            if reader is None or row.shard != reader.shard:
                found += reader.end() if reader is not None else ()
                reader = _ShardReader(row.shard)
            found += reader.take(row)
        yield _frame(found)
    if reader is not None:
        yield _frame(reader.end())


def header_of(row: Any) -> Header:
    """Translate a pandas row of HEADER_SCHEMA."""
    genesis = None
    if row.kind == GENESIS:
        genesis = GenesisFacts(
            cluster=row.cluster, shard=row.named_shard, shards=row.shards, replicas=tuple(row.replicas),
            column_families=tuple(row.column_families),
        )  # fmt: skip
    return Header(
        offset=row.offset, kind=row.kind, error=row.error, term=row.term, nonce=bytes(row.nonce or b""), seq=row.seq,
        prev_chain=bytes(row.prev_chain or b""), chain_after=bytes(row.chain_after or b""),
        value=bytes(row.value or b""), node=row.node or "", first_index=row.first_index, last_index=row.last_index,
        timestamp_ms=row.timestamp_ms, index=row.index, scrub=bool(row.scrub), genesis=genesis,
        replicas=tuple(row.replicas) if row.replicas is not None else (), feature_level=row.feature_level,
    )  # fmt: skip


def _frame(rows: Iterable[_EffectiveRow]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(_EffectiveRow._fields))


class _EffectiveRow(NamedTuple):
    shard: int
    offset: int
    kind: str | None
    last_index: int
    shards: int = 0
    replicas: Any = None
    broken: str | None = None


class _ShardReader:
    """Runs the reading rule over the headers of one shard."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self._position = AuditPosition()
        self._offset = -1
        self._is_broken = False

    def take(self, row: Any) -> Iterator[_EffectiveRow]:
        """Read the next header; yield the records that count, and the base of a trimmed log."""
        if self._is_broken:
            return
        sought, self._offset = self._position.seeks_base, row.offset
        try:
            self._position, outcome = read(self._position, header_of(row))
        except LogBroken as broken:
            self._is_broken = True
            yield self._row(None, broken=broken.reason)
            return
        position = self._position
        if sought and position.has_begun:
            yield self._row(BASE)._replace(offset=position.base_offset, last_index=position.base_index)
        if outcome is Ruling.COUNTS:
            yield self._row(row.kind, shards=row.shards, replicas=row.replicas)

    def end(self) -> Iterator[_EffectiveRow]:
        """Say at the log's end if it was trimmed and holds no base."""
        if self._position.seeks_base and not self._is_broken:
            start = self._position.trimmed_to
            yield self._row(
                None, broken=f"the log begins at offset {start}, and no base follows from which it could be judged"
            )

    def _row(self, kind: str | None, **others: Any) -> _EffectiveRow:
        return _EffectiveRow(self.shard, self._offset, kind, self._position.last_index, **others)


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
