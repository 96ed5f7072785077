"""What a member, and a copy's holder, says of its blocks: a real block store, rows in memory, repairers that take notes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors import block_answers
from datanode_processors.block_answers import BlockAnswers
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES, block_row, container_key
from datanode_processors.pipeline.pipeline_table import PipelineTable
from replicated_db.core.tables.memory import MemoryStore
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, decode_block_row, encode_block_row
from schemas.codecs.codec import encode
from schemas.column_families import BLOCK_TABLE, CONTAINER_TABLE
from schemas.records.datanode import (
    BlockRow,
    ContainerBlocks,
    ContainerRow,
    GetBlock,
    ListContainer,
    ReadBlock,
    SalvageBlock,
)
from schemas.records.packets import CELL_BYTES
from tests.support.datanodes.checksums import checksums_of

PARTITION, CELL = 3, 512
CONTAINER, ELSEWHERE = 256 + PARTITION, 256 + PARTITION + 1
INDEX = 9


def standing_in(**fields: Any) -> Any:
    """Return what stands in for a part of a datanode."""
    return SimpleNamespace(**fields)


class Node:
    """The answers of a datanode that is a member of pipeline-3; of other pipelines it may hold copies."""

    def __init__(self, folder: Path) -> None:
        self.blocks = BlockStore(folder)
        self.rows = MemoryStore(DN_FAMILIES.names)
        self.closed = False
        self.pipeline: Any = standing_in(
            partition=PARTITION, store=self.rows, opened=standing_in(pipeline="pipeline-3"), unhealthy={},
            replica=standing_in(position=standing_in(index=INDEX)), is_closed=lambda: self.closed,
            block=lambda container_id, local_id: block_row(self.rows, block_key(container_id, local_id)),
        )  # fmt: skip
        self.table = PipelineTable("dn1")
        self.table.put(PARTITION, self.pipeline)
        self.copies: dict[tuple[int, int], BlockRow] = {}
        self.unreadable = False
        self.verified: list[Any] = []
        self.repaired: list[Any] = []
        self.damaged: list[tuple[int, int, str]] = []
        verifier: Any = standing_in(
            verify=lambda pipeline, key: self.verified.append((pipeline.partition, key)),
            repair=lambda pipeline, key, cell: self.repaired.append((pipeline.partition, key, cell)),
        )
        copies: Any = standing_in(block=self.copy, listed=lambda container: ("listed", container))
        upkeep: Any = standing_in(damaged=lambda *what: self.damaged.append(what))
        self.answers = BlockAnswers(self.blocks, self.table, verifier, copies, upkeep)

    def copy(self, container_id: int, local_id: int) -> BlockRow | None:
        if self.unreadable:
            raise BlockError(codes.FAILED, "its rows are damaged")
        return self.copies.get((container_id, local_id))

    def have(self, length: int, *, container_id: int = CONTAINER, local_id: int = 1) -> None:
        """Write bytes of a block; none if the length is 0."""
        with self.blocks.open_writer(container_id, local_id, 0, CELL) as writer:
            writer.write(0, bytes(length))
            writer.flush()

    def commit(
        self, length: int, local_id: int = 1, *, container_id: int = CONTAINER, deleted: bool = False
    ) -> BlockRow:
        row = row_of(length, deleted=deleted)
        self.rows.write([(BLOCK_TABLE, block_key(container_id, local_id), encode_block_row(row))])
        return row


def row_of(length: int, *, deleted: bool = False, bcs_id: int = 5) -> BlockRow:
    return BlockRow(
        bcs_id=bcs_id, length=length, bytes_per_checksum=CELL, checksums=checksums_of(bytes(length), CELL), deleted=deleted
    )  # fmt: skip


def read(
    *, partition: int = PARTITION, container_id: int = CONTAINER, bcs_id: int = INDEX, committed_only: bool = True
) -> ReadBlock:
    return ReadBlock(
        partition=partition, container_id=container_id, local_id=1, offset=0, length=1, bcs_id=bcs_id,
        committed_only=committed_only,
    )  # fmt: skip


def salvage(*, partition: int = PARTITION, container_id: int = CONTAINER, bcs_id: int = INDEX) -> SalvageBlock:
    return SalvageBlock(
        partition=partition, container_id=container_id, local_id=1, offset=0, length=1, bcs_id=bcs_id
    )  # fmt: skip


def refused(code: str, words: str = "."):
    return pytest.raises(BlockError, match=words, check=lambda error: error.code == code)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- rows


def test_a_block_that_is_committed_is_told_with_what_is_stored_of_it(node: Node):
    node.have(CELL + 7)
    row = node.commit(CELL)
    found = node.answers.block_info(GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1))
    assert (found.container_id, found.local_id, found.length, found.stored_length) == (CONTAINER, 1, CELL, CELL + 7)
    assert (found.bcs_id, found.bytes_per_checksum, found.checksums, found.deleted) == (5, CELL, row.checksums, False)
    node.commit(CELL, deleted=True)
    found = node.answers.block_info(GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1))
    assert (found.deleted, found.stored_length) == (True, 0)


def test_a_block_that_is_not_there_is_no_member_or_no_block(node: Node):
    with refused(codes.NO_SUCH_BLOCK, f"block {CONTAINER}/1 is not committed here"):
        node.answers.block_info(GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1))
    with refused(codes.NO_SUCH_PIPELINE):
        node.answers.block_info(GetBlock(partition=PARTITION + 1, container_id=ELSEWHERE, local_id=1))
    for wrong in (
        GetBlock(partition=PARTITION, container_id=ELSEWHERE, local_id=1),
        GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=0),
    ):
        with refused(codes.INVALID_REQUEST):
            node.answers.block_info(wrong)


def test_a_copy_answers_where_its_holder_is_no_member(node: Node):
    node.copies[ELSEWHERE, 1] = row_of(CELL)
    found = node.answers.block_info(GetBlock(partition=PARTITION + 1, container_id=ELSEWHERE, local_id=1))
    assert (found.length, found.stored_length) == (CELL, 0)
    listed: Any = node.answers.list_container(ListContainer(partition=PARTITION + 1, container_id=ELSEWHERE))
    assert listed == ("listed", ELSEWHERE)


def test_a_containers_rows_are_listed_with_its_tombstones_up_to_a_limit(node: Node, monkeypatch: pytest.MonkeyPatch):
    rows = [node.commit(CELL), node.commit(2 * CELL, 2), node.commit(0, 3, deleted=True)]
    node.commit(CELL, container_id=CONTAINER + 256)
    request = ListContainer(partition=PARTITION, container_id=CONTAINER)
    found: ContainerBlocks = node.answers.list_container(request)
    assert (found.container_id, found.closed) == (CONTAINER, False)
    assert [entry[:16] for entry in found.blocks] == [block_key(CONTAINER, number) for number in (1, 2, 3)]
    assert [decode_block_row(entry[16:]) for entry in found.blocks] == rows
    node.rows.write(
        [(CONTAINER_TABLE, container_key(CONTAINER), encode(ContainerRow(container_id=CONTAINER, closed=True)))]
    )
    assert node.answers.list_container(request).closed
    size = sum(map(len, found.blocks))
    monkeypatch.setattr(block_answers, "MAX_LISTED_BYTES", size)
    assert len(node.answers.list_container(request).blocks) == 3
    monkeypatch.setattr(block_answers, "MAX_LISTED_BYTES", size - 1)
    with refused(codes.OVERLOADED, f"take over {size - 1} bytes"):
        node.answers.list_container(request)
    with refused(codes.INVALID_REQUEST):
        node.answers.list_container(ListContainer(partition=PARTITION, container_id=ELSEWHERE))


def test_committed_blocks_go_on_behind_any_place_and_leave_tombstones_out(node: Node):
    later = 7
    other: Any = standing_in(partition=later, store=MemoryStore(DN_FAMILIES.names))
    node.table.put(later, other)
    other.store.write([(BLOCK_TABLE, block_key(256 + later, 1), encode_block_row(row_of(CELL)))])
    for local_id in (1, 2, 3):
        node.commit(local_id * CELL, local_id, deleted=local_id == 2)
    node.commit(CELL, container_id=CONTAINER + 256)
    whole = list(node.answers.committed_blocks(None))
    places = [place[:3] for place in whole]
    assert places == [
        (PARTITION, CONTAINER, 1), (PARTITION, CONTAINER, 3), (PARTITION, CONTAINER + 256, 1), (later, 256 + later, 1)
    ]  # fmt: skip
    assert [row.length for *_, row in whole] == [CELL, 3 * CELL, CELL, CELL]
    for number, place in enumerate(places, 1):
        assert list(node.answers.committed_blocks(place)) == whole[number:]
    assert list(node.answers.committed_blocks((PARTITION, CONTAINER, 2))) == whole[1:]


# -- streams


def test_a_stream_may_write_what_is_neither_closed_nor_deleted(node: Node):
    node.answers.check_stream(PARTITION, CONTAINER, 1)
    node.have(2 * CELL)
    node.commit(CELL)
    node.answers.check_stream(PARTITION, CONTAINER, 1)
    with refused(codes.INVALID_REQUEST, f"{CELL} bytes are committed"):
        node.blocks.reclaim(CONTAINER, 1, CELL - 1)  # the store knows now what is not to be written again
    node.commit(CELL, deleted=True)
    with refused(codes.BLOCK_DELETED):
        node.answers.check_stream(PARTITION, CONTAINER, 1)
    node.rows.write(
        [(CONTAINER_TABLE, container_key(CONTAINER), encode(ContainerRow(container_id=CONTAINER, closed=True)))]
    )
    with refused(codes.CONTAINER_CLOSED):
        node.answers.check_stream(PARTITION, CONTAINER, 2)
    node.closed = True
    with refused(codes.PIPELINE_CLOSED, "pipeline-3 is closed"):
        node.answers.check_stream(PARTITION, CONTAINER, 2)
    with refused(codes.NO_SUCH_PIPELINE):
        node.answers.check_stream(PARTITION + 1, ELSEWHERE, 1)
    with refused(codes.INVALID_REQUEST):
        node.answers.check_stream(PARTITION, ELSEWHERE, 1)


# -- bytes


@pytest.mark.parametrize("request_of", [read, salvage])
def test_what_is_committed_may_be_read_and_no_more(node: Node, request_of: Any):
    node.have(CELL + 100)
    row = node.commit(CELL)
    found = node.answers.readable(request_of())
    assert (found.length, found.stored) == (CELL, CELL)
    assert (found.bytes_per_checksum, found.checksums) == (CELL, row.checksums)
    with refused(codes.NOT_COMMITTED, f"index {INDEX} is applied here, {INDEX + 1} is asked for"):
        node.answers.readable(request_of(bcs_id=INDEX + 1))
    node.commit(CELL, deleted=True)
    with refused(codes.BLOCK_DELETED):
        node.answers.readable(request_of())
    assert (node.verified, node.repaired) == ([], [])


@pytest.mark.parametrize("request_of", [read, salvage])
def test_what_is_not_committed_is_no_block(node: Node, request_of: Any):
    node.have(CELL)
    with refused(codes.NO_SUCH_BLOCK, "is not committed"):
        node.answers.readable(request_of())


def test_a_block_that_is_unhealthy_here_is_for_those_alone_that_have_no_choice(node: Node):
    node.have(CELL)
    node.commit(CELL)
    node.pipeline.unhealthy[block_key(CONTAINER, 1)] = "a cell is damaged"
    with refused(codes.NOT_COMMITTED, "is being repaired here: a cell is damaged"):
        node.answers.readable(read())
    assert node.answers.readable(salvage()).stored == CELL


def test_a_block_whose_bytes_are_not_here_is_verified_and_only_salvaged(node: Node):
    node.have(CELL)
    node.commit(3 * CELL)
    with refused(codes.NOT_COMMITTED, "its bytes are not here"):
        node.answers.readable(read())
    assert node.verified == [(PARTITION, block_key(CONTAINER, 1))]
    found = node.answers.readable(salvage())
    assert (found.length, found.stored) == (3 * CELL, CELL)
    node.verified.clear()
    node.pipeline.unhealthy[block_key(CONTAINER, 1)] = "it is known"
    node.answers.readable(salvage())
    assert node.verified == [], "its repair is under way"


def test_a_peer_that_repairs_may_read_what_is_stored_though_it_is_not_committed_here(node: Node):
    request = read(committed_only=False, bcs_id=INDEX + 5)
    with refused(codes.NO_SUCH_BLOCK, "is not stored here"):
        node.answers.readable(request)
    with node.blocks.open_writer(CONTAINER, 1, 0, CELL_BYTES) as writer:
        writer.write(0, bytes(CELL_BYTES + 9))
        writer.flush()
    found = node.answers.readable(request)
    assert (found.length, found.bytes_per_checksum) == (CELL_BYTES + 9, CELL_BYTES)
    assert found.checksums == checksums_of(bytes(CELL_BYTES + 9), CELL_BYTES)
    node.commit(CELL)
    found = node.answers.readable(request)
    assert (found.length, found.bytes_per_checksum, found.stored) == (CELL, CELL, CELL)


def test_a_peer_that_repairs_may_read_an_empty_block_and_not_one_that_is_lost(node: Node):
    request = read(committed_only=False)
    node.commit(0)
    assert node.answers.readable(request).length == 0
    node.commit(CELL)
    with refused(codes.NO_SUCH_BLOCK, "is not stored here"):
        node.answers.readable(request)


# -- copies


def test_a_copy_is_read_as_its_rows_say(node: Node):
    request, salvaging = (one(partition=PARTITION + 1, container_id=ELSEWHERE, bcs_id=5) for one in (read, salvage))
    with refused(codes.NO_SUCH_PIPELINE):
        node.answers.readable(request)
    node.copies[ELSEWHERE, 1] = row_of(2 * CELL)
    for one, code in ((request, codes.NOT_COMMITTED), (salvaging, None)):
        node.damaged.clear()
        if code is None:
            assert node.answers.readable(one).stored == 0
        else:
            with refused(code, f"the copy here has 0 of {2 * CELL} bytes, it is damaged"):
                node.answers.readable(one)
        ((container_id, local_id, reason),) = node.damaged
        assert (container_id, local_id) == (ELSEWHERE, 1)
        assert "it is damaged" in reason
    node.damaged.clear()
    node.have(2 * CELL, container_id=ELSEWHERE)
    found = node.answers.readable(request)
    assert (found.length, found.stored, node.damaged) == (2 * CELL, 2 * CELL, [])
    node.copies[ELSEWHERE, 1] = row_of(2 * CELL, bcs_id=4)
    with refused(codes.NOT_COMMITTED, "the copy here is of index 4, not 5"):
        node.answers.readable(request)
    node.copies[ELSEWHERE, 1] = row_of(CELL, deleted=True)
    with refused(codes.BLOCK_DELETED):
        node.answers.readable(request)


@pytest.mark.parametrize(("offset", "cell"), [(0, 0), (CELL, 1), (2 * CELL - 1, 1), (2 * CELL, None)])
def test_a_corrupt_cell_of_a_member_is_repaired_if_it_is_committed(node: Node, offset: int, cell: int | None):
    node.answers.on_corrupt_cell(CONTAINER, 1, offset)
    assert node.repaired == [], "it is not committed"
    node.commit(2 * CELL)
    node.answers.on_corrupt_cell(CONTAINER, 1, offset)
    assert node.repaired == ([] if cell is None else [(PARTITION, block_key(CONTAINER, 1), cell)])
    node.repaired.clear()
    node.commit(2 * CELL, deleted=True)
    node.answers.on_corrupt_cell(CONTAINER, 1, offset)
    assert node.repaired == [], "nobody misses it"


@pytest.mark.parametrize(("offset", "noted"), [(0, True), (CELL - 1, True), (CELL, False)])
def test_a_corrupt_cell_of_a_copy_is_handed_to_its_upkeep_if_it_is_committed(node: Node, offset: int, noted: bool):
    node.answers.on_corrupt_cell(ELSEWHERE, 1, offset)
    assert node.damaged == []
    node.copies[ELSEWHERE, 1] = row_of(CELL)
    node.unreadable = True
    node.answers.on_corrupt_cell(ELSEWHERE, 1, offset)
    assert node.damaged == [], "the next look finds damaged rows"
    node.unreadable = False
    node.answers.on_corrupt_cell(ELSEWHERE, 1, offset)
    expected = [(ELSEWHERE, 1, f"the copy of block {ELSEWHERE}/1 here is damaged at {offset}")] if noted else []
    assert node.damaged == expected
    node.damaged.clear()
    node.copies[ELSEWHERE, 1] = row_of(CELL, deleted=True)
    node.answers.on_corrupt_cell(ELSEWHERE, 1, offset)
    assert node.damaged == []
