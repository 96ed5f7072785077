"""PutKey: what it writes and refuses, and what ends the row with a key's bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.execution.execute import apply_request, execute, pre_execute
from om_processors.execution.requests.key import MAX_METADATA_BYTES
from om_processors.namespace import quota, tables
from om_processors.namespace.context import Contexts
from replicated_db.core.execution.service import MAX_REQUEST_BYTES
from schemas.codecs.codec import decode
from schemas.column_families import DELETED_TABLE, INLINE_TABLE, KEY_TABLE, OPEN_KEY_TABLE
from schemas.features import SMALL_OBJECTS
from schemas.records.log import LATE_MODE, LEADER_MODE
from schemas.records.messages import (
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateSnapshot,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    PutKey,
    RenameKey,
    SetBucketProperty,
)
from schemas.records.rows import KeyInfo
from schemas.small_objects import DEFAULT_INLINE_BYTES, MAX_INLINE_BYTES
from tests.support.om.late_world import LateWorld
from tests.support.om.om_world import World, request_of

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
KEY = b"/vol1/bucket1/k"


@pytest.fixture
def world() -> World:
    return World().make()


def put(data: bytes = b"bytes", key: str = "k", **more: Any) -> PutKey:
    return PutKey(**PLACE, key=key, data=data, **more)


def write_blocks(world: World, size: int = 250, key: str = "k") -> None:
    """Write a key whose bytes are in blocks."""
    opened = world.session(CreateKey(**PLACE, key=key, size=size))
    world.do(CommitKey(**PLACE, key=key, session_id=opened.session_id, size=size))


def inline_rows(world: World) -> dict[bytes, bytes]:
    return world.tables.tables[INLINE_TABLE]


def info(world: World, key: bytes = KEY) -> KeyInfo:
    found: KeyInfo = decode(world.tables.tables[KEY_TABLE][key])
    return found


def usage(world: World) -> tuple[int, int]:
    """Return the bucket's committed bytes and number of keys."""
    return (
        quota.read(world.tables, tables.used_bytes_key("vol1", "bucket1")),
        quota.read(world.tables, tables.used_keys_key("vol1", "bucket1")),
    )


def at_most(limit_bytes: int) -> Contexts:
    return Contexts(shard=0, shards=1, pipelines=("p1",), inline_bytes=limit_bytes)


# ---- what is written


def test_one_request_writes_the_key_and_its_bytes(world: World):
    assert world.do(put(b"hello", metadata={"a": "b"}, replication="RATIS/ONE"), caller="bob") is None
    assert info(world) == KeyInfo(
        **PLACE, key="k", owner="bob", object_id=3 << 8, update_id=3, size=5, replication="RATIS/ONE", blocks=[],
        metadata={"a": "b"}, creation_time_ms=1030, modification_time_ms=1030, inline=True,
    )  # fmt: skip
    assert inline_rows(world) == {b"768": b"hello"}
    assert world.tables.tables[OPEN_KEY_TABLE] == {}
    assert usage(world) == (5, 1)
    assert [write[:2] for write in world.writes] == [
        ("put", KEY_TABLE), ("put", INLINE_TABLE), ("merge", "usageTable"), ("merge", "usageTable"),
    ]  # fmt: skip


def test_a_key_without_bytes_is_the_one_that_a_commit_makes(world: World):
    world.do(put(b""))
    other = World().make()
    write_blocks(other, size=0)
    ours, theirs = info(world), info(other)
    same: dict[str, Any] = {"object_id": 0, "update_id": 0, "creation_time_ms": 0, "modification_time_ms": 0}
    assert replace(ours, **same) == replace(theirs, **same)
    assert not ours.inline
    assert inline_rows(world) == {}
    assert usage(world) == usage(other) == (0, 1)


def test_bytes_are_kept_as_they_came(world: World):
    data = bytes(range(256)) * 64
    world.do(put(data))
    assert tables.get_inline(world.tables, info(world)) == data


# ---- replacing


