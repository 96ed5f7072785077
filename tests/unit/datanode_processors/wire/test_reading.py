"""What a datanode lets be read of blocks that are damaged, and of copies: verified cells of the committed length, or a refusal.

The real pipelines, verifier, stores and stream servers over sockets; only the replica of a pipeline's database is a dict.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair.copy_sources import SOURCES_FILE, CopySources
from datanode_processors.repair.core.verify_queue import VerifyBlock
from datanode_processors.repair.transfer import import_container
from schemas import stream_errors as codes
from schemas.codecs.block_rows import encode_block_row
from schemas.column_families import BLOCK_TABLE
from schemas.records.datanode import BlockRow, FetchContainer, Member
from tests.support.datanodes.block_nodes import (
    BCS_ID,
    BLOCK,
    CELL,
    CELLS,
    CONTAINER,
    DATA,
    KEY,
    PARTITION,
    Node,
    row_of,
)
from tests.support.local.waiting import eventually

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Node] = []

    def begin(name: str = "dn1", **options: Any) -> Node:
        made.append(Node(name, tmp_path, **options))
        return made[-1]

    yield begin
    for node in made:
        node.stop()


def cell_of(number: int, count: int = 1) -> bytes:
    return DATA[number * CELL : (number + count) * CELL]


def refused(answer: tuple[bytes, BlockError | None], code: str, offset: int | None = None) -> bytes:
    """Return the bytes that came before a refusal with ``code``, which names the block."""
    found, error = answer
    assert error is not None
    assert error.code == code
    assert f"{CONTAINER}/{BLOCK}" in error.message
    if offset is not None:
        assert error.offset == offset
    return found


# ------------------------------------------------------------------------------------------------ unhealthy blocks


def test_only_a_salvage_reads_an_unhealthy_block_and_only_its_good_cells(make: Make) -> None:
    node = make()
    node.write()
    assert node.read() == (DATA, None)
    node.damage(3, 8)
    assert refused(node.read(), codes.CHECKSUM_MISMATCH, 3 * CELL) == cell_of(0, 3)
    assert KEY in node.replica.unhealthy
    assert refused(node.read(0, CELL), codes.NOT_COMMITTED) == b"", "who has a choice reads a healthy replica"
    assert refused(node.salvage(), codes.CHECKSUM_MISMATCH, 3 * CELL) == cell_of(0, 3)
    assert node.salvage(4 * CELL, 4 * CELL) == (cell_of(4, 4), None)
    assert node.salvage(4 * CELL + 5, 1) == (cell_of(4), None), "whole cells, as ever"
    assert refused(node.salvage(3 * CELL + 1, 1), codes.CHECKSUM_MISMATCH, 3 * CELL) == b""
    assert refused(node.salvage(7 * CELL, len(DATA)), codes.CHECKSUM_MISMATCH, 8 * CELL) == cell_of(7)
    assert node.salvage(9 * CELL, len(DATA)) == (DATA[9 * CELL :], None)


def test_a_salvage_of_a_healthy_block_is_a_read(make: Make) -> None:
    node = make()
    node.write()
    assert node.salvage() == (DATA, None)
    assert node.salvage(len(DATA), 5) == (b"", None)
    assert refused(node.salvage(len(DATA) + 1, 1), codes.INVALID_REQUEST) == b""


@pytest.mark.parametrize("here", [0, 1, CELL - 1, CELL, 5 * CELL, 5 * CELL + 1, 12 * CELL, len(DATA) - 1])
def test_what_is_missing_at_the_end_is_refused_and_what_is_before_it_can_be_salvaged(make: Make, here: int) -> None:
    node = make()
    node.write(DATA[:here])
    whole = here - here % CELL
    assert refused(node.read(), codes.NOT_COMMITTED) == b""
    assert VerifyBlock(PARTITION, KEY) in node.pipelines.verifier._queue, "it is verified, and fetched"
    assert refused(node.salvage(), codes.NOT_COMMITTED) == DATA[:whole]
    assert refused(node.salvage(whole, 1), codes.NOT_COMMITTED) == b""
    if whole:
        assert node.salvage(0, whole) == (DATA[:whole], None)
        assert node.salvage(whole - 1, 1) == (DATA[whole - CELL : whole], None)
        assert refused(node.salvage(whole - 1, 2), codes.NOT_COMMITTED) == DATA[whole - CELL : whole]


def test_a_block_without_a_file_is_refused(make: Make) -> None:
    node = make()
    assert refused(node.read(), codes.NOT_COMMITTED) == b""
    assert refused(node.salvage(), codes.NOT_COMMITTED) == b""


def test_bytes_beyond_the_committed_length_are_never_sent(make: Make) -> None:
    node = make()
    node.write()
    node.replica.put(row_of(DATA[: 5 * CELL + 10]))
    for unhealthy in (False, True):
        if unhealthy:
            node.replica.on_failed(KEY, "as if")
        else:
            assert node.read() == (DATA[: 5 * CELL + 10], None)
        assert node.salvage() == (DATA[: 5 * CELL + 10], None)
        assert refused(node.salvage(6 * CELL, 1), codes.INVALID_REQUEST) == b""


def test_a_salvage_is_refused_what_a_read_is(make: Make) -> None:
    node = make()
    node.write()
    node.replica.on_failed(KEY, "as if")
    assert refused(node.salvage(bcs_id=BCS_ID + 1), codes.NOT_COMMITTED) == b""
    node.replica.put(row_of(b"", deleted=True))
    assert refused(node.salvage(), codes.BLOCK_DELETED) == b""
    node.replica.store.tables[BLOCK_TABLE].clear()
    assert refused(node.salvage(), codes.NO_SUCH_BLOCK) == b""


@pytest.mark.parametrize("left", [0, 4 * CELL, 4 * CELL + 77])
def test_a_file_that_is_cut_behind_the_datanodes_back_makes_the_block_unhealthy(make: Make, left: int) -> None:
    node = make()
    node.write()
    os.truncate(node.path, left)
    found, error = node.read()
    assert error is not None
    assert found == DATA[: left - left % CELL]
    assert KEY in node.replica.unhealthy
    assert node.salvage(0, left - left % CELL) == (found, None)


def test_a_file_that_is_removed_behind_the_datanodes_back_makes_the_block_unhealthy(make: Make) -> None:
    node = make()
    node.write()
    node.path.unlink()
    found, error = node.read()
    assert (found, error is None) == (b"", False)
    assert KEY in node.replica.unhealthy


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_damaged_a_range_is_salvaged_if_and_only_if_its_cells_are_good(make: Make, seed: int) -> None:
    chance = random.Random(seed)
    node = make()
    here = chance.choice([len(DATA), chance.randrange(len(DATA))])
    node.write(DATA[:here])
    bad = {cell for cell in range(here // CELL) if chance.random() < 0.3}
    node.damage(*bad)
    bad |= {cell for cell in range(CELLS) if min((cell + 1) * CELL, len(DATA)) > here}
    for _ in range(30):
        offset = chance.randrange(len(DATA))
        length = chance.randrange(1, 5 * CELL)
        first, last = offset // CELL, (min(offset + length, len(DATA)) - 1) // CELL
        good = next((cell for cell in range(first, last + 1) if cell in bad), last + 1)
        found, error = node.salvage(offset, length)
        assert found == cell_of(first, good - first)
        assert (error is None) == (good == last + 1)


# ---------------------------------------------------------------------------------------------------------- copies


def copied(make: Make, *, data: bytes = DATA, row: BlockRow | None = None) -> Node:
    """A node that is no member, with a copy of the container."""
    node = make("dn4", member=False)
    pieces = [] if row is not None and row.deleted else [data]
    import_container(node.store, CONTAINER, [(KEY, encode_block_row(row or row_of(data)), pieces)])
    return node


def unhealthy(node: Node) -> int:
    return len(node.pipelines.upkeep.unhealthy_containers())


def test_only_what_a_copy_should_have_can_be_damaged_in_it(make: Make) -> None:
    node = copied(make)
    for local_id, offset in ((BLOCK, len(DATA)), (BLOCK + 1, 0)):
        node.pipelines.on_corrupt_cell(CONTAINER, local_id, offset)
    node.pipelines.on_corrupt_cell(CONTAINER + 256, BLOCK, 0)
    assert unhealthy(node) == 0
    node.pipelines.on_corrupt_cell(CONTAINER, BLOCK, len(DATA) - 1)
    assert unhealthy(node) == 1


def test_a_reader_that_finds_a_copy_short_has_it_repaired(make: Make) -> None:
    node = copied(make)
    os.truncate(node.path, len(DATA) - 1)
    node.store.forget_checksums(CONTAINER, BLOCK)
    assert refused(node.read(), codes.NOT_COMMITTED) == b""
    assert unhealthy(node) == 1


def test_where_a_copy_came_from_is_on_the_disk_once_it_is_here(make: Make, tmp_path: Path) -> None:
    """A holder that is killed at once still knows whom to ask."""
    member, node = make(), make("dn4", member=False)
    member.write()
    member.replica.close()
    member.store.close_container(CONTAINER)
    node.pipelines.handle(FetchContainer(partition=PARTITION, container_id=CONTAINER, sources=[member.address]))
    assert node.path.read_bytes() == DATA
    assert CopySources(tmp_path / "dn4" / SOURCES_FILE).of(CONTAINER) == (member.address,)


def test_a_deleted_block_of_a_copy_cannot_be_damaged(make: Make) -> None:
    node = copied(make, row=replace(row_of(), deleted=True))
    node.pipelines.on_corrupt_cell(CONTAINER, BLOCK, 0)
    assert unhealthy(node) == 0


@pytest.mark.parametrize(("offset", "known"), [(0, True), (len(DATA) - 1, True), (len(DATA), False)])
def test_only_committed_bytes_of_a_member_can_be_damaged(make: Make, offset: int, known: bool) -> None:
    node = make()
    node.write()
    node.pipelines.on_corrupt_cell(CONTAINER, BLOCK + 1, offset)
    assert not node.replica.unhealthy
    node.pipelines.on_corrupt_cell(CONTAINER, BLOCK, offset)
    assert (KEY in node.replica.unhealthy) == known


def test_a_member_that_is_to_have_a_copy_looks_through_its_replica(make: Make) -> None:
    """The bytes of a block are missing; nothing but the request makes the datanode look."""
    node = make()
    member = Member(datanode="dn1", address=node.address, http_address="", rack="/r")
    node.replica.opened = replace(node.replica.opened, members=[member])
    node.pipelines.verifier.start()
    request = FetchContainer(partition=PARTITION, container_id=CONTAINER, sources=["127.0.0.1:1"])
    assert "its own replica repairs" in node.pipelines.handle(request).detail
    eventually(lambda: KEY in node.replica.unhealthy, timeout_s=30)
    node.pipelines.verifier.stop()


def test_a_copy_is_read_up_to_the_index_that_it_has(make: Make) -> None:
    node = copied(make)
    for ask in (node.read, node.salvage):
        assert ask(bcs_id=BCS_ID) == (DATA, None)
        assert ask(bcs_id=0) == (DATA, None)
        assert refused(ask(bcs_id=BCS_ID + 1), codes.NOT_COMMITTED) == b""
        assert refused(ask(len(DATA) + 1, 1), codes.INVALID_REQUEST) == b""


def test_a_damaged_cell_of_a_copy_is_not_sent(make: Make) -> None:
    node = copied(make)
    node.damage(2)
    for ask in (node.read, node.salvage):
        assert refused(ask(), codes.CHECKSUM_MISMATCH, 2 * CELL) == cell_of(0, 2)
        assert ask(3 * CELL, len(DATA)) == (DATA[3 * CELL :], None)
    assert f"the copy of block {CONTAINER}/{BLOCK} here is damaged at {2 * CELL}" in node.notes


@pytest.mark.parametrize("committed_only", [True, False])
def test_a_copy_that_is_cut_and_damaged_is_verified_against_its_row_and_not_itself(
    make: Make, committed_only: bool
) -> None:
    """Found so at a start: the store has no checksums of it but those that it reads from the damaged file."""
    node = copied(make)
    node.stop()
    node.damage(2)
    os.truncate(node.path, 6 * CELL + 50)
    again = make("dn4", member=False)
    assert refused(again.read(committed_only=committed_only), codes.NOT_COMMITTED) == b""
    assert refused(again.salvage(), codes.CHECKSUM_MISMATCH, 2 * CELL) == cell_of(0, 2)
    assert again.salvage(3 * CELL, 3 * CELL) == (cell_of(3, 3), None)
    assert refused(again.salvage(5 * CELL, 2 * CELL), codes.NOT_COMMITTED) == cell_of(5)


@pytest.mark.parametrize("committed_only", [True, False])
def test_a_copy_ends_at_the_length_that_came_with_it(make: Make, committed_only: bool) -> None:
    node = copied(make, data=DATA[: 3 * CELL + 5])
    node.stop()
    with node.path.open("ab") as file:
        file.write(DATA[3 * CELL + 5 :])
    again = make("dn4", member=False)
    assert again.read(committed_only=committed_only) == (DATA[: 3 * CELL + 5], None)
    assert again.salvage() == (DATA[: 3 * CELL + 5], None)


def test_what_is_not_in_the_copy_is_refused(make: Make) -> None:
    node = copied(make, row=row_of(b"", deleted=True))
    for ask in (node.read, node.salvage):
        assert refused(ask(), codes.BLOCK_DELETED) == b""
    other = make("dn5", member=False)
    for ask in (other.read, other.salvage):
        found, error = ask()
        assert (found, error and error.code) == (b"", codes.NO_SUCH_PIPELINE)


def test_a_copy_whose_rows_are_damaged_answers_nothing(make: Make) -> None:
    node = copied(make)
    node.stop()
    rows = node.store.container_folder(CONTAINER) / "rows"
    data = bytearray(rows.read_bytes())
    data[30] ^= 1
    rows.write_bytes(data)
    again = make("dn4", member=False)
    for ask in (again.read, again.salvage):
        found, error = ask()
        assert (found, error and error.code) == (b"", codes.FAILED)


# ---------------------------------------------------------------------------------------------------------- repair


def repairing(make: Make, damaged: dict[str, list[int]]) -> dict[str, Node]:
    """Members dn1… with these cells damaged on the disk; dn1's verifier runs, and knows of what is damaged there."""
    nodes = {name: make(name) for name in damaged}
    members = [Member(datanode=name, address=node.address, http_address="", rack="/r") for name, node in nodes.items()]
    for name, node in nodes.items():
        node.replica.opened.members.extend(members)
        node.write()
        node.damage(*damaged[name])
    first = nodes["dn1"]
    verifier, replica = first.pipelines.verifier, first.replica
    verifier.add(replica)  # type: ignore[arg-type]
    for cell in damaged["dn1"]:
        verifier.repair(replica, KEY, cell)  # type: ignore[arg-type]
    verifier.start()
    return nodes


