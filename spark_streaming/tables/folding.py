"""A micro-batch of raw records folded shard by shard in Spark's Python workers, as rows of one schema (FOLDED).

The rows of all tables come out of one pass. ``row_kind`` says which table a row is for; one row for each shard says
where its log has been read to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from spark_streaming.tables.core.positions import Positions, plain_position, position_from
from spark_streaming.tables.core.shard_fold import EffectiveOperation, FoldedPosition, ShardFold

OPERATION_ROW = "operation"
USAGE_ROW = "usage"
GROWTH_ROW = "growth"
POSITION_ROW = "position"

ROWS_AT_ONCE = 4_096
"""Most rows that go to Spark in one Arrow batch."""

_KEY_ROW = pa.struct(
    [
        ("owner", pa.string()), ("object_id", pa.int64()), ("size", pa.int64()), ("replication", pa.string()),
        ("blocks", pa.int32()), ("metadata", pa.map_(pa.string(), pa.string())), ("creation_time_ms", pa.int64()),
        ("modification_time_ms", pa.int64()),
    ]
)  # fmt: skip
_BUCKET_ROW = pa.struct(
    [
        ("owner", pa.string()), ("object_id", pa.int64()), ("quota_in_bytes", pa.int64()),
        ("quota_in_namespace", pa.int64()), ("creation_time_ms", pa.int64()),
    ]
)  # fmt: skip
FOLDED = pa.schema(
    [
        ("row_kind", pa.string()), ("shard", pa.int32()), ("index", pa.int64()), ("offset", pa.int64()),
        ("ordinal", pa.int32()), ("term", pa.int64()), ("leader", pa.string()), ("time_ms", pa.int64()),
        ("request_type", pa.string()), ("status", pa.string()), ("message", pa.string()), ("client_id", pa.string()),
        ("call_id", pa.int64()), ("first_sent_ms", pa.int64()), ("volume", pa.string()), ("bucket", pa.string()),
        ("key", pa.string()), ("to_key", pa.string()), ("snapshot", pa.string()), ("removes_key", pa.bool_()),
        ("key_row", _KEY_ROW), ("bucket_row", _BUCKET_ROW), ("removed", pa.bool_()), ("afresh", pa.bool_()),
        ("keys", pa.int64()), ("bytes", pa.int64()), ("position", pa.string()),
    ]
)  # fmt: skip

Row = dict[str, Any]
Begins = Mapping[str, Mapping[int, int]]
"""By table and shard, the offset below which the table has the log already."""


class FoldedShard(NamedTuple):
    """What a micro-batch made of one shard: where it ends, how many rows there are of each kind, why it stopped."""

    shard: int
    position: FoldedPosition
    rows: Mapping[str, int]
    stopped: str | None


def folded(raw: DataFrame, positions: Positions, begins: Begins) -> DataFrame:
    """Fold raw records (``shard``, ``offset``, ``value``) that follow ``positions``; return rows of FOLDED."""
    ordered = raw.select("shard", "offset", "value").repartition("shard").sortWithinPartitions("shard", "offset")
    starts = {shard: plain_position(position) for shard, position in positions.items()}
    fold = partial(fold_pieces, starts=starts, begins={table: dict(found) for table, found in begins.items()})
    return ordered.mapInArrow(fold, from_arrow_schema(FOLDED))


def fold_pieces(
    pieces: Iterable[pa.RecordBatch], *, starts: Mapping[int, Mapping[str, Any]], begins: Begins
) -> Iterator[pa.RecordBatch]:
    """Fold records of one shard after the other, each in the order of its offsets."""
    current: _ShardRows | None = None
    for piece in pieces:
        for shard, offset, value in zip(*(piece.column(n).to_pylist() for n in range(3)), strict=True):
            if current is None or shard != current.fold.shard:
                if current is not None:
                    yield from _batches(current.end())
                current = _ShardRows(_fold_of(shard, starts, begins))
            current.take(offset, value)
            if len(current.rows) >= ROWS_AT_ONCE:
                yield from _batches(current.drain())
    if current is not None:
        yield from _batches(current.end())


def _fold_of(shard: int, starts: Mapping[int, Mapping[str, Any]], begins: Begins) -> ShardFold:
    position = position_from(starts[shard]) if shard in starts else FoldedPosition()
    return ShardFold(shard, position, {table: found.get(shard, 0) for table, found in begins.items()})


class _ShardRows:
    """Rows of one shard, on their way to Spark."""

    def __init__(self, fold: ShardFold) -> None:
        self.fold = fold
        self.rows: list[Row] = []
        self._operations = 0

    def take(self, offset: int, value: bytes | None) -> None:
        found = [operation_row(self.fold.shard, one) for one in self.fold.take(offset, value)]
        self._operations += len(found)
        self.rows += found

    def drain(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows

    def end(self) -> list[Row]:
        usage, growth = list(_usage_rows(self.fold)), list(_growth_rows(self.fold))
        told = {
            "position": plain_position(self.fold.position), "stopped": self.fold.stopped,
            "rows": {OPERATION_ROW: self._operations, USAGE_ROW: len(usage), GROWTH_ROW: len(growth)},
        }  # fmt: skip
        last = {"row_kind": POSITION_ROW, "shard": self.fold.shard, "position": json.dumps(told)}
        return [*self.drain(), *usage, *growth, last]


def folded_shard(shard: int, text: str) -> FoldedShard:
    """Return what a row of POSITION_ROW says."""
    told = json.loads(text)
    return FoldedShard(shard, position_from(told["position"]), told["rows"], told["stopped"])


def operation_row(shard: int, one: EffectiveOperation) -> Row:
    """Return an effective request as a row of FOLDED."""
    target, answer = one.target, one.answer
    found: Row = {
        "row_kind": OPERATION_ROW, "shard": shard, "index": one.index, "offset": one.offset, "ordinal": one.at,
        "term": one.term, "leader": one.leader, "time_ms": one.time_ms, "volume": target.volume,
        "bucket": target.bucket, "key": target.key, "to_key": target.to_key, "snapshot": target.snapshot,
        "removes_key": target.removes_key,
    }  # fmt: skip
    if answer is not None:
        result = answer.result
        found |= {
            "request_type": result.request_type, "status": answer.status, "message": answer.message,
            "client_id": result.client_id.hex(), "call_id": int.from_bytes(result.call_id, "big", signed=True),
            "first_sent_ms": result.first_sent_at_ms,
        }  # fmt: skip
    if target.row is not None:
        names = ("owner", "object_id", "size", "replication", "creation_time_ms", "modification_time_ms")
        row = {name: getattr(target.row, name) for name in names}
        found["key_row"] = row | {"blocks": len(target.row.blocks), "metadata": list(target.row.metadata.items())}
    return found


def _usage_rows(fold: ShardFold) -> Iterator[Row]:
    for (volume, bucket), change in fold.usage.buckets.items():
        names = ("owner", "object_id", "quota_in_bytes", "quota_in_namespace", "creation_time_ms")
        info = change.info
        yield {
            "row_kind": USAGE_ROW, "shard": fold.shard, "volume": volume, "bucket": bucket, "index": change.index,
            "time_ms": change.time_ms, "removed": change.removed, "afresh": change.afresh, "keys": change.keys,
            "bytes": change.bytes, "bucket_row": None if info is None else {name: getattr(info, name) for name in names},
        }  # fmt: skip


def _growth_rows(fold: ShardFold) -> Iterator[Row]:
    for (hour_ms, volume, bucket), grown in fold.usage.hours.items():
        yield {
            "row_kind": GROWTH_ROW, "shard": fold.shard, "time_ms": hour_ms, "volume": volume, "bucket": bucket,
            "keys": grown.keys, "bytes": grown.bytes,
        }  # fmt: skip


def _batches(rows: list[Row]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), ROWS_AT_ONCE):
        yield pa.RecordBatch.from_pylist(rows[start : start + ROWS_AT_ONCE], schema=FOLDED)
