from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.execution.execute import execute
from om_processors.execution.requests.blocks import SMALL_FILES_RUN
from om_processors.execution.requests.key import MAX_BLOCKS_PER_KEY, MAX_EXPIRED_ROWS, PREALLOCATED_BLOCKS
from om_processors.namespace import ids, quota, tables
from replicated_db.core.tables.merge import encode_int64
from schemas.codecs.codec import decode
from schemas.column_families import DELETED_TABLE, KEY_TABLE, OPEN_KEY_TABLE, USAGE_TABLE
from schemas.features import DATANODES, DELETION_GRACE
from schemas.records.messages import (
    AllocateBlock,
    CommitKey,
    CreateKey,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    ExpireOpenKeys,
    KeySession,
    RenameKey,
    RequestBody,
    SetBucketProperty,
)
from schemas.records.rows import BlockLocation, KeyInfo
from schemas.small_objects import SMALL_FILE_BYTES
from tests.support.om.om_world import BLOCK_SIZE_BYTES, PIPELINES, World, request_of

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}


def create(key: str = "a/b", size: int = 250, **more) -> CreateKey:
    return CreateKey(**PLACE, key=key, size=size, **more)


def commit(
    opened: KeySession, key: str = "a/b", size: int = 250, blocks: list[BlockLocation] | None = None
) -> CommitKey:
    return CommitKey(**PLACE, key=key, session_id=opened.session_id, size=size, blocks=blocks or [])


def put(world: World, key: str, size: int) -> KeySession:
    opened = world.session(create(key, size))
    world.do(commit(opened, key, size))
    return opened


def rows(world: World, cf: str) -> dict[bytes, KeyInfo]:
    return {key: decode(value) for key, value in world.tables.tables[cf].items()}


def key_of(world: World, key: str) -> KeyInfo:
    return rows(world, KEY_TABLE)[tables.key_key("vol1", "bucket1", key)]


def usage(world: World) -> tuple[int, int]:
    """Return the bucket's committed bytes and number of keys."""
    return (
        quota.read(world.tables, tables.used_bytes_key("vol1", "bucket1")),
        quota.read(world.tables, tables.used_keys_key("vol1", "bucket1")),
    )


# ---- every command


