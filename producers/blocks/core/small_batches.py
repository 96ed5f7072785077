"""Which small blocks travel together, and when (decision 0067). Pure.

What belongs here: the blocks of one client that wait, by the way that they go. The rules:

1. Blocks go together if they go the same *way*: the same pipeline and members, by the same tree, with the same
   time-out. They leave in the order in which they came.
2. A batch has at most MAX_BLOCKS_TOGETHER blocks and MAX_BYTES_TOGETHER bytes.
3. A block that finds nothing under way leaves at once, alone; those that come meanwhile gather behind it. A further
   batch leaves beside others only if GATHERED_BLOCKS blocks or GATHERED_BYTES bytes have gathered: what an exchange
   costs is shared by its blocks. At most MAX_UNDER_WAY batches of one way are under way.
4. A way on which an exchange failed is closed for CLOSED_S, and twice as long each time it fails again, LAST_CLOSED_S
   at most: its blocks are written as streams, which find out what is wrong, and go on without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from schemas.records.packets import MAX_BLOCKS_TOGETHER, MAX_BYTES_TOGETHER
from transport.waiting.core.backoff import Backoff

MAX_UNDER_WAY = 4
"""Batches of one way that are under way at once."""
GATHERED_BLOCKS = 8
GATHERED_BYTES = 1024 * 1024
"""So many blocks, or bytes, leave as a batch although another is under way."""
CLOSED_S = 5.0
"""How long blocks are written as streams after an exchange has failed, in seconds."""
LAST_CLOSED_S = 60.0
CLOSINGS = Backoff(CLOSED_S, LAST_CLOSED_S)
MAX_WAYS = 1024
"""Ways that are remembered; those without blocks are forgotten beyond it."""


class Sized(Protocol):
    """A block that waits."""

    @property
    def length(self) -> int:
        """Its bytes."""


Block = TypeVar("Block", bound=Sized)


class _Way(Generic[Block]):
    __slots__ = ("closed_until_s", "failures", "under_way", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting: deque[Block] = deque()
        self.waiting_bytes = 0
        self.under_way = 0
        self.failures = 0
        """How often in a row the way was closed."""
        self.closed_until_s = float("-inf")


class SmallBatches(Generic[Block]):
    """The blocks that wait; its caller makes sure that one thread at a time calls it."""

    def __init__(self) -> None:
        self._ways: dict[Hashable, _Way[Block]] = {}

    def takes(self, way: Hashable, now_s: float) -> bool:
        """Return whether blocks may go this way now; rule 4."""
        found = self._ways.get(way)
        return found is None or now_s >= found.closed_until_s

    def add(self, way: Hashable, block: Block) -> None:
        """Have a block wait."""
        found = self._way(way)
        found.waiting.append(block)
        found.waiting_bytes += block.length

    def next_batch(self, way: Hashable) -> list[Block]:
        """Return the blocks that leave now, none if none waits or too many batches are under way; rules 2 and 3."""
        found = self._way(way)
        if not found.waiting or found.under_way >= MAX_UNDER_WAY:
            return []
        if found.under_way and len(found.waiting) < GATHERED_BLOCKS and found.waiting_bytes < GATHERED_BYTES:
            return []
        batch = [found.waiting.popleft()]
        size = batch[0].length
        while found.waiting and len(batch) < MAX_BLOCKS_TOGETHER:
            size += found.waiting[0].length
            if size > MAX_BYTES_TOGETHER:
                break
            batch.append(found.waiting.popleft())
        found.waiting_bytes -= sum(block.length for block in batch)
        found.under_way += 1
        return batch

    def on_ended(self, way: Hashable) -> None:
        """Note that a batch has ended well."""
        found = self._way(way)
        found.under_way -= 1
        found.failures = 0

    def on_failed(self, way: Hashable, now_s: float) -> list[Block]:
        """Note that a batch has failed as a whole; return the blocks that wait: they go as streams. Rule 4."""
        found = self._way(way)
        found.under_way -= 1
        if now_s >= found.closed_until_s:
            found.failures += 1
            found.closed_until_s = now_s + CLOSINGS.pause_s(found.failures)
        waiting, found.waiting, found.waiting_bytes = list(found.waiting), deque(), 0
        return waiting

    def _way(self, way: Hashable) -> _Way[Block]:
        found = self._ways.get(way)
        if found is None:
            if len(self._ways) >= MAX_WAYS:
                kept = {name: one for name, one in self._ways.items() if one.under_way or one.waiting}
                self._ways = kept
            found = self._ways[way] = _Way()
        return found
