"""Which blocks a store knows, and which of them it forgets first."""

from __future__ import annotations

from pathlib import Path

import pytest

from datanode_processors.blocks import block_table as module
from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.blocks.block_table import BlockTable, Key
from datanode_processors.blocks.containers import Containers
from datanode_processors.blocks.fsync import CLOSE, FsyncCount
from datanode_processors.errors import BlockError
from schemas.stream_errors import INVALID_REQUEST

CELL = 65_536


class World:
    """A table, and the blocks that it has asked for, in order."""

    def __init__(self, folder: Path, max_idle_cells: int = 1000) -> None:
        self.made: list[Key] = []
        self.count = FsyncCount()
        self.containers = Containers(folder / "containers", self.count)
        self.table = BlockTable(self._make, max_idle_cells=max_idle_cells)

    def _make(self, key: Key) -> BlockFile:
        self.made.append(key)
        return BlockFile(key, self.containers, CLOSE, self.count)

    def use(self, local_id: int, cells: int = 1) -> BlockFile:
        """Use a block of so many cells, and let go of it."""
        block = self.table.pin(1, local_id)
        block.exists = True
        block.cells.write(0, bytes(cells * CELL))
        self.table.unpin(block)
        return block

    def knows(self, *local_ids: int) -> list[int]:
        """Return which of some blocks are known; it uses none of them."""
        known = {block.key[1] for block in self.table.of_container(1)}
        return [local_id for local_id in local_ids if local_id in known]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_ids_begin_with_zero(world: World) -> None:
    block = world.table.pin(0, 0)
    assert block.key == (0, 0)
    world.table.unpin(block)
    for container_id, local_id in ((-1, 0), (0, -1)):
        with pytest.raises(BlockError, match=f"block {container_id}/{local_id}: ids are not negative") as caught:
            world.table.pin(container_id, local_id)
        assert caught.value.code == INVALID_REQUEST


def test_a_block_has_one_state_while_anybody_uses_it_and_afterwards(world: World) -> None:
    first = world.table.pin(1, 7)
    assert world.table.pin(1, 7) is first
    first.exists = True
    world.table.unpin(first)
    assert world.table.pin(1, 7) is first, "it is still in use"
    world.table.unpin(first)
    world.table.unpin(first)
    assert world.table.pin(1, 7) is first, "it is idle"
    world.table.unpin(first)
    assert world.made == [(1, 7)]


@pytest.mark.parametrize(("exists", "committed", "kept"), [(False, 0, 0), (True, 0, 1), (False, 10, 1)])
def test_what_is_neither_there_nor_committed_is_not_kept(world: World, exists: bool, committed: int, kept: int) -> None:
    block = world.table.pin(1, 7)
    block.exists, block.committed = exists, committed
    world.table.unpin(block)
    assert len(world.knows(7)) == kept


def test_the_blocks_used_longest_ago_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDLE_BLOCKS", 3)
    for local_id in (1, 2, 3, 1, 4):
        world.use(local_id)
    assert world.knows(1, 2, 3, 4) == [1, 3, 4]
    held = world.table.pin(1, 3)
    for local_id in (5, 6, 7):
        world.use(local_id)
    assert world.knows(1, 3, 4, 5, 6, 7) == [3, 5, 6, 7], "what is in use takes no room"
    world.table.unpin(held)
    assert world.knows(3, 5, 6, 7) == [3, 6, 7]


def test_blocks_are_forgotten_by_the_room_that_their_checksums_take(tmp_path: Path) -> None:
    world = World(tmp_path, max_idle_cells=10)
    world.use(1, 4)
    world.use(2, 6)
    assert world.knows(1, 2) == [1, 2], "as many as there is room for"
    world.use(3, 1)
    assert world.knows(1, 2, 3) == [2, 3]
    world.use(2, 6)  # the room of one that is used again is not counted twice
    world.use(4, 3)
    assert world.knows(2, 3, 4) == [2, 3, 4]
    world.use(5, 11)
    assert world.knows(2, 3, 4, 5) == []
    world.use(6, 10)
    assert world.knows(6) == [6]


def test_a_block_is_of_its_container_alone(world: World) -> None:
    world.use(7)
    other = world.table.pin(2, 7)
    assert world.table.of_container(2) == [other]
    assert [block.key for block in world.table.of_container(1)] == [(1, 7)]
    world.table.unpin(other)


def test_a_block_is_let_go_of_when_looking_at_it_fails(world: World) -> None:
    (world.containers.folder / "1").touch()  # a file where the container's directory should be
    with pytest.raises(BlockError), world.table.held(1, 7):
        raise AssertionError("it cannot be looked at")
    assert world.knows(7) == []
