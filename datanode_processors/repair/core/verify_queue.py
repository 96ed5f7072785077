"""What a member is to verify next: blocks, containers to close, and pipelines to look through. Pure.

Rules:

1. Blocks come first, then containers, then pipelines; each once, in the order of the requests.
2. Work that follows from the log never waits for room: if a list is full, its pipeline is looked through as a whole
   later.
3. A pipeline with blocks for which the repairs had no room is looked through once they have.

For one thread at a time: the owner has a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from datanode_processors.repair.core.repairs import Place


@dataclass(frozen=True, slots=True)
class VerifyBlock:
    """Compare a block's bytes with its row."""

    partition: int
    key: bytes


@dataclass(frozen=True, slots=True)
class CloseHere:
    """Close a container in the store."""

    partition: int
    container_id: int


@dataclass(frozen=True, slots=True)
class LookThrough:
    """Compare the lengths of all committed blocks of a pipeline with their files."""

    partition: int


VerifyStep: TypeAlias = VerifyBlock | CloseHere | LookThrough


class VerifyQueue:
    """The queue of one datanode."""

    def __init__(self, limit: int) -> None:
        """Each list has room for ``limit`` entries."""
        self._limit = limit
        self._blocks: OrderedDict[VerifyBlock, None] = OrderedDict()
        self._containers: OrderedDict[CloseHere, None] = OrderedDict()
        self._pipelines: OrderedDict[LookThrough, None] = OrderedDict()
        self._left_out: set[int] = set()

    def __contains__(self, step: VerifyStep) -> bool:
        return step in self._blocks or step in self._containers or step in self._pipelines

    def verify(self, place: Place) -> None:
        """Have a block verified."""
        if len(self._blocks) >= self._limit:
            self.look_through(place[0])
        else:
            self._blocks[VerifyBlock(*place)] = None

    def close(self, partition: int, container_id: int) -> None:
        """Have a container closed in the store."""
        if len(self._containers) >= self._limit:
            self.look_through(partition)
        else:
            self._containers[CloseHere(partition, container_id)] = None

    def look_through(self, partition: int) -> None:
        """Have a pipeline looked through."""
        self._pipelines[LookThrough(partition)] = None

    def leave_out(self, partition: int) -> None:
        """The repairs had no room for one of a pipeline's blocks."""
        self._left_out.add(partition)

    def take_blocks(self, partition: int, limit: int) -> list[bytes]:
        """Return up to ``limit`` of the blocks that come next, as long as they are a pipeline's, and forget them."""
        keys: list[bytes] = []
        while len(keys) < limit and self._blocks and next(iter(self._blocks)).partition == partition:
            keys.append(self._blocks.popitem(last=False)[0].key)
        return keys

    def take(self, *, has_room: bool) -> VerifyStep | None:
        """Return the next task and forget it, None if there is none; ``has_room`` says that the repairs have room."""
        if self._blocks:
            return self._blocks.popitem(last=False)[0]
        if self._containers:
            return self._containers.popitem(last=False)[0]
        if has_room:
            for partition in sorted(self._left_out):
                self.look_through(partition)
            self._left_out.clear()
        return self._pipelines.popitem(last=False)[0] if self._pipelines else None
