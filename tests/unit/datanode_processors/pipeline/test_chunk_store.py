"""Chunks of the old way: whatever the order in which they come, their bytes are in the file when their rows go."""

import random
from itertools import permutations

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.fsync import NEVER
from datanode_processors.errors import BlockError
from datanode_processors.pipeline import chunk_store
from datanode_processors.pipeline.chunk_store import ChunkReader, ChunkStore
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES, chunk_key, chunk_of_key
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.rocks import RocksStore
from schemas.column_families import BLOCK_TABLE, CHUNK_TABLE
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


def looked_up(store, monkeypatch):
    """Return the list of chunks that are read from files from now on."""
    read, found = store.read_chunk, []

    def look_up(key, mark):
        found.append(key)
        return read(key, mark)

    monkeypatch.setattr(store, "read_chunk", look_up)
    return found


def test_what_was_written_last_is_not_read_from_its_file(store, monkeypatch):
    """Chunks of some MiB, as a client has under way, are well within the limit."""
    size = 3 << 20
    found = looked_up(store, monkeypatch)
    keys = [chunk_key(CONTAINER, BLOCK, size * number) for number in range(2)]
    for key in keys:
        store.write([(CHUNK_TABLE, key, bytes(size))])
    assert [len(store.get(CHUNK_TABLE, key)) for key in keys] == [size, size]
    assert found == []


def test_the_oldest_chunks_make_room_in_memory_and_are_read_from_their_file(store, monkeypatch):
    monkeypatch.setattr(chunk_store, "MAX_CACHED_BYTES", SIZES[1] + SIZES[2])
    found = looked_up(store, monkeypatch)
    store.write(rows(range(3)))
    for _, key, value in reversed(rows(range(3))):
        assert store.get(CHUNK_TABLE, key) == value
    assert found == [chunk_key(CONTAINER, BLOCK, 0)], "the other two are just as many bytes as may be kept"


def test_a_snapshot_reads_chunks_as_they_were(store):
    key = chunk_key(CONTAINER, BLOCK, 0)
    store.write([*rows(range(3)), (BLOCK_TABLE, b"row", b"value")])
    snapshot = store.snapshot()
    store.write([(BLOCK_TABLE, b"row", None)])
    assert snapshot.get(BLOCK_TABLE, b"row") == b"value"
    assert snapshot.get(CHUNK_TABLE, key) == DATA[: SIZES[0]]
    assert snapshot.get(CHUNK_TABLE, chunk_key(CONTAINER, BLOCK + 1, 0)) is None
    assert list(snapshot.iterate(BLOCK_TABLE, b"")) == [(b"row", b"value")]
    assert [value for _, value in snapshot.iterate(CHUNK_TABLE, b"")] == [value for _, _, value in rows(range(3))]
    snapshot.close()


def test_a_snapshot_whose_chunks_have_gone_from_the_file_says_so(store, blocks):
    store.write(rows(range(3)))
    snapshot = store.snapshot()
    delete_all(store)
    assert snapshot.get(CHUNK_TABLE, chunk_key(CONTAINER, BLOCK, 0)) == DATA[: SIZES[0]], "its bytes are still there"
    blocks.delete(CONTAINER, BLOCK)
    with pytest.raises(BlockError, match="was deleted while its snapshot was read"):
        snapshot.get(CHUNK_TABLE, chunk_key(CONTAINER, BLOCK, 0))
    snapshot.close()


def copied(store, tmp_path):
    """Take a checkpoint for another member, and return it opened as that member checks it."""
    target = tmp_path / "copy"
    store.write_files()
    store.copy_to(target)
    store.complete_copy(target)
    return ChunkReader(target, DN_FAMILIES.names)


def test_a_checkpoint_for_another_member_has_the_bytes(store, tmp_path):
    """No file of a block is beside it: whole chunks, marked ones and moved ones all have their bytes in it."""
    for _, key, value in (writes := rows((0, 2))):  # the second one waits for the bytes before it
        store.write([(CHUNK_TABLE, key, value)])
    reader = copied(store, tmp_path)
    assert list(reader.iterate(CHUNK_TABLE, b"")) == [(key, value) for _, key, value in writes]
    reader.close()
    there = ChunkStore(tmp_path / "copy", DN_FAMILIES.names, elsewhere := BlockStore(tmp_path / "elsewhere"))
    there.write(rows((1,)))
    assert [there.get(CHUNK_TABLE, key) for _, key, _ in rows(range(3))] == [value for _, _, value in rows(range(3))]
    delete_all(there)
    there.close()
    assert (
        b"".join(bytes(data) for _, data, _ in elsewhere.read(CONTAINER, BLOCK, 0, len(DATA)))[: SIZES[0]]
        == (DATA[: SIZES[0]])
    )


def test_a_chunk_that_goes_while_it_is_copied(store, blocks, tmp_path):
    store.write(rows((0,)))
    target = tmp_path / "copy"
    store.write_files()
    store.copy_to(target)
    store.write([(CHUNK_TABLE, chunk_key(CONTAINER, BLOCK, 0), None)])
    blocks.delete(CONTAINER, BLOCK)
    with pytest.raises(StoreFailure, match="is no longer in its file"):
        store.complete_copy(target)


def test_a_checkpoint_that_was_not_completed_is_refused(store, tmp_path):
    store.write(rows((0,)))
    store.write_files()
    store.copy_to(tmp_path / "copy")
    reader = ChunkReader(tmp_path / "copy", DN_FAMILIES.names)
    with pytest.raises(ValueError, match="has its bytes elsewhere"):
        list(reader.iterate(CHUNK_TABLE, b""))
    reader.close()


def test_a_snapshot_reads_chunks_from_the_file_and_those_that_are_kept_whole(store):
    store.write(rows([1]))
    snapshot = store.snapshot()
    ((_, key, value),) = rows([1])
    assert snapshot.get(CHUNK_TABLE, key) == value
    assert list(snapshot.iterate(CHUNK_TABLE, b"")) == [(key, value)]
    snapshot.close()
    store.write(rows([0]))
    snapshot = store.snapshot()
    assert list(snapshot.iterate(CHUNK_TABLE, b"")) == [(key, value) for _, key, value in rows([0, 1])]
    assert snapshot.get(CHUNK_TABLE, b"nothing") is None
    assert list(snapshot.iterate(BLOCK_TABLE, b"")) == []
    snapshot.close()
