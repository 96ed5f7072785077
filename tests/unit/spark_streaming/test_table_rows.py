"""What goes between the fold and the tables: rows for Arrow, commits' metadata, versions by index."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.codecs.codec import decode
from schemas.column_families import KEY_TABLE, USAGE_TABLE
from schemas.records.log import Batch
from spark_streaming.tables.core.shard_fold import KEYS, USAGE, FoldedPosition
from spark_streaming.tables.core.usage_changes import UsageChanges
from spark_streaming.tables.core.versions import TableVersion, is_within, parse_indexes, version_at
from spark_streaming.tables.definitions import TABLES
from spark_streaming.tables.delta_tables import HeldCommit, TableHistory, held_commit, metadata_of
from spark_streaming.tables.folding import (
    FOLDED,
    GROWTH_ROW,
    OPERATION_ROW,
    POSITION_ROW,
    ROWS_AT_ONCE,
    USAGE_ROW,
    fold_pieces,
    folded_shard,
)
from spark_streaming.tables.keeping import set_aside
from spark_streaming.tables.reading_tables import NoTables, check_tables
from tests.support.logs.logbuilder import LogBuilder, counter


def log_of(shard: int, keys: int) -> LogBuilder:
    log = LogBuilder(shard=shard, shards=2).start()
    used = b"/v/b/#usedNamespace"
    log.batch(log.put(USAGE_TABLE, used, counter(0)))
    log.batch(log.merge(used, keys))
    log.batch(*(log.delete(KEY_TABLE, b"/v/b/%d" % n) for n in range(keys)))
    return log


def pieces_of(*logs: LogBuilder, size: int = 2) -> list[pa.RecordBatch]:
    rows = [(log.shard, offset, value) for log in logs for offset, value in enumerate(log.values)]
    schema = pa.schema([("shard", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(column, type=field.type) for column, field in zip(zip(*rows[n : n + size], strict=True), schema, strict=True)],
            schema=schema,
        )
        for n in range(0, len(rows), size)
    ]  # fmt: skip


def test_shards_are_folded_one_after_the_other_and_each_tells_its_end():
    logs = log_of(0, 2), log_of(1, 3)
    found = [row for batch in fold_pieces(pieces_of(*logs), starts={}, begins={}) for row in batch.to_pylist()]
    ends = [folded_shard(row["shard"], row["position"]) for row in found if row["row_kind"] == POSITION_ROW]
    assert [(one.shard, one.position.reading.last_index, one.stopped) for one in ends] == [(0, 3, None), (1, 3, None)]
    counted = [(row["shard"], row["keys"]) for row in found if row["row_kind"] == USAGE_ROW]
    assert counted == [(0, 2), (1, 3)]
    assert [one.rows for one in ends] == [{OPERATION_ROW: 3 + keys, USAGE_ROW: 1, GROWTH_ROW: 1} for keys in (2, 3)]
    assert {row["shard"] for row in found if row["row_kind"] == OPERATION_ROW and row["removes_key"]} == {0, 1}


def test_a_shard_goes_on_where_its_table_is_and_a_table_that_is_ahead_takes_nothing():
    log = log_of(0, 2)
    (whole,) = (batch for batch in fold_pieces(pieces_of(log), starts={}, begins={}))
    end = json.loads(whole.to_pylist()[-1]["position"])["position"]
    more = LogBuilder(**{**vars(log), "values": []})
    more.batch(more.merge(b"/v/b/#usedBytes", 5))
    after = [("shard", [0]), ("offset", [len(log.values)]), ("value", more.values)]
    piece = pa.RecordBatch.from_pydict(dict(after))
    (rest,) = fold_pieces([piece], starts={0: end}, begins={KEYS: {0: 1}})
    assert [(row["row_kind"], row["bytes"]) for row in rest.to_pylist()][1:3] == [(USAGE_ROW, 5), (GROWTH_ROW, 5)]
    (none,) = fold_pieces([piece], starts={0: end}, begins={USAGE: {0: 100}})
    assert USAGE_ROW not in {row["row_kind"] for row in none.to_pylist()}


def test_what_is_added_to_a_bucket_of_before_is_no_counter_of_its_own():
    """Its counters go on; those of a bucket that was made meanwhile begin."""
    log = LogBuilder(shard=0, shards=1).start()
    log.batch(log.merge(b"/v/old/#usedNamespace", 3))
    log.batch(log.put(USAGE_TABLE, b"/v/new/#usedNamespace", counter(2)))
    changes = UsageChanges()
    for value in log.values:
        if isinstance(batch := decode(value), Batch):
            changes.take(batch, buckets=True, growth=False)
    found = {place: (change.afresh, change.keys) for place, change in changes.buckets.items()}
    assert found == {("v", "old"): (False, 3), ("v", "new"): (True, 2)}


def test_rows_go_to_spark_in_bounded_batches():
    log = LogBuilder().start()
    log.batch(*(log.delete(KEY_TABLE, b"/v/b/%d" % n) for n in range(2 * ROWS_AT_ONCE)))
    batches = list(fold_pieces(pieces_of(log), starts={}, begins={}))
    assert max(batch.num_rows for batch in batches) == ROWS_AT_ONCE
    assert all(batch.schema == FOLDED for batch in batches)


def test_a_commit_says_what_it_holds_and_foreign_ones_say_nothing():
    position = FoldedPosition(gaps=("a gap",))
    found = held_commit(7, metadata_of({3: position}, source=5))
    assert found is not None
    assert (found.version, found.positions, found.source) == (7, {3: position}, 5)
    assert found.as_version() == TableVersion(7, {3: 0})
    for foreign in ("", "null", "no json", "[]", "{}", '{"stratolog": 1}', '{"stratolog": 1, "positions": {"0": {}}}'):
        assert held_commit(1, foreign) is None


VERSIONS = [TableVersion(2, {0: 10}), TableVersion(3, {0: 10, 1: 5}), TableVersion(5, {0: 20, 1: 9})]


@pytest.mark.parametrize(
    ("at", "version"),
    [("20", 5), ("0:20,1:9", 5), ("0:20,1:8", 3), ("0:19", 3), ("9", None), ("1:4", 2), ("0:9,1:99", None), ("99", 5)],
)
def test_a_version_holds_nothing_after_the_wanted_indexes(at: str, version: int | None):
    found = version_at(VERSIONS, parse_indexes(at))
    assert (found and found.version) == version
    assert found is None or is_within(found.indexes, parse_indexes(at))


def test_a_commits_rows_are_read_at_the_last_version_that_has_them():
    commits = [HeldCommit(version, {}, None) for version in (7, 4, 1)]
    history = TableHistory(9, commits)
    assert [history.readable(one.as_version()) for one in commits] == [9, 6, 3]
    assert history.readable(None) == 0
    assert TableHistory(2, []).readable(None) == 2


@pytest.mark.parametrize("text", ["", "x", "-1", "0:", ":1", "1:2:3", "0:1,", "1,0:2", "٣"])
def test_what_is_no_index_is_named(text: str):
    with pytest.raises(ValueError, match="is no index|beside others"):
        parse_indexes(text)


def test_tables_are_set_aside_whole_and_an_older_set_goes(tmp_path: Path):
    root = tmp_path / "tables"
    with pytest.raises(NoTables, match="'stratolog tables' makes"):
        check_tables(root)
    for content in ("old", "new"):
        for table in TABLES:
            (root / table.name / "_delta_log").mkdir(parents=True)
            (root / table.name / content).touch()
        check_tables(root)
        aside = set_aside(root)
    assert [list(root.iterdir()), aside.name] == [[], "tables.before-trim"]
    assert {path.name for path in aside.rglob("*") if path.is_file()} == {"new"}


def test_tables_have_names_and_columns_of_their_own():
    assert len({table.name for table in TABLES}) == len(TABLES)
    for table in TABLES:
        assert len(set(table.names)) == len(table.names)
        assert set(table.clustered_by) <= set(table.names)
