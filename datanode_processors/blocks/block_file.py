"""One block's file and what is known of it: length, checksums, how much of it is stored under the fsync policy.

Three lengths, each at most the one before::

    file_bytes    what the file has; beyond ``written`` lies what a failed write left, it counts for nothing
    written       bytes without a gap that were handed to the kernel; a stream may go on anywhere up to here
    durable       bytes that an fsync has covered since they were last written

Under the policy ``never`` what is written counts as stored; otherwise what is durable does. Overwriting takes ``durable`` back to where
the write began, until the next flush: until then a power loss may leave old bytes, new bytes or both.

The file is never truncated but by :meth:`BlockFile.cut` (reclaim). ``lock`` is held while bytes and checksums change together, never
during an fsync; ``flush_lock`` during an fsync. Both belong to this block alone. Order: ``flush_lock``, ``lock``.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from crc32c import crc32c

from datanode_processors.blocks.containers import Container, Containers, block_name
from datanode_processors.blocks.core.checksums import CHECKSUM_BYTES, CellChecksums, cell_range
from datanode_processors.blocks.file_bytes import Packets, block_error, read_fully, write_fully
from datanode_processors.blocks.fsync import CLOSE, NEVER, WRITEBACK_BYTES, FsyncCount, begin_writeback
from datanode_processors.blocks.space import DiskSpace
from datanode_processors.errors import BlockError
from schemas.records.packets import CELL_BYTES
from schemas.stream_errors import BLOCK_DELETED, CONTAINER_CLOSED, FAILED, NO_SUCH_BLOCK

logger = logging.getLogger(__name__)

FILE_MODE = 0o640
OPEN_ATTEMPTS = 10
"""How often a new file meets its container's directory being removed before that is an error."""

_CLEAN = 1 << 63
"""Value of ``dirty_from`` while nothing is."""


class WriterHold(Protocol):
    """What a block knows of the stream that writes it (``block_writer``)."""

    def end(self, code: str, message: str) -> None:
        """Have the writer's next call raise this error; call with the block's lock."""

    def is_dead(self) -> bool:
        """Return whether another stream may take the block over."""


