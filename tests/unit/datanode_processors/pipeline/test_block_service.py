"""What a pipeline's leader does with requests: tables of cases, and any order of PutBlocks and deletes against a model."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import BlockService
from datanode_processors.pipeline.core.block_tables import (
    CLOSED,
    DN_FAMILIES,
    OPEN,
    block_row,
    chunk_key,
    containers_of,
    is_closed,
    pipeline_row,
)
from datanode_processors.pipeline.core.request_checks import MAX_CHUNK_BYTES, MAX_DELETED_BLOCKS, check_members
from replicated_db.core.execution.service import Proposal, Refusal
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, decode_block_row
from schemas.codecs.codec import decode
from schemas.column_families import BLOCK_TABLE, CHUNK_TABLE
from schemas.records.datanode import (
    Accepted,
    BlockCommitted,
    BlockId,
    BlocksDeleted,
    ChunkWritten,
    CloseContainer,
    ClosePipeline,
    DeleteBlocks,
    Member,
    OpenPipeline,
    PutBlock,
    StreamError,
    WriteChunk,
)
from tests.support.datanodes.checksums import checksums_of

PARTITION, CONTAINER, LOCAL = 3, 256 + 3, 7
CELL = 512
NOW_MS = 1_750_000_000_000
DATA = bytes(number * 7 % 251 for number in range(10 * CELL))


def member(name: str, port: int = 1) -> Member:
    return Member(datanode=name, address=f"{name}:{port}", http_address=f"{name}:2", rack="/default-rack")


def opening(*names: str, generation: int = 1, partition: int = PARTITION, port: int = 1) -> OpenPipeline:
    return OpenPipeline(
        pipeline=f"pipeline-{partition}", partition=partition, generation=generation,
        members=[member(name, port) for name in names],
    )  # fmt: skip


class World:
    """One leader that seals a batch of its own for each request."""

    def __init__(self, *, opened: bool = True) -> None:
        self.service = BlockService(partition=PARTITION, node="dn1")
        self.store = MemoryStore(DN_FAMILIES.names)
        self.overlay = Overlay(self.store)
        self.index = 0
        self.operations = 0
        if opened:
            assert isinstance(self.ask(opening("a", "b", "c")), Accepted)

    def ask(self, request: Any) -> Any:
        self.index += 1
        self.overlay.open_layer(self.index)
        transaction = Transaction(DN_FAMILIES, self.overlay, self.index)
        executed = self.service.execute(proposal(request), transaction, NOW_MS)
        answer = decode(executed.response)
        assert executed.keep == (not isinstance(answer, StreamError))
        self.operations = len(transaction.commit()) if executed.keep else 0
        return answer

    def row(self, local_id: int = LOCAL) -> Any:
        return block_row(self.overlay, block_key(CONTAINER, local_id))

    def chunks(self) -> list[tuple[int, int]]:
        key = block_key(CONTAINER, LOCAL)
        rows = self.overlay.iterate(CHUNK_TABLE, key, key + b"\xff" * 9)
        return [(int.from_bytes(found[16:], "big"), len(value)) for found, value in rows]


def proposal(request: Any) -> Proposal:
    return Proposal(
        client_id=b"", call_id=b"", request_hash=b"", first_sent_at_ms=0, request_type="", body=request, reply_to=None
    )


def put(length: int, *, data: bytes = DATA, cell: int = CELL, **changes: Any) -> PutBlock:
    fields = {
        "partition": PARTITION, "container_id": CONTAINER, "local_id": LOCAL, "length": length,
        "bytes_per_checksum": cell, "checksums": checksums_of(data[:length], cell), "wait_effective": True,
    }  # fmt: skip
    return PutBlock(**{**fields, **changes})


def chunk(offset: int, data: bytes, **changes: Any) -> WriteChunk:
    fields = {
        "partition": PARTITION, "container_id": CONTAINER, "local_id": LOCAL, "offset": offset, "data": data,
        "checksum": crc32c(data),
    }  # fmt: skip
    return WriteChunk(**{**fields, **changes})


def delete(*locals_: int) -> DeleteBlocks:
    return DeleteBlocks(
        partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=local_id) for local_id in locals_]
    )


def refused(answer: Any) -> str:
    assert isinstance(answer, StreamError), answer
    assert answer.message
    return answer.code


# -- pipelines ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_opened_once():
    world = World(opened=False)
    assert refused(world.ask(put(10))) == codes.NO_SUCH_PIPELINE
    assert isinstance(world.ask(opening("a", "b")), Accepted)
    row = pipeline_row(world.overlay)
    assert row is not None
    assert (row.state, row.opened_at_ms, [one.datanode for one in row.members]) == (OPEN, NOW_MS, ["a", "b"])
    assert isinstance(world.ask(opening("a", "b")), Accepted)
    assert world.operations == 0


def test_members_may_move_but_not_change():
    world = World()
    world.ask(opening("a", "b", "c", port=99))
    row = pipeline_row(world.overlay)
    assert row is not None
    assert row.members[0].address == "a:99"
    assert refused(world.ask(opening("a", "b"))) == codes.INVALID_REQUEST
    assert refused(world.ask(opening("b", "a", "c"))) == codes.INVALID_REQUEST
    assert refused(world.ask(opening("a", "b", generation=2))) == codes.INVALID_REQUEST


def state_of(world: World) -> tuple[int, str]:
    row = pipeline_row(world.overlay)
    assert row is not None
    return row.generation, row.state


def close(generation: int) -> ClosePipeline:
    return ClosePipeline(partition=PARTITION, generation=generation)


def test_a_closed_pipeline_is_opened_again_as_a_later_generation():
    world = World()
    world.ask(put(100))
    world.ask(close(1))
    assert isinstance(world.ask(opening("a", "b", "c", generation=2)), Accepted)
    assert state_of(world) == (2, OPEN)
    assert refused(world.ask(close(1))) == codes.INVALID_REQUEST, "one that came late"
    assert refused(world.ask(opening("a", "b", "c"))) == codes.INVALID_REQUEST
    assert state_of(world) == (2, OPEN)
    assert refused(world.ask(put(200))) == codes.CONTAINER_CLOSED, "so is a late PutBlock"
    assert isinstance(world.ask(put(100)), BlockCommitted), "what is committed is answered"
    assert isinstance(world.ask(put(7, container_id=CONTAINER + 256)), BlockCommitted)
    assert isinstance(world.ask(delete(LOCAL)), BlocksDeleted)
    assert refused(world.ask(put(200))) == codes.BLOCK_DELETED
    assert isinstance(world.ask(opening("a", "b", "c", generation=2)), Accepted)
    assert world.operations == 0


def test_a_generation_that_follows_an_open_one_closes_its_containers():
    """The Object Manager retired it and opened it again before any member had been told to close it."""
    world = World()
    world.ask(put(100))
    world.ask(opening("a", "b", "c", generation=3))
    assert state_of(world) == (3, OPEN)
    assert is_closed(world.overlay, CONTAINER)


def test_a_generation_that_is_closed_before_it_is_opened_is_not_opened():
    world = World()
    world.ask(put(100))
    world.ask(close(2))
    assert state_of(world) == (2, CLOSED)
    assert is_closed(world.overlay, CONTAINER)
    assert refused(world.ask(opening("a", "b", "c", generation=2))) == codes.PIPELINE_CLOSED
    assert refused(world.ask(opening("a", "b", "c", generation=1))) == codes.INVALID_REQUEST
    world.ask(close(2))
    assert world.operations == 0
    world.ask(close(4))
    assert state_of(world) == (4, CLOSED)
    assert world.operations == 1
    assert isinstance(world.ask(opening("a", "b", "c", generation=5)), Accepted)


@pytest.mark.parametrize("names", [(), ("a", "a"), tuple("abcdefgh")])
def test_illegal_members_are_refused(names: tuple[str, ...]):
    assert refused(World(opened=False).ask(opening(*names))) == codes.INVALID_REQUEST


def test_a_closed_pipeline_closes_its_containers_and_answers_for_what_it_has():
    world = World()
    world.ask(put(100))
    world.ask(ClosePipeline(partition=PARTITION, generation=1))
    row = pipeline_row(world.overlay)
    assert row is not None
    assert row.state == CLOSED
    assert is_closed(world.overlay, CONTAINER)
    assert refused(world.ask(put(200))) == codes.PIPELINE_CLOSED
    assert refused(world.ask(chunk(100, b"x"))) == codes.PIPELINE_CLOSED
    assert refused(world.ask(opening("a", "b", "c"))) == codes.PIPELINE_CLOSED
    assert isinstance(world.ask(put(100)), BlockCommitted)
    assert isinstance(world.ask(delete(LOCAL)), BlocksDeleted)


def test_a_closed_container_takes_nothing_new():
    world = World()
    world.ask(put(100))
    world.ask(CloseContainer(partition=PARTITION, container_id=CONTAINER))
    assert world.operations == 1
    world.ask(CloseContainer(partition=PARTITION, container_id=CONTAINER))
    assert world.operations == 0
    assert refused(world.ask(put(200))) == codes.CONTAINER_CLOSED
    assert refused(world.ask(put(5, local_id=8))) == codes.CONTAINER_CLOSED
    assert refused(world.ask(chunk(100, b"x"))) == codes.CONTAINER_CLOSED
    assert isinstance(world.ask(put(100)), BlockCommitted)


def test_containers_are_found_however_many_blocks_they_have():
    world = World()
    for container in (CONTAINER, CONTAINER + 256, CONTAINER + 1024):
        for local_id in (1, 2, 1 << 62):
            world.ask(put(3, container_id=container, local_id=local_id))
    assert list(containers_of(world.overlay)) == [CONTAINER, CONTAINER + 256, CONTAINER + 1024]


# -- PutBlock ----------------------------------------------------------------------------------------------------------


def test_a_longer_one_replaces_and_a_shorter_one_changes_nothing():
    world = World()
    first = world.ask(put(2 * CELL + 5))
    assert (first.length, first.bcs_id) == (2 * CELL + 5, world.index)
    longer = world.ask(put(4 * CELL))
    assert (longer.length, longer.bcs_id) == (4 * CELL, world.index)
    for length in (4 * CELL, 2 * CELL + 5, 1, 0):
        again = world.ask(put(length))
        assert (again.length, again.bcs_id) == (4 * CELL, longer.bcs_id)
        assert world.operations == 0
    assert world.row().length == 4 * CELL


def other(at: int) -> bytes:
    return DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]


@pytest.mark.parametrize(
    ("committed", "asked", "changed", "code"),
    [
        (2 * CELL, 2 * CELL, 0, codes.CHECKSUM_MISMATCH),
        (2 * CELL, 2 * CELL, 2 * CELL - 1, codes.CHECKSUM_MISMATCH),
        (CELL + 5, CELL + 5, CELL + 1, codes.CHECKSUM_MISMATCH),
        (2 * CELL, 3 * CELL, 5, codes.CHECKSUM_MISMATCH),
        (3 * CELL, 2 * CELL, 5, codes.CHECKSUM_MISMATCH),
        (3 * CELL, 2 * CELL, 2 * CELL + 1, None),
        (CELL + 5, 2 * CELL, CELL + 6, None),
    ],
    ids=["equal, first", "equal, last", "equal, partial", "longer", "shorter", "beyond a shorter one", "partial cell grows"],
)  # fmt: skip
def test_common_cells_must_agree(committed: int, asked: int, changed: int, code: str | None):
    world = World()
    world.ask(put(committed))
    before = world.row()
    answer = world.ask(put(asked, data=other(changed)))
    if code is None:
        assert isinstance(answer, BlockCommitted)
    else:
        assert refused(answer) == code
        assert world.row() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": -1}, {"length": 5 * CELL}, {"checksums": b""}, {"checksums": b"x" * 5}, {"bytes_per_checksum": 0},
        {"bytes_per_checksum": 1 << 40}, {"container_id": CONTAINER + 1}, {"container_id": -253}, {"local_id": 0},
        {"local_id": 1 << 63}, {"partition": 4}, {"length": 1 << 50},
    ],
    ids=str,
)  # fmt: skip
def test_a_put_block_that_is_wrong_in_itself_is_refused(wrong: dict[str, Any]):
    world = World()
    request = put(10)
    for name, value in wrong.items():
        setattr(request, name, value)
    assert refused(world.ask(request)) == codes.INVALID_REQUEST
    assert world.row() is None


def test_cells_of_another_size_are_refused():
    world = World()
    world.ask(put(100))
    assert refused(world.ask(put(2000, cell=1024))) == codes.INVALID_REQUEST


def test_an_empty_block_may_be_committed_and_grow():
    world = World()
    assert world.ask(put(0)).length == 0
    assert world.ask(put(1)).length == 1


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_after_a_tombstone_everything_is_void():
    world = World()
    world.ask(put(1000))
    assert isinstance(world.ask(delete(LOCAL)), BlocksDeleted)
    tombstone = world.row()
    assert tombstone.deleted
    for request in (put(1000), put(10), put(5000), chunk(0, b"x")):
        assert refused(world.ask(request)) == codes.BLOCK_DELETED
    world.ask(delete(LOCAL))
    assert world.operations == 0
    assert world.row() == tombstone


def test_a_block_can_be_deleted_before_its_put_block_comes():
    world = World()
    world.ask(delete(LOCAL))
    assert refused(world.ask(put(10))) == codes.BLOCK_DELETED


def test_too_many_blocks_at_once_are_refused():
    world = World()
    assert refused(world.ask(delete(*range(1, MAX_DELETED_BLOCKS + 2)))) == codes.INVALID_REQUEST
    assert isinstance(world.ask(delete(*range(1, MAX_DELETED_BLOCKS + 1))), BlocksDeleted)


@given(
    st.lists(
        st.one_of(st.integers(0, 10 * CELL).map(put), st.just(delete(LOCAL)), st.just(put(3 * CELL, data=other(3)))),
        max_size=12,
    )
)
def test_any_order_never_truncates_and_never_comes_back(requests: list[Any]):
    """Replicas that apply the operations by the merge operator come to the rows that the leader answered from."""
    world, length, deleted = World(), 0, False
    committed = b""
    for request in requests:
        answer = world.ask(request)
        if isinstance(request, DeleteBlocks):
            deleted = True
        elif deleted:
            assert refused(answer) == codes.BLOCK_DELETED
        elif isinstance(answer, BlockCommitted):
            length = max(length, request.length)
            assert answer.length == length
        else:
            assert refused(answer) == codes.CHECKSUM_MISMATCH
        row = world.row()
        if row is not None and not row.deleted:
            assert row.length == length
            whole = committed[:-4]  # the last cell may have been a partial one, which grows
            assert row.checksums[: len(whole)] == whole
            committed = row.checksums


@given(st.lists(st.integers(1, 10 * CELL), min_size=1, max_size=6))
def test_the_row_does_not_depend_on_the_order(lengths: list[int]):
    worlds = World(), World()
    for world, order in zip(worlds, (lengths, lengths[::-1]), strict=True):
        for length in order:
            world.ask(put(length))
    rows = [world.row() for world in worlds]
    assert {(row.length, row.checksums) for row in rows} == {(max(lengths), checksums_of(DATA[: max(lengths)], CELL))}


def test_rows_merge_by_length_whatever_order_they_are_applied_in():
    world = World()
    operand = {}
    for length in (100, 300, 200):
        fresh = World()
        fresh.ask(put(length))
        operand[length] = fresh.overlay.get(BLOCK_TABLE, block_key(CONTAINER, LOCAL))
    merge = DN_FAMILIES.operators["max_bytes"].merge
    merged = None
    for length in (100, 300, 200):
        value = operand[length]
        assert value is not None
        merged = merge(merged, value)
    assert merged is not None
    assert decode_block_row(merged).length == 300
    assert world.row() is None


# -- the old way -------------------------------------------------------------------------------------------------------


def test_chunks_lie_there_until_a_put_block_covers_them():
    world = World()
    parts = [(0, DATA[:1000]), (1000, DATA[1000:2500]), (2500, DATA[2500:3000])]
    for offset, data in (parts[1], parts[0], parts[2]):
        assert isinstance(world.ask(chunk(offset, data)), ChunkWritten)
    assert world.chunks() == [(0, 1000), (1000, 1500), (2500, 500)]
    world.ask(put(2600))
    assert world.chunks() == [(2500, 500)], "one that reaches beyond the committed length stays"
    world.ask(put(3000))
    assert world.chunks() == []


def test_a_chunk_that_is_sent_again_changes_nothing():
    world = World()
    world.ask(chunk(0, DATA[:1000]))
    assert isinstance(world.ask(chunk(0, DATA[:1000])), ChunkWritten)
    assert world.operations == 0
    world.ask(put(1000))
    assert isinstance(world.ask(chunk(0, DATA[:1000])), ChunkWritten)
    assert world.operations == 0


@pytest.mark.parametrize(
    ("offset", "data"),
    [(0, b"y" * 1000), (0, DATA[:999]), (0, DATA[:1001]), (500, DATA[500:1500]), (999, b"z"), (1, DATA[1:2])],
    ids=["other bytes", "shorter", "longer", "across the end", "last byte", "inside"],
)
def test_chunks_do_not_overlap(offset: int, data: bytes):
    world = World()
    world.ask(chunk(0, DATA[:1000]))
    assert refused(world.ask(chunk(offset, data))) == codes.INVALID_REQUEST
    assert world.chunks() == [(0, 1000)]


def test_a_chunk_across_the_committed_length_is_refused():
    world = World()
    world.ask(put(1000))
    assert refused(world.ask(chunk(500, DATA[500:1500]))) == codes.INVALID_REQUEST


def test_a_chunk_whose_bytes_were_damaged_is_refused():
    assert refused(World().ask(chunk(0, b"abc", checksum=1))) == codes.CHECKSUM_MISMATCH


@pytest.mark.parametrize("data", [b"", b"x" * (MAX_CHUNK_BYTES + 1)], ids=["empty", "too large"])
def test_a_chunk_has_a_size(data: bytes):
    assert refused(World().ask(chunk(0, data))) == codes.INVALID_REQUEST


def test_a_delete_removes_chunks_too():
    world = World()
    world.ask(chunk(0, DATA[:1000]))
    world.ask(delete(LOCAL))
    assert world.overlay.get(CHUNK_TABLE, chunk_key(CONTAINER, LOCAL, 0)) is None


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_request_for_another_partition_is_refused():
    assert refused(World().ask(put(1, partition=9, container_id=256 + 9))) == codes.INVALID_REQUEST


@pytest.mark.parametrize("refusal", list(Refusal), ids=lambda refusal: refusal.name)
def test_every_refusal_of_the_database_has_a_code(refusal: Refusal):
    answer = decode(BlockService(partition=PARTITION, node="dn1").refuse(proposal(put(1)), refusal, "so", -1))
    assert isinstance(answer, StreamError)
    assert (answer.message, answer.datanode) == ("so", "dn1")


@pytest.mark.parametrize("field", ["datanode", "address", "http_address", "rack"])
def test_a_members_name_or_address_is_not_endless(field: str):
    texts = {"datanode": "dn1", "address": "a:1", "http_address": "a:2", "rack": "/r"}
    check_members(OpenPipeline(pipeline="p", partition=1, generation=1, members=[Member(**texts)]))
    member = Member(**{**texts, field: "x" * 60_000})
    with pytest.raises(BlockError, match="60000 characters"):
        check_members(OpenPipeline(pipeline="p", partition=1, generation=1, members=[member]))
    with pytest.raises(BlockError, match="300 characters"):
        check_members(OpenPipeline(pipeline="p" * 300, partition=1, generation=1, members=[Member(**texts)]))
