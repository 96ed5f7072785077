"""Requests for snapshots of buckets: each answer, what is written, and which versions the purge of blocks spares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.execution.execute import execute
from om_processors.execution.requests import LATE_REQUEST_TYPES, snapshot
from om_processors.execution.requests.snapshot import (
    MAX_PROPERTIES,
    MAX_PROPERTIES_BYTES,
    MAX_PURGED_SNAPSHOTS,
    MAX_SNAPSHOTS_PER_BUCKET,
    generated_name,
)
from om_processors.namespace import snapshots
from schemas.codecs.codec import decode
from schemas.column_families import DELETED_TABLE, SNAPSHOT_TABLE
from schemas.features import PIPELINE_GENERATIONS
from schemas.records.messages import (
    SNAPSHOT_REQUESTS,
    CommitKey,
    CreateBucket,
    CreatedSnapshot,
    CreateKey,
    CreateSnapshot,
    DeleteBucket,
    DeleteKey,
    DeleteSnapshot,
    PurgeBlocks,
    PurgeSnapshots,
    RenameKey,
    RenameSnapshot,
    RequestBody,
    SetSnapshotProperty,
)
from schemas.records.rows import ACTIVE, DELETED, SnapshotInfo
from tests.support.om.om_world import World, request_of

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
ROW = b"/vol1/bucket1/snap1"


@pytest.fixture
def world() -> World:
    return World().make()


def take(world: World, name: str = "snap1") -> CreatedSnapshot:
    result = world.do(CreateSnapshot(**PLACE, snapshot=name))
    assert isinstance(result, CreatedSnapshot)
    return result


def put(world: World, key: str, size: int = 250) -> None:
    session = world.session(CreateKey(**PLACE, key=key, size=size))
    world.do(CommitKey(**PLACE, key=key, session_id=session.session_id, size=size))


def rows(world: World) -> dict[bytes, SnapshotInfo]:
    return {key: decode(value) for key, value in world.tables.iterate(SNAPSHOT_TABLE, b"")}


def waiting(world: World) -> list[bytes]:
    return sorted(world.tables.tables[DELETED_TABLE])


def test_a_snapshot_is_a_row_that_names_a_checkpoint_of_everything_before_it(world: World):
    put(world, "a", 250)
    put(world, "b", 50)
    world.index += 1
    world.now_ms += 10
    tx = world.begin()
    result = execute(request_of(CreateSnapshot(**PLACE, snapshot="snap1"), "bob"), tx, world.context())
    tx.commit()
    assert result == CreatedSnapshot(snapshot="snap1", snapshot_id=world.index << 8)
    assert tx.checkpoint_name == f"snapshot-{world.index << 8}"
    bucket_id = 2 << 8
    assert rows(world) == {
        ROW: SnapshotInfo(
            volume="vol1", bucket="bucket1", snapshot="snap1", snapshot_id=world.index << 8, bucket_object_id=bucket_id,
            state=ACTIVE, checkpoint=tx.checkpoint_name, index=world.index, creation_time_ms=world.now_ms,
            deletion_time_ms=0, creator="bob", referenced_bytes=300, referenced_keys=2, properties={},
        )
    }  # fmt: skip


def test_without_a_name_it_is_named_after_the_time(world: World):
    world.now_ms = 1_795_428_672_335
    assert take(world, "").snapshot == "s20261123-101112.345"
    world.now_ms -= 10
    assert take(world, "").snapshot == "s20261123-101112.345-2", "batches may have the same time"
    assert generated_name(0, ()) == "s19700101-000000.000"
    world.do(DeleteSnapshot(**PLACE, snapshot="s20261123-101112.345-2"))
    world.do(RenameSnapshot(**PLACE, snapshot="s20261123-101112.345", to="kept"))


def test_a_deleted_snapshot_frees_its_name_and_keeps_its_row(world: World):
    first = take(world)
    world.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    deleted = f"/vol1/bucket1/#{first.snapshot_id}".encode()
    assert {key: (row.state, row.deletion_time_ms) for key, row in rows(world).items()} == {
        deleted: (DELETED, world.now_ms)
    }
    second = take(world)
    assert {key: row.snapshot_id for key, row in rows(world).items()} == {
        deleted: first.snapshot_id, ROW: second.snapshot_id,
    }  # fmt: skip
    world.do(PurgeSnapshots(shard=0, rows=[deleted, b"/vol1/bucket1/#77"]))
    assert set(rows(world)) == {ROW}
    world.do(PurgeSnapshots(shard=0, rows=[deleted]))
    assert world.writes == [], "a repeated purge changes nothing"


def test_renaming_changes_the_name_alone(world: World):
    take(world)
    before = rows(world)[ROW]
    world.do(RenameSnapshot(**PLACE, snapshot="snap1", to="other"))
    assert rows(world) == {b"/vol1/bucket1/other": replace(before, snapshot="other")}


def test_properties_are_set_by_name_and_an_empty_value_removes_one(world: World):
    take(world)
    world.do(SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"b": "2", "a": "1"}))
    world.do(SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"b": "", "c": "3", "d": ""}))
    assert rows(world)[ROW].properties == {"a": "1", "c": "3"}
    assert list(rows(world)[ROW].properties) == ["a", "c"], "one order for the same properties"


REFUSED: dict[str, tuple[RequestBody, str, str]] = {
    "volume": (CreateSnapshot(volume="V", bucket="bucket1"), "INVALID_VOLUME_NAME", "'V'"),
    "bucket": (DeleteSnapshot(volume="vol1", bucket="B", snapshot="snap1"), "INVALID_BUCKET_NAME", "'B'"),
    "short": (CreateSnapshot(**PLACE, snapshot="s1"), "INVALID_SNAPSHOT_ERROR", "'s1': it has 2 characters"),
    "long": (CreateSnapshot(**PLACE, snapshot="s" * 64), "INVALID_SNAPSHOT_ERROR", "it has 64 characters"),
    "digits": (CreateSnapshot(**PLACE, snapshot="1234"), "INVALID_SNAPSHOT_ERROR", "all numeric"),
    "capital": (CreateSnapshot(**PLACE, snapshot="Snap"), "INVALID_SNAPSHOT_ERROR", "'S' is not allowed"),
    "underscore": (RenameSnapshot(**PLACE, snapshot="snap1", to="a_b"), "INVALID_SNAPSHOT_ERROR", "'a_b'"),
    "slash": (CreateSnapshot(**PLACE, snapshot="a/b"), "INVALID_SNAPSHOT_ERROR", "'a/b'"),
    "hash": (DeleteSnapshot(**PLACE, snapshot="#768"), "INVALID_SNAPSHOT_ERROR", "'#768'"),
    "no name": (DeleteSnapshot(**PLACE, snapshot=""), "INVALID_SNAPSHOT_ERROR", "''"),
    "no volume": (CreateSnapshot(volume="vol9", bucket="bucket1"), "VOLUME_NOT_FOUND", "no volume /vol9"),
    "no bucket": (CreateSnapshot(volume="vol1", bucket="bucket9"), "BUCKET_NOT_FOUND", "no bucket /vol1/bucket9"),
    "taken": (CreateSnapshot(**PLACE, snapshot="snap1"), "FILE_ALREADY_EXISTS", "snap1 of bucket /vol1/bucket1 exists"),
    "absent": (DeleteSnapshot(**PLACE, snapshot="snap9"), "FILE_NOT_FOUND", "no snapshot snap9 of bucket"),
    "rename absent": (RenameSnapshot(**PLACE, snapshot="snap9", to="snap8"), "FILE_NOT_FOUND", "snap9"),
    "rename taken": (RenameSnapshot(**PLACE, snapshot="snap1", to="snap1"), "FILE_ALREADY_EXISTS", "snap1"),
    "set absent": (SetSnapshotProperty(**PLACE, snapshot="snap9", properties={"a": "1"}), "FILE_NOT_FOUND", "snap9"),
    "set nothing": (SetSnapshotProperty(**PLACE, snapshot="snap1", properties={}), "INVALID_REQUEST", "nothing to set"),
    "empty property": (
        SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"": "1"}), "INVALID_REQUEST", "empty name",
    ),
    "many properties": (
        SetSnapshotProperty(**PLACE, snapshot="snap1", properties={f"{n}": "1" for n in range(MAX_PROPERTIES + 1)}),
        "INVALID_REQUEST", "65 properties",
    ),
    "large properties": (
        SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"a": "x" * MAX_PROPERTIES_BYTES}),
        "INVALID_REQUEST", "16385 bytes",
    ),
    "purge nothing": (PurgeSnapshots(shard=0, rows=[]), "INVALID_REQUEST", "not 0"),
    "purge many": (
        PurgeSnapshots(shard=0, rows=[b"/#%d" % n for n in range(MAX_PURGED_SNAPSHOTS + 1)]), "INVALID_REQUEST", "101",
    ),
    "purge twice": (PurgeSnapshots(shard=0, rows=[b"/#1", b"/#1"]), "INVALID_REQUEST", "named twice"),
    "purge an active one": (PurgeSnapshots(shard=0, rows=[ROW]), "INVALID_REQUEST", "'/vol1/bucket1/snap1' is no row"),
    "purge any bytes": (PurgeSnapshots(shard=0, rows=[b"\xff"]), "INVALID_REQUEST", "is no row of a deleted snapshot"),
    "other shard": (PurgeSnapshots(shard=1, rows=[b"/#1"]), "WRONG_SHARD", "shard 1"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "words"), REFUSED.values(), ids=list(REFUSED))
def test_refusals_name_the_input(world: World, body: RequestBody, status: str, words: str):
    take(world)
    error = world.refusal(body)
    assert (error.status, words in error.message) == (status, True), error.message


def test_too_many_properties_one_after_the_other(world: World):
    take(world)
    full = {f"{number:02}": "1" for number in range(MAX_PROPERTIES)}
    world.do(SetSnapshotProperty(**PLACE, snapshot="snap1", properties=full))
    assert (
        world.refusal(SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"x": "1"})).status == "INVALID_REQUEST"
    )
    world.do(SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"x": "1", "00": ""}))


def test_deleted_snapshots_count_until_they_are_purged(world: World):
    for number in range(MAX_SNAPSHOTS_PER_BUCKET):
        take(world, f"snap-{number}")
    world.do(DeleteSnapshot(**PLACE, snapshot="snap-0"))
    error = world.refusal(CreateSnapshot(**PLACE, snapshot="more"))
    assert error.status == "TOO_MANY_SNAPSHOTS"
    assert "bucket /vol1/bucket1 has 256 snapshots" in error.message
    (deleted,) = [key for key in rows(world) if snapshots.DELETED_MARK in key]
    world.do(PurgeSnapshots(shard=0, rows=[deleted]))
    take(world, "more")


def test_a_shard_has_a_limit_too(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "MAX_SNAPSHOTS", 2)
    world.do(CreateBucket(volume="vol1", bucket="bucket2"))
    take(world)
    world.do(CreateSnapshot(volume="vol1", bucket="bucket2", snapshot="snap1"))
    error = world.refusal(CreateSnapshot(volume="vol1", bucket="bucket2", snapshot="snap2"))
    assert (error.status, "its shard has 2 already" in error.message) == ("TOO_MANY_SNAPSHOTS", True)


def test_a_bucket_with_snapshots_stays(world: World):
    take(world)
    assert world.refusal(DeleteBucket(**PLACE)).status == "CONTAINS_SNAPSHOT"
    world.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    assert world.refusal(DeleteBucket(**PLACE)).status == "CONTAINS_SNAPSHOT"
    world.do(PurgeSnapshots(shard=0, rows=list(rows(world))))
    world.do(DeleteBucket(**PLACE))


def test_snapshots_of_a_bucket_whose_name_begins_alike_do_not_keep_it(world: World):
    world.do(CreateBucket(volume="vol1", bucket="bucket1-x"))
    world.do(CreateSnapshot(volume="vol1", bucket="bucket1-x", snapshot="snap1"))
    world.do(DeleteBucket(**PLACE))


def test_blocks_that_a_snapshot_names_are_purged_with_it_and_not_before(world: World):
    put(world, "kept")
    put(world, "renamed")
    take(world)
    put(world, "later")
    put(world, "kept")
    world.do(RenameKey(**PLACE, from_key="renamed", to_key="another"))
    world.do(DeleteKey(**PLACE, key="another"))
    world.do(DeleteKey(**PLACE, key="later"))
    assert len(waiting(world)) == 3
    world.do(PurgeBlocks(shard=0, rows=waiting(world)))
    assert [row.rpartition(b"/")[0] for row in waiting(world)] == [b"/vol1/bucket1/another", b"/vol1/bucket1/kept"]
    world.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    world.do(PurgeBlocks(shard=0, rows=waiting(world)))
    assert len(waiting(world)) == 2, "a deleted snapshot needs them until it is purged"
    world.do(PurgeSnapshots(shard=0, rows=list(rows(world))))
    world.do(PurgeBlocks(shard=0, rows=waiting(world)))
    assert waiting(world) == []


def test_before_the_level_there_are_no_snapshots(world: World):
    bodies: list[RequestBody] = [
        CreateSnapshot(**PLACE), DeleteSnapshot(**PLACE, snapshot="snap1"),
        RenameSnapshot(**PLACE, snapshot="snap1", to="snap2"),
        SetSnapshotProperty(**PLACE, snapshot="snap1", properties={"a": "1"}), PurgeSnapshots(shard=0, rows=[b"/#1"]),
    ]  # fmt: skip
    assert {type(body) for body in bodies} == {*SNAPSHOT_REQUESTS, PurgeSnapshots}
    for body in bodies:
        tx = world.begin()
        tx.feature_level = PIPELINE_GENERATIONS
        with pytest.raises(OMError, match="needs feature level 7") as refused:
            execute(request_of(body), tx, world.context())
        assert refused.value.status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
        assert (tx.writes, tx.checkpoint_name) == ([], None)


def test_all_but_the_one_that_takes_a_checkpoint_may_be_validated_late():
    late = {body.__name__ for body in (*SNAPSHOT_REQUESTS, PurgeSnapshots)} & set(LATE_REQUEST_TYPES)
    assert late == {"DeleteSnapshot", "RenameSnapshot", "SetSnapshotProperty", "PurgeSnapshots"}
