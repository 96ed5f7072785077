"""Whole small blocks, written in one exchange with the datanodes, many of them together (decision 0067).

What belongs here: the shell around :class:`producers.blocks.core.small_batches.SmallBatches`. The rules:

1. Whoever has a whole small block asks :meth:`SmallBlocks.write`, which waits and returns the entry that committed the
   block once every member has applied and verified it. It returns None for anything else: then the caller writes
   the block as a stream, which begins anew. Both may be done to one block: all requests may be repeated.
2. A batch is one WriteBlocks to its root, on one of the client's kept connections, by one of MAX_SENDERS threads that
   all keys of the client share. A thread that waits for its block may leave at any time; its block goes on.
3. The root is the nearest member, and among equally near ones the one that led last.
4. The answer names the members whose watch is satisfied. If that is not all of them, the block goes rule 1's other
   way, where the client asks each member itself, and a majority will do after a time-out.
5. What follows a block is begun by the thread that carried out its exchange, for all blocks of the batch together, and
   only if the one who waits is still there. He then waits for its end, too.
6. While a member is silent (``Datanodes.silent``) no batch is sent: its blocks go rule 1's other way, without it. So do
   those that wait for an exchange already. A block that has waited for SUSPECT_AFTER_S has all members asked whether
   they are there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from producers.blocks.core.small_batches import SmallBatches
from producers.blocks.core.topology import nearest_first, spanning_tree
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import BlocksInParts, Datanodes
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError
from schemas.conversation.conversation import with_tokens
from schemas.records.datanode import Member, OpenBlocks, WholeBlock
from schemas.records.packets import CELL_BYTES
from schemas.records.rows import BlockLocation
from schemas.settings.table import Shape
from schemas.stream_errors import BAD_FRAME, TIMED_OUT
from transport.processes import begins_anew_in_forks
from transport.waiting.daemon_threads import DaemonThreads
from transport.waiting.deadline import Deadline

MAX_SENDERS = 8
"""Threads of one client that write small blocks."""
LOOK_S = 0.25
"""How often a thread that waits for its block looks whether it should go on waiting."""
SUSPECT_AFTER_S = 1.5
"""A block that waits longer has its members asked for a HELLO, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallWay:
    """How a block travels; blocks of one way go together."""

    partition: int
    addresses: tuple[tuple[str, str], ...]
    """Name and address of each member."""
    members: tuple[Member, ...] = field(compare=False)
    rack: str
    topology: Shape
    watch_timeout_ms: int


Follow = Callable[[int], "Future[Any] | None"]
"""Begins what follows a block, given its committed index, and returns the future of its end; None if nothing follows.

It raises nothing.
"""
Together = Callable[[], AbstractContextManager[object]]
"""In a block of it, what is begun leaves together."""


class _Whose(Enum):
    """Who may decide about a block that is being written."""

    WAITER = "it is waited for, and may be given up"
    FOLLOWER = "what follows it is under way, and is waited for to its end"
    NOBODY = "the one who waited has left"


@dataclass(slots=True, eq=False)
class WaitingBlock:
    """A block that waits, with its bytes; ``done`` gets the index of its entry, or None."""

    block: WholeBlock
    data: Sequence[bytes | bytearray | memoryview]
    done: Future[int | None]
    follow: Follow | None = None
    """What is begun when the block is committed: rule 5."""
    token: bytes = field(default=b"", repr=False)
    """What allows the block to be written, where that is demanded."""

    _whose: _Whose = _Whose.WAITER
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def length(self) -> int:
        """Bytes of the block."""
        return self.block.length

    @property
    def is_followed(self) -> bool:
        """Whether what follows the block is under way."""
        return self._whose is _Whose.FOLLOWER

    def leave(self) -> bool:
        """Stop waiting; return False if what follows the block is under way."""
        return self._pass_to(_Whose.NOBODY)

    def _pass_to(self, whose: _Whose) -> bool:
        with self._lock:
            if self._whose is _Whose.WAITER:
                self._whose = whose
            return self._whose is whose

    def end(self, bcs_id: int) -> None:
        """Tell that the block is committed; begin what follows it, and tell at its end."""
        if self.follow is not None and self._pass_to(_Whose.FOLLOWER):
            try:
                ending = self.follow(bcs_id)
            except BaseException:
                self.tell(bcs_id)
                raise
            if ending is not None:
                ending.add_done_callback(lambda _: self.tell(bcs_id))
                return
        self.tell(bcs_id)

    def tell(self, bcs_id: int | None) -> None:
        """Tell whoever waits, unless he was told already."""
        with suppress(InvalidStateError):
            self.done.set_result(bcs_id)