class BlockFile:
    """The state of one block; made before its file is, dropped and found again as the store likes. ``load`` comes first."""

    __slots__ = (
        "_container", "_containers", "_count", "_linked", "_settled", "cells", "committed", "dirty_from", "durable",
        "exists", "file_bytes", "flush_lock", "fsync", "key", "loaded", "lock", "path", "pins", "writer",
    )  # fmt: skip

    def __init__(self, key: tuple[int, int], containers: Containers, fsync: str, count: FsyncCount) -> None:
        self.key = key
        self.path = containers.path(key[0]) / block_name(key[1])
        self.lock = Lock()
        self.flush_lock = Lock()
        self.cells = CellChecksums(CELL_BYTES)
        self.file_bytes = 0
        self.durable = 0
        self.committed = 0
        self.dirty_from = _CLEAN
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

    # ------------------------------------------------------------------------------------------ finding it again

    def load(self) -> None:
        """Look at the file, once. Nobody knows whether a file that is found has been fsynced: nothing of it is durable yet."""
        with self.lock:
            if self.loaded:
                return
            try:
                found = os.stat(self.path).st_size
            except FileNotFoundError:
                self.loaded = True
                return
            except OSError as error:
                raise block_error(error, "look at", self.path) from error
            self.cells = CellChecksums(self.cells.cell_bytes, found)
            self.file_bytes = found
            self.dirty_from = 0
            self._container = self._containers.peek(self.key[0])
            self.exists = self.loaded = True
            self._settled = False

    def forget_checksums(self) -> None:
        """Believe nothing of what was written: the file was found to hold other bytes. One that was cut or removed ends where it ends now.

        Call with ``lock``; raises BlockError FAILED.
        """
        self.cells.forget(0, self.written)
        if not self.exists or self.writer is not None:  # a writer holds the file by its descriptor: it ends first
            return
        try:
            found = os.stat(self.path).st_size
        except FileNotFoundError:
            self._counted(blocks=-1)
            self.exists = self._linked = False
            found = 0
        except OSError as error:
            raise block_error(error, "look at", self.path) from error
        if found < self.file_bytes:
            self._resize(found)
            self.durable = min(self.durable, found)
            self.cells.cut(min(self.written, found))

    def look_again(self) -> None:
        """Have the next ``load`` look at the file, if there was none so far."""
        with self.lock:
            self.loaded = self.exists

    def set_cell_bytes(self, cell_bytes: int) -> None:
        """Keep checksums of cells of this size from now on; call with ``lock``."""
        if cell_bytes != self.cells.cell_bytes:
            self.cells = CellChecksums(cell_bytes, self.cells.length)

    def stored(self) -> int:
        """Return how many bytes are readable and stored under the fsync policy.

        The first call for a file that was found on disk reads it (which computes its checksums) and fsyncs it. Raises BlockError.
        """
        if not self._settled:
            self.learn(self.written)
            self.flush()
            self._settled = True
        return self.written if self.fsync == NEVER else min(self.durable, self.written)

    # --------------------------------------------------------------------------------------------------- writing

    def open(self) -> int:
        """Open the file to be written, and make it and its container's directory if they are not there; call with ``lock``."""
        new = not self.exists
        if new:
            self._container = self._containers.enter(self.key[0])
        try:
            descriptor = self._open_or_make()
        except OSError as error:
            if new:
                self._counted(blocks=-1)
            raise block_error(error, "open", self.path) from error
        self.exists = True
        return descriptor

    def _open_or_make(self) -> int:
        for _ in range(OPEN_ATTEMPTS):
            try:
                return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            except FileNotFoundError:  # no such container yet, or its last block was deleted this moment
                self._containers.make_directory(self._known_container())
        raise FileNotFoundError(errno.ENOENT, "its directory keeps going away")

    def _known_container(self) -> Container:
        """Return the container of a file that is there, or about to be."""
        if self._container is None:
            self._container = self._containers.find(self.key[0])
        return self._container

    def _counted(self, *, blocks: int = 0, used_bytes: int = 0) -> None:
        if self._container is not None:
            self._container.add(blocks=blocks, used_bytes=used_bytes)

    def put(self, descriptor: int, offset: int, packets: Packets, space: DiskSpace) -> None:
        """Write packets one behind the other from ``offset`` on; call with ``lock``. Raises BlockError DISK_FULL or FAILED.

        After an error what was stored before is as it was, but for bytes of these packets where they overwrite.
        """
        end = offset + sum(len(data) for data, _ in packets)
        if end > self.file_bytes:
            space.take(end - self.file_bytes, self.path)
        self.durable = min(self.durable, offset)
        self.dirty_from = min(self.dirty_from, offset)
        try:
            write_fully(descriptor, [data for data, _ in packets], offset)
        except OSError as error:
            self.cells.forget(offset, end)
            self._resize(os.fstat(descriptor).st_size)
            raise block_error(error, f"write {end - offset} bytes at {offset} of", self.path) from error
        begun, due = (at - at % WRITEBACK_BYTES for at in (offset, end))
        if due > begun and self.fsync == CLOSE:
            begin_writeback(descriptor, begun, due - begun)
        for data, crc in packets:
            self.cells.write(offset, data, crc)
            offset += len(data)
        if end > self.file_bytes:
            self._resize(end)

    def _resize(self, size: int) -> None:
        self._counted(used_bytes=size - self.file_bytes)
        self.file_bytes = size

    def flush(self, descriptor: int | None = None, *, always: bool = False) -> None:
        """Have everything written so far stored under the fsync policy, or ``always`` by an fsync; raises BlockError.

        After an fsync that failed the kernel may have dropped what it could not store and say nothing the next time, so what was not
        durable before counts as lost: it has to be written again.
        """
        if self.fsync == NEVER and not always:
            return
        with self.flush_lock:
            with self.lock:
                target = self.written
                if not self.exists or (self.dirty_from == _CLEAN and self._linked):
                    return
                self.dirty_from = _CLEAN
            try:
                self._store(descriptor)
            except OSError as error:
                with self.lock:
                    self._lose(descriptor)
                raise block_error(error, "fsync", self.path) from error
            with self.lock:
                self._linked = True
                self.durable = max(self.durable, min(target, self.dirty_from))

    def _store(self, descriptor: int | None) -> None:
        own = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC) if descriptor is None else descriptor
        try:
            self._count.file(own)
        finally:
            if descriptor is None:
                os.close(own)
        if not self._linked:
            self._count.directory(self.path.parent)
            self._containers.link(self._known_container())

    def _lose(self, descriptor: int | None) -> None:
        """What is not durable counts as not written; call with ``lock``."""
        self.cells.cut(self.durable)
        self.dirty_from = self.durable
        if self.writer is not None:
            self.writer.end(
                FAILED, f"{self.path}: an fsync failed, what follows {self.durable} has to be written again"
            )
        if descriptor is not None:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    # --------------------------------------------------------------------------------------------------- reading

    def learn(self, length: int) -> None:
        """Read the cells below ``length`` whose checksums are unknown. Where reading fails, the block ends from now on."""
        with self.lock:
            unknown = self.cells.unknown(length)
        if not unknown:
            return
        with self.reader() as descriptor:
            for cell in unknown:
                with self.lock:  # so that nobody writes the cell meanwhile
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
        """Read; fewer bytes than asked where the file ends or the disk fails."""
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
        """Return the packed checksums of the first ``length`` bytes, reading what is not known; None if there are fewer."""
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
        """Open the file to be read, for as long as the context lasts. Raises BlockError NO_SUCH_BLOCK or FAILED."""
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

    # --------------------------------------------------------------------------------------- cutting and deleting

    def cut(self, length: int) -> None:
        """Cut off what follows the first ``length`` bytes, and end a stream that still writes. Raises BlockError FAILED."""
        with self.flush_lock, self.lock:
            if not self.exists:
                return
            if self.writer is not None:
                self.writer.end(CONTAINER_CLOSED, f"{self.path} is closed at {self.committed} committed bytes")
            if self.file_bytes <= length:
                return
            try:
                os.truncate(self.path, length)
            except OSError as error:
                raise block_error(error, "cut", self.path) from error
            self.cells.cut(length)
            self.durable = min(self.durable, length)
            self.dirty_from = min(self.dirty_from, length)
            self._resize(length)

    def delete(self) -> None:
        """Remove the file, and end a stream that still writes; nothing happens if there is none. Raises BlockError FAILED."""
        with self.flush_lock, self.lock:
            if self.writer is not None:
                self.writer.end(BLOCK_DELETED, f"{self.path} has been deleted")
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise block_error(error, "delete", self.path) from error
            if self.exists:
                self._counted(blocks=-1, used_bytes=-self.file_bytes)
            self.cells = CellChecksums(self.cells.cell_bytes)
            self.exists = self._linked = False
            self.file_bytes = self.durable = self.committed = 0
            self.dirty_from = _CLEAN