def test_another_put_replaces_the_bytes(world: World):
    world.do(put(b"first"), caller="bob")
    first = info(world)
    world.do(put(b"the second"), caller="ann")
    second = info(world)
    assert (second.owner, second.creation_time_ms) == ("bob", first.creation_time_ms), "as with CommitKey"
    assert second.object_id != first.object_id
    assert inline_rows(world) == {b"%d" % second.object_id: b"the second"}
    assert usage(world) == (10, 1)
    assert world.tables.tables[DELETED_TABLE] == {}, "there are no blocks to reclaim"


def test_a_put_replaces_blocks(world: World):
    write_blocks(world)
    world.do(put())
    assert list(inline_rows(world).values()) == [b"bytes"]
    retired = [decode(value) for value in world.tables.tables[DELETED_TABLE].values()]
    assert [(row.size, len(row.blocks), row.inline) for row in retired] == [(250, 3, False)]
    assert usage(world) == (5, 1)


def test_blocks_replace_a_put(world: World):
    world.do(put())
    write_blocks(world)
    assert inline_rows(world) == {}
    assert not info(world).inline
    assert world.tables.tables[DELETED_TABLE] == {}
    assert usage(world) == (250, 1)


def test_an_empty_put_replaces_bytes(world: World):
    world.do(put())
    world.do(put(b""))
    assert inline_rows(world) == {}
    assert usage(world) == (0, 1)


def test_blocks_that_a_commit_left_over_are_reclaimed_beside_the_bytes(world: World):
    world.do(put())
    opened = world.session(CreateKey(**PLACE, key="k", size=250))
    world.do(CommitKey(**PLACE, key="k", session_id=opened.session_id, size=100))
    assert inline_rows(world) == {}
    (left,) = [decode(value) for value in world.tables.tables[DELETED_TABLE].values()]
    assert (left.size, len(left.blocks), left.inline) == (0, 2, False)


# ---- deleting and renaming


def test_a_delete_removes_the_bytes(world: World):
    world.do(put())
    world.do(put(b"other", key="other"))
    world.do(DeleteKey(**PLACE, key="k"))
    assert list(inline_rows(world).values()) == [b"other"]
    assert world.tables.tables[DELETED_TABLE] == {}
    assert usage(world) == (5, 1)
    world.do(DeleteKey(**PLACE, key="other"))
    assert inline_rows(world) == {}
    assert usage(world) == (0, 0)
    world.do(DeleteBucket(**PLACE))


def test_renaming_leaves_the_bytes(world: World):
    world.do(put())
    before = dict(inline_rows(world))
    world.do(RenameKey(**PLACE, from_key="k", to_key="moved"))
    assert inline_rows(world) == before
    assert all(cf != INLINE_TABLE for _, cf, _ in world.writes)
    assert tables.get_inline(world.tables, info(world, b"/vol1/bucket1/moved")) == b"bytes"
    world.do(DeleteKey(**PLACE, key="moved"))
    assert inline_rows(world) == {}


def test_an_open_session_of_the_same_name_goes_on(world: World):
    opened = world.session(CreateKey(**PLACE, key="k", size=250))
    world.do(put())
    world.do(CommitKey(**PLACE, key="k", session_id=opened.session_id, size=250))
    assert inline_rows(world) == {}
    assert usage(world) == (250, 1)


# ---- refusals


def test_names_and_parents(world: World):
    for body, status in (
        (PutKey(volume="NO", bucket="bucket1", key="k", data=b"x"), "INVALID_VOLUME_NAME"),
        (PutKey(volume="vol1", bucket="no", key="k", data=b"x"), "INVALID_BUCKET_NAME"),
        (put(key=""), "INVALID_KEY_NAME"),
        (put(key=".snapshot/s/k"), "INVALID_KEY_NAME"),
        (put(key="x" * 4097), "INVALID_KEY_NAME"),
        (PutKey(volume="vol9", bucket="bucket1", key="k", data=b"x"), "VOLUME_NOT_FOUND"),
        (PutKey(volume="vol1", bucket="bucket9", key="k", data=b"x"), "BUCKET_NOT_FOUND"),
        (put(replication="RATIS/TWO"), "INVALID_REQUEST"),
        (put(metadata={"k": "v" * MAX_METADATA_BYTES}), "INVALID_REQUEST"),
    ):
        assert world.refusal(body).status == status, body