COMMANDS: dict[str, Callable[..., RequestBody]] = {
    "create": lambda v, b, k: CreateKey(volume=v, bucket=b, key=k, size=1),
    "allocate": lambda v, b, k: AllocateBlock(volume=v, bucket=b, key=k, session_id=1),
    "commit": lambda v, b, k: CommitKey(volume=v, bucket=b, key=k, session_id=1, size=0),
    "delete": lambda v, b, k: DeleteKey(volume=v, bucket=b, key=k),
    "rename from": lambda v, b, k: RenameKey(volume=v, bucket=b, from_key=k, to_key="x"),
    "rename to": lambda v, b, k: RenameKey(volume=v, bucket=b, from_key="x", to_key=k),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_names_and_parents(command):
    world = World().make()
    assert world.refusal(command("NO", "bucket1", "k")).status == "INVALID_VOLUME_NAME"
    assert world.refusal(command("vol1", "no", "k")).status == "INVALID_BUCKET_NAME"
    assert world.refusal(command("vol1", "bucket1", "")).status == "INVALID_KEY_NAME"
    assert world.refusal(command("vol9", "bucket1", "k")).status == "VOLUME_NOT_FOUND"
    assert world.refusal(command("vol1", "bucket9", "k")).status == "BUCKET_NOT_FOUND"


@pytest.mark.parametrize(
    "command", [COMMANDS[name] for name in ("allocate", "commit", "delete", "rename from", "rename to")]
)
def test_missing_key(command):
    assert World().make().refusal(command("vol1", "bucket1", "k")).status == "KEY_NOT_FOUND"


# ---- CreateKey


def test_create_opens_a_key():
    world = World().make()
    opened = world.session(create(metadata={"mtime": "1"}), caller="bob")
    assert opened.object_id == 3 << 8
    assert opened.session_id == ids.session_id(opened.object_id)
    assert [(block.offset, block.length) for block in opened.blocks] == [(0, 100), (100, 100), (200, 100)]
    assert rows(world, OPEN_KEY_TABLE) == {
        f"/vol1/bucket1/a/b/{opened.session_id}".encode(): KeyInfo(
            **PLACE, key="a/b", owner="bob", object_id=opened.object_id, update_id=3, size=250, replication="RATIS/THREE",
            blocks=opened.blocks, metadata={"mtime": "1"}, creation_time_ms=1030, modification_time_ms=1030,
        )
    }  # fmt: skip
    assert not world.tables.tables[KEY_TABLE]
    assert usage(world) == (0, 0)
    assert world.writes == [("put", OPEN_KEY_TABLE, f"/vol1/bucket1/a/b/{opened.session_id}".encode())]


def test_blocks_are_spread_over_pipelines_and_never_repeat():
    world = World().make()
    blocks = [block for size in (100, 300, 50) for block in world.session(create(size=size)).blocks]
    assert len(blocks) == 5
    assert len({block.local_id for block in blocks}) == 5
    assert {block.pipeline for block in blocks} == set(PIPELINES)
    assert len({(block.container_id, block.pipeline) for block in blocks}) == len(PIPELINES)


@pytest.mark.parametrize(
    ("size", "count"), [(0, 0), (1, 1), (100, 1), (101, 2), (6400, 64), (6401, 64), (1 << 62, PREALLOCATED_BLOCKS)]
)
def test_number_of_blocks(size, count):
    assert len(World().make().session(create(size=size)).blocks) == count


def test_bad_create():
    world = World().make()
    error = world.refusal(create(size=-1))
    assert (error.status, error.message) == ("INVALID_REQUEST", "negative size -1 of key 'a/b'")
    error = world.refusal(create(replication="RATIS/TWO"))
    assert error.status == "INVALID_REQUEST"
    assert "RATIS/TWO" in error.message
    assert world.refusal(create(key=".snapshot/s1/k")).status == "INVALID_KEY_NAME"


# ---- CommitKey


def test_commit_moves_the_key_and_counts_it():
    world = World().make()
    opened = world.session(create(metadata={"mtime": "1"}), caller="bob")
    assert world.do(commit(opened), caller="eve") is None
    info = key_of(world, "a/b")
    assert [(block.offset, block.length) for block in info.blocks] == [(0, 100), (100, 100), (200, 50)]
    assert info == KeyInfo(
        **PLACE, key="a/b", owner="bob", object_id=opened.object_id, update_id=4, size=250, replication="RATIS/THREE",
        blocks=info.blocks, metadata={"mtime": "1"}, creation_time_ms=1030, modification_time_ms=1040,
    )  # fmt: skip
    assert not world.tables.tables[OPEN_KEY_TABLE]
    assert not world.tables.tables[DELETED_TABLE]
    assert usage(world) == (250, 1)


def test_commit_with_the_blocks_that_were_written():
    world = World().make()
    opened = world.session(create(size=300))
    first, second, third = opened.blocks
    written = [replace(third, offset=0, length=40), replace(first, offset=40, length=100)]
    world.do(commit(opened, size=140, blocks=written))
    assert key_of(world, "a/b").blocks == written
    unused = rows(world, DELETED_TABLE)
    reclaim_id = ids.object_id(0, world.index)
    assert list(unused) == [f"/vol1/bucket1/a/b/{reclaim_id}".encode()]
    (row,) = unused.values()
    assert (row.blocks, row.size, row.object_id, row.update_id) == ([second], 0, reclaim_id, world.index)
    assert usage(world) == (140, 1)


def test_commit_of_less_than_expected_leaves_blocks_to_reclaim():
    world = World().make()
    opened = world.session(create(size=300))
    world.do(commit(opened, size=0))
    assert key_of(world, "a/b").blocks == []
    assert [row.blocks for row in rows(world, DELETED_TABLE).values()] == [opened.blocks]
    assert usage(world) == (0, 1)


def test_an_empty_key_writes_no_byte_counter():
    world = World().make()
    put(world, "empty", 0)
    assert ("merge", USAGE_TABLE, b"/vol1/bucket1/#usedBytes") not in world.writes
    assert usage(world) == (0, 1)


def test_commit_in_the_wrong_session():
    world = World().make()
    opened = world.session(create())
    other = world.session(create("other"))
    for body in (
        commit(replace(opened, session_id=77)),
        commit(other),
        commit(opened, key="a"),
        commit(replace(opened, session_id=-1)),
    ):
        error = world.refusal(body)
        assert error.status == "KEY_NOT_FOUND"
        assert f"session {body.session_id}" in error.message
        assert repr(body.key) in error.message
    world.do(commit(opened))
    assert world.refusal(commit(opened)).status == "KEY_NOT_FOUND"


def test_a_key_that_ends_like_a_session_is_another_key():
    world = World().make()
    opened = world.session(create("k", 1))
    nested = world.session(create(f"k/{opened.session_id}", 1))
    world.do(commit(nested, f"k/{opened.session_id}", 1))
    world.do(commit(opened, "k", 1))
    assert usage(world) == (2, 2)


def test_bad_commits():
    world = World().make()
    opened = world.session(create(size=300))
    first, second, third = opened.blocks
    whole = [first, second, third]
    cases = {
        "negative size -1": commit(opened, size=-1),
        "blocks allocated hold 300": commit(opened, size=301),
        "sum to 300 bytes, but its size is 299": commit(opened, size=299, blocks=whole),
        "was not allocated to session": commit(opened, size=100, blocks=[replace(first, local_id=first.local_id + 77)]),
        "or is named twice": commit(opened, size=200, blocks=[first, replace(first, offset=100)]),
        f"({first.container_id + 1}, {first.local_id})": commit(
            opened, size=100, blocks=[replace(first, container_id=first.container_id + 1)]
        ),
        "on 'pipeline-x'": commit(opened, size=100, blocks=[replace(first, pipeline="pipeline-x")]),
        "has length 101; 1 to 100": commit(opened, size=101, blocks=[replace(first, length=101)]),
        "has length 0": commit(opened, size=100, blocks=[replace(first, length=0)]),
        "has length -5": commit(opened, size=-5 + 100, blocks=[replace(first, length=-5), second]),
        "has offset 0 where 100 follows": commit(opened, size=200, blocks=[first, replace(second, offset=0)]),
        "has offset 100 where 0 follows": commit(opened, size=100, blocks=[second]),
        f"{MAX_BLOCKS_PER_KEY + 1} blocks": commit(opened, blocks=[first] * (MAX_BLOCKS_PER_KEY + 1)),
    }
    for message, body in cases.items():
        error = world.refusal(body)
        assert error.status == "INVALID_REQUEST", message
        assert message in error.message
    world.do(commit(opened, size=300, blocks=whole))


def retired_now(world: World, info: KeyInfo) -> KeyInfo:
    """Return the row of deletedTable of a key that the last request retired: it says when."""
    return replace(info, update_id=world.index, creation_time_ms=0, modification_time_ms=world.now_ms)


def test_commit_replaces_a_key():
    world = World().make()
    old = world.session(create("k", 250), caller="bob")
    world.do(commit(old, "k", 250))
    created_at = key_of(world, "k").creation_time_ms
    old_row = key_of(world, "k")
    new = world.session(create("k", 40, metadata={"v": "2"}), caller="eve")
    world.do(commit(new, "k", 40))
    info = key_of(world, "k")
    assert (info.object_id, info.size, info.metadata) == (new.object_id, 40, {"v": "2"})
    assert (info.owner, info.creation_time_ms, info.modification_time_ms) == ("bob", created_at, world.now_ms)
    assert rows(world, DELETED_TABLE) == {f"/vol1/bucket1/k/{old.object_id}".encode(): retired_now(world, old_row)}
    assert usage(world) == (40, 1)


def test_before_finalize_a_row_of_deleted_table_is_what_older_software_writes():
    world = World().make()
    world.level = DELETION_GRACE - 1
    put(world, "replaced", 50)
    put(world, "deleted", 50)
    written = [key_of(world, "deleted"), key_of(world, "replaced")]
    world.now_ms += 1_000
    world.do(DeleteKey(**PLACE, key="deleted"))
    put(world, "replaced", 50)
    left = list(rows(world, DELETED_TABLE).values())
    assert left == [replace(was, update_id=now.update_id) for was, now in zip(written, left, strict=True)]
    assert {tables.retired_ms(info) for info in left} == {None}


def test_versions_of_a_name_do_not_meet_in_deleted_table():
    world = World().make()
    versions = [put(world, "k", 10) for _ in range(3)]
    world.do(DeleteKey(**PLACE, key="k"))
    assert set(rows(world, DELETED_TABLE)) == {f"/vol1/bucket1/k/{v.object_id}".encode() for v in versions}
    assert usage(world) == (0, 0)


def test_two_sessions_of_one_name_commit_one_after_the_other():
    world = World().make()
    first, second = world.session(create("k", 10)), world.session(create("k", 20))
    world.do(commit(second, "k", 20))
    world.do(commit(first, "k", 10))
    assert key_of(world, "k").object_id == first.object_id
    assert usage(world) == (10, 1)


# ---- AllocateBlock


def test_allocate_appends_a_block():
    world = World().make()
    opened = world.session(create(size=150))
    body = AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id)
    block = world.block(body).block
    assert (block.offset, block.length) == (200, BLOCK_SIZE_BYTES)
    (row,) = rows(world, OPEN_KEY_TABLE).values()
    assert row.blocks == [*opened.blocks, block]
    assert (row.size, row.update_id, row.modification_time_ms, row.creation_time_ms) == (150, 4, 1040, 1030)
    world.do(commit(opened, size=300))
    assert key_of(world, "a/b").blocks == [*opened.blocks, block]