class SmallBlocks:
    """The small blocks of one client; for many threads."""

    def __init__(self, datanodes: Datanodes, together: Together = nullcontext) -> None:
        self._datanodes = datanodes
        self._together = together
        self._leaders: dict[int, str] = {}
        """The member that led a pipeline last, by its partition."""
        self.written = 0
        """Blocks that were written so."""
        self.batches = 0
        """Exchanges that were begun."""
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Have no block under way, and threads of this process."""
        self._lock = threading.Lock()
        self._batches: SmallBatches[WaitingBlock] = SmallBatches()
        self._senders = DaemonThreads(MAX_SENDERS, "stratolog-small")

    def write(
        self, location: BlockLocation, pipeline: PipelineView, data: Sequence[bytes | bytearray | memoryview],
        checksums: bytes, options: StreamOptions, still: Callable[[object], None], token: bytes = b"",
        follow: Follow | None = None,
    ) -> int | None:  # fmt: skip
        """Write a whole block; return the index of the entry that committed it, None if that did not go well.

        ``still`` is called while it is waited for, and may raise to end the wait. ``follow`` is begun once the block is
        committed, and its end is waited for; it is not begun if this returns None or raises.
        """
        length = sum(map(len, data))
        block = WholeBlock(
            container_id=location.container_id, local_id=location.local_id, length=length, checksums=checksums
        )
        way = SmallWay(
            partition=pipeline.partition, addresses=tuple((one.datanode, one.address) for one in pipeline.members),
            members=pipeline.members, rack=options.rack, topology=options.topology,
            watch_timeout_ms=options.watch_timeout_ms,
        )  # fmt: skip
        silent = self._datanodes.silent
        if silent.among(pipeline.members):
            return None
        waiting = WaitingBlock(block, data, Future(), follow, token)
        with self._lock:
            if not self._batches.takes(way, time.monotonic()):
                return None
            self._batches.add(way, waiting)
            batch = self._batches.next_batch(way)
        if batch and not self._begin(way, batch):
            return None
        try:
            return self._wait(waiting, pipeline, still)
        except BaseException:
            waiting.leave()
            raise

    def _wait(
        self, waiting: WaitingBlock, pipeline: PipelineView, still: Callable[[object], None]
    ) -> int | None:  # fmt: skip
        block, silent = waiting.block, self._datanodes.silent
        patience = Deadline.after_s(SUSPECT_AFTER_S)
        while True:
            try:
                return waiting.done.result(LOOK_S)
            except FutureTimeout:
                if waiting.is_followed:
                    continue
            if silent.among(pipeline.members) and waiting.leave():
                return None
            if patience.has_passed:
                patience = Deadline.never()
                silent.suspect(pipeline.members)
            try:
                still(f"block {block.container_id}/{block.local_id} is being written on {pipeline.pipeline}")
            except BaseException:
                if waiting.leave():
                    raise

    def _begin(self, way: SmallWay, batch: Sequence[WaitingBlock]) -> bool:
        """Have a thread send a batch; return False if there is none any more: the client is being closed."""
        try:
            self._senders.submit(self._send_all, way, batch)
        except RuntimeError:
            self._fail(way, batch)
            return False
        return True

    def _send_all(self, way: SmallWay, batch: Sequence[WaitingBlock]) -> None:
        """Send a batch, and what has gathered behind it."""
        if batch[0].done.done():
            return  # it was given up because no thread could be started, and one has come to it later
        while batch:
            try:
                self._send(way, batch)
            except DatanodeError:
                self._fail(way, batch)
                return
            except BaseException:
                self._fail(way, batch)
                raise
            with self._lock:
                self._batches.on_ended(way)
                batch = self._batches.next_batch(way)

    def _fail(self, way: SmallWay, batch: Sequence[WaitingBlock]) -> None:
        with self._lock:
            waiting = self._batches.on_failed(way, time.monotonic())
        for block in (*batch, *waiting):
            # Whoever waits for the end of what follows does so whatever became of the batch.
            if block.leave():
                block.tell(None)

    def _send(self, way: SmallWay, batch: Sequence[WaitingBlock]) -> None:
        """Carry out one exchange; raises DatanodeError if it fails as a whole."""
        root = self._root(way)
        if silent := self._datanodes.silent.among(way.members):
            raise DatanodeError(TIMED_OUT, "it is silent", datanode=min(silent), doing="WriteBlocks")
        opening = OpenBlocks(
            partition=way.partition, bytes_per_checksum=CELL_BYTES, watch_timeout_ms=way.watch_timeout_ms,
            blocks=[one.block for one in batch], routes=spanning_tree(way.members, root.datanode, way.topology),
        )  # fmt: skip
        opened = with_tokens(opening, b"".join(one.token for one in batch))
        request = BlocksInParts(opened, [part for one in batch for part in one.data])
        self.batches += 1
        answer = self._datanodes.ask_small(root, request)
        if len(answer.outcomes) != len(batch):
            said = f"{len(answer.outcomes)} outcomes of {len(batch)} blocks"
            raise DatanodeError(BAD_FRAME, said, datanode=root.datanode, doing="WriteBlocks")
        with self._lock:
            self._leaders[way.partition] = answer.leader
        whole = {member.datanode for member in way.members} <= set(answer.watched)
        with self._together():
            for one, outcome in zip(batch, answer.outcomes, strict=True):
                if whole and not outcome.code and outcome.bcs_id > 0:
                    self.written += 1
                    one.end(outcome.bcs_id)
                else:
                    one.tell(None)

    def _root(self, way: SmallWay) -> Member:
        members = nearest_first(random.sample(way.members, len(way.members)), way.rack)
        leader = self._leaders.get(way.partition, "")
        near = [member for member in members if member.rack == members[0].rack]
        return next((member for member in near if member.datanode == leader), members[0])

    def close(self) -> None:
        """Take no more blocks; what is under way ends."""
        self._senders.shutdown(wait=False)
