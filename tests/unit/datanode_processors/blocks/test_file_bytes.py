"""Whole writes and whole reads, where the kernel takes or gives less than it was asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.blocks.file_bytes import MAX_VECTORS, block_error, read_fully, write_fully
from schemas.stream_errors import DISK_FULL, FAILED

BUFFERS = [bytes([65 + number % 26]) * (number % 5) for number in range(2 * MAX_VECTORS + 3)]
WHOLE = b"".join(BUFFERS)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.fixture
def stingy(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what has the kernel move at most so many bytes at a time."""
    pwrite, pread = os.pwrite, os.pread

    def limit(most: int) -> None:
        def write_some(descriptor: int, buffers: Any, offset: int) -> int:
            assert 0 < len(buffers) <= MAX_VECTORS
            return pwrite(descriptor, b"".join(buffers)[:most], offset)

        monkeypatch.setattr(os, "pwritev", write_some)
        monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:most], offset))
        monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, most), offset))

    return limit


@pytest.mark.parametrize("most", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("offset", [0, 5])
def test_bytes_are_written_and_read_whole_however_little_is_taken(
    descriptor: int, stingy: Callable[[int], None], most: int, offset: int
):
    stingy(most)
    os.ftruncate(descriptor, offset)
    write_fully(descriptor, BUFFERS, offset)
    assert os.fstat(descriptor).st_size == offset + len(WHOLE)
    assert read_fully(descriptor, offset, len(WHOLE)) == WHOLE
    assert read_fully(descriptor, offset + 3, 4) == WHOLE[3:7]
    assert read_fully(descriptor, offset, len(WHOLE) + 9) == WHOLE, "to the file's end"
    assert read_fully(descriptor, offset + len(WHOLE), 9) == b""


@pytest.mark.parametrize("buffers", [[], [b""], [b"one"], [b"one", b"", b"two"]])
def test_few_buffers_are_written_too(descriptor: int, buffers: list[bytes]):
    write_fully(descriptor, buffers, 0)
    assert read_fully(descriptor, 0, 100) == b"".join(buffers)


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, DISK_FULL), (errno.EDQUOT, DISK_FULL), (errno.EFBIG, DISK_FULL), (errno.EIO, FAILED)],
)
def test_a_disk_without_room_is_told_from_one_that_fails(number: int, code: str):
    error = block_error(OSError(number, "as the kernel says"), "write", Path("/somewhere/1.block"))
    assert (error.code, str(error).endswith("write /somewhere/1.block: as the kernel says")) == (code, True)


@pytest.mark.parametrize(
    ("count", "calls"), [(0, []), (1, [1]), (2, [2]), (MAX_VECTORS, [MAX_VECTORS]), (MAX_VECTORS + 1, [MAX_VECTORS, 1])]
)
def test_buffers_go_to_the_kernel_together(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, count: int, calls: list[int]
):
    pwrite, pwritev = os.pwrite, os.pwritev
    given: list[int] = []

    def write_one(descriptor: int, data: Any, offset: int) -> int:
        given.append(1)
        return pwrite(descriptor, data, offset)

    def write_many(descriptor: int, buffers: Any, offset: int) -> int:
        given.append(len(buffers))
        return pwritev(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwrite", write_one)
    monkeypatch.setattr(os, "pwritev", write_many)
    write_fully(descriptor, [b"ab"] * count, 0)
    assert given == calls
    assert read_fully(descriptor, 0, 1000) == b"ab" * count
