"""Writes whole small blocks together: their bytes, then as few waits for the disk as the kernel allows.

The rules:

1. Each block has its own writer (``block_writer``), so what protects a block from other streams protects it here. What
   fails for one block fails for no other.
2. The files are fsynced at the same time, one by the exchange's own thread and the others by FSYNC_THREADS threads that
   all exchanges of the store share: the kernel stores files whose fsyncs overlap with one commit of its journal. Then
   each directory is fsynced once.
3. A block counts as stored as under ``BlockFile.flush``: when its own fsync and its directory's have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TypeAlias

from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.block_writer import BlockFileWriter
from datanode_processors.blocks.fsync import NEVER
from datanode_processors.errors import BlockError

FSYNC_THREADS = 16
"""Files of one store that are fsynced at once, beside one by the thread of each exchange."""


BlockCells: TypeAlias = tuple[int, int, Sequence[tuple[memoryview, int]]]
"""A whole block: container id, local id, and its cells, each with its CRC32C, which the caller has verified."""


class BlocksTogether:
    """Writes blocks of one store together; for many threads."""

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._threads = ThreadPoolExecutor(FSYNC_THREADS, thread_name_prefix="fsync")

    def write(
        self, blocks: Sequence[BlockCells], bytes_per_checksum: int, alive: Callable[[], bool]
    ) -> list[BlockError | None]:
        """Write blocks and have them stored under the fsync policy; return what went wrong with each, None if nothing.

        ``alive`` says whether the exchange still lives, if a stream wants one of the blocks.
        """
        outcomes: list[BlockError | None] = [None] * len(blocks)
        writers: dict[int, BlockFileWriter] = {}
        try:
            for number, (container_id, local_id, cells) in enumerate(blocks):
                try:
                    writers[number] = self._blocks.open_writer(
                        container_id, local_id, 0, bytes_per_checksum, alive=alive
                    )
                    writers[number].write_packets(0, cells)
                except BlockError as error:
                    outcomes[number] = error
            written = {number: writer for number, writer in writers.items() if outcomes[number] is None}
            self._flush(written, outcomes)
        finally:
            for writer in writers.values():
                writer.close()
        return outcomes

    def _flush(self, writers: dict[int, BlockFileWriter], outcomes: list[BlockError | None]) -> None:
        if self._blocks.fsync == NEVER:
            return
        held: list[tuple[int, BlockFile, int]] = []
        for number, writer in writers.items():
            try:
                held.append((number, *writer.held()))
            except BlockError as error:
                outcomes[number] = error
        with ExitStack() as locks:
            # All take these locks in one order; whoever else flushes a block holds its lock alone.
            for block in sorted({id(block): block for _, block, _ in held}.values(), key=lambda block: block.key):
                locks.enter_context(block.flush_lock)
            due = [(number, block, descriptor, block.begin_flush()) for number, block, descriptor in held]
            self._store([one for one in due if one[3] is not None], outcomes)

    def _store(self, due: Sequence[tuple[int, BlockFile, int, int | None]], outcomes: list[BlockError | None]) -> None:
        failures = self._fsync_all([descriptor for _, _, descriptor, _ in due])
        containers: dict[int, OSError | None] = {}
        for (number, block, descriptor, target), failure in zip(due, failures, strict=True):
            error = failure
            if error is None and not block.linked:
                container_id = block.key[0]
                if container_id not in containers:
                    containers[container_id] = self._link(block)
                error = containers[container_id]
            if error is not None:
                outcomes[number] = block.flush_failed(error, descriptor)
            elif target is not None:
                block.flushed(target)

    def _fsync_all(self, descriptors: Sequence[int]) -> list[OSError | None]:
        """Fsync files at the same time; return what went wrong with each, None if nothing."""
        others = [self._threads.submit(self._fsync, descriptor) for descriptor in descriptors[1:]]
        own = [self._fsync(descriptor) for descriptor in descriptors[:1]]
        return [*own, *(other.result() for other in others)]

    def _fsync(self, descriptor: int) -> OSError | None:
        try:
            self._blocks.fsyncs.file(descriptor)
        except OSError as error:
            return error
        return None

    def _link(self, block: BlockFile) -> OSError | None:
        try:
            self._blocks.fsyncs.directory(block.path.parent)
            block.link()
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """Let the threads end."""
        with suppress(RuntimeError):
            self._threads.shutdown(wait=False)
