"""One stream's hold on a block: only the block's writer writes it.

Rules:

1. A packet may begin at or below the end of the last one (or the offset at which the writer was opened), never beyond
   it.
2. Bytes below the committed length are not written again: they are compared with the stored ones, and have to be equal.
   A writer that repairs is exempt.
3. A writer ends by :meth:`BlockFileWriter.close`, or from outside. From outside: the block is deleted or reclaimed, its
   container is closed, an fsync failed, or another stream has taken the block over because this one is *dead*. A stream
   is dead if it is closed, if its opener says so, or if it was idle for STALE_WRITER_S. The writer's next call raises
   what ended it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Self

from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.blocks.file_bytes import Buffer, Packets, read_fully
from datanode_processors.blocks.fsync import PACKET
from datanode_processors.blocks.space import DiskSpace
from datanode_processors.errors import BlockError
from schemas.stream_errors import CHECKSUM_MISMATCH, CONTAINER_CLOSED, OUT_OF_ORDER, STOPPING

STALE_WRITER_S = 10.0
"""Seconds without a packet after which a newer stream of the same block may take it over."""


class BlockFileWriter:
    """Writes a block from the offset at which it was opened. For one thread; ``end`` may be called by others."""

    def __init__(
        self, block: BlockFile, offset: int, space: DiskSpace, *, repair: bool, alive: Callable[[], bool] | None,
        released: Callable[[BlockFile], None],
    ) -> None:  # fmt: skip
        """Open the block's file; call with the block's lock, through ``BlockStore.open_writer`` alone.

        ``released`` is called once, when the writer has closed the file.
        """
        self._block = block
        self._space = space
        self._released = released
        self._position = offset
        self._repair = repair
        self._alive = alive
        self._last_write = time.monotonic()
        self._ended: tuple[str, str] | None = None
        self._closed = False
        self._descriptor = block.open()

    @property
    def position(self) -> int:
        """Return where the stream goes on, in bytes."""
        return self._position

    def write(self, offset: int, data: Buffer, crc: int | None = None) -> None:
        """Write one packet. ``crc`` is its CRC32C, which the caller has verified (None: not known).

        Raises BlockError: OUT_OF_ORDER, DISK_FULL (the bytes stored before are intact), CHECKSUM_MISMATCH (rule 2),
        FAILED, or the error that ended the writer.
        """
        self.write_packets(offset, ((data, crc),))

    def write_packets(self, offset: int, packets: Packets) -> None:
        """Write packets one after the other from ``offset`` on, if possible in one system call; errors as ``write``."""
        block = self._block
        with block.lock:
            self._check(offset)
            self._last_write = time.monotonic()
            end = offset + sum(len(data) for data, _ in packets)
            if offset < block.committed and not self._repair:
                offset, packets = self._uncommitted(offset, packets)
            if packets:
                block.put(self._descriptor, offset, packets, self._space)
            self._position = max(self._position, end)
        if block.fsync == PACKET:
            block.flush(self._descriptor)

    def _check(self, offset: int) -> None:
        if self._ended is not None:
            raise BlockError(*self._ended, self._block.written)
        if self._block.container_closed and not self._repair:
            raise BlockError(CONTAINER_CLOSED, f"container {self._block.key[0]} takes no more bytes")
        limit = self._block.written if self._repair else min(self._position, self._block.written)
        if not 0 <= offset <= limit:
            raise BlockError(
                OUT_OF_ORDER, f"{self._block.path}: bytes at {offset}, where the stream goes on at {limit}", limit
            )

    def _uncommitted(self, offset: int, packets: Packets) -> tuple[int, Packets]:
        """Compare the bytes below the committed length with the stored ones (rule 2) and return the rest."""
        block = self._block
        data = memoryview(b"".join(bytes(data) for data, _ in packets))
        below = min(block.committed, block.written, offset + len(data)) - offset
        try:
            stored = read_fully(self._descriptor, offset, below)
        except OSError as error:
            stored = b""
            reason = error.strerror
        else:
            reason = "they differ from what is stored"
        if data[:below] != stored:
            raise BlockError(
                CHECKSUM_MISMATCH,
                f"{block.path}: {below} bytes at {offset} are committed and not written again: {reason}",
            )
        rest = data[below:]
        return offset + below, ((rest, None),) if rest else ()

    def flush(self) -> None:
        """Have everything written so far stored under the fsync policy: ``stored_length`` then covers it.

        Raises BlockError.
        """
        self._flush(always=False)

    def sync(self) -> None:
        """Have everything written so far fsynced under any policy. Raises BlockError."""
        self._flush(always=True)

    def _flush(self, *, always: bool) -> None:
        with self._block.lock:
            if self._ended is not None:
                raise BlockError(*self._ended, self._block.written)
        self._block.flush(self._descriptor, always=always)

    def held(self) -> tuple[BlockFile, int]:
        """Return the block and its open descriptor, to flush it together with others; raises what ended the writer."""
        with self._block.lock:
            if self._ended is not None:
                raise BlockError(*self._ended, self._block.written)
        return self._block, self._descriptor

    def close(self) -> None:
        """Let go of the block, without a flush. Any number of times."""
        with self._block.lock:
            if self._closed:
                return
            self._closed = True
            self._ended = self._ended or (STOPPING, f"the writer of {self._block.path} is closed")
            if self._block.writer is self:
                self._block.writer = None
        os.close(self._descriptor)
        self._released(self._block)

    def end(self, code: str, message: str) -> None:
        """Have the next call raise this error; call with the block's lock."""
        self._ended = self._ended or (code, message)

    def is_dead(self) -> bool:
        """Return whether another stream may take the block over (rule 3)."""
        if self._ended is not None or (self._alive is not None and not self._alive()):
            return True
        return time.monotonic() - self._last_write > STALE_WRITER_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
