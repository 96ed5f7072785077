"""Reservations of blocks: what they hold, the keys that use their blocks, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.execution.execute import apply_request, execute, pre_execute
from om_processors.execution.requests.blocks import SMALL_FILES_RUN
from om_processors.execution.requests.key import MAX_METADATA_BYTES
from om_processors.namespace import ids, quota, tables
from om_processors.namespace.access import ACCESS_RULES
from om_processors.namespace.context import Contexts, PreExecuteContext, always
from om_processors.namespace.snapshots import NeededVersions
from schemas.access.acl import acl_text, parse_acl
from schemas.codecs.codec import decode
from schemas.column_families import DELETED_TABLE, KEY_TABLE, OPEN_KEY_TABLE
from schemas.features import BLOCK_RESERVATIONS
from schemas.records.identity import ChangeAcl, ProvenCaller
from schemas.records.log import LATE_MODE, LEADER_MODE
from schemas.records.messages import (
    AllocateBlock,
    CommitKey,
    CommitReserved,
    CreateBucket,
    CreateKey,
    CreateSnapshot,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    ExpireOpenKeys,
    KeySession,
    PurgeBlocks,
    PutKey,
    ReleaseBlocks,
    RenameKey,
    RequestBody,
    ReserveBlocks,
    SetBucketProperty,
    SetVolumeProperty,
)
from schemas.records.rows import NEVER_WRITTEN, BlockLocation, KeyInfo
from schemas.small_objects import MAX_RESERVED_BLOCKS, SMALL_FILE_BYTES
from tests.support.om.late_world import LateWorld
from tests.support.om.om_world import BLOCK_SIZE_BYTES, World, request_of

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
KEY = b"/vol1/bucket1/k"
RESERVATION = b"/vol1/bucket1//1023"
"""Of the third request, which is a world's first after its volume and its bucket."""
UNKNOWN = KeySession(session_id=99, object_id=0, blocks=[])


@pytest.fixture
def world() -> World:
    return World().make()


def reserve(count: int = 3, **place: Any) -> ReserveBlocks:
    return ReserveBlocks(**{**PLACE, **place}, count=count)


def written(blocks: list[BlockLocation], *lengths: int, bcs_id: int = 7) -> list[BlockLocation]:
    """Return the first blocks as a writer names them: in order, without gaps."""
    ends = [sum(lengths[:count]) for count in range(len(lengths))]
    return [
        replace(block, offset=offset, length=length, bcs_id=bcs_id)
        for block, offset, length in zip(blocks, ends, lengths, strict=False)
    ]


def commit(given: KeySession, blocks: list[BlockLocation], key: str = "k", **more: Any) -> CommitReserved:
    fields = {"size": sum(block.length for block in blocks), **PLACE, **more}
    return CommitReserved(key=key, session_id=given.session_id, blocks=blocks, **fields)


def release(given: KeySession, **place: Any) -> ReleaseBlocks:
    return ReleaseBlocks(**{**PLACE, **place}, session_id=given.session_id)


def rows(world: World, cf: str) -> dict[bytes, KeyInfo]:
    return {key: decode(value) for key, value in world.tables.tables[cf].items()}


def usage(world: World) -> tuple[int, int]:
    """Return the bucket's committed bytes and number of keys."""
    return (
        quota.read(world.tables, tables.used_bytes_key("vol1", "bucket1")),
        quota.read(world.tables, tables.used_keys_key("vol1", "bucket1")),
    )


def local_ids(blocks: list[BlockLocation]) -> list[int]:
    return [block.local_id for block in blocks]


# ---- reserving


def test_a_reservation_is_an_open_key_without_a_name(world: World):
    given = world.session(reserve(3), caller="bob")
    blocks = [
        BlockLocation(
            container_id=ids.container_id(3 << 8, 0, ids.rolls(1)[0]), local_id=3 << 8 | number + 1,
            offset=number * 100, length=100, pipeline="pipeline-0",
        )
        for number in range(3)
    ]  # fmt: skip
    assert given == KeySession(session_id=1023, object_id=3 << 8, blocks=blocks)
    assert rows(world, OPEN_KEY_TABLE) == {
        RESERVATION: KeyInfo(
            **PLACE, key="", owner="bob", object_id=3 << 8, update_id=3, size=0, replication="", blocks=blocks,
            metadata={}, creation_time_ms=1030, modification_time_ms=1030,
        )
    }  # fmt: skip
    assert [write[:2] for write in world.writes] == [("put", OPEN_KEY_TABLE)]
    assert usage(world) == (0, 0)


