"""The blocks that a datanode stores: files, their checksums, and who writes them.

How to use it
    1. ``open_writer`` for a stream, ``write`` its packets, ``flush`` before they are acknowledged, ``close`` in any
       case.
    2. ``stored_length`` and ``checksums`` say what a replica may answer for. The store's ``flush`` does the same as a
       writer's, for callers without a writer: a watch while the stream goes on.
    3. ``committed`` reports each PutBlock that was applied; ``reclaim`` and ``delete`` follow the pipeline's log.

What holds
    - Only ``reclaim`` truncates a block's file, and never below the committed length that is known here.
    - Streams do not overwrite bytes that are known to be committed (``block_writer``, rule 2).
    - ``stored_length`` covers only bytes without a gap, readable when they were last looked at, stored under the fsync
      policy; decision 0022 says what that promises. Whether they are the *right* bytes, the caller finds out by
      comparing ``checksums`` with the row's.
    - After an error, the bytes stored before can be read, and a stream can go on behind them.
    - One stream waits for another's disk only if both have the same block. Locks of the store itself are not held
      during I/O.

Limits: MAX_WRITERS and MAX_READERS hold one open file each. Checksums of blocks that nobody writes are kept for the
last MAX_IDLE_BLOCKS blocks and MAX_IDLE_CELLS cells; older ones are read again when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.blocks.block_table import MAX_IDLE_CELLS, BlockTable
from datanode_processors.blocks.block_writer import BlockFileWriter
from datanode_processors.blocks.cell_reader import MAX_READERS, CellReader
from datanode_processors.blocks.container_store import ContainerStore
from datanode_processors.blocks.core.checksums import CHECKSUM_BYTES, check_cell_bytes
from datanode_processors.blocks.file_bytes import block_error
from datanode_processors.blocks.fsync import CLOSE, FSYNC_POLICIES
from datanode_processors.errors import BlockError
from schemas.stream_errors import (
    BLOCK_DELETED,
    CONTAINER_CLOSED,
    INVALID_REQUEST,
    NO_SUCH_BLOCK,
    NOT_COMMITTED,
    OUT_OF_ORDER,
    OVERLOADED,
)

MAX_WRITERS = 512


class BlockStore(ContainerStore):
    """Blocks in ``DATA/containers``, and their containers as a whole. For many threads."""

    def __init__(
        self,
        folder: Path,
        *,
        fsync: str = CLOSE,
        reserve_bytes: int = 0,
        max_writers: int = MAX_WRITERS,
        max_readers: int = MAX_READERS,
        max_idle_cells: int = MAX_IDLE_CELLS,
    ) -> None:
        """Open the store in a datanode's folder.

        Raises ValueError for an unknown policy, BlockError if the disk refuses.
        """
        if fsync not in FSYNC_POLICIES:
            raise ValueError(f"fsync policy {fsync!r}; known are {', '.join(FSYNC_POLICIES)}")
        super().__init__(folder, reserve_bytes=reserve_bytes)
        self.fsync = fsync
        self._max_writers = max_writers
        self._lock = Lock()
        self._writers = 0
        self._table = BlockTable(
            lambda key: BlockFile(key, self._containers, self.fsync, self.fsyncs), max_idle_cells=max_idle_cells
        )
        self._reader = CellReader(max_readers)

    # ----------------------------------------------------------------------------------------------- bookkeeping

    def on_released(self, block: BlockFile) -> None:
        """Take note that a writer is closed; the writer calls this."""
        with self._lock:
            self._writers -= 1
        self._table.unpin(block)

    # --------------------------------------------------------------------------------------------------- writing

    def open_writer(
        self,
        container_id: int,
        local_id: int,
        offset: int,
        bytes_per_checksum: int,
        *,
        repair: bool = False,
        alive: Callable[[], bool] | None = None,
    ) -> BlockFileWriter:
        """Begin to write a block at ``offset``, at most its written length; no bytes are cut off.

        ``alive`` says, without waiting, whether the stream still lives when another stream wants the block. ``repair``
        is for bytes that were verified against the committed row: they may replace committed bytes, and go into a
        closed container.

        Raises BlockError: OUT_OF_ORDER (``offset`` of the error is the written length), OVERLOADED (another living
        stream writes the block, or MAX_WRITERS), CONTAINER_CLOSED, BLOCK_DELETED, INVALID_REQUEST, DISK_FULL, FAILED.
        """
        try:
            check_cell_bytes(bytes_per_checksum)
        except ValueError as error:
            raise BlockError(INVALID_REQUEST, str(error)) from None
        with self._lock:
            if self._writers >= self._max_writers:
                raise BlockError(OVERLOADED, f"{self._writers} blocks are being written, no more are taken")
            self._writers += 1
        try:
            block = self._table.pin(container_id, local_id)
        except BaseException:
            with self._lock:
                self._writers -= 1
            raise
        try:
            block.load()
            with block.lock:
                return self._take(block, offset, bytes_per_checksum, repair, alive)
        except BaseException:
            self.on_released(block)
            raise

    def _take(
        self, block: BlockFile, offset: int, bytes_per_checksum: int, repair: bool, alive: Callable[[], bool] | None
    ) -> BlockFileWriter:
        if self._table.is_deleted(block.key):
            raise BlockError(BLOCK_DELETED, f"{block.path} has been deleted")
        if block.container_closed and not repair:
            raise BlockError(CONTAINER_CLOSED, f"container {block.key[0]} takes no more bytes")
        if block.writer is not None:
            if not block.writer.is_dead():
                raise BlockError(OVERLOADED, f"{block.path} is being written by another stream", block.written)
            block.writer.end(OUT_OF_ORDER, f"another stream has taken {block.path} over")
        if not 0 <= offset <= block.written:
            raise BlockError(OUT_OF_ORDER, f"{block.path} has {block.written} bytes, not {offset}", block.written)
        block.set_cell_bytes(bytes_per_checksum)
        block.writer = writer = BlockFileWriter(
            block, offset, self.space, repair=repair, alive=alive, released=self.on_released
        )
        return writer

    def flush(self, container_id: int, local_id: int) -> int:
        """Have a block's written bytes stored under the fsync policy; returns ``stored_length``.

        Raises BlockError FAILED.
        """
        with self._table.held(container_id, local_id) as block:
            block.flush()
            return block.stored()

    # --------------------------------------------------------------------------------------------------- reading

    def written_length(self, container_id: int, local_id: int) -> int:
        """Return how far a stream may go on: bytes without a gap, stored or in the page cache.

        0 if there is no such file.
        """
        with self._table.held(container_id, local_id) as block:
            return block.written

    def stored_length(self, container_id: int, local_id: int) -> int:
        """Return how many bytes are readable, and stored under the fsync policy; 0 if there is no such file.

        For a file that was found at start, the first call reads and fsyncs it. Raises BlockError FAILED.
        """
        with self._table.held(container_id, local_id) as block:
            return block.stored()

    def checksums(
        self, container_id: int, local_id: int, length: int, bytes_per_checksum: int | None = None
    ) -> bytes | None:
        """Return the packed CRC32Cs of the first ``length`` bytes as written or read here; None if there are fewer.

        ``bytes_per_checksum`` is the row's (None: as the block was written; the usual one if that is not known). Raises
        BlockError.
        """
        with self._table.held(container_id, local_id) as block:
            with block.lock:
                if bytes_per_checksum is not None and block.writer is None:
                    block.set_cell_bytes(bytes_per_checksum)
                same = bytes_per_checksum in (None, block.cells.cell_bytes)
            if not same:  # a stream writes the block in cells of another size
                return self._read_checksums(block, length, bytes_per_checksum)
            return block.checksums(length)

    def _read_checksums(self, block: BlockFile, length: int, bytes_per_checksum: int | None) -> bytes | None:
        try:
            cells = self.read(*block.key, 0, length, bytes_per_checksum=bytes_per_checksum)
            return b"".join(crc.to_bytes(CHECKSUM_BYTES, "big") for _, _, crc in cells)
        except BlockError as error:
            if error.code == NOT_COMMITTED:
                return None
            raise

    def read(
        self,
        container_id: int,
        local_id: int,
        offset: int,
        length: int,
        *,
        bytes_per_checksum: int | None = None,
        end: int | None = None,
        from_disk: bool = False,
    ) -> Iterator[tuple[int, memoryview, int]]:
        """Iterate over (offset, bytes, CRC32C of these very bytes) of cells with bytes in [offset, offset + length).

        The caller verifies them against the committed row. The first cell is given whole. The last one ends where the
        range does, or, if ``end`` is given (the committed length), where the cell or the block does.
        ``bytes_per_checksum`` is the row's (None: as the block was written; the usual one if that is not known).
        ``from_disk`` drops the range from the page cache before and after the read. Raises BlockError: NO_SUCH_BLOCK,
        NOT_COMMITTED (there are fewer bytes), OVERLOADED, INVALID_REQUEST, FAILED.
        """
        with self._table.held(container_id, local_id) as block:
            cell_bytes = bytes_per_checksum or block.cells.cell_bytes
            written = block.written
            if not block.exists:
                raise BlockError(NO_SUCH_BLOCK, f"{block.path} is not stored here")
        start, stop = offset - offset % cell_bytes, offset + length
        if end is not None:
            if stop > end:
                raise BlockError(INVALID_REQUEST, f"{length} bytes at {offset} of {block.path}, which ends at {end}")
            stop = min(end, -(-stop // cell_bytes) * cell_bytes)
        if offset < 0 or length < 0:
            raise BlockError(INVALID_REQUEST, f"{length} bytes at {offset} of {block.path}")
        if stop > written:
            raise BlockError(NOT_COMMITTED, f"{block.path} has {written} bytes here, {stop} are asked for", written)
        return self._reader.cells(block, start, stop, cell_bytes, from_disk=from_disk)

    def forget_checksums(self, container_id: int, local_id: int) -> None:
        """Have a block read again before its checksums are given: its file was found to hold other bytes.

        If the file was cut or removed, the block's length is the file's from now on. Raises BlockError FAILED.
        """
        with self._table.held(container_id, local_id) as block, block.lock:
            block.forget_checksums()

    # --------------------------------------------------------------------------------------- following the log

    def committed(self, container_id: int, local_id: int, length: int) -> None:
        """A PutBlock of ``length`` has been applied: streams do not overwrite the bytes below. Waits for no disk."""
        block = self._table.pin(container_id, local_id)
        block.committed = max(block.committed, length)
        self._table.unpin(block)

    def reclaim(self, container_id: int, local_id: int, length: int) -> None:
        """Cut off bytes beyond the committed length of a closed block, and end its stream if there is one. Idempotent.

        Raises BlockError INVALID_REQUEST if ``length`` is below the committed length that is known, FAILED.
        """
        with self._table.held(container_id, local_id) as block:
            if length < block.committed:
                raise BlockError(INVALID_REQUEST, f"{block.path}: {block.committed} bytes are committed, not {length}")
            block.cut(length)
            block.flush()

    def delete(self, container_id: int, local_id: int, *, drop: bool = True) -> None:
        """Remove a block, and end its stream if there is one. Idempotent. Raises BlockError FAILED.

        With ``drop`` the container's directory is removed after its last block. Without it a copy keeps its rows, even
        if none of its files is left: its other blocks may have to be repaired. The removal is not fsynced: a file that
        is back after a loss of power is garbage, which ``blocks`` lists.
        """
        with self._table.held(container_id, local_id) as block:
            self._table.on_deletion(block.key)
            block.delete()
        if drop:
            self.drop_if_empty(container_id)

    def adopt_container(self, container_id: int, folder: Path) -> None:
        """Take a complete directory of a closed container's blocks over into the store (``transfer``).

        Raises BlockError; INVALID_REQUEST if the store has anything of that container already.
        """
        try:
            self._containers.adopt(container_id, folder)
        except FileExistsError:
            raise BlockError(INVALID_REQUEST, f"container {container_id} is stored here already") from None
        except OSError as error:
            raise block_error(error, "rename", folder) from error
        for block in self._table.of_container(container_id):
            block.look_again()
