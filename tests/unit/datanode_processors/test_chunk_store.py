"""Chunks of the old way: whatever the order in which they come, their bytes are in the file when their rows go."""

import random
from itertools import permutations

import pytest

from datanode_processors.block_service import DN_FAMILIES, chunk_key
from datanode_processors.block_store import BlockStore
from datanode_processors.chunk_store import ChunkStore
from schemas.column_families import CHUNK_TABLE
from schemas.packets import CELL_BYTES

CONTAINER, BLOCK = 256, 1
SIZES = (CELL_BYTES * 3 + 100, CELL_BYTES, 77)
DATA = random.Random(1).randbytes(sum(SIZES))
OFFSETS = (0, SIZES[0], SIZES[0] + SIZES[1])


@pytest.fixture
def blocks(tmp_path):
    return BlockStore(tmp_path)


@pytest.fixture
def store(tmp_path, blocks):
    opened = ChunkStore(tmp_path / "rows", DN_FAMILIES.names, blocks)
    yield opened
    opened.close()


def rows(order):
    return [
        (CHUNK_TABLE, chunk_key(CONTAINER, BLOCK, OFFSETS[n]), DATA[OFFSETS[n] : OFFSETS[n] + SIZES[n]]) for n in order
    ]


def delete_all(store):
    store.write([(CHUNK_TABLE, chunk_key(CONTAINER, BLOCK, offset), None) for offset in reversed(OFFSETS)])


def stored(blocks):
    return b"".join(bytes(data) for _, data, _ in blocks.read(CONTAINER, BLOCK, 0, len(DATA)))


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("together", [True, False])
def test_in_any_order(store, blocks, order, together):
    writes = rows(order)
    for batch in [writes] if together else [[one] for one in writes]:
        store.write(batch)
    for _, key, value in writes:
        assert store.get(CHUNK_TABLE, key) == value
    delete_all(store)
    assert stored(blocks) == DATA


def test_while_another_writer_holds_the_block(store, blocks):
    """Kept whole until it goes, and then the file takes it."""
    writer = blocks.open_writer(CONTAINER, BLOCK, 0, CELL_BYTES, alive=lambda: True)
    store.write(rows(range(3)))
    writer.close()
    delete_all(store)
    assert stored(blocks) == DATA
