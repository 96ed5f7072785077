"""Reading the cells of blocks from their files. The number of readers is limited; each holds one open file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from crc32c import crc32c

from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.blocks.file_bytes import block_error
from datanode_processors.errors import BlockError
from schemas.stream_errors import FAILED, OVERLOADED

MAX_READERS = 512
READ_BYTES = 512 * 1024
"""Bytes that are read at once (whole cells, at least one)."""


class CellReader:
    """The reader of one store; for many threads."""

    def __init__(self, max_readers: int = MAX_READERS) -> None:
        self._max_readers = max_readers
        self._lock = Lock()
        self._readers = 0

    def cells(
        self, block: BlockFile, start: int, stop: int, cell_bytes: int, *, from_disk: bool
    ) -> Iterator[tuple[int, memoryview, int]]:
        """Yield (offset, bytes, CRC32C of these bytes) of the cells in start..stop; ``start`` is where a cell begins.

        ``from_disk`` drops the range from the page cache before and after the read. Raises BlockError OVERLOADED,
        NO_SUCH_BLOCK, FAILED.
        """
        step = max(1, READ_BYTES // cell_bytes) * cell_bytes
        with self._reading(), block.reader() as descriptor:
            if from_disk:
                os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
            for offset in range(start, stop, step):
                size = min(step, stop - offset)
                try:
                    data = memoryview(os.pread(descriptor, size, offset))
                except OSError as error:
                    raise block_error(error, f"read {size} bytes at {offset} of", block.path) from error
                for at in range(0, size, cell_bytes):
                    cell = data[at : at + cell_bytes]
                    if len(cell) < min(cell_bytes, size - at):  # the file ends within this cell
                        break
                    yield offset + at, cell, crc32c(cell)
                if len(data) < size:
                    raise BlockError(FAILED, f"{block.path} can be read up to {offset + len(data)}, not to {stop}")
            if from_disk:
                os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            if self._readers >= self._max_readers:
                raise BlockError(OVERLOADED, f"{self._readers} blocks are being read, no more are taken")
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