def test_the_limit_is_taken_and_one_byte_more_is_not(world: World):
    world.do(put(bytes(DEFAULT_INLINE_BYTES)))
    error = world.refusal(put(bytes(DEFAULT_INLINE_BYTES + 1)))
    assert (error.status, error.message) == (
        "INLINE_TOO_LARGE", "key 'k' has 16385 bytes; at most 16384 are kept in the tables (inline_bytes)",
    )  # fmt: skip


@pytest.mark.parametrize("limit", [0, 1, MAX_INLINE_BYTES])
def test_the_leaders_setting_is_the_limit(limit: int):
    context = at_most(limit).at(1_000, 7)
    assert pre_execute(request_of(put(bytes(limit))), context).blocks == []
    with pytest.raises(OMError, match=f"has {limit + 1} bytes; at most {limit} are") as refused:
        pre_execute(request_of(put(bytes(limit + 1))), context)
    assert refused.value.status == "INLINE_TOO_LARGE"


def test_no_setting_allows_more_than_the_largest():
    """Whatever a leader is told: what lies in the log is bounded."""
    context = at_most(1 << 30).at(1_000, 7)
    with pytest.raises(OMError, match="at most 262144"):
        pre_execute(request_of(put(bytes(MAX_INLINE_BYTES + 1))), context)


def test_a_replica_does_not_ask_for_its_own_setting(world: World):
    """A leader that was started with another setting took it: every replica does what lies in the log."""
    prepared = pre_execute(request_of(put(bytes(5000))), at_most(5000).at(1_000, 3))
    world.index = 3
    tx = world.begin()
    apply_request(prepared, tx)
    assert tx.get(INLINE_TABLE, b"768") == bytes(5000)


def test_bytes_and_metadata_together_have_a_limit(world: World):
    most = MAX_METADATA_BYTES - DEFAULT_INLINE_BYTES
    world.do(put(bytes(DEFAULT_INLINE_BYTES), metadata={"k": "v" * (most - 1)}))
    error = world.refusal(put(bytes(DEFAULT_INLINE_BYTES), metadata={"k": "v" * most}))
    assert error.status == "INLINE_TOO_LARGE"
    assert "786433 bytes with its metadata; at most 786432 are" in error.message


def test_quota_in_bytes_counts_the_bytes(world: World):
    world.do(SetBucketProperty(**PLACE, quota_in_bytes=10))
    world.do(put(b"123456"))
    error = world.refusal(put(b"12345", key="other"))
    assert error.status == "QUOTA_EXCEEDED"
    assert "holds 6: 5 more do not fit" in error.message
    assert list(inline_rows(world).values()) == [b"123456"]
    world.do(put(b"1234567890"))
    assert usage(world) == (10, 1), "a replacement counts by the difference"
    assert world.refusal(put(b"12345678901")).status == "QUOTA_EXCEEDED"
    assert list(inline_rows(world).values()) == [b"1234567890"]


def test_quota_in_names_counts_the_key(world: World):
    world.do(SetBucketProperty(**PLACE, quota_in_namespace=1))
    world.do(put())
    assert world.refusal(put(b"", key="other")).status == "QUOTA_EXCEEDED"
    world.do(put(b"again"))
    assert usage(world) == (5, 1)


@pytest.mark.parametrize("level", range(1, SMALL_OBJECTS))
def test_before_its_level_it_is_refused_and_names_both(world: World, level: int):
    world.index += 1
    tx = world.begin()
    tx.feature_level = level
    with pytest.raises(OMError, match=f"PutKey needs feature level 8, the shard is at {level}") as refused:
        execute(request_of(put()), tx, world.context())
    assert refused.value.status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    assert tx.writes == []