def test_small_files_of_a_while_share_a_pipeline_and_larger_ones_take_turns():
    """Only blocks of one pipeline travel together (decision 0067), and a large block should not wait behind others."""
    world = World().make()
    world.index = 10 * SMALL_FILES_RUN - 1

    def places(count: int, size: int) -> list[str]:
        return [world.session(create(f"k{number}", size)).blocks[0].pipeline for number in range(count)]

    first, second, third = (places(SMALL_FILES_RUN, size) for size in (1, BLOCK_SIZE_BYTES, SMALL_FILE_BYTES))
    assert [len(set(run)) for run in (first, second, third)] == [1, 1, 1]
    assert {first[0], second[0], third[0]} == set(PIPELINES)
    assert len(set(places(3, SMALL_FILE_BYTES + 1))) == 3


def test_excluded_pipelines_are_avoided():
    world = World().make()
    opened = world.session(create(size=0))
    for excluded in PIPELINES:
        others = [name for name in PIPELINES if name != excluded]
        body = AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id, excluded_pipelines=others)
        assert world.block(body).block.pipeline == excluded
    body = AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id, excluded_pipelines=[*PIPELINES, "old"])
    error = world.refusal(body)
    assert error.status == "INVALID_REQUEST"
    assert "no pipeline is left" in error.message
    containers = {
        (block.container_id, block.pipeline) for row in rows(world, OPEN_KEY_TABLE).values() for block in row.blocks
    }
    assert len({container for container, _ in containers}) == len(containers) == 3


