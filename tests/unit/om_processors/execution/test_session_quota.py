"""What an open key is given within its bucket's quota, what a commit must name on datanodes, and how large metadata may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.execution.requests.key import MAX_METADATA_BYTES
from om_processors.namespace import quota, tables
from om_processors.namespace.context import Contexts, PreExecuteContext
from schemas.codecs.codec import decode
from schemas.column_families import DELETED_TABLE, KEY_TABLE
from schemas.features import OPEN_KEY_EXPIRY
from schemas.records.messages import (
    AllocateBlock,
    CommitKey,
    CreateKey,
    DeleteKey,
    ExpireOpenKeys,
    KeySession,
    SetBucketProperty,
)
from schemas.records.rows import NEVER_WRITTEN, BlockLocation
from tests.support.om.om_world import BLOCK_SIZE_BYTES, PIPELINES, World

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}


class OldWorld(World):
    """A shard that was not finalized."""

    def __init__(self) -> None:
        super().__init__()
        self.level = OPEN_KEY_EXPIRY


class DatanodeWorld(World):
    """Blocks are on datanodes."""

    def context(self) -> PreExecuteContext:
        usual = Contexts(shard=self.shard, shards=self.shards, pipelines=PIPELINES).at(0, 0).allocation
        contexts = Contexts(
            shard=self.shard, shards=self.shards, pipelines=(), choose=lambda: usual, block_bytes=BLOCK_SIZE_BYTES
        )
        return contexts.at(self.now_ms, self.index)


def with_quota(quota_bytes: int, world: World | None = None) -> World:
    world = (world or World()).make()
    world.do(SetBucketProperty(**PLACE, quota_in_bytes=quota_bytes))
    return world


def opened(world: World, key: str = "k", size: int = 0, **more: Any) -> KeySession:
    return world.session(CreateKey(**PLACE, key=key, size=size, **more))


def allocate(session: KeySession, key: str = "k") -> AllocateBlock:
    return AllocateBlock(**PLACE, key=key, session_id=session.session_id)


def commit(session: KeySession, blocks: list[BlockLocation], key: str = "k", size: int | None = None) -> CommitKey:
    found, offset = [], 0
    for block in blocks:
        found.append(replace(block, offset=offset))
        offset += block.length
    return CommitKey(
        **PLACE, key=key, session_id=session.session_id, size=offset if size is None else size, blocks=found
    )


# ---- AllocateBlock and the quota


def test_a_stream_is_given_what_the_quota_has_room_for_and_not_a_byte_more():
    world = with_quota(250)
    session = opened(world)
    blocks = [world.block(allocate(session)).block for _ in range(3)]
    assert [block.length for block in blocks] == [100, 100, 50]
    refused = world.refusal(allocate(session))
    assert refused.status == "QUOTA_EXCEEDED"
    assert "has a quota of 250 bytes and holds 0: this open key has been given blocks for 250" in refused.message
    world.do(commit(session, blocks))
    assert quota.read(world.tables, tables.used_bytes_key("vol1", "bucket1")) == 250
    assert world.refusal(allocate(opened(world, "other"), "other")).status == "QUOTA_EXCEEDED"


def test_what_a_session_was_given_is_free_when_it_ends_however_it_ends():
    world = with_quota(100)
    for end in ("committed small", "expired"):
        session = opened(world)
        block = world.block(allocate(session)).block
        assert block.length == 100, end
        if end == "expired":
            row = tables.open_key_key("vol1", "bucket1", "k", session.session_id)
            world.do(ExpireOpenKeys(shard=0, modified_before_ms=world.now_ms + 5, rows=[row]))
        else:
            world.do(commit(session, [replace(block, length=1)]))
            world.do(DeleteKey(**PLACE, key="k"))
    assert world.block(allocate(opened(world))).block.length == 100


def test_the_key_that_is_replaced_gives_its_room():
    world = with_quota(150)
    first = opened(world)
    world.do(commit(first, [world.block(allocate(first)).block]))
    again = opened(world)
    assert [world.block(allocate(again)).block.length for _ in range(2)] == [100, 50]
    other = opened(world, "other")
    assert world.block(allocate(other, "other")).block.length == 50


def test_blocks_that_came_with_the_key_count_as_the_size_that_was_admitted():
    """Else a small file whose first block failed could not be written in a bucket that is smaller than a block."""
    world = with_quota(60)
    session = opened(world, size=5)
    assert [block.length for block in session.blocks] == [100]
    assert [world.block(allocate(session)).block.length for _ in range(2)] == [100, 55], (
        "one block more than the quota has room for"
    )
    assert world.refusal(allocate(session)).status == "QUOTA_EXCEEDED"


def test_sessions_count_by_themselves():
    world = with_quota(100)
    sessions = [opened(world, f"k{n}") for n in range(3)]
    blocks = [world.block(allocate(session, f"k{n}")).block for n, session in enumerate(sessions)]
    assert [block.length for block in blocks] == [100, 100, 100]
    world.do(commit(sessions[0], [replace(blocks[0], length=99)], "k0"))
    assert world.refusal(commit(sessions[1], [blocks[1]], "k1")).status == "QUOTA_EXCEEDED"
    world.do(commit(sessions[2], [replace(blocks[2], length=1)], "k2"))


def test_without_a_quota_and_before_finalize_blocks_are_whole():
    for world in (World().make(), with_quota(150, OldWorld())):
        session = opened(world)
        assert [world.block(allocate(session)).block.length for _ in range(3)] == [100, 100, 100]


# ---- metadata


@pytest.mark.parametrize("replaces", [False, True])
def test_a_key_with_as_much_metadata_as_is_allowed_can_be_committed_with_a_block_to_spare(replaces):
    """Its operations were twice its metadata: the key's row, and that of the block to be reclaimed, or of the key that it replaced."""
    world = World().make()
    metadata = {"k": "m" * (MAX_METADATA_BYTES - 1)}
    for _ in range(1 + replaces):
        session = opened(world, size=150, metadata=metadata)
        world.do(commit(session, [replace(session.blocks[0], length=7)]))
        written = sum(len(world.tables.get(cf, key) or b"") for kind, cf, key in world.writes if kind == "put")
        assert written < MAX_METADATA_BYTES + 2_000
    (row,) = world.tables.tables[KEY_TABLE].values()
    assert decode(row).metadata == metadata
    deleted = [decode(row) for row in world.tables.tables[DELETED_TABLE].values()]
    assert [(row.metadata, len(row.blocks)) for row in deleted] == [({}, 1)] * (1 + 2 * replaces)