def test_a_block_is_repaired_from_peers_that_are_damaged_elsewhere(make: Make) -> None:
    nodes = repairing(make, {"dn1": [1, 2, 3, 4, 5, 9], "dn2": [2, 5, 9], "dn3": [1, 3, 4]})
    try:
        eventually(lambda: KEY not in nodes["dn1"].replica.unhealthy)
        assert nodes["dn1"].path.read_bytes() == DATA
        assert nodes["dn1"].read() == (DATA, None)
    finally:
        nodes["dn1"].pipelines.verifier.stop()


@pytest.mark.parametrize("left", [0, 5 * CELL, 5 * CELL + 77])
def test_a_file_that_is_cut_behind_the_datanodes_back_is_repaired(make: Make, left: int) -> None:
    nodes = repairing(make, {"dn1": [2], "dn2": []})
    node = nodes["dn1"]
    try:
        eventually(lambda: KEY not in node.replica.unhealthy)
        os.truncate(node.path, left)
        assert node.read()[1] is not None
        eventually(lambda: KEY not in node.replica.unhealthy)
        assert node.path.read_bytes() == DATA
        assert node.read() == (DATA, None)
    finally:
        node.pipelines.verifier.stop()


def test_a_cell_that_nobody_has_keeps_no_other_from_being_repaired(make: Make) -> None:
    nodes = repairing(make, {"dn1": [2, 3, 4, 8, 12], "dn2": [3], "dn3": [3, 4]})
    try:
        expected = bytearray(DATA)
        expected[3 * CELL + 9] ^= 1
        eventually(lambda: nodes["dn1"].path.read_bytes() == expected)
        assert KEY in nodes["dn1"].replica.unhealthy
        assert nodes["dn1"].salvage(4 * CELL, len(DATA)) == (DATA[4 * CELL :], None)
        assert refused(nodes["dn1"].salvage(), codes.CHECKSUM_MISMATCH, 3 * CELL) == cell_of(0, 3)
    finally:
        nodes["dn1"].pipelines.verifier.stop()
