"""Writing back early: a hint to the kernel that changes no bytes, and that a bad descriptor does not hurt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datanode_processors.blocks import block_file
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.fsync import CLOSE, NEVER, PACKET, FsyncCount, begin_writeback
from datanode_processors.errors import BlockError

CELL = 4096


def test_a_hint_changes_nothing(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(data := os.urandom(3 * CELL))
    descriptor = os.open(file, os.O_RDWR)
    begin_writeback(descriptor, 0, len(data))
    os.close(descriptor)
    begin_writeback(descriptor, 0, len(data))
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    ("fsync", "expected"), [(CLOSE, [(0, 2 * CELL), (2 * CELL, 4 * CELL)]), (NEVER, []), (PACKET, [])]
)
def test_whole_stretches_are_hinted_once_under_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, expected: list[tuple[int, int]]
):
    hinted: list[tuple[int, int]] = []
    monkeypatch.setattr(block_file, "WRITEBACK_BYTES", 2 * CELL)
    monkeypatch.setattr(block_file, "begin_writeback", lambda _, offset, size: hinted.append((offset, size)))
    data = os.urandom(6 * CELL + 5)
    with BlockStore(tmp_path, fsync=fsync).open_writer(1, 1, 0, CELL) as writer:
        offset = 0
        for size in (CELL, CELL - 1, 1, 4 * CELL, 5):
            writer.write(offset, data[offset : offset + size])
            offset += size
    assert hinted == expected


def test_a_directory_that_is_stored_keeps_no_descriptor(tmp_path: Path):
    fsyncs, opened = FsyncCount(), os.listdir("/proc/self/fd")
    for _ in range(3):
        fsyncs.directory(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsyncs.directory(tmp_path / "gone")
    assert len(os.listdir("/proc/self/fd")) == len(opened)
    assert (fsyncs.directories, fsyncs.files) == (3, 0), "one that failed does not count"


@pytest.mark.parametrize("fsync", [CLOSE, NEVER, PACKET])
def test_a_sync_has_the_bytes_stored_under_any_policy(tmp_path: Path, fsync: str):
    store = BlockStore(tmp_path, fsync=fsync)
    with store.open_writer(1, 1, 0, CELL) as writer:
        writer.write(0, b"some")
        before = store.fsyncs.files
        writer.sync()
        assert store.fsyncs.files == (before if fsync == PACKET else before + 1), "stored already after the packet"
    with pytest.raises(BlockError, match="is closed"):
        writer.sync()


def test_a_block_found_on_the_disk_is_stored_by_the_first_question_alone(tmp_path: Path):
    """Later ones tell what is stored, and do not do the work of a stream that has taken the block up."""
    with BlockStore(tmp_path, fsync=CLOSE).open_writer(1, 1, 0, CELL) as writer:
        writer.write(0, bytes(CELL))
    store = BlockStore(tmp_path, fsync=CLOSE)
    assert (store.stored_length(1, 1), store.fsyncs.files) == (CELL, 1)
    with store.open_writer(1, 1, CELL, CELL) as writer:
        writer.write(CELL, bytes(CELL))
        assert (store.stored_length(1, 1), store.fsyncs.files) == (CELL, 1)
        writer.sync()
    assert store.stored_length(1, 1) == 2 * CELL