def test_a_key_has_a_limit_of_blocks(monkeypatch):
    monkeypatch.setattr("om_processors.execution.requests.key.MAX_BLOCKS_PER_KEY", 4)
    world = World().make()
    opened = world.session(create(size=300))
    body = AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id)
    world.block(body)
    error = world.refusal(body)
    assert (error.status, "4 blocks" in error.message) == ("INVALID_REQUEST", True)


# ---- quotas


def test_byte_quota_is_exact():
    world = World().make()
    world.do(SetBucketProperty(**PLACE, quota_in_bytes=100))
    error = world.refusal(create("k", 101))
    assert error.status == "QUOTA_EXCEEDED"
    assert "quota of 100 bytes and holds 0: 101 more do not fit" in error.message
    opened = [world.session(create(key, 60)) for key in ("k1", "k2")]
    world.do(commit(opened[0], "k1", 60))
    assert world.refusal(commit(opened[1], "k2", 60)).status == "QUOTA_EXCEEDED"
    assert world.refusal(commit(opened[1], "k2", 41)).status == "QUOTA_EXCEEDED"
    refused = AllocateBlock(**PLACE, key="k2", session_id=opened[1].session_id)
    assert world.refusal(refused).status == "QUOTA_EXCEEDED"
    world.do(commit(opened[1], "k2", 40))
    assert usage(world) == (100, 2)
    assert world.refusal(create("k3", 1)).status == "QUOTA_EXCEEDED"
    put(world, "k3", 0)


