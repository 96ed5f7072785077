"""The state of one block: length, checksums, how much of it is stored; and learning these by reading the file.

Three lengths, each at most the one before::

    file_bytes    the file's length; bytes beyond ``written`` are left over from a failed write and count for nothing
    written       bytes without a gap that were handed to the kernel; a stream may go on anywhere up to here
    durable       bytes that an fsync has covered since they were last written

Under the policy ``never`` the written bytes count as stored, otherwise the durable ones. Overwriting takes ``durable``
back to where the write began, until the next flush: until then a power loss may leave old bytes, new bytes or both.

``lock`` is held while bytes and checksums change together, never during an fsync; ``flush_lock`` during an fsync. Both
belong to this block alone. Order: ``flush_lock``, ``lock``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from crc32c import crc32c

from datanode_processors.blocks.containers import Container, Containers
from datanode_processors.blocks.core.checksums import CHECKSUM_BYTES, CellChecksums, cell_range
from datanode_processors.blocks.file_bytes import block_error, read_fully
from datanode_processors.blocks.fsync import FsyncCount
from datanode_processors.errors import BlockError
from schemas.records.packets import CELL_BYTES
from schemas.stream_errors import NO_SUCH_BLOCK

logger = logging.getLogger(__name__)

CLEAN = 1 << 63
"""Value of ``dirty_from`` while nothing is dirty."""


class WriterHold(Protocol):
    """What a block knows of the stream that writes it (``block_writer``)."""

    def end(self, code: str, message: str) -> None:
        """Have the writer's next call raise this error; call with the block's lock."""

    def is_dead(self) -> bool:
        """Return whether another stream may take the block over."""


class BlockState:
    """The state of one block; ``BlockFile`` changes it."""

    __slots__ = (
        "_container", "_containers", "_count", "_linked", "_settled", "cells", "committed", "dirty_from", "durable",
        "exists", "file_bytes", "flush_lock", "fsync", "key", "loaded", "lock", "path", "pins", "writer",
    )  # fmt: skip

    def __init__(self, key: tuple[int, int], containers: Containers, fsync: str, count: FsyncCount) -> None:
        self.key = key
        self.path = containers.file(*key)
        self.lock = Lock()
        self.flush_lock = Lock()
        self.cells = CellChecksums(CELL_BYTES)
        self.file_bytes = 0
        self.durable = 0
        self.committed = 0
        self.dirty_from = CLEAN
        self.exists = False
        self.loaded = False
        self.pins = 0
        self.writer: WriterHold | None = None
        self._container: Container | None = None
        self._containers = containers
        self.fsync = fsync
        self._count = count
        self._linked = False
        self._settled = True

    @property
    def container_closed(self) -> bool:
        """Whether the block's container takes no more bytes."""
        if self._container is None:
            self._container = self._containers.peek(self.key[0])
        return self._container is not None and self._container.closed

    @property
    def written(self) -> int:
        """Bytes without a gap that the file has."""
        return self.cells.length

    def _counted(self, *, blocks: int = 0, used_bytes: int = 0) -> None:
        if self._container is not None:
            self._container.add(blocks=blocks, used_bytes=used_bytes)

    def _resize(self, size: int) -> None:
        self._counted(used_bytes=size - self.file_bytes)
        self.file_bytes = size

    def look_again(self) -> None:
        """Have the next ``load`` look for the file again, if there was none so far."""
        with self.lock:
            self.loaded = self.exists

    def set_cell_bytes(self, cell_bytes: int) -> None:
        """Keep checksums of cells of this size from now on; call with ``lock``."""
        if cell_bytes != self.cells.cell_bytes:
            self.cells = CellChecksums(cell_bytes, self.cells.length)

    # --------------------------------------------------------------------------------------------------- reading

    def learn(self, length: int) -> None:
        """Read the cells below ``length`` whose checksums are unknown. Where reading fails, the
        block ends from now on.
        """
        with self.lock:
            unknown = self.cells.unknown(length)
        if not unknown:
            return
        with self.reader() as descriptor:
            for cell in unknown:
                with self.lock:  # nobody may write the cell meanwhile
                    if not self._learn(descriptor, cell):
                        return

    def _learn(self, descriptor: int, cell: int) -> bool:
        """Read one cell if its checksum is unknown; call with ``lock``. Returns whether it is known now, or gone."""
        if cell >= self.cells.cells or self.cells.is_known(cell):
            return True
        start, size = cell_range(cell, self.written, self.cells.cell_bytes)
        data = self._read(descriptor, start, size)
        if len(data) == size:
            self.cells.learn(cell, crc32c(data))
            return True
        self._end_at(start)
        return False

    def _read(self, descriptor: int, offset: int, size: int) -> bytes:
        """Read bytes; fewer than asked for where the file ends or the disk fails."""
        try:
            return read_fully(descriptor, offset, size)
        except OSError as error:
            logger.error("%s: reading %d bytes at %d failed: %s", self.path, size, offset, error.strerror)
            return b""

    def _end_at(self, length: int) -> None:
        logger.error("%s: only %d of %d bytes can be read", self.path, length, self.written)
        self.cells.cut(length)
        self.durable = min(self.durable, length)

    def checksums(self, length: int) -> bytes | None:
        """Return the packed checksums of the first ``length`` bytes, None if there are fewer bytes.

        Cells whose checksums are unknown are read.
        """
        if length > self.written:
            return None
        self.learn(length)
        with self.lock:
            start, size = cell_range(length // self.cells.cell_bytes, length, self.cells.cell_bytes)
            through = size > 0 and length < self.written
            again = self.cells.unknown(length)  # overwritten since
            if through or again:
                with self.reader() as descriptor:
                    if not all(self._learn(descriptor, cell) for cell in again):
                        return None
                    data = self._read(descriptor, start, size) if through else b""
            if length > self.written:
                return None
            if not through:
                return self.cells.packed(length)
            if len(data) < size:
                self._end_at(start)
                return None
            return self.cells.packed(length) + crc32c(data).to_bytes(CHECKSUM_BYTES, "big")

    @contextmanager
    def reader(self) -> Iterator[int]:
        """Open the file for reading, for as long as the context lasts. Raises BlockError NO_SUCH_BLOCK or FAILED."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BlockError(NO_SUCH_BLOCK, f"{self.path} is not stored here") from None
        except OSError as error:
            raise block_error(error, "open", self.path) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)
