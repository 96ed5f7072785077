"""Taking cells from a peer: real stores and a real stream server; a peer that breaks the rules is played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair import cell_fetch
from datanode_processors.repair.cell_fetch import bytes_of, fetch_cells, runs_of
from datanode_processors.wire.peer import Peer
from schemas import stream_errors as codes
from schemas.records.datanode import ReadBlock, SalvageBlock
from tests.support.datanodes.block_nodes import (
    BCS_ID,
    BLOCK,
    CELL,
    CELLS,
    CONTAINER,
    DATA,
    PARTITION,
    TIMEOUT_S,
    Node,
    row_of,
)

ALL = list(range(CELLS))
Cells = list[tuple[int, bytes]]


class World:
    """A datanode that fetches, and one that is asked."""

    def __init__(self, folder: Path) -> None:
        self.node, self.source = Node("dn1", folder), Node("dn2", folder)
        self.source.write()
        self.asked: list[tuple[int, int]] = []
        self.fetched: set[int] = set()

    def ask(self, offset: int, length: int) -> ReadBlock | SalvageBlock:
        self.asked.append((offset, length))
        return SalvageBlock(
            partition=PARTITION, container_id=CONTAINER, local_id=BLOCK, offset=offset, length=length, bcs_id=BCS_ID
        )

    def fetch(self, cells: list[int], **changes: Any) -> BlockError | None:
        with Peer(self.source.address, own="dn1", cluster="test", timeout_s=TIMEOUT_S) as peer:
            return fetch_cells(
                self.node.store, peer, self.ask, (CONTAINER, BLOCK), row_of(), cells, self.fetched, **changes
            )

    def fetch_from(self, answer: Cells, cells: list[int]) -> BlockError | None:
        """Fetch from a peer that answers the first request with these (offset, bytes)."""

        class Played:
            def read_block(self, _: Any) -> Iterator[tuple[int, memoryview, int]]:
                for offset, data in answer:
                    yield offset, memoryview(data), 0

        peer: Any = Played()
        return fetch_cells(self.node.store, peer, self.ask, (CONTAINER, BLOCK), row_of(), cells, self.fetched)

    def bytes_here(self) -> bytes:
        return self.node.path.read_bytes() if self.node.path.exists() else b""

    def stored(self) -> int:
        return self.node.store.stored_length(CONTAINER, BLOCK)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.node.stop()
    made.source.stop()


def test_all_cells_of_a_block_that_is_not_here(world: World) -> None:
    assert world.fetch(ALL) is None
    assert world.bytes_here() == DATA
    assert (world.fetched, world.asked) == (set(ALL), [(0, len(DATA))])
    assert world.stored() == len(DATA), "the fsync policy has been met"


@pytest.mark.parametrize("sync", [False, True])
def test_wrong_cells_in_the_middle_are_replaced_and_the_others_stay(world: World, sync: bool) -> None:
    world.node.write()
    world.node.damage(2, 3, 7, 9)
    assert world.fetch([2, 3, 7], sync=sync) is None
    assert world.asked == [(2 * CELL, 2 * CELL), (7 * CELL, CELL)]
    assert world.fetched == {2, 3, 7}
    found = world.bytes_here()
    assert found[: 9 * CELL] == DATA[: 9 * CELL]
    assert found[9 * CELL :] != DATA[9 * CELL :], "nobody asked for that one"


def test_a_request_is_no_longer_than_a_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_fetch, "RUN_CELLS", 5)
    assert world.fetch(ALL) is None
    assert world.asked == [(0, 5 * CELL), (5 * CELL, 5 * CELL), (10 * CELL, 2 * CELL + 100)]
    assert world.bytes_here() == DATA


@pytest.mark.parametrize("bad", [0, 4, 11])
def test_behind_a_cell_that_the_peer_has_damaged_too_the_others_are_replaced(world: World, bad: int) -> None:
    world.node.write()
    world.node.damage(*range(12))
    world.source.damage(bad)
    error = world.fetch(list(range(12)))
    assert error is not None
    assert (error.code, error.offset) == (codes.CHECKSUM_MISMATCH, bad * CELL)
    assert world.fetched == set(range(12)) - {bad}
    found = world.bytes_here()
    assert found[: bad * CELL] == DATA[: bad * CELL]
    assert found[(bad + 1) * CELL :] == DATA[(bad + 1) * CELL :]
    assert len(world.asked) == (1 if bad == 11 else 2)


def test_nothing_is_written_behind_a_gap(world: World) -> None:
    world.node.write(DATA[: 3 * CELL])
    world.source.damage(5)
    error = world.fetch(list(range(3, CELLS)))
    assert error is not None
    assert error.offset == 5 * CELL
    assert world.fetched == {3, 4}
    assert world.bytes_here() == DATA[: 5 * CELL]
    assert len(world.asked) == 1


def test_where_the_damaged_cell_is_the_one_at_the_end_here_too_the_gap_begins_behind_it(world: World) -> None:
    world.node.write(DATA[: 6 * CELL])
    world.node.damage(5)
    world.source.damage(5)
    error = world.fetch(list(range(5, CELLS)))
    assert error is not None
    assert world.fetched == set(range(6, CELLS)), "the cell's bytes are there, though wrong"
    assert world.bytes_here()[6 * CELL :] == DATA[6 * CELL :]


def test_two_damaged_cells_are_left_and_the_last_is_named(world: World) -> None:
    world.node.write()
    world.node.damage(*range(12))
    world.source.damage(2, 6)
    error = world.fetch(list(range(12)))
    assert error is not None
    assert error.offset == 6 * CELL
    assert world.fetched == set(range(12)) - {2, 6}


def test_an_error_that_is_no_damage_of_an_asked_cell_goes_through(world: World) -> None:
    world.source.replica.put(row_of(deleted=True))
    with pytest.raises(BlockError) as caught:
        world.fetch(ALL)
    assert caught.value.code != codes.CHECKSUM_MISMATCH
    assert world.fetched == set()
    assert world.bytes_here() == b""


def cell(number: int) -> tuple[int, bytes]:
    return number * CELL, DATA[number * CELL : (number + 1) * CELL]


WRONG: dict[str, tuple[Cells, str, int]] = {
    "bytes of another cell": ([cell(0), (CELL, DATA[:CELL])], codes.CHECKSUM_MISMATCH, 1),
    "half a cell": ([cell(0), (CELL, DATA[CELL : CELL + CELL // 2])], codes.NOT_COMMITTED, 1),
    "one byte too few": ([cell(0), cell(1), (2 * CELL, DATA[2 * CELL : 3 * CELL - 1])], codes.NOT_COMMITTED, 2),
    "between two cells": ([cell(0), (CELL + 1, DATA[CELL + 1 : 2 * CELL + 1])], codes.NOT_COMMITTED, 1),
    "behind the end": ([cell(0), (CELLS * CELL, DATA[:CELL])], codes.NOT_COMMITTED, 1),
}


@pytest.mark.parametrize("answer", WRONG)
def test_what_is_not_the_committed_cell_is_not_written(world: World, answer: str) -> None:
    cells, code, good = WRONG[answer]
    with pytest.raises(BlockError) as caught:
        world.fetch_from(cells, ALL)
    assert caught.value.code == code
    assert world.bytes_here() == DATA[: good * CELL]
    assert world.fetched == set(range(good))


def test_bytes_behind_the_committed_ones_in_the_last_cell_are_left_out(world: World) -> None:
    world.node.write(DATA[: 12 * CELL])
    assert world.fetch_from([(12 * CELL, DATA[12 * CELL :] + b"more")], [12]) is None
    assert world.bytes_here() == DATA


def test_the_last_cell_is_as_long_as_it_is() -> None:
    assert bytes_of(set(), row_of()) == 0
    assert bytes_of({0, 12}, row_of()) == CELL + 100
    assert bytes_of(set(ALL), row_of()) == len(DATA)


def test_runs_are_of_neighbours_and_no_longer_than_the_limit() -> None:
    assert list(runs_of([])) == []
    assert list(runs_of([4])) == [(4, 4)]
    assert list(runs_of([1, 3, 4, 9])) == [(1, 1), (3, 4), (9, 9)]
    assert cell_fetch.RUN_CELLS == 64
    assert list(runs_of(list(range(130)))) == [(0, 63), (64, 127), (128, 129)]
