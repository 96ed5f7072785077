"""What a pipeline's leader does with requests: tables of cases, and any order of PutBlocks and deletes against a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.errors import MAX_NAME_CHARACTERS, UNKNOWN_OFFSET, BlockError
from datanode_processors.pipeline.core.block_service import REFUSED, BlockService, LogPipelineBase
from datanode_processors.pipeline.core.block_tables import (
    CLOSED,
    DN_FAMILIES,
    OPEN,
    block_row,
    blocks_of,
    chunk_key,
    chunk_of_key,
    chunks_of,
    container_key,
    containers_of,
    is_closed,
    pipeline_row,
)
from datanode_processors.pipeline.core.request_checks import (
    MAX_BLOCK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_DELETED_BLOCKS,
    MAX_MEMBERS,
    check_block,
    check_chunk,
    check_deletion,
    check_members,
    check_put_block,
    check_texts,
)
from replicated_db.core.errors import Refused
from replicated_db.core.execution.service import Proposal, Refusal
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, decode_block_row
from schemas.codecs.codec import decode
from schemas.column_families import BLOCK_TABLE, CHUNK_TABLE
from schemas.features import OPERATIONS
from schemas.records.datanode import (
    Accepted,
    BlockCommitted,
    BlockId,
    BlocksCommitted,
    BlocksDeleted,
    ChunkWritten,
    CloseContainer,
    ClosePipeline,
    DeleteBlocks,
    Member,
    OpenPipeline,
    PutBlock,
    PutBlocks,
    StreamError,
    WholeBlock,
    WriteChunk,
)
from schemas.records.packets import MAX_BLOCKS_TOGETHER
from schemas.sharding import MAX_PIPELINES
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


def whole(local_id: int, length: int, **changes: Any) -> WholeBlock:
    block = WholeBlock(
        container_id=CONTAINER, local_id=local_id, length=length, checksums=checksums_of(DATA[:length], CELL)
    )
    return replace(block, **changes)


def put_all(*blocks: WholeBlock, **changes: Any) -> PutBlocks:
    return replace(PutBlocks(partition=PARTITION, bytes_per_checksum=CELL, blocks=list(blocks)), **changes)


def test_many_blocks_are_one_entry_and_what_refuses_one_refuses_no_other():
    world = World()
    world.ask(put(700, local_id=9))
    world.ask(delete(8))
    answer = world.ask(
        put_all(whole(5, 100), whole(6, 600, checksums=b""), whole(7, 1000), whole(8, 10), whole(9, 512))
    )
    assert isinstance(answer, BlocksCommitted)
    assert answer.leader == "dn1"
    assert [one.code for one in answer.outcomes] == ["", codes.INVALID_REQUEST, "", codes.BLOCK_DELETED, ""]
    # The shorter one is answered with the entry of the longer one before it.
    assert [one.bcs_id for one in answer.outcomes] == [world.index, 0, world.index, 0, world.index - 2]
    assert world.operations == 2
    assert [world.row(local).length for local in (5, 7, 9)] == [100, 1000, 700]
    assert world.row(6) is None


def test_the_rows_are_those_of_as_many_put_blocks():
    one, many = World(), World()
    many.ask(put_all(whole(5, 100), whole(6, 700)))
    one.ask(put(100, local_id=5))
    one.index -= 1
    one.ask(put(700, local_id=6))
    assert [one.row(local) for local in (5, 6)] == [many.row(local) for local in (5, 6)]


@pytest.mark.parametrize(
    "request_",
    [
        put_all(), put_all(*[whole(5, 10)] * (MAX_BLOCKS_TOGETHER + 1)), put_all(whole(5, 10), partition=PARTITION + 1),
        put_all(whole(5, 10, container_id=PARTITION + 1)), put_all(whole(5, -1, checksums=b"")),
        put_all(whole(5, 10), bytes_per_checksum=1),
    ],
)  # fmt: skip
def test_put_blocks_of_which_none_can_be_taken_is_refused_as_a_whole(request_: PutBlocks):
    world = World()
    assert refused(world.ask(request_)) == codes.INVALID_REQUEST
    assert world.row(5) is None


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


# -- The limits of a pipeline's requests: the last number that is taken, the first that is not; what an a

LAST_ID = (1 << 63) - 1


def check_refused(check: Any, *arguments: Any) -> str:
    with pytest.raises(BlockError) as caught:
        check(*arguments)
    assert caught.value.code == codes.INVALID_REQUEST
    return caught.value.message


def test_ids_have_63_bits() -> None:
    check_block(0, 0, 1)
    check_block(MAX_PIPELINES - 1, LAST_ID, LAST_ID)
    for container, local_id in ((-MAX_PIPELINES, 1), (LAST_ID + 1, 1), (0, 0), (0, -1), (0, LAST_ID + 1)):
        assert "63 bits" in check_refused(check_block, container % MAX_PIPELINES, container, local_id)
    assert check_refused(check_block, 3, 256 + 4, 1) == "container 260 belongs to partition 4, not 3"


def test_limits_are_those_that_clients_and_the_object_manager_count_on() -> None:
    assert (MAX_DELETED_BLOCKS, MAX_CHUNK_BYTES, MAX_BLOCK_BYTES) == (1000, 4 << 20, 1 << 40)


def test_keys_are_as_they_are_on_disk() -> None:
    assert container_key(CONTAINER) == CONTAINER.to_bytes(8, "big")
    key = chunk_key(CONTAINER, LOCAL, 5)
    assert key == block_key(CONTAINER, LOCAL) + bytes(7) + b"\x05"
    assert chunk_of_key(key) == (CONTAINER, LOCAL, 5)
    assert MAX_PIPELINES == 256


def test_members_have_a_number_and_a_partition_has_one_too() -> None:
    names = [f"dn{number}" for number in range(MAX_MEMBERS + 1)]
    assert MAX_MEMBERS == 7
    check_members(opening(*names[:-1]))
    check_members(opening("a", partition=0))
    check_members(opening("a", partition=MAX_PIPELINES - 1))
    assert "1 to 7 different ones" in check_refused(check_members, opening(*names))
    assert "1 to 7 different ones" in check_refused(check_members, opening())
    assert "1 to 7 different ones" in check_refused(check_members, opening("a", "b", "a"))
    for partition in (-1, MAX_PIPELINES):
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
    for beyond in (PARTITION - 256, PARTITION + (1 << 63)):
        error = world.ask(replace(closing, container_id=beyond))
        assert (refused(error), error.message) == (codes.INVALID_REQUEST, f"container {beyond}: an id has 63 bits")
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


def test_a_log_that_takes_no_base_now_is_overloaded_and_one_of_an_old_level_has_none() -> None:
    class Busy:
        feature_level = OPERATIONS

        def base(self, _: str) -> None:
            raise Refused("a base is on its way")

    service, busy = BlockService(partition=PARTITION, node="dn1"), Busy()
    proposal = Proposal(
        client_id=b"",
        call_id=b"",
        request_hash=b"",
        first_sent_at_ms=0,
        request_type="",
        body=LogPipelineBase(PARTITION),
        reply_to=None,
    )
    transaction: Any = busy
    executed = service.execute(proposal, transaction, NOW_MS)
    error = decode(executed.response)
    assert isinstance(error, StreamError)
    assert (error.code, executed.keep) == (codes.OVERLOADED, False)
    assert error.message == f"no base of partition {PARTITION}: a base is on its way"
    busy.feature_level = OPERATIONS - 1
    error = decode(service.execute(proposal, transaction, NOW_MS).response)
    assert isinstance(error, StreamError)
    assert error.code == codes.INVALID_REQUEST


def test_a_block_that_is_deleted_already_hides_no_other_in_a_request():
    world = World()
    for local_id in (1, 2, 3):
        world.ask(put(CELL, local_id=local_id))
    world.ask(delete(1))
    world.ask(delete(1, 2, 3))
    assert [world.row(local_id).deleted for local_id in (1, 2, 3)] == [True] * 3
    assert [world.row(local_id).bcs_id for local_id in (1, 2, 3)] == [world.index - 1, world.index, world.index]


def test_a_put_takes_away_the_chunks_that_it_covers_whole_and_no_others():
    world = World()
    for offset in (0, CELL, 2 * CELL):
        world.ask(chunk(offset, DATA[offset : offset + CELL]))
    world.ask(put(2 * CELL - 1))
    assert world.chunks() == [(CELL, CELL), (2 * CELL, CELL)]
    world.ask(put(2 * CELL))
    assert world.chunks() == [(2 * CELL, CELL)], "the next one begins where the block ends"
