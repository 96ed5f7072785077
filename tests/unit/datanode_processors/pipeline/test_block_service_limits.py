"""The limits of a pipeline's requests: the last number that is taken, the first that is not; what an answer says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.errors import MAX_NAME_CHARACTERS, UNKNOWN_OFFSET, BlockError
from datanode_processors.pipeline.core.block_service import (
    CLOSED,
    MAX_BLOCK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_DELETED_BLOCKS,
    MAX_MEMBERS,
    OPEN,
    PARTITIONS,
    REFUSED,
    BlockService,
    blocks_of,
    check_block,
    check_chunk,
    check_deletion,
    check_members,
    check_put_block,
    check_texts,
    chunk_key,
    chunk_of_key,
    chunks_of,
    container_key,
    pipeline_row,
)
from replicated_db.core.execution.service import Refusal
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.codecs.codec import decode
from schemas.records.datanode import BlockId, ChunkWritten, CloseContainer, ClosePipeline, DeleteBlocks, StreamError
from tests.unit.datanode_processors.pipeline.test_block_service import (
    CELL,
    CONTAINER,
    DATA,
    LOCAL,
    NOW_MS,
    PARTITION,
    World,
    chunk,
    delete,
    opening,
    proposal,
    put,
    refused,
)

LAST_ID = (1 << 63) - 1


def check_refused(check: Any, *arguments: Any) -> str:
    with pytest.raises(BlockError) as caught:
        check(*arguments)
    assert caught.value.code == codes.INVALID_REQUEST
    return caught.value.message


def test_ids_have_63_bits() -> None:
    check_block(0, 0, 1)
    check_block(PARTITIONS - 1, LAST_ID, LAST_ID)
    for container, local_id in ((-PARTITIONS, 1), (LAST_ID + 1, 1), (0, 0), (0, -1), (0, LAST_ID + 1)):
        assert "63 bits" in check_refused(check_block, container % PARTITIONS, container, local_id)
    assert check_refused(check_block, 3, 256 + 4, 1) == "container 260 belongs to partition 4, not 3"


def test_limits_are_those_that_clients_and_the_object_manager_count_on() -> None:
    assert (MAX_DELETED_BLOCKS, MAX_CHUNK_BYTES, MAX_BLOCK_BYTES) == (1000, 4 << 20, 1 << 40)


def test_keys_are_as_they_are_on_disk() -> None:
    assert container_key(CONTAINER) == CONTAINER.to_bytes(8, "big")
    key = chunk_key(CONTAINER, LOCAL, 5)
    assert key == block_key(CONTAINER, LOCAL) + bytes(7) + b"\x05"
    assert chunk_of_key(key) == (CONTAINER, LOCAL, 5)
    assert PARTITIONS == 256


def test_members_have_a_number_and_a_partition_has_one_too() -> None:
    names = [f"dn{number}" for number in range(MAX_MEMBERS + 1)]
    assert MAX_MEMBERS == 7
    check_members(opening(*names[:-1]))
    check_members(opening("a", partition=0))
    check_members(opening("a", partition=PARTITIONS - 1))
    assert "1 to 7 different ones" in check_refused(check_members, opening(*names))
    assert "1 to 7 different ones" in check_refused(check_members, opening())
    assert "1 to 7 different ones" in check_refused(check_members, opening("a", "b", "a"))
    for partition in (-1, PARTITIONS):
        assert "is not in 0..255" in check_refused(check_members, opening("a", partition=partition))


def test_a_text_has_a_length_and_is_cut_in_the_error() -> None:
    check_texts("x" * MAX_NAME_CHARACTERS)
    message = check_refused(check_texts, "x" * (MAX_NAME_CHARACTERS + 1))
    assert message.startswith(f"{'x' * 20}…: {MAX_NAME_CHARACTERS + 1} characters")


def test_a_block_has_a_length() -> None:
    check_put_block(put(0))
    for length in (-1, MAX_BLOCK_BYTES + 1):
        assert f"length {length} is not in" in check_refused(check_put_block, replace(put(0), length=length))
    request = replace(put(0), length=MAX_BLOCK_BYTES)
    assert "is not in" not in check_refused(check_put_block, request), "the length is legal, its checksums are missing"
    request = replace(request, bytes_per_checksum=0)
    assert check_refused(check_put_block, request).startswith(f"block {CONTAINER}/{LOCAL}: ")


def test_a_chunk_has_a_size_and_lies_in_the_block() -> None:
    largest = bytes(MAX_CHUNK_BYTES)
    check_chunk(chunk(0, b"x"))
    check_chunk(chunk(MAX_BLOCK_BYTES - MAX_CHUNK_BYTES, largest))
    for offset, data in ((MAX_BLOCK_BYTES - MAX_CHUNK_BYTES + 1, largest), (-1, b"x"), (MAX_BLOCK_BYTES, b"x")):
        check_refused(check_chunk, chunk(offset, data))
    assert f"chunk at 7 of block {CONTAINER}/{LOCAL}: " in check_refused(check_chunk, chunk(7, b""))


def test_every_block_to_delete_is_looked_at() -> None:
    blocks = [BlockId(container_id=CONTAINER, local_id=1), BlockId(container_id=CONTAINER, local_id=0)]
    check_deletion(DeleteBlocks(partition=PARTITION, blocks=blocks[:1]))
    check_refused(check_deletion, DeleteBlocks(partition=PARTITION, blocks=blocks))


def test_a_chunk_that_begins_as_far_before_as_a_chunk_is_long_is_found() -> None:
    world = World()
    world.ask(chunk(10, bytes(MAX_CHUNK_BYTES)))
    last = 10 + MAX_CHUNK_BYTES - 1
    assert refused(world.ask(chunk(last, b"x"))) == codes.INVALID_REQUEST
    assert refused(world.ask(chunk(0, bytes(11)))) == codes.INVALID_REQUEST
    assert isinstance(world.ask(chunk(last + 1, b"x")), ChunkWritten)
    assert isinstance(world.ask(chunk(0, bytes(10))), ChunkWritten)
    assert world.chunks() == [(0, 10), (10, MAX_CHUNK_BYTES), (last + 1, 1)]


def test_a_chunk_at_the_committed_length_is_new_and_one_below_is_there() -> None:
    world = World()
    committed = world.ask(put(1000))
    assert world.ask(chunk(990, DATA[990:1000])).bcs_id == committed.bcs_id
    assert world.chunks() == []
    assert refused(world.ask(chunk(999, DATA[999:1001]))) == codes.INVALID_REQUEST
    assert world.ask(chunk(1000, DATA[1000:1001])).bcs_id == world.index
    assert world.chunks() == [(1000, 1)]


def test_a_delete_takes_chunks_wherever_they_lie_and_leaves_other_blocks() -> None:
    world = World()
    data = bytes(10)
    world.ask(chunk(MAX_BLOCK_BYTES - 10, data))
    world.ask(chunk(0, data, local_id=LOCAL + 1))
    world.ask(delete(LOCAL, LOCAL + 9))
    assert world.chunks() == []
    left = list(chunks_of(world.overlay, block_key(CONTAINER, LOCAL + 1), -5, 1))
    assert left == [(chunk_key(CONTAINER, LOCAL + 1, 0), data)]
    rows = dict(blocks_of(world.overlay, CONTAINER))
    assert rows.keys() == {LOCAL, LOCAL + 9}
    for row in rows.values():
        assert (row.deleted, row.length, row.bytes_per_checksum, row.checksums) == (True, 0, 0, b"")
        assert row.bcs_id == world.index


def test_a_tombstone_keeps_the_committed_length() -> None:
    world = World()
    world.ask(put(1000))
    world.ask(delete(LOCAL))
    assert world.row().length == 1000


def test_what_answers_say() -> None:
    world = World(opened=False)
    assert world.ask(opening("a", "b")).detail == f"pipeline-{PARTITION} is open"
    assert world.ask(opening("a", "b")).detail == f"pipeline-{PARTITION} is open"
    answer = world.ask(put(CELL))
    assert (answer.container_id, answer.local_id, answer.length) == (CONTAINER, LOCAL, CELL)
    assert (answer.bcs_id, answer.log_offset) == (world.index, -1)
    closing = CloseContainer(partition=PARTITION, container_id=CONTAINER)
    assert world.ask(closing).detail == f"container {CONTAINER} is closed"
    assert refused(world.ask(replace(closing, container_id=CONTAINER + 1))) == codes.INVALID_REQUEST
    assert world.ask(ClosePipeline(partition=PARTITION, generation=1)).detail == f"pipeline-{PARTITION} is closed"
    error = world.ask(put(1, partition=9, container_id=256 + 9))
    assert (error.datanode, error.offset, error.hint) == ("dn1", UNKNOWN_OFFSET, "")
    assert error.message == "partition 9 where 3 was asked"


def test_without_a_pipeline_nothing_is_done() -> None:
    for request in (
        ClosePipeline(partition=PARTITION, generation=1),
        CloseContainer(partition=PARTITION, container_id=CONTAINER),
        delete(LOCAL),
        chunk(0, b"x"),
    ):
        assert refused(World(opened=False).ask(request)) == codes.NO_SUCH_PIPELINE


def test_a_later_generation_has_its_own_members_and_time() -> None:
    world = World()
    world.ask(ClosePipeline(partition=PARTITION, generation=1))
    closed = pipeline_row(world.overlay)
    assert closed is not None
    assert (closed.state, closed.generation, len(closed.members)) == (CLOSED, 1, 3)
    world.ask(opening("a", "b", "c", generation=2, port=5))
    row = pipeline_row(world.overlay)
    assert row is not None
    assert (row.state, row.generation, row.opened_at_ms) == (OPEN, 2, NOW_MS)
    assert [member.address for member in row.members] == ["a:5", "b:5", "c:5"]
    error = world.ask(opening("a", "b", generation=2))
    assert error.message == f"pipeline-{PARTITION} was opened as generation 2 of a, b, c, not 2 of a, b"


def test_a_mismatch_names_the_cell() -> None:
    world = World()
    world.ask(put(3 * CELL))
    changed = DATA[: 2 * CELL] + b"\xff\xff" + DATA[2 * CELL + 2 :]
    error = world.ask(put(4 * CELL, data=changed))
    assert "cell 2 is committed with another checksum" in error.message


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal.EXPIRED, codes.TIMED_OUT), (Refusal.CALL_ID_REUSED, codes.INVALID_REQUEST),
        (Refusal.TOO_LARGE, codes.INVALID_REQUEST), (Refusal.FAILED, codes.FAILED),
        (Refusal.PREPARED, codes.PIPELINE_CLOSED),
    ],
)  # fmt: skip
def test_a_refusal_of_the_database_has_its_code(refusal: Refusal, code: str) -> None:
    answer = decode(BlockService(partition=PARTITION, node="dn1").refuse(proposal(put(1)), refusal, "so", -1))
    assert isinstance(answer, StreamError)
    assert answer.code == code
    assert REFUSED.keys() == set(Refusal)


def test_a_chunks_checksum_is_over_its_bytes() -> None:
    check_chunk(chunk(0, b"abc"))
    with pytest.raises(BlockError) as caught:
        check_chunk(chunk(0, b"abc", checksum=crc32c(b"abc") + 1))
    assert caught.value.code == codes.CHECKSUM_MISMATCH
