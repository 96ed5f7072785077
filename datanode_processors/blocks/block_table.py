"""The blocks that a store knows: those in use, and the state of idle ones, as far as there is room.

Limits: checksums of idle blocks are kept for the last MAX_IDLE_BLOCKS blocks and MAX_IDLE_CELLS cells; older ones are
read again when asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.errors import BlockError
from schemas.stream_errors import INVALID_REQUEST

MAX_IDLE_BLOCKS = 16_384
MAX_IDLE_CELLS = 1_000_000
"""4 MB of checksums: those of 64 GB in cells of 64 KiB."""
MAX_REMEMBERED_DELETIONS = 65_536
"""Deleted blocks that a stream which began earlier cannot make again; the pipeline has the tombstones of all others."""

Key = tuple[int, int]
"""(container id, local id)"""


class BlockTable:
    """The table of one store; for many threads. Its lock is not held during I/O."""

    def __init__(self, make: Callable[[Key], BlockFile], *, max_idle_cells: int = MAX_IDLE_CELLS) -> None:
        """``make`` returns the state of a block that is not known."""
        self._make = make
        self._max_idle_cells = max_idle_cells
        self._lock = Lock()
        self._busy: dict[Key, BlockFile] = {}
        self._idle: OrderedDict[Key, BlockFile] = OrderedDict()
        self._idle_cells = 0
        self._deleted: OrderedDict[Key, None] = OrderedDict()

    def pin(self, container_id: int, local_id: int) -> BlockFile:
        """Return a block's state, which is kept until it is unpinned; raises BlockError INVALID_REQUEST."""
        if container_id < 0 or local_id < 0:
            raise BlockError(INVALID_REQUEST, f"block {container_id}/{local_id}: ids are not negative")
        key = (container_id, local_id)
        with self._lock:
            block = self._busy.get(key)
            if block is None:
                block = self._idle.pop(key, None)
                if block is None:
                    block = self._make(key)
                else:
                    self._idle_cells -= block.cells.cells
                self._busy[key] = block
            block.pins += 1
        return block

    def unpin(self, block: BlockFile) -> None:
        """Let go of a block, once for each ``pin``."""
        with self._lock:
            block.pins -= 1
            if block.pins:
                return
            del self._busy[block.key]
            if not block.exists and not block.committed:
                return
            self._idle[block.key] = block
            self._idle_cells += block.cells.cells
            while self._idle_cells > self._max_idle_cells or len(self._idle) > MAX_IDLE_BLOCKS:
                _, oldest = self._idle.popitem(last=False)
                self._idle_cells -= oldest.cells.cells

    @contextmanager
    def held(self, container_id: int, local_id: int) -> Iterator[BlockFile]:
        """Give a block's state, with its file looked at, for as long as the context lasts; raises BlockError."""
        block = self.pin(container_id, local_id)
        try:
            block.load()
            yield block
        finally:
            self.unpin(block)

    def of_container(self, container_id: int) -> list[BlockFile]:
        """Return the known blocks of a container."""
        with self._lock:
            known = [*self._idle.values(), *self._busy.values()]
        return [block for block in known if block.key[0] == container_id]

    def on_deletion(self, key: Key) -> None:
        """A block is deleted: no stream makes it again."""
        with self._lock:
            self._deleted[key] = None
            while len(self._deleted) > MAX_REMEMBERED_DELETIONS:
                self._deleted.popitem(last=False)

    def is_deleted(self, key: Key) -> bool:
        """Whether a block was deleted, as far as deletions are remembered."""
        with self._lock:
            return key in self._deleted
