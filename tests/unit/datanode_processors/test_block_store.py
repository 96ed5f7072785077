"""The block store on real files: writing, resuming, who may write, what counts as stored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from crc32c import crc32c

from datanode_processors.block_store import BlockStore
from datanode_processors.checksums import checksums_of
from datanode_processors.errors import BlockError
from schemas import stream_errors as codes

CELL = 4096
DATA = os.urandom(10 * CELL + 100)


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path, fsync="close")


def write(store: BlockStore, data: bytes, offset: int = 0, *, packet: int = CELL, local_id: int = 1) -> None:
    with store.open_writer(7, local_id, offset, CELL) as writer:
        for at in range(0, len(data), packet):
            piece = data[at : at + packet]
            writer.write(offset + at, memoryview(piece), crc32c(piece))
        writer.flush()


def read(store: BlockStore, local_id: int = 1) -> bytes:
    length = store.written_length(7, local_id)
    cells = list(store.read(7, local_id, 0, length))
    assert all(crc == crc32c(data) for _, data, crc in cells)
    return b"".join(data for _, data, _ in cells)


def refused(code: str):
    return pytest.raises(BlockError, check=lambda error: error.code == code)


@pytest.mark.parametrize("packet", [100, CELL - 1, CELL, CELL + 1, 3 * CELL, len(DATA)])
def test_what_is_written_is_read_with_its_checksums(store: BlockStore, packet: int):
    write(store, DATA, packet=packet)
    assert read(store) == DATA
    assert store.stored_length(7, 1) == len(DATA)
    for length in (0, 1, CELL, CELL + 1, 10 * CELL, len(DATA)):
        assert store.checksums(7, 1, length) == checksums_of(DATA[:length], CELL)
    assert store.checksums(7, 1, len(DATA) + 1) is None


def test_a_block_that_is_not_there_has_no_bytes(store: BlockStore):
    assert store.stored_length(7, 1) == store.written_length(7, 1) == 0
    assert store.checksums(7, 1, 0) == b""
    assert store.checksums(7, 1, 1) is None
    with refused(codes.NO_SUCH_BLOCK):
        store.read(7, 1, 0, 0)
    store.delete(7, 1)
    store.reclaim(7, 1, 0)


@pytest.mark.parametrize("offset", [0, 5, CELL, CELL + 7, len(DATA)])
def test_a_resume_overwrites_and_never_truncates(store: BlockStore, offset: int):
    write(store, DATA)
    write(store, DATA[offset : offset + 2 * CELL + 3], offset)
    assert read(store) == DATA
    assert store.checksums(7, 1, len(DATA)) == checksums_of(DATA, CELL)


def test_a_gap_is_refused(store: BlockStore):
    write(store, DATA[:CELL])
    with refused(codes.OUT_OF_ORDER) as caught:
        store.open_writer(7, 1, CELL + 1, CELL)
    assert caught.value.offset == CELL
    with store.open_writer(7, 1, 0, CELL) as writer, refused(codes.OUT_OF_ORDER):
        writer.write(1, b"x")


def test_after_a_restart_the_bytes_tell(store: BlockStore, tmp_path: Path):
    write(store, DATA)
    again = BlockStore(tmp_path, fsync="close")
    assert again.stored_length(7, 1) == len(DATA)
    assert again.checksums(7, 1, len(DATA), CELL) == checksums_of(DATA, CELL)
    assert again.used_bytes() == len(DATA)