def test_namespace_quota_is_exact():
    world = World().make()
    world.do(SetBucketProperty(**PLACE, quota_in_namespace=1))
    opened = [world.session(create(key, 5)) for key in ("k1", "k2")]
    world.do(commit(opened[0], "k1", 5))
    error = world.refusal(commit(opened[1], "k2", 5))
    assert (error.status, error.message) == (
        "QUOTA_EXCEEDED", "bucket /vol1/bucket1 has a quota of 1 keys and holds 1",
    )  # fmt: skip
    assert world.refusal(create("k3", 5)).status == "QUOTA_EXCEEDED"
    world.do(DeleteKey(**PLACE, key="k1"))
    world.do(commit(opened[1], "k2", 5))


def test_replacing_counts_by_the_difference():
    world = World().make()
    world.do(SetBucketProperty(**PLACE, quota_in_bytes=100, quota_in_namespace=1))
    put(world, "k", 100)
    put(world, "k", 100)
    put(world, "k", 30)
    assert usage(world) == (30, 1)
    assert world.refusal(create("k", 101)).status == "QUOTA_EXCEEDED"
    put(world, "k", 100)
    assert usage(world) == (100, 1)


def test_bytes_stay_in_64_bits_without_quota():
    world = World().make()
    world.tables.tables[USAGE_TABLE][b"/vol1/bucket1/#usedBytes"] = encode_int64((1 << 63) - 10)
    opened = world.session(create("k", 10))
    assert world.refusal(commit(opened, "k", 10)).status == "QUOTA_EXCEEDED"
    world.do(commit(opened, "k", 9))


# ---- DeleteKey, RenameKey


def test_delete_keeps_the_blocks_to_reclaim():
    world = World().make()
    opened = put(world, "k", 250)
    row = key_of(world, "k")
    world.do(DeleteKey(**PLACE, key="k"))
    assert not world.tables.tables[KEY_TABLE]
    assert rows(world, DELETED_TABLE) == {f"/vol1/bucket1/k/{opened.object_id}".encode(): retired_now(world, row)}
    assert usage(world) == (0, 0)
    assert world.refusal(DeleteKey(**PLACE, key="k")).status == "KEY_NOT_FOUND"


def test_a_deleted_key_without_blocks_vanishes():
    world = World().make()
    put(world, "k", 0)
    world.do(DeleteKey(**PLACE, key="k"))
    assert not world.tables.tables[DELETED_TABLE]
    assert usage(world) == (0, 0)