def test_all_blocks_are_of_one_pipeline_and_the_next_run_of_indices_has_another(world: World):
    seen = []
    for index in (3, SMALL_FILES_RUN - 1, SMALL_FILES_RUN, 2 * SMALL_FILES_RUN, 3 * SMALL_FILES_RUN):
        world.index = index - 1
        blocks = world.session(reserve(MAX_RESERVED_BLOCKS)).blocks
        assert len(set(local_ids(blocks))) == MAX_RESERVED_BLOCKS
        assert len({block.container_id for block in blocks}) == 1
        (pipeline,) = {block.pipeline for block in blocks}
        seen.append(pipeline)
    assert seen == ["pipeline-0", "pipeline-0", "pipeline-1", "pipeline-2", "pipeline-0"]


@pytest.mark.parametrize(
    ("block_bytes", "length"),
    [(BLOCK_SIZE_BYTES, BLOCK_SIZE_BYTES), (SMALL_FILE_BYTES, SMALL_FILE_BYTES), (256 << 20, SMALL_FILE_BYTES)],
)
def test_a_block_has_room_for_a_small_file(block_bytes: int, length: int):
    context = Contexts(shard=0, shards=1, pipelines=("p1",), block_bytes=block_bytes).at(1_000, 7)
    blocks = pre_execute(request_of(reserve(2)), context).blocks
    assert [(block.offset, block.length) for block in blocks] == [(0, length), (length, length)]


def test_small_files_of_many_windows_of_indexes_share_a_container():
    """A thousand windows made a thousand containers."""
    first = ids.container_id(ids.object_id(0, 0), 0)
    seen = replace(always(("p1",))(), with_room={first})
    contexts = Contexts(shard=0, shards=1, pipelines=(), choose=lambda: seen)
    found = {
        block.container_id
        for window in range(1_000)
        for block in pre_execute(request_of(reserve(2)), contexts.at(60_000 * window, 1_024 * window)).blocks
    }
    assert found == {first}


@pytest.mark.parametrize("count", [0, MAX_RESERVED_BLOCKS + 1, -1])
def test_what_is_no_count_of_blocks_is_refused_and_named(world: World, count: int):
    error = world.refusal(reserve(count))
    assert (error.status, error.message) == ("INVALID_REQUEST", f"1 to 64 blocks are reserved at once, not {count}")


def test_no_pipeline_no_reservation():
    context = Contexts(shard=0, shards=1, pipelines=(), choose=always(())).at(1_000, 7)
    with pytest.raises(OMError) as refused:
        pre_execute(request_of(reserve()), context)
    assert refused.value.status == "FAILED_TO_FIND_ACTIVE_PIPELINE"


# ---- committing


def test_a_commit_makes_the_key_and_takes_its_block_out_of_the_row(world: World):
    given = world.session(reserve(3), caller="bob")
    (block,) = blocks = written(given.blocks, 40)
    assert world.do(commit(given, blocks, metadata={"a": "b"}, replication="RATIS/ONE"), caller="bob") is None
    assert rows(world, KEY_TABLE) == {
        KEY: KeyInfo(
            **PLACE, key="k", owner="bob", object_id=4 << 8, update_id=4, size=40, replication="RATIS/ONE",
            blocks=[block], metadata={"a": "b"}, creation_time_ms=1040, modification_time_ms=1040,
        )
    }  # fmt: skip
    assert block.length == 40
    left = rows(world, OPEN_KEY_TABLE)[RESERVATION]
    assert (left.blocks, left.update_id, left.object_id) == (given.blocks[1:], 4, given.object_id)
    assert usage(world) == (40, 1)
    assert rows(world, DELETED_TABLE) == {}
    assert [write[:2] for write in world.writes] == [
        ("put", KEY_TABLE), ("merge", "usageTable"), ("merge", "usageTable"), ("put", OPEN_KEY_TABLE),
    ]  # fmt: skip


def test_the_row_is_that_of_the_reservation_but_for_blocks_and_index(world: World):
    given = world.session(reserve(3), caller="bob")
    before = rows(world, OPEN_KEY_TABLE)[RESERVATION]
    world.do(commit(given, written(given.blocks, 1)), caller="bob")
    after = rows(world, OPEN_KEY_TABLE)[RESERVATION]
    assert after == replace(before, blocks=given.blocks[1:], update_id=4)
    assert after.modification_time_ms == before.creation_time_ms == 1030, "it expires as if nothing had used it"


def test_blocks_are_taken_in_any_order_and_the_last_one_takes_the_row(world: World):
    given = world.session(reserve(3))
    for key, number in (("a", 1), ("b", 2), ("c", 0)):
        assert RESERVATION in rows(world, OPEN_KEY_TABLE)
        world.do(commit(given, written(given.blocks[number:], 100), key=key))
    assert rows(world, OPEN_KEY_TABLE) == {}
    assert ("delete", OPEN_KEY_TABLE, RESERVATION) in world.writes
    assert {info.key: local_ids(info.blocks) for info in rows(world, KEY_TABLE).values()} == {
        "a": [3 << 8 | 2], "b": [3 << 8 | 3], "c": [3 << 8 | 1],
    }  # fmt: skip
    assert usage(world) == (300, 3)
    assert rows(world, DELETED_TABLE) == {}
    assert world.refusal(commit(given, written(given.blocks, 1))).status == "KEY_NOT_FOUND"
    assert world.refusal(release(given)).status == "KEY_NOT_FOUND"