# ---- through the leader, the log and replicas


def of_world(world: LateWorld, *bodies: Any) -> None:
    for body in (CreateVolume(volume="vol1"), CreateBucket(**PLACE), *bodies):
        assert world.do(body).status == "OK", body


STEPS = (
    put(b"one"), put(b"two"), put(b"three", key="b"), RenameKey(**PLACE, from_key="b", to_key="c"), put(b"", key="d"),
    CreateKey(**PLACE, key="k", size=0), put(bytes(DEFAULT_INLINE_BYTES), key="e"), DeleteKey(**PLACE, key="c"),
    put(b"four", key="k"),
)  # fmt: skip


@pytest.mark.parametrize("mode", [LEADER_MODE, LATE_MODE])
def test_every_replica_holds_the_same_rows(mode: str):
    world = LateWorld(force=mode)
    of_world(world, *STEPS)
    leader, follower = world.nodes["n1"], world.nodes["n2"]
    follower.read()
    rows = leader.rows()
    assert rows == follower.rows()
    assert leader.replica.digests == follower.replica.digests
    kept = {value for (cf, _), value in rows.items() if cf == INLINE_TABLE}
    assert kept == {b"four", bytes(DEFAULT_INLINE_BYTES)}


def test_both_modes_come_to_one_state():
    found = []
    for mode in (LEADER_MODE, LATE_MODE):
        world = LateWorld(force=mode)
        of_world(world, *STEPS)
        refused = (put(bytes(DEFAULT_INLINE_BYTES + 1)), PutKey(volume="vol1", bucket="none", key="k", data=b"x"))
        answers = [(one.status, one.message, one.index) for one in map(world.do, refused)]
        found.append((world.leader_node.rows(), answers))
    assert found[0] == found[1]
    assert [status for status, _, _ in found[0][1]] == ["INLINE_TOO_LARGE", "BUCKET_NOT_FOUND"]


@pytest.mark.parametrize("mode", [LEADER_MODE, LATE_MODE])
def test_a_retry_has_one_effect(mode: str):
    world = LateWorld(force=mode)
    of_world(world, put(b"first"))
    number = len(world.sent)
    answer = world.answers[number]
    assert world.do(put(b"second")).status == "OK"
    before = world.leader_node.rows()
    world.repeat(number - 1)
    world.settle()
    assert world.answers[number] == answer
    assert world.leader_node.rows() == before, "the first bytes do not come back"
    assert {value for (cf, _), value in before.items() if cf == INLINE_TABLE} == {b"second"}


def test_requests_of_the_largest_size_fit_into_batches():
    """The limits of one request and of a batch leave room for bytes, a long name and as much metadata as is taken."""
    world = LateWorld(force=LEADER_MODE)
    of_world(world)
    largest = put(bytes(DEFAULT_INLINE_BYTES), metadata={"k": "v" * (MAX_METADATA_BYTES - DEFAULT_INLINE_BYTES - 1)})
    for number in range(6):
        body = replace(largest, key="ключ" * 500 + str(number))
        assert world.do(body).status == "OK"
        assert world.do(replace(body, metadata={})).status == "OK", "replaced: a delete, too"
    assert MAX_METADATA_BYTES + 3 * 4096 < MAX_REQUEST_BYTES


def test_a_snapshot_is_taken_between_puts():
    world = LateWorld(force=LEADER_MODE)
    of_world(world, put(b"old"), CreateSnapshot(**PLACE, snapshot="snap1"), put(b"new"), DeleteKey(**PLACE, key="k"))
    node = world.leader_node
    (name,) = [name for name in node.store.checkpoint_names() if name.startswith("snapshot-")]
    kept = node.store.checkpoints[name]
    assert [value for _, value in kept.iterate(INLINE_TABLE, b"")] == [b"old"]
    assert [value for _, value in node.store.iterate(INLINE_TABLE, b"")] == []