def test_rename():
    world = World().make()
    put(world, "k", 250)
    row = key_of(world, "k")
    world.do(RenameKey(**PLACE, from_key="k", to_key="d/k2"))
    assert rows(world, KEY_TABLE) == {
        b"/vol1/bucket1/d/k2": replace(row, key="d/k2", update_id=world.index, modification_time_ms=world.now_ms)
    }
    assert usage(world) == (250, 1)
    assert world.refusal(DeleteKey(**PLACE, key="k")).status == "KEY_NOT_FOUND"
    world.do(DeleteKey(**PLACE, key="d/k2"))
    assert usage(world) == (0, 0)


def test_rename_to_what_exists_or_from_what_does_not():
    world = World().make()
    put(world, "k1", 1)
    put(world, "k2", 1)
    assert world.refusal(RenameKey(**PLACE, from_key="k1", to_key="k2")).status == "KEY_ALREADY_EXISTS"
    assert world.refusal(RenameKey(**PLACE, from_key="k1", to_key="k1")).status == "KEY_ALREADY_EXISTS"
    assert world.refusal(RenameKey(**PLACE, from_key="k9", to_key="k1")).status == "KEY_ALREADY_EXISTS"
    error = world.refusal(RenameKey(**PLACE, from_key="k9", to_key="k3"))
    assert (error.status, error.message) == ("KEY_NOT_FOUND", "no key /vol1/bucket1/'k9'")
    assert world.refusal(RenameKey(**PLACE, from_key="k1", to_key=".snapshot")).status == "INVALID_KEY_NAME"


def test_rename_leaves_open_sessions_alone():
    world = World().make()
    put(world, "k", 1)
    opened = world.session(create("k", 2))
    world.do(RenameKey(**PLACE, from_key="k", to_key="k2"))
    world.do(commit(opened, "k", 2))
    assert (key_of(world, "k").size, key_of(world, "k2").size) == (2, 1)


def test_keys_of_other_buckets_are_not_touched():
    world = World().make()
    world.do(CreateVolume(volume="vol2"))
    put(world, "k", 10)
    before = world.tables.rows()
    world.make("vol3", "bucket1")
    opened = world.session(CreateKey(volume="vol3", bucket="bucket1", key="k", size=5))
    world.do(CommitKey(volume="vol3", bucket="bucket1", key="k", session_id=opened.session_id, size=5))
    world.do(DeleteKey(volume="vol3", bucket="bucket1", key="k"))
    assert before.items() <= world.tables.rows().items()


# ---- ExpireOpenKeys


def open_row(opened: KeySession, key: str = "a/b") -> bytes:
    return tables.open_key_key("vol1", "bucket1", key, opened.session_id)


def expire(before_ms: int, *rows: bytes) -> ExpireOpenKeys:
    return ExpireOpenKeys(shard=0, modified_before_ms=before_ms, rows=list(rows))


def test_an_expired_session_is_gone_and_its_blocks_are_left_to_be_reclaimed():
    world = World().make()
    opened = world.session(create(size=250, metadata={"colour": "red"}))
    grown = world.block(AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id))
    before = usage(world)
    row = open_row(opened)
    world.do(expire(world.now_ms + 1, row))
    assert rows(world, OPEN_KEY_TABLE) == {}
    left = tables.deleted_key("vol1", "bucket1", "a/b", opened.object_id)
    assert world.writes == [("delete", OPEN_KEY_TABLE, row), ("put", DELETED_TABLE, left)]
    info = rows(world, DELETED_TABLE)[left]
    assert tables.retired_ms(info) == world.now_ms
    assert (info.blocks, info.size, info.metadata) == ([*opened.blocks, grown.block], 0, {})
    assert (info.object_id, info.update_id, info.key) == (opened.object_id, world.index, "a/b")
    assert usage(world) == before == (0, 0)
    for late in (commit(opened), AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id)):
        error = world.refusal(late)
        assert error.status == "KEY_NOT_FOUND"
        assert error.message == f"no open key /vol1/bucket1/'a/b' in session {opened.session_id}"