def test_a_key_may_have_several_blocks(world: World):
    given = world.session(reserve(4))
    chosen = [given.blocks[2], given.blocks[0]]
    world.do(commit(given, written(chosen, 100, 30)))
    info = rows(world, KEY_TABLE)[KEY]
    assert (info.size, info.blocks) == (130, written(chosen, 100, 30))
    assert rows(world, OPEN_KEY_TABLE)[RESERVATION].blocks == [given.blocks[1], given.blocks[3]]


def test_one_key_may_have_all_blocks(world: World):
    given = world.session(reserve(MAX_RESERVED_BLOCKS))
    world.do(commit(given, written(given.blocks, *[100] * MAX_RESERVED_BLOCKS)))
    assert rows(world, OPEN_KEY_TABLE) == {}
    assert usage(world) == (6400, 1)


def test_a_key_that_is_replaced_is_retired(world: World):
    given = world.session(reserve(3))
    world.do(commit(given, written(given.blocks, 40), metadata={"a": "b"}), caller="bob")
    first = rows(world, KEY_TABLE)[KEY]
    world.do(commit(given, written(given.blocks[1:], 60)), caller="ann")
    second = rows(world, KEY_TABLE)[KEY]
    assert (second.owner, second.creation_time_ms) == ("bob", 1040), "as with CommitKey"
    assert (second.object_id, second.modification_time_ms, second.metadata) == (5 << 8, 1050, {})
    assert rows(world, DELETED_TABLE) == {
        b"/vol1/bucket1/k/1024": replace(
            first, update_id=5, metadata={}, creation_time_ms=0, modification_time_ms=1050
        )
    }  # fmt: skip
    assert usage(world) == (60, 1)


def test_bytes_in_the_row_and_blocks_replace_each_other(world: World):
    given = world.session(reserve(2))
    world.do(PutKey(**PLACE, key="k", data=b"bytes"))
    world.do(commit(given, written(given.blocks, 40)))
    assert world.tables.tables["inlineTable"] == {}
    assert usage(world) == (40, 1)
    world.do(PutKey(**PLACE, key="k", data=b"bytes"))
    assert [local_ids(row.blocks) for row in rows(world, DELETED_TABLE).values()] == [[3 << 8 | 1]]
    assert usage(world) == (5, 1)


def test_it_is_the_key_that_create_and_commit_make(world: World):
    """Owner, times, counters: of the same requests, but for ids and the time of creation."""
    given = world.session(reserve(1), caller="bob")
    world.do(commit(given, written(given.blocks, 40), metadata={"a": "b"}), caller="bob")
    other = World().make()
    opened = other.session(CreateKey(**PLACE, key="k", size=40, metadata={"a": "b"}), caller="bob")
    blocks = written(opened.blocks, 40)
    other.do(CommitKey(**PLACE, key="k", session_id=opened.session_id, size=40, blocks=blocks), caller="bob")
    ours, theirs = rows(world, KEY_TABLE)[KEY], rows(other, KEY_TABLE)[KEY]
    assert replace(ours, object_id=0, creation_time_ms=0) == replace(theirs, object_id=0, creation_time_ms=0)
    assert usage(world) == usage(other)


def test_a_new_key_inherits_and_a_replaced_one_keeps_its_list(world: World):
    given = world.session(reserve(2))
    acls = [parse_acl("user:eve:r[DEFAULT]")]
    world.do(ChangeAcl(kind="BUCKET", **PLACE, name="", change="ADD", acls=acls))
    world.do(commit(given, written(given.blocks, 1)))
    assert [acl_text(acl) for acl in rows(world, KEY_TABLE)[KEY].acls] == ["user:eve:r[ACCESS]"]
    world.do(ChangeAcl(kind="KEY", **PLACE, name="k", change="SET", acls=[parse_acl("world::w")]))
    kept = rows(world, KEY_TABLE)[KEY].acls
    world.do(commit(given, written(given.blocks[1:], 1)))
    assert rows(world, KEY_TABLE)[KEY].acls == kept
    assert [row.acls for row in rows(world, DELETED_TABLE).values()] == [[]]