def test_more_metadata_is_refused_when_the_key_is_opened():
    refused = (
        World().make().refusal(CreateKey(**PLACE, key="k", size=0, metadata={"ü": "m" * (MAX_METADATA_BYTES - 1)}))
    )
    assert refused.status == "INVALID_REQUEST"
    assert f"has {MAX_METADATA_BYTES + 1} bytes; at most {MAX_METADATA_BYTES}" in refused.message


def test_before_finalize_rows_of_deleted_keys_are_what_older_software_writes():
    world = OldWorld().make()
    session = opened(world, size=1, metadata={"a": "b"})
    world.do(commit(session, [replace(session.blocks[0], length=1)]))
    world.do(DeleteKey(**PLACE, key="k"))
    assert [decode(row).metadata for row in world.tables.tables[DELETED_TABLE].values()] == [{"a": "b"}]


# ---- what a commit must name where there are datanodes


def test_bytes_without_blocks_are_refused_on_datanodes():
    world = DatanodeWorld().make()
    session = opened(world, size=150)
    refused = world.refusal(commit(session, [], size=150))
    assert refused.status == "INVALID_REQUEST"
    assert "committed with 150 bytes and names no blocks" in refused.message
    world.do(commit(session, []))  # an empty key has none


def test_blocks_without_a_committed_index_are_refused_on_datanodes():
    world = DatanodeWorld().make()
    session = opened(world, size=150)
    first, second = session.blocks
    written = [replace(first, bcs_id=4), replace(second, length=50)]
    refused = world.refusal(commit(session, written))
    assert refused.status == "INVALID_REQUEST"
    assert (
        f"block ({second.container_id}, {second.local_id}) on '{second.pipeline}' of key 'k' has no committed index"
        in refused.message
    )
    world.do(commit(session, [written[0], replace(written[1], bcs_id=9)]))


def test_who_writes_metadata_alone_says_so():
    world = DatanodeWorld().make()
    session = opened(world, size=50)
    world.do(commit(session, [replace(session.blocks[0], length=50, bcs_id=NEVER_WRITTEN)]))
    (row,) = world.tables.tables[KEY_TABLE].values()
    assert [block.bcs_id for block in decode(row).blocks] == [NEVER_WRITTEN]


def test_without_datanodes_nothing_needs_an_index():
    world = World().make()
    session = opened(world, size=150)
    world.do(commit(session, [], size=150))
    world.do(commit(opened(world, "l", 10), [], "l", 10))


def test_a_declared_size_of_more_blocks_than_come_with_the_key_fits_where_it_was_admitted():
    """CreateKey gives 64 blocks at most: the others were counted twice, once as the declared size and once as they came."""
    blocks = 80
    world = with_quota(blocks * BLOCK_SIZE_BYTES)
    session = opened(world, size=blocks * BLOCK_SIZE_BYTES)
    given = len(session.blocks)
    while given < blocks:
        world.block(AllocateBlock(**PLACE, key="k", session_id=session.session_id))
        given += 1


def test_a_block_whose_datanodes_failed_may_be_replaced_in_a_bucket_that_is_nearly_full():
    world = with_quota(BLOCK_SIZE_BYTES)
    session = opened(world, size=BLOCK_SIZE_BYTES)
    replaced = world.block(AllocateBlock(**PLACE, key="k", session_id=session.session_id)).block
    assert replaced.length == BLOCK_SIZE_BYTES
    assert world.refusal(AllocateBlock(**PLACE, key="k", session_id=session.session_id)).status == "QUOTA_EXCEEDED"