def test_an_expired_session_without_blocks_vanishes():
    world = World().make()
    opened = world.session(create(size=0))
    world.do(expire(world.now_ms + 1, open_row(opened)))
    assert (rows(world, OPEN_KEY_TABLE), rows(world, DELETED_TABLE)) == ({}, {})


def test_only_what_was_modified_before_expires():
    world = World().make()
    older, younger = world.session(create("older")), world.session(create("younger"))
    modified_ms = world.now_ms
    body = expire(modified_ms, open_row(older, "older"), open_row(younger, "younger"), b"/vol1/bucket1/never/1")
    world.do(body)
    assert list(rows(world, OPEN_KEY_TABLE)) == [open_row(younger, "younger")]
    world.do(body)
    assert world.writes == []
    world.do(commit(younger, "younger"))


def test_a_block_that_is_allocated_keeps_a_session():
    world = World().make()
    opened = world.session(create())
    before_ms = world.now_ms + 1
    world.block(AllocateBlock(**PLACE, key="a/b", session_id=opened.session_id))
    world.do(expire(before_ms, open_row(opened)))
    world.do(commit(opened))


def test_other_sessions_and_the_committed_key_of_the_same_name_stay():
    world = World().make()
    put(world, "a/b", 10)
    vanished, other = world.session(create()), world.session(create())
    world.do(expire(world.now_ms + 1, open_row(vanished)))
    assert list(rows(world, OPEN_KEY_TABLE)) == [open_row(other)]
    assert (key_of(world, "a/b").size, usage(world)) == (10, (10, 1))
    world.do(commit(other))
    assert len(rows(world, DELETED_TABLE)) == 2, "what expired, and what was replaced"


def test_sessions_of_a_deleted_bucket_expire():
    world = World().make()
    opened = world.session(create())
    world.do(DeleteBucket(**PLACE))
    world.do(expire(world.now_ms + 1, open_row(opened)))
    assert rows(world, OPEN_KEY_TABLE) == {}
    assert len(rows(world, DELETED_TABLE)) == 1


def test_the_future_is_refused():
    """Else a leader whose wall clock has jumped would end the sessions of clients that live."""
    world = World().make()
    opened = world.session(create())
    error = world.refusal(expire(world.now_ms + 11, open_row(opened)))
    assert error.status == "INVALID_REQUEST"
    assert error.message == f"open keys modified before {world.now_ms + 1} cannot expire yet: it is {world.now_ms} ms"
    world.do(expire(world.now_ms + 10, open_row(opened)))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (expire(1), "INVALID_REQUEST", "1 to 500 open keys expire at once, not 0"),
        (expire(1, *(b"%d" % n for n in range(MAX_EXPIRED_ROWS + 1))), "INVALID_REQUEST", "not 501"),
        (expire(1, b"a", b"a"), "INVALID_REQUEST", "named twice"),
        (replace(expire(1, b"a"), shard=3), "WRONG_SHARD", "ExpireOpenKeys of shard 3 sent to shard 0"),
    ],
    ids=["none", "too many", "twice", "shard"],
)
def test_refusals_of_an_expiry(body: ExpireOpenKeys, status: str, words: str):
    error = World().refusal(body)
    assert error.status == status
    assert words in error.message


def test_expiry_waits_for_its_feature_level():
    world = World().make()
    opened = world.session(create())
    world.index += 1
    tx = world.begin()
    tx.feature_level = DATANODES
    with pytest.raises(OMError) as caught:
        execute(request_of(expire(world.now_ms, open_row(opened))), tx, world.context())
    assert caught.value.status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    assert "ExpireOpenKeys needs feature level 4, the shard is at 3" in caught.value.message
    assert tx.writes == []
