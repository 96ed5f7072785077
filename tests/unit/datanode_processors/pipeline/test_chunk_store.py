"""Chunks of the old way: whatever the order in which they come, their bytes are in the file when their rows go."""

import random
from itertools import permutations

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.fsync import NEVER
from datanode_processors.pipeline.chunk_store import ChunkStore
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES, chunk_key, chunk_of_key
from replicated_db.shell.rocks import RocksStore
from schemas.column_families import CHUNK_TABLE
from schemas.records.packets import CELL_BYTES

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


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("together", [True, False])
def test_a_mark_is_written_when_the_bytes_survive_a_loss_of_power(store, blocks, monkeypatch, order, together):
    """Or the row would be another one behind it, and the replica would flag itself."""
    marks = []
    write = RocksStore.write

    def looked_at(self, writes):
        writes = list(writes)
        for cf, key, value in writes:
            if cf == CHUNK_TABLE and value is not None and value[:1] == b"\x00":
                offset = chunk_of_key(key)[2]
                assert blocks.stored_length(CONTAINER, BLOCK) >= offset + SIZES[OFFSETS.index(offset)]
                marks.append(offset)
        write(self, writes)

    monkeypatch.setattr(RocksStore, "write", looked_at)
    for batch in [rows(order)] if together else [[one] for one in rows(order)]:
        store.write(batch)
    assert set(marks) == set(OFFSETS)


def test_without_fsync_a_chunk_costs_none(tmp_path):
    blocks = BlockStore(tmp_path, fsync=NEVER)
    store = ChunkStore(tmp_path / "rows", DN_FAMILIES.names, blocks)
    store.write(rows(range(3)))
    assert blocks.fsyncs.files == 0
    store.close()


def test_a_chunk_whose_fsync_fails_is_kept_whole(store, blocks, monkeypatch):
    def fails(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(blocks.fsyncs, "file", fails)
        store.write(rows([0]))
    (kept,) = [value for _, value in RocksStore.iterate(store, CHUNK_TABLE, b"")]
    assert kept == b"\x01" + DATA[: SIZES[0]]
    store.write(rows([1, 2]))
    delete_all(store)
    assert stored(blocks) == DATA
