"""WriteBlocks at one datanode: whole small blocks, written, sent on, committed and watched in one exchange.

The steps, all on the thread of the connection:

1. The request is checked (``core/small_blocks``), and each block as the pipeline checks a stream's.
2. It is sent on to the children as it came, over connections that are kept. Meanwhile the blocks are written here and
   stored under the fsync policy.
3. The children's outcomes are joined with the own ones. A child that fails as a whole ends the exchange with
   DOWNSTREAM_FAILED, which names it; a client then writes each block as a stream, and the stream's recovery decides
   about that datanode.
4. The root commits what everyone has stored, by one PutBlocks. Then it asks every member of the tree, itself included,
   whether it has applied and verified that (WatchBlocks), and waits for ``watch_timeout_ms`` at most. The answer names
   those that have. Whoever is not named is asked by the client as after a stream.

A block is answered for as stored only if every datanode of the tree has its bytes, verified and stored under the fsync
policy; as committed only if its entry is in the pipeline's log and applied by the leader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.core.small_blocks import (
    STORED,
    SmallBlock,
    check_opening,
    child_error,
    joined,
    outcome_of,
    small_blocks,
)
from datanode_processors.wire.core.stream import Below, Place, patience_s, place_in, reached_at
from datanode_processors.wire.counters import Counters
from datanode_processors.wire.kept_peers import KeptPeers, PeerCall
from datanode_processors.wire.ports import PipelineRequests, SmallBlockFiles
from datanode_processors.wire.wire import opening_of
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.records.datanode import (
    BlockLength,
    BlockOutcome,
    BlocksCommitted,
    BlocksWatched,
    BlocksWritten,
    OpenBlocks,
    PutBlocks,
    Route,
    WatchBlocks,
    WriteBlocks,
)
from schemas.records.packets import SMALL_BLOCKS_VERSION, Frame
from transport.waiting.deadline import Deadline

MAX_WATCH_S = 5.0
"""How long an exchange waits for the watch at most: the client asks the others itself."""
GRACE_S = 1.0
"""A member's answer to a watch is waited for this much longer than the time-out in the request."""