def test_two_reservations_are_apart(world: World):
    one, other = world.session(reserve(2)), world.session(reserve(2))
    world.do(commit(other, written(other.blocks, 10), key="other"))
    world.do(commit(one, written(one.blocks, 20), key="one"))
    assert sorted(local_ids(info.blocks) for info in rows(world, OPEN_KEY_TABLE).values()) == [
        local_ids(one.blocks[1:]), local_ids(other.blocks[1:]),
    ]  # fmt: skip
    world.do(release(one))
    assert [info.object_id for info in rows(world, OPEN_KEY_TABLE).values()] == [other.object_id]


# ---- commits that are refused


def _another_ones(given: KeySession, other: KeySession) -> CommitReserved:
    return commit(given, written(other.blocks, 10))


def _taken(given: KeySession, _: KeySession) -> CommitReserved:
    return commit(given, written(given.blocks, 10))


def _twice(given: KeySession, _: KeySession) -> CommitReserved:
    return commit(given, written([given.blocks[1]] * 2, 10, 10))


def _other_container(given: KeySession, _: KeySession) -> CommitReserved:
    (block,) = written(given.blocks[1:2], 10)
    return commit(given, [replace(block, container_id=block.container_id + 1)])


def _other_pipeline(given: KeySession, _: KeySession) -> CommitReserved:
    (block,) = written(given.blocks[1:2], 10)
    return commit(given, [replace(block, pipeline="pipeline-1")])


def _of_length(length: int) -> Callable[[KeySession, KeySession], CommitReserved]:
    return lambda given, _: commit(given, written(given.blocks[1:2], length), size=10)


def _gap(given: KeySession, _: KeySession) -> CommitReserved:
    first, second = written(given.blocks[1:], 10, 10)
    return commit(given, [first, replace(second, offset=11)])


def _offset(given: KeySession, _: KeySession) -> CommitReserved:
    (block,) = written(given.blocks[1:2], 10)
    return commit(given, [replace(block, offset=100)])


def _of_size(size: int) -> Callable[[KeySession, KeySession], CommitReserved]:
    return lambda given, _: commit(given, written(given.blocks[1:2], 10), size=size)


