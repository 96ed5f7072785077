"""One block's file: writing, storing under the fsync policy, cutting, deleting. ``block_state`` has its state.

Only :meth:`BlockFile.cut` (reclaim) truncates the file.
"""

from __future__ import annotations

import errno
import os

from datanode_processors.blocks.block_state import CLEAN, BlockState
from datanode_processors.blocks.containers import Container
from datanode_processors.blocks.core.checksums import CellChecksums
from datanode_processors.blocks.file_bytes import Packets, block_error, write_fully
from datanode_processors.blocks.fsync import CLOSE, NEVER, WRITEBACK_BYTES, begin_writeback
from datanode_processors.blocks.space import DiskSpace
from datanode_processors.errors import BlockError
from schemas.stream_errors import BLOCK_DELETED, CONTAINER_CLOSED, FAILED

FILE_MODE = 0o640
OPEN_ATTEMPTS = 10
"""How often the container's directory of a new file may vanish before that is an error."""


class BlockFile(BlockState):
    """The state of one block and its file. Call ``load`` first.

    A BlockFile is made before its file is; the store may drop it and make it again.
    """

    __slots__ = ()

    # ------------------------------------------------------------------------------------------ finding it again

    def load(self) -> None:
        """Look at the file, once.

        Nothing of a file that is found is durable yet: nobody knows whether it has been fsynced.
        """
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
        """Treat all checksums as unknown: the file was found to hold other bytes than were written.

        A block whose file was cut or removed ends from now on where the file ends. Call with ``lock``; raises
        BlockError FAILED.
        """
        self.cells.forget(0, self.written)
        if not self.exists or self.writer is not None:  # a writer holds the file's descriptor: it ends first
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

    def stored(self) -> int:
        """Return how many bytes are readable and stored under the fsync policy.

        The first call for a file that was found on disk reads it (which computes its checksums) and fsyncs it. Raises
        BlockError.
        """
        if not self._settled:
            self.learn(self.written)
            self.flush()
            self._settled = True
        return self.written if self.fsync == NEVER else min(self.durable, self.written)

    # --------------------------------------------------------------------------------------------------- writing

    def open(self) -> int:
        """Open the file for writing; call with ``lock``.

        The file and its container's directory are made if they are missing.
        """
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
            except FileNotFoundError:  # no such container yet, or its last block was deleted just now
                self._containers.make_directory(self._known_container())
        raise FileNotFoundError(errno.ENOENT, "its directory keeps going away")

    def _known_container(self) -> Container:
        """Return the container of a file that exists, or is about to be made."""
        if self._container is None:
            self._container = self._containers.find(self.key[0])
        return self._container

    def put(self, descriptor: int, offset: int, packets: Packets, space: DiskSpace) -> None:
        """Write packets one after the other from ``offset`` on; call with ``lock``.

        After an error the bytes stored before are unchanged, except where these packets overwrite them. Raises
        BlockError DISK_FULL or FAILED.
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

    def flush(self, descriptor: int | None = None, *, always: bool = False) -> None:
        """Have everything written so far stored under the fsync policy, or ``always`` by an fsync; raises BlockError.

        After an fsync that failed, the kernel may have dropped what it could not store, and not say so the next time.
        So bytes that were not durable before count as lost, and have to be written again.
        """
        if self.fsync == NEVER and not always:
            return
        with self.flush_lock:
            if (target := self.begin_flush()) is None:
                return
            try:
                self._store(descriptor)
            except OSError as error:
                raise self.flush_failed(error, descriptor) from error
            self.flushed(target)

    def begin_flush(self) -> int | None:
        """Return the length that an fsync covers which begins now, None if none is needed; call with ``flush_lock``."""
        with self.lock:
            if not self.exists or (self.dirty_from == CLEAN and self._linked):
                return None
            self.dirty_from = CLEAN
            return self.written

    def flushed(self, target: int) -> None:
        """Note that file and entry are stored up to what ``begin_flush`` returned; call with ``flush_lock``."""
        with self.lock:
            self._linked = True
            self.durable = max(self.durable, min(target, self.dirty_from))

    def flush_failed(self, error: OSError, descriptor: int | None) -> BlockError:
        """Note that an fsync failed, and return the error; call with ``flush_lock``."""
        with self.lock:
            self._lose(descriptor)
        return block_error(error, "fsync", self.path)

    @property
    def linked(self) -> bool:
        """Whether the file's entry in its directory is known to be stored."""
        return self._linked

    def link(self) -> None:
        """Have the entry of the block's container stored; raises OSError."""
        self._containers.link(self._known_container())

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
        """Count only durable bytes as written; call with ``lock``."""
        self.cells.cut(self.durable)
        self.dirty_from = self.durable
        if self.writer is not None:
            self.writer.end(
                FAILED, f"{self.path}: an fsync failed, what follows {self.durable} has to be written again"
            )
        if descriptor is not None:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    # --------------------------------------------------------------------------------------- cutting and deleting

    def cut(self, length: int) -> None:
        """Keep the first ``length`` bytes, and end a stream that still writes. Raises BlockError FAILED."""
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
        """Remove the file, and end a stream that still writes; nothing happens if there is none.

        Raises BlockError FAILED.
        """
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
            self.dirty_from = CLEAN
