"""A micro-batch of the log into all tables, in one order, so that every row is there exactly once.

Order: growth, usage, keys, sizes, operations last. A table takes no record below its own position. After a kill some
tables are a micro-batch ahead, and take nothing of it the second time. The operations' position holds for all tables:
those that a micro-batch did not change were not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.tables.core.positions import Positions, latest
from spark_streaming.tables.core.shard_fold import GROWTH, KEYS, OPERATIONS, SIZES, USAGE, FoldedPosition
from spark_streaming.tables.definitions import KEY_COLUMNS, TABLES, TableDefinition
from spark_streaming.tables.delta_tables import DeltaTables, metadata_of
from spark_streaming.tables.folding import (
    GROWTH_ROW,
    OPERATION_ROW,
    POSITION_ROW,
    USAGE_ROW,
    FoldedShard,
    folded,
    folded_shard,
)

QUIET_RECORDS = 5_000
"""After so many records that change no table, positions are committed all the same: a start reads no more again."""

COMPACT_AFTER = 64
"""Commits of the operations after which small files are joined, and old ones deleted."""

SMALLEST_BELOW_BITS, LARGEST_BELOW_BITS = 10, 62
"""Bins of file sizes: from below 1 KiB on, each twice as large as the one before."""

Written = Callable[[Mapping[int, FoldedPosition], int], None]


class LogStopped(Exception):
    """The log cannot be read on: it is broken, or newer software has written it. What came before is in the tables."""


class TableSink:
    """Writes micro-batches; call it from ``foreachBatch``."""

    def __init__(self, tables: DeltaTables, gate: BatchGate, on_written: Written) -> None:
        self._tables = tables
        self._gate = gate
        self._on_written = on_written
        last = {one.name: tables.last_commit(one.name) for one in TABLES}
        self._held = {name: dict(held.positions) if held is not None else {} for name, held in last.items()}
        self._sizes_source = None if (sizes := last[SIZES]) is None else sizes.source
        self.positions: dict[int, FoldedPosition] = dict(self._held[OPERATIONS])
        self._commits = 0

    def __call__(self, raw: DataFrame, _batch_id: int) -> None:
        """Write one micro-batch; raises LogStopped after what could be read."""
        with self._gate.passing():
            rows = folded(raw, self.positions, self._begins()).persist(StorageLevel.MEMORY_AND_DISK)
            try:
                ends = _ends(rows)
                if ends:
                    self._write(rows, ends)
            finally:
                rows.unpersist()
        stopped = [f"shard {one.shard}, {one.stopped}" for one in ends if one.stopped]
        if stopped:
            raise LogStopped("; ".join(stopped))

    def _write(self, rows: DataFrame, ends: list[FoldedShard]) -> None:
        self.positions |= {one.shard: one.position for one in ends}
        counts = {kind: sum(one.rows[kind] for one in ends) for kind in (OPERATION_ROW, USAGE_ROW, GROWTH_ROW)}
        if any(counts.values()) or self._lags():
            self._commit(rows, counts)
        self._on_written(self.positions, counts[OPERATION_ROW])

    def _begins(self) -> dict[str, dict[int, int]]:
        """Return the offsets from which each table takes records."""
        return {
            name: {shard: one.reading.next_offset for shard, one in held.items()} for name, held in self._held.items()
        }

    def _lags(self) -> bool:
        held = self._held[OPERATIONS]
        return any(
            one.reading.next_offset - held.get(shard, FoldedPosition()).reading.next_offset >= QUIET_RECORDS
            for shard, one in self.positions.items()
        )

    def _positions_with(self, table: str) -> Positions:
        """Note, and return, what a table holds once it has this micro-batch; it may have been ahead."""
        self._held[table] = latest([self.positions, self._held[table]])
        return self._held[table]

    def _commit(self, rows: DataFrame, counts: Mapping[str, int]) -> None:
        begins = self._begins()
        if counts[GROWTH_ROW]:
            metadata = metadata_of(self._positions_with(GROWTH))
            self._tables.merge(GROWTH, growth_rows(rows), GROWTH_CLAUSES, ("hour", "volume", "bucket"), metadata)
        if counts[USAGE_ROW]:
            metadata = metadata_of(self._positions_with(USAGE))
            self._tables.merge(USAGE, usage_rows(rows), USAGE_CLAUSES, ("volume", "bucket"), metadata)
        operations = operation_rows(rows)
        if counts[OPERATION_ROW]:
            changes = key_changes(unheld(operations, begins[KEYS]))
            metadata = metadata_of(self._positions_with(KEYS))
            self._tables.merge(KEYS, changes, KEY_CLAUSES, ("volume", "bucket", "key"), metadata)
            self._update_sizes()
        metadata = metadata_of(self._positions_with(OPERATIONS))
        self._tables.append(OPERATIONS, unheld(operations, begins[OPERATIONS]), metadata)
        self._commits += 1
        if self._commits % COMPACT_AFTER == 0:
            for table in TABLES:
                self._tables.compact(table.name)

    def _update_sizes(self) -> None:
        """Bring the sizes to the keys' newest version: by the keys' change feed, or anew if that is not known."""
        newest = self._tables.history(KEYS, 1).newest
        metadata = metadata_of(self._positions_with(SIZES), newest)
        source = self._sizes_source
        if source is not None and source < newest:
            try:
                changes = size_changes(self._tables.changes(KEYS, source + 1, newest))
                self._tables.merge(SIZES, changes, SIZE_CLAUSES, ("volume", "bucket", "below_bytes"), metadata)
                self._sizes_source = newest
                return
            except PySparkException:
                pass  # the feed is older than what is kept of it
        self._tables.overwrite(SIZES, sizes_of(self._tables.read(KEYS, newest)), metadata)
        self._sizes_source = newest


def _ends(rows: DataFrame) -> list[FoldedShard]:
    found = rows.where(F.col("row_kind") == POSITION_ROW).select("shard", "position").collect()
    return [folded_shard(row.shard, row.position) for row in found]


def unheld(rows: DataFrame, begins: Mapping[int, int]) -> DataFrame:
    """Leave out the rows of offsets that a table has."""
    held = F.lit(False)
    for shard, offset in begins.items():
        held |= (F.col("shard") == shard) & (F.col("offset") < offset)
    return rows.where(~held) if begins else rows


def operation_rows(rows: DataFrame) -> DataFrame:
    """Return the rows of ``effective_operations``."""
    key_row = F.col("key_row")
    row = F.struct(*(_column(key_row, name, kind).alias(name) for name, kind in KEY_COLUMNS))
    found = rows.where(F.col("row_kind") == OPERATION_ROW)
    return found.select(
        "shard", "index", "offset", "ordinal", "term", "leader", F.timestamp_millis("time_ms").alias("time"),
        "request_type", "status", "message", "client_id", "call_id",
        F.timestamp_millis("first_sent_ms").alias("first_sent_at"), "volume", "bucket", "key", "to_key", "snapshot",
        "removes_key", F.when(key_row.isNotNull(), row).alias("row"),
    )  # fmt: skip


def _column(row: Column, name: str, kind: str) -> Column:
    return F.timestamp_millis(row[f"{name}_ms"]) if kind == "timestamp" else row[name]


def key_changes(operations: DataFrame) -> DataFrame:
    """Return the last change of each key among rows of ``effective_operations``: a row of ``keys_current``, or removed.

    A rename removes one key and writes another.
    """
    gone = F.struct(F.col("key").alias("name"), F.lit(True).alias("removed"), F.lit(0).alias("step"))
    there = F.struct(F.coalesce("to_key", "key").alias("name"), F.lit(False).alias("removed"), F.lit(1).alias("step"))
    steps = F.filter(
        F.array(F.when(F.col("removes_key"), gone), F.when(F.col("row").isNotNull(), there)),
        lambda step: step.isNotNull(),
    )
    each = operations.select("*", F.explode(steps).alias("change"))
    moment = F.struct("offset", "ordinal", "change.step")
    last = each.groupBy("volume", "bucket", F.col("change.name").alias("key")).agg(
        F.max_by(F.struct("change.removed", "shard", "index", "row"), moment).alias("last")
    )
    return last.select(
        "volume", "bucket", "key", "last.removed", "last.shard", "last.index",
        *(F.col(f"last.row.{name}").alias(name) for name, _ in KEY_COLUMNS),
    )  # fmt: skip


def usage_rows(rows: DataFrame) -> DataFrame:
    """Return what became of buckets, as USAGE_CLAUSES take it. A bucket lives in one shard."""
    info = F.col("bucket_row")
    return rows.where(F.col("row_kind") == USAGE_ROW).select(
        "volume", "bucket", "shard", "index", "keys", "bytes", info["owner"].alias("owner"),
        info["object_id"].alias("object_id"), info["quota_in_bytes"].alias("quota_in_bytes"),
        info["quota_in_namespace"].alias("quota_in_namespace"),
        F.timestamp_millis(info["creation_time_ms"]).alias("creation_time"),
        F.timestamp_millis("time_ms").alias("changed_at"), "removed", "afresh",
    )  # fmt: skip


def growth_rows(rows: DataFrame) -> DataFrame:
    """Return what was added to buckets, by hour."""
    found = rows.where(F.col("row_kind") == GROWTH_ROW)
    return found.select(F.timestamp_millis("time_ms").alias("hour"), "volume", "bucket", "keys", "bytes")


def below_bytes(size: Column) -> Column:
    """Return the bin of a size: the smallest power of two above it, from 1 KiB on; the last bin has no end."""
    bits = F.least(F.greatest(F.length(F.bin(size)), F.lit(SMALLEST_BELOW_BITS)), F.lit(LARGEST_BELOW_BITS))
    return F.call_function("shiftleft", F.lit(1).cast("bigint"), bits)


def sizes_of(keys: DataFrame) -> DataFrame:
    """Return ``file_sizes`` of all keys."""
    return _binned(keys, F.lit(1))


def size_changes(feed: DataFrame) -> DataFrame:
    """Return what a change feed of the keys adds to ``file_sizes``."""
    sign = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
    return _binned(feed, sign).where((F.col("keys") != 0) | (F.col("bytes") != 0))


def _binned(rows: DataFrame, sign: Column) -> DataFrame:
    return rows.groupBy("volume", "bucket", below_bytes(F.col("size")).alias("below_bytes")).agg(
        F.sum(sign).cast("bigint").alias("keys"), F.sum(sign * F.col("size")).cast("bigint").alias("bytes")
    )


def _insert(definition: TableDefinition) -> str:
    names = ", ".join(f"`{name}`" for name in definition.names)
    values = ", ".join(f"s.`{name}`" for name in definition.names)
    return f"INSERT ({names}) VALUES ({values})"  # noqa: S608 - names of our own columns


def _table(name: str) -> TableDefinition:
    return next(one for one in TABLES if one.name == name)


_ADDED = "t.keys = t.keys + s.keys, t.bytes = t.bytes + s.bytes"
KEY_CLAUSES = (
    "WHEN MATCHED AND s.removed THEN DELETE WHEN MATCHED THEN UPDATE SET "
    + ", ".join(f"t.`{name}` = s.`{name}`" for name in _table(KEYS).names)
    + f" WHEN NOT MATCHED AND NOT s.removed THEN {_insert(_table(KEYS))}"
)
_KEPT = ("owner", "object_id", "quota_in_bytes", "quota_in_namespace", "creation_time")
USAGE_CLAUSES = (
    "WHEN MATCHED AND s.removed THEN DELETE WHEN MATCHED THEN UPDATE SET t.index = s.index, t.changed_at = s.changed_at, "
    "t.keys = if(s.afresh, 0, t.keys) + s.keys, t.bytes = if(s.afresh, 0, t.bytes) + s.bytes, "
    + ", ".join(f"t.{name} = coalesce(s.{name}, t.{name})" for name in _KEPT)
    + f" WHEN NOT MATCHED AND NOT s.removed THEN {_insert(_table(USAGE))}"
)
GROWTH_CLAUSES = f"WHEN MATCHED THEN UPDATE SET {_ADDED} WHEN NOT MATCHED THEN {_insert(_table(GROWTH))}"
SIZE_CLAUSES = (
    f"WHEN MATCHED AND t.keys + s.keys = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET {_ADDED} "
    f"WHEN NOT MATCHED THEN {_insert(_table(SIZES))}"
)
"""The sums are those of one bin: a bin without keys is removed."""