class Steps:
    """How long the steps of one exchange have taken, in seconds by name (``counters.EXCHANGE_STEPS``)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since_s = time.monotonic()

    def ends(self, step: str) -> None:
        """Say that a step has ended, and the next one begins."""
        now_s = time.monotonic()
        self.seconds[step] = now_s - self._since_s
        self._since_s = now_s


class SmallBlockExchange:
    """The exchanges of one datanode; for many threads."""

    def __init__(
        self, *, name: str, cluster: str, limits: WireLimits, files: SmallBlockFiles | None, pipelines: PipelineRequests,
        counters: Counters, tls: WireTls | None = None,
    ) -> None:  # fmt: skip
        self._counters = counters
        self._name = name
        self._limits = limits
        self._files = files
        self._pipelines = pipelines
        self._knows_peers = tls is not None
        self._peers = KeptPeers(
            own=name, cluster=cluster, timeout_s=limits.exchange_timeout_s, tls=tls, version=SMALL_BLOCKS_VERSION
        )

    def close(self) -> None:
        """Close the connections that are kept."""
        self._peers.close()

    def write(self, frame: Frame, request: WriteBlocks, alive: Callable[[], bool]) -> BlocksWritten:
        """Carry out a request that came in ``frame``; raises BlockError if it is refused or failed as a whole."""
        if self._files is None:
            raise BlockError(stream_errors.INVALID_REQUEST, f"datanode {self._name} takes no small blocks together")
        opening = self._opening(request)
        place = place_in(opening.routes, self._name)
        if self._knows_peers:
            place = reached_at(place, partial(self._pipelines.address_of, opening.partition))
        blocks = list(small_blocks(opening, memoryview(request.data)))
        calls: list[PeerCall] = []
        steps = Steps()
        try:
            calls.extend(self._send_on(below, frame) for below in place.children)
            outcomes = self._store(opening, blocks, alive)
            steps.ends("store")
            for below, call in zip(place.children, calls, strict=True):
                outcomes = joined(outcomes, self._outcomes(call, below), below.datanode)
            if calls:
                steps.ends("below")
            return self._commit(opening, place, outcomes, steps)
        finally:
            for call in calls:
                call.abandon()
            self._counters.exchange(len(blocks), steps.seconds)

    def _opening(self, request: WriteBlocks) -> OpenBlocks:
        opening, _ = opening_of(request)
        check_opening(opening, len(request.data))
        return opening

    # -- bytes

    def _send_on(self, below: Below, frame: Frame) -> PeerCall:
        try:
            return self._peers.begin(
                below.datanode, below.address, lambda peer: peer.send_on(frame.payload, frame.header.crc)
            )
        except BlockError as error:
            raise child_error(below.datanode, error) from error

    def _outcomes(self, call: PeerCall, below: Below) -> Sequence[BlockOutcome]:
        try:
            answer = call.answer(patience_s(self._limits.exchange_timeout_s, below.height))
        except BlockError as error:
            raise child_error(below.datanode, error) from error
        return answer.outcomes if isinstance(answer, BlocksWritten) else ()

    def _store(
        self, opening: OpenBlocks, blocks: Sequence[SmallBlock], alive: Callable[[], bool]
    ) -> list[BlockOutcome]:
        """Write the blocks here that the pipeline takes; return what became of each."""
        outcomes = [self._checked(opening.partition, block) for block in blocks]
        taken = [number for number, outcome in enumerate(outcomes) if not outcome.code]
        assert self._files is not None  # noqa: S101 - asked first
        errors = self._files.write(
            [(blocks[number].block.container_id, blocks[number].block.local_id, blocks[number].cells)
             for number in taken],
            opening.bytes_per_checksum, alive,
        )  # fmt: skip
        for number, error in zip(taken, errors, strict=True):
            outcomes[number] = outcome_of(error)
        return outcomes

    def _checked(self, partition: int, small: SmallBlock) -> BlockOutcome:
        try:
            self._pipelines.check_stream(partition, small.block.container_id, small.block.local_id)
        except BlockError as error:
            return outcome_of(error)
        return STORED

    # -- commit and watch, at the root

    def _commit(
        self, opening: OpenBlocks, place: Place, outcomes: list[BlockOutcome], steps: Steps
    ) -> BlocksWritten:  # fmt: skip
        stored = [number for number, outcome in enumerate(outcomes) if not outcome.code]
        if not place.is_root or not stored:
            return BlocksWritten(datanode=self._name, leader="", outcomes=outcomes, watched=[])
        committed = self._pipelines.handle(
            PutBlocks(
                partition=opening.partition, bytes_per_checksum=opening.bytes_per_checksum,
                blocks=[opening.blocks[number] for number in stored],
            )
        )  # fmt: skip
        if not isinstance(committed, BlocksCommitted) or len(committed.outcomes) != len(stored):
            raise BlockError(stream_errors.FAILED, f"the leader answers PutBlocks with a {type(committed).__name__}")
        for number, outcome in zip(stored, committed.outcomes, strict=True):
            outcomes[number] = outcome
        steps.ends("commit")
        watched = self._watched(opening, outcomes)
        steps.ends("watch")
        return BlocksWritten(datanode=self._name, leader=committed.leader, outcomes=outcomes, watched=watched)

    def _watched(self, opening: OpenBlocks, outcomes: Sequence[BlockOutcome]) -> list[str]:
        """Return the members that have applied and verified all blocks that are committed."""
        done = [(block, outcome) for block, outcome in zip(opening.blocks, outcomes, strict=True) if not outcome.code]
        if not done:
            return []
        wait_s = min(max(opening.watch_timeout_ms, 0) / 1000, MAX_WATCH_S)
        request = WatchBlocks(
            partition=opening.partition, bcs_id=max(outcome.bcs_id for _, outcome in done),
            timeout_ms=int(wait_s * 1000),
            blocks=[
                BlockLength(container_id=block.container_id, local_id=block.local_id, length=block.length)
                for block, _ in done
            ],
        )  # fmt: skip
        deadline = Deadline.after_s(wait_s + GRACE_S)
        calls = [call for route in opening.routes if (call := self._ask_watch(route, request)) is not None]
        try:
            found = [self._name] if self._is_watched(lambda: self._pipelines.handle(request)) else []
            found += [call.datanode for call in calls if self._is_watched(partial(call.answer, deadline.left_s))]
        finally:
            for call in calls:
                call.abandon()
        return found

    def _ask_watch(self, route: Route, request: WatchBlocks) -> PeerCall | None:
        if route.datanode == self._name:
            return None
        try:
            address = route.address
            if self._knows_peers:
                address = self._pipelines.address_of(request.partition, route.datanode)
            return self._peers.begin(route.datanode, address, lambda peer: peer.begin(request))
        except BlockError:
            return None  # the client asks that member itself, and sees why it does not answer

    @staticmethod
    def _is_watched(ask: Callable[[], object]) -> bool:
        try:
            answer = ask()
        except BlockError:
            return False
        return isinstance(answer, BlocksWatched) and answer.satisfied