def _negative_index(given: KeySession, _: KeySession) -> CommitReserved:
    return commit(given, written(given.blocks[1:2], 10, bcs_id=-1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_another_ones, "was not allocated to session 1023, or is named twice"),
        (_taken, "was not allocated to session 1023, or is named twice"),
        (_twice, "was not allocated to session 1023, or is named twice"),
        (_other_container, "was not allocated to session 1023, or is named twice"),
        (_other_pipeline, "was not allocated to session 1023, or is named twice"),
        (_of_length(101), "has length 101; 1 to 100 bytes were allocated"),
        (_of_length(0), "has length 0; 1 to 100 bytes were allocated"),
        (_of_length(-5), "has length -5; 1 to 100 bytes were allocated"),
        (_gap, "has offset 11 where 10 follows"),
        (_offset, "has offset 100 where 0 follows"),
        (_of_size(11), "sum to 10 bytes, but its size is 11"),
        (_of_size(9), "sum to 10 bytes, but its size is 9"),
        (_negative_index, "has the negative committed index -1"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_and_nothing_changes(
    world: World, body: Callable[[KeySession, KeySession], CommitReserved], words: str
):
    """``refusal`` compares all rows with those before."""
    given, other = world.session(reserve(4)), world.session(reserve(4))
    world.do(commit(given, written(given.blocks, 5), key="before"))
    error = world.refusal(body(given, other))
    assert error.status == "INVALID_REQUEST"
    assert words in error.message
    world.do(commit(given, written(given.blocks[1:], 10)))


def test_a_key_has_bytes_and_blocks(world: World):
    given = world.session(reserve(2))
    for size, blocks in ((0, []), (5, []), (0, written(given.blocks, 5)), (-1, written(given.blocks, 5))):
        error = world.refusal(commit(given, blocks, size=size))
        assert error.status == "INVALID_REQUEST"
        assert f"key 'k' of {size} bytes in {len(blocks)} reserved blocks: it has at least 1 byte" in error.message
    many = [replace(given.blocks[0], local_id=number) for number in range(MAX_RESERVED_BLOCKS + 1)]
    assert "in 65 reserved blocks" in world.refusal(commit(given, many, size=1)).message


def test_names_and_parents(world: World):
    given = world.session(reserve(2))
    blocks = written(given.blocks, 5)
    for body, status in (
        (reserve(volume="NO"), "INVALID_VOLUME_NAME"),
        (reserve(bucket="no"), "INVALID_BUCKET_NAME"),
        (reserve(volume="vol9"), "VOLUME_NOT_FOUND"),
        (reserve(bucket="bucket9"), "BUCKET_NOT_FOUND"),
        (commit(given, blocks, volume="NO"), "INVALID_VOLUME_NAME"),
        (commit(given, blocks, bucket="no"), "INVALID_BUCKET_NAME"),
        (commit(given, blocks, volume="vol9"), "VOLUME_NOT_FOUND"),
        (commit(given, blocks, bucket="bucket9"), "BUCKET_NOT_FOUND"),
        (commit(given, blocks, key=""), "INVALID_KEY_NAME"),
        (commit(given, blocks, key=".snapshot/s/k"), "INVALID_KEY_NAME"),
        (commit(given, blocks, key="x" * 4097), "INVALID_KEY_NAME"),
        (commit(given, blocks, replication="RATIS/TWO"), "INVALID_REQUEST"),
        (commit(given, blocks, metadata={"k": "v" * MAX_METADATA_BYTES}), "INVALID_REQUEST"),
        (release(given, volume="NO"), "INVALID_VOLUME_NAME"),
        (release(given, bucket="no"), "INVALID_BUCKET_NAME"),
        (release(given, volume="vol9"), "VOLUME_NOT_FOUND"),
        (release(given, bucket="bucket9"), "BUCKET_NOT_FOUND"),
    ):
        assert world.refusal(body).status == status, body


def test_an_unknown_reservation(world: World):
    given = world.session(reserve(2))
    blocks = written(given.blocks, 5)
    for body in (commit(UNKNOWN, blocks), release(UNKNOWN)):
        error = world.refusal(body)
        assert (error.status, error.message) == ("KEY_NOT_FOUND", "no reservation 99 in /vol1/bucket1")
    world.do(CreateBucket(volume="vol1", bucket="bucket2"))
    for body in (commit(given, blocks, bucket="bucket2"), release(given, bucket="bucket2")):
        error = world.refusal(body)
        assert (error.status, error.message) == ("KEY_NOT_FOUND", "no reservation 1023 in /vol1/bucket2")


def test_a_session_of_a_key_is_no_reservation(world: World):
    opened = world.session(CreateKey(**PLACE, key="k", size=100))
    assert world.refusal(commit(opened, written(opened.blocks, 5))).status == "KEY_NOT_FOUND"
    assert world.refusal(release(opened)).status == "KEY_NOT_FOUND"


def test_a_reservation_of_a_deleted_bucket_is_not_found_in_the_next_one(world: World):
    given = world.session(reserve(2))
    world.do(DeleteBucket(**PLACE))
    assert world.refusal(release(given)).status == "BUCKET_NOT_FOUND"
    world.do(CreateBucket(**PLACE))
    assert world.refusal(commit(given, written(given.blocks, 5))).status == "KEY_NOT_FOUND"
    assert world.refusal(release(given)).status == "KEY_NOT_FOUND"
    world.do(ExpireOpenKeys(shard=0, modified_before_ms=world.now_ms, rows=[RESERVATION]))
    assert [local_ids(row.blocks) for row in rows(world, DELETED_TABLE).values()] == [local_ids(given.blocks)]


def on_datanodes(index: int = 4) -> PreExecuteContext:
    """What a leader with datanodes adds to a request."""
    pipelines = ("pipeline-0",)
    found = Contexts(shard=0, shards=1, pipelines=pipelines, choose=always(pipelines), block_bytes=BLOCK_SIZE_BYTES)
    return found.at(1_000, index)


def test_where_there_are_datanodes_blocks_are_written_first(world: World):
    given = world.session(reserve(2))
    blocks = written(given.blocks, 5, 5)
    for wrong in (0, 1):
        named = [replace(block, bcs_id=0) if place == wrong else block for place, block in enumerate(blocks)]
        with pytest.raises(OMError, match="has no committed index") as refused:
            pre_execute(request_of(commit(given, named)), on_datanodes())
        assert refused.value.status == "INVALID_REQUEST"
    for bcs_id in (1, NEVER_WRITTEN):
        pre_execute(request_of(commit(given, written(given.blocks, 5, bcs_id=bcs_id))), on_datanodes())


def test_a_replica_does_not_ask_whether_blocks_were_written(world: World):
    """The leader took it, as it was configured: every replica does what lies in the log."""
    given = world.session(reserve(2))
    prepared = pre_execute(request_of(commit(given, written(given.blocks, 5, bcs_id=0))), world_context(world))
    world.index += 1
    tx = world.begin()
    apply_request(prepared, tx)
    assert tx.get(KEY_TABLE, KEY) is not None


def world_context(world: World) -> PreExecuteContext:
    """Return the context of a world's next request."""
    return replace(world.context(), index=world.index + 1)


# ---- nobody else reaches a reservation


def test_no_key_without_a_name_is_created_opened_or_committed(world: World):
    given = world.session(reserve(2))
    session = {**PLACE, "key": "", "session_id": given.session_id}
    bodies: tuple[RequestBody, ...] = (
        CreateKey(**PLACE, key="", size=1), AllocateBlock(**session), CommitKey(**session, size=0),
        CommitKey(**session, size=5, blocks=written(given.blocks, 5)), PutKey(**PLACE, key="", data=b"x"),
        DeleteKey(**PLACE, key=""), RenameKey(**PLACE, from_key="", to_key="k"),
        RenameKey(**PLACE, from_key="k", to_key=""),
    )  # fmt: skip
    for body in bodies:
        assert world.refusal(body).status == "INVALID_KEY_NAME", body


@pytest.mark.parametrize("key", ["/1023", "/", "1023", "/1023/", "//1023"])
def test_no_name_leads_to_a_reservations_row(world: World, key: str):
    """A name may look like a part of the row's key."""
    given = world.session(reserve(2))
    before = rows(world, OPEN_KEY_TABLE)[RESERVATION]
    session = {**PLACE, "key": key, "session_id": given.session_id}
    assert world.refusal(AllocateBlock(**session)).status == "KEY_NOT_FOUND"
    assert world.refusal(CommitKey(**session, size=0)).status == "KEY_NOT_FOUND"
    opened = world.session(CreateKey(**PLACE, key=key, size=100))
    world.do(CommitKey(**PLACE, key=key, session_id=opened.session_id, size=100))
    world.do(DeleteKey(**PLACE, key=key))
    assert rows(world, OPEN_KEY_TABLE) == {RESERVATION: before}


# ---- the ends of a reservation


def test_a_release_leaves_the_remaining_blocks_to_be_deleted(world: World):
    given = world.session(reserve(3), caller="bob")
    world.do(commit(given, written(given.blocks[1:], 40)))
    assert world.do(release(given)) is None
    assert rows(world, OPEN_KEY_TABLE) == {}
    (row,) = rows(world, DELETED_TABLE).items()
    assert row == (
        b"/vol1/bucket1//768",
        KeyInfo(
            **PLACE, key="", owner="bob", object_id=3 << 8, update_id=5, size=0, replication="",
            blocks=[given.blocks[0], given.blocks[2]], metadata={}, creation_time_ms=0, modification_time_ms=1050,
        ),
    )  # fmt: skip
    assert usage(world) == (40, 1), "keys stay"
    assert world.refusal(release(given)).status == "KEY_NOT_FOUND"
    world.do(PurgeBlocks(shard=0, rows=[row[0]]))
    assert rows(world, DELETED_TABLE) == {}


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_reservation_expires_by_the_time_of_its_creation(world: World, commits: int):
    given = world.session(reserve(3))
    for number in range(commits):
        world.do(commit(given, written(given.blocks[number:], 1), key=f"k{number}"))
    world.now_ms = 5_000
    world.do(ExpireOpenKeys(shard=0, modified_before_ms=1030, rows=[RESERVATION]))
    assert RESERVATION in rows(world, OPEN_KEY_TABLE), "it is not older"
    world.do(ExpireOpenKeys(shard=0, modified_before_ms=1031, rows=[RESERVATION]))
    assert rows(world, OPEN_KEY_TABLE) == {}
    ((key, row),) = rows(world, DELETED_TABLE).items()
    assert (key, row.size, row.blocks) == (b"/vol1/bucket1//768", 0, given.blocks[commits:])
    assert world.refusal(commit(given, written(given.blocks[commits:], 1))).status == "KEY_NOT_FOUND"
    assert usage(world) == (commits, commits)


def test_snapshots_need_keys_that_were_committed_before_them_and_no_reserved_blocks(world: World):
    given = world.session(reserve(4))
    world.do(commit(given, written(given.blocks, 1), key="before"))
    world.do(CreateSnapshot(**PLACE, snapshot="snap1"))
    world.do(commit(given, written(given.blocks[1:], 1), key="after"))
    for key in ("before", "after"):
        world.do(DeleteKey(**PLACE, key=key))
    world.do(release(given))
    needed = NeededVersions(world.tables)
    assert {row.key: needed.include(row) for row in rows(world, DELETED_TABLE).values()} == {
        "before": True, "after": False, "": False,
    }  # fmt: skip


# ---- quotas


def test_the_quota_in_bytes_bounds_a_reservation(world: World):
    world.do(SetBucketProperty(**PLACE, quota_in_bytes=350))
    world.do(PutKey(**PLACE, key="before", data=bytes(100)))
    error = world.refusal(reserve(3))
    assert error.status == "QUOTA_EXCEEDED"
    assert error.message == (
        "bucket /vol1/bucket1 has a quota of 350 bytes and holds 100: blocks of 300 are not reserved"
    )
    world.do(reserve(2))
    world.do(reserve(2))
    assert usage(world) == (100, 1), "each reservation counts by itself, and none is used"


def test_the_quota_in_bytes_bounds_the_keys_from_a_reservation(world: World):
    given = world.session(reserve(4))
    world.do(SetBucketProperty(**PLACE, quota_in_bytes=100))
    world.do(commit(given, written(given.blocks, 60)))
    error = world.refusal(commit(given, written(given.blocks[1:], 41), key="other"))
    assert error.status == "QUOTA_EXCEEDED"
    assert "holds 60: 41 more do not fit" in error.message
    world.do(commit(given, written(given.blocks[1:], 100)))
    assert usage(world) == (100, 1), "a replacement counts by the difference"
    assert rows(world, OPEN_KEY_TABLE)[RESERVATION].blocks == given.blocks[2:]


def test_the_quota_of_keys_bounds_the_keys_and_not_the_reservations(world: World):
    world.do(SetBucketProperty(**PLACE, quota_in_namespace=1))
    given = world.session(reserve(3))
    world.do(commit(given, written(given.blocks, 1)))
    assert world.refusal(commit(given, written(given.blocks[1:], 1), key="other")).status == "QUOTA_EXCEEDED"
    world.do(commit(given, written(given.blocks[1:], 1)))
    world.do(reserve(1))
    assert usage(world) == (1, 1)


# ---- levels


@pytest.mark.parametrize("level", range(1, BLOCK_RESERVATIONS))
def test_before_their_level_they_are_refused_and_name_both(world: World, level: int):
    given = world.session(reserve(2))
    for body in (reserve(), commit(given, written(given.blocks, 5)), release(given)):
        world.index += 1
        tx = world.begin()
        tx.feature_level = level
        words = f"{type(body).__name__} needs feature level 10, the shard is at {level}"
        with pytest.raises(OMError, match=words) as refused:
            execute(request_of(body), tx, world.context())
        assert refused.value.status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
        assert tx.writes == []


# ---- rights


class Judged(World):
    """A world whose bucket is bert's and whose volume is vera's; everybody may read the volume."""

    def __init__(self) -> None:
        super().__init__(authorizer=ACCESS_RULES)
        self.make()
        self.do(SetVolumeProperty(volume="vol1", owner="vera"))
        self.do(SetBucketProperty(**PLACE, owner="bert"))
        self.allow("world::r", kind="VOLUME", bucket="")

    def allow(self, acl: str, kind: str = "BUCKET", name: str = "", bucket: str = "bucket1") -> None:
        acls = [parse_acl(acl)]
        self.do(ChangeAcl(kind=kind, volume="vol1", bucket=bucket, name=name, change="ADD", acls=acls))

    def by(self, caller: str, body: RequestBody) -> str:
        """Return the status of a user's request."""
        self.standing = ProvenCaller(administrator=False, groups=[], generation=3, token=0)
        try:
            self.do(body, caller)
        except OMError as error:
            return error.status
        finally:
            self.standing = None
        return "OK"


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_to_reserve_needs_create_on_the_bucket(judged: Judged):
    for owner in ("vera", "bert"):
        assert judged.by(owner, reserve()) == "OK"
    assert judged.by("ann", reserve()) == "PERMISSION_DENIED"
    judged.allow("user:ann:rwdl")
    assert judged.by("ann", reserve()) == "PERMISSION_DENIED"
    judged.allow("user:ann:c")
    assert judged.by("ann", reserve()) == "OK"
    assert judged.by("eve", reserve()) == "PERMISSION_DENIED"


def test_a_reservation_is_its_owners_and_the_buckets(judged: Judged):
    judged.allow("user:ann:rwcl")
    judged.allow("user:eve:rwcld")
    given = judged.session(reserve(5), caller="ann")
    for body in (commit(given, written(given.blocks, 5)), release(given)):
        judged.index += 1
        judged.standing = ProvenCaller(administrator=False, groups=[], generation=3, token=0)
        error = judged.refusal(body, "eve")
        judged.standing = None
        assert error.status == "PERMISSION_DENIED"
        assert error.message == f"user eve: reservation {given.session_id} is another user's"
    assert judged.by("ann", commit(given, written(given.blocks, 5))) == "OK"
    for number, owner in enumerate(("bert", "vera"), 1):
        assert judged.by(owner, commit(given, written(given.blocks[number:], 5), key=owner)) == "OK"
    assert judged.by("ann", release(given)) == "OK"
    assert judged.by("bert", release(given)) == "KEY_NOT_FOUND"


def test_who_may_create_no_key_commits_none(judged: Judged):
    """A right may go after the reservation: its blocks are given back all the same."""
    given = judged.session(reserve(3), caller="ann")
    body = commit(given, written(given.blocks, 5))
    assert judged.by("ann", body) == "PERMISSION_DENIED"
    judged.allow("user:ann:w")
    assert judged.by("ann", body) == "PERMISSION_DENIED", "the key is new"
    assert judged.by("ann", release(given)) == "OK"


def test_a_commit_needs_what_creating_the_key_needs(judged: Judged):
    judged.allow("user:ann:cw")
    judged.do(PutKey(**PLACE, key="k", data=b"x"), caller="bert")
    judged.allow("world::r", kind="PREFIX", name="closed/")
    for key, status in (("new", "OK"), ("new", "OK"), ("k", "PERMISSION_DENIED"), ("closed/k", "PERMISSION_DENIED")):
        given = judged.session(reserve(1), caller="ann")
        assert judged.by("ann", CreateKey(**PLACE, key=key, size=1)) == status, key
        assert judged.by("ann", commit(given, written(given.blocks, 5), key=key)) == status, key
    judged.allow("user:ann:w", kind="KEY", name="k")
    given = judged.session(reserve(1), caller="ann")
    assert judged.by("ann", commit(given, written(given.blocks, 5))) == "OK"
    assert rows(judged, KEY_TABLE)[KEY].owner == "bert", "the key that is replaced keeps its owner"


# ---- through the leader, the log and replicas


def of_world(mode: str) -> LateWorld:
    world = LateWorld(force=mode)
    for body in (CreateVolume(volume="vol1"), CreateBucket(**PLACE)):
        assert world.do(body).status == "OK", body
    return world


def given_by(world: LateWorld, count: int) -> KeySession:
    result = world.do(reserve(count)).result
    assert isinstance(result, KeySession)
    return result


def work(world: LateWorld) -> list[tuple[str, str, int]]:
    """Reserve, commit, release; among that what is refused. Return the answers."""
    one, other = given_by(world, 3), given_by(world, 4)
    bodies: tuple[RequestBody, ...] = (
        commit(one, written(one.blocks, 5)), commit(other, written(other.blocks, 1 << 20, 7), key="b"),
        commit(one, written(one.blocks[1:], 6)), commit(one, written(one.blocks, 5)), reserve(65),
        commit(one, written(other.blocks, 5)), commit(UNKNOWN, written(other.blocks, 5)), release(other),
        release(other), DeleteKey(**PLACE, key="b"), commit(one, written(one.blocks[2:], 8), key="c"),
        reserve(bucket="none"), commit(one, [], size=0), reserve(2),
    )  # fmt: skip
    return [(answer.status, answer.message, answer.index) for answer in map(world.do, bodies)]


@pytest.mark.parametrize("mode", [LEADER_MODE, LATE_MODE])
def test_every_replica_holds_the_same_rows(mode: str):
    world = of_world(mode)
    work(world)
    leader, follower = world.nodes["n1"], world.nodes["n2"]
    follower.read()
    found = leader.rows()
    assert found == follower.rows()
    assert leader.replica.digests == follower.replica.digests
    assert [key for cf, key in found if cf == KEY_TABLE] == [b"/vol1/bucket1/c", b"/vol1/bucket1/k"]
    assert sum(cf == OPEN_KEY_TABLE for cf, _ in found) == 1


def test_both_modes_come_to_one_state():
    found = []
    for mode in (LEADER_MODE, LATE_MODE):
        world = of_world(mode)
        answers = work(world)
        found.append((answers, world.leader_node.rows()))
    assert found[0] == found[1]
    assert [status for status, _, _ in found[0][0]] == [
        "OK", "OK", "OK", "INVALID_REQUEST", "INVALID_REQUEST", "INVALID_REQUEST", "KEY_NOT_FOUND", "OK",
        "KEY_NOT_FOUND", "OK", "OK", "BUCKET_NOT_FOUND", "INVALID_REQUEST", "OK",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", [LEADER_MODE, LATE_MODE])
def test_a_retry_has_one_effect(mode: str):
    world = of_world(mode)
    given = given_by(world, 2)
    reserved = len(world.sent)
    assert world.do(commit(given, written(given.blocks, 5))).status == "OK"
    committed = len(world.sent)
    assert world.do(release(given)).status == "OK"
    before, answers = world.leader_node.rows(), dict(world.answers)
    for number in (reserved, committed, committed + 1):
        world.repeat(number - 1)
        world.settle()
        assert world.answers[number] == answers[number]
    assert world.leader_node.rows() == before


@pytest.mark.parametrize("mode", [LEADER_MODE, LATE_MODE])
def test_requests_of_the_largest_size_fit_into_batches(mode: str):
    """Many blocks, a long name, and as much metadata as is taken, in place of a key as large."""
    world = of_world(mode)
    for _ in range(3):
        given = given_by(world, MAX_RESERVED_BLOCKS)
        for blocks in (given.blocks[:32], given.blocks[32:]):
            named = written(blocks, *[1 << 20] * 32)
            largest = commit(given, named, key="ключ" * 500, metadata={"k": "v" * (MAX_METADATA_BYTES - 1)})
            assert world.do(largest).status == "OK"
    assert sum(cf == OPEN_KEY_TABLE for cf, _ in world.leader_node.rows()) == 0
