"""Committing a block's length: PutBlock until a member accepts it, then the watch (design, section 8).

What belongs here: the requests to a pipeline's members, their order, and how long to wait. The rules:

1. PutBlock goes to the member that led last, else to the nearest; any member forwards it. A NOT_LEADER with a hint is
   followed. After any other passing error the next member is tried, until the deadline. PutBlock may be repeated.
   While a member fails it may be the leader: then the first is asked for PUT_AGAIN_MS only, as another may lead by
   now, and each further one for twice as long, PUT_TIMEOUT_MS at most: those who answer slowly are waited for in the
   end.
2. The watch asks every member itself, at once. It waits for ALL until ``watch_timeout_ms``; then a MAJORITY of the
   pipeline's members will do. It does not wait for members that are known to fail, but they count among the members.
3. If no majority satisfies the watch, PutBlock is sent again. The entry may be lost, or a leader that was deposed may
   have appended it (early close is what makes this likely).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from producers.blocks.block_tokens import NO_TOKENS, TokenSource
from producers.blocks.core.stream_recovery import OF_THE_BLOCK
from producers.blocks.core.write_ways import PATHS_AFTER, WayLeft
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import Datanodes
from producers.blocks.stream_options import StreamOptions
from producers.errors import UNREACHABLE, DatanodeError
from schemas.records.datanode import BlockCommitted, BlockWatched, Member, PutBlock, WatchBlock
from schemas.records.packets import CELL_BYTES
from schemas.records.rows import BlockLocation
from schemas.stream_errors import (
    BAD_FRAME,
    CHECKSUM_MISMATCH,
    NOT_LEADER,
    TIMED_OUT,
    WRONG_CLUSTER,
)
from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline

NOT_REACHED = frozenset({UNREACHABLE, TIMED_OUT, BAD_FRAME, WRONG_CLUSTER})
"""After these errors the datanode may be somewhere else: another one listens at its address, or none does."""
PAUSES = Backoff(first_s=0.02, last_s=0.5)
PUT_TIMEOUT_MS = 6_000
"""How long one member may take to answer PutBlock before the next one is asked: a leader that hangs is replaced
meanwhile.
"""
PUT_AGAIN_MS = 2_000
"""The same at first while a member fails: the one that is asked may wait for a leader that another has replaced."""
PATIENCE = Backoff(PUT_AGAIN_MS / 1000, PUT_TIMEOUT_MS / 1000)
GRACE_MS = 1_000
"""The client waits for an answer this much longer than the time-out in its request."""


class BlockCommitter:
    """Commits lengths of one block; used by one thread at a time.

    ``members`` is the writer's own list, in order of nearness; it changes when a member has moved. ``failing`` has the
    names of the members that fail, as the writer found; names are added here too. ``moved`` is called when a member
    cannot be reached: it returns whether any member is somewhere else by now, and updates both.
    """

    def __init__(
        self, location: BlockLocation, pipeline: PipelineView, members: Sequence[Member], datanodes: Datanodes,
        options: StreamOptions, failing: set[str], *, moved: Callable[[], bool] = lambda: False,
        tokens: TokenSource = NO_TOKENS,
    ) -> None:  # fmt: skip
        self._location = location
        self._tokens = tokens
        self._block = (location.container_id, location.local_id)
        self._pipeline = pipeline
        self._members = members
        self._moved = moved
        self._datanodes = datanodes
        self._options = options
        self._failing = failing
        self._leader = ""
        """The member that accepted the last PutBlock, or that was named as the leader."""
        self.fell_to_majority = 0
        """Watches that ended with a majority only."""
        self.puts = 0
        """PutBlock requests that were answered."""

    def request(self, length: int, checksums: bytes, *, wait_effective: bool = True) -> PutBlock:
        """Return the PutBlock of a length."""
        return PutBlock(
            partition=self._pipeline.partition, container_id=self._location.container_id,
            local_id=self._location.local_id, length=length, bytes_per_checksum=CELL_BYTES, checksums=checksums,
            wait_effective=wait_effective,
        )  # fmt: skip

    def put(self, length: int, checksums: bytes, deadline: Deadline, *, wait_effective: bool = True) -> BlockCommitted:
        """Commit ``length`` bytes; raises DatanodeError if no member accepts them before the deadline, or ever will."""
        request = self.request(length, checksums, wait_effective=wait_effective)
        turn = paused = 0
        while True:
            # Members that are known to fail are asked last.
            members = sorted(self._members, key=lambda member: member.datanode in self._failing)
            member = self._named(self._leader) or members[turn % len(members)]
            try:
                patience_ms = PATIENCE.pause_ms(turn + 1) if self._failing else PUT_TIMEOUT_MS
                timeout_ms = max(deadline.sooner(patience_ms / 1000).left_ms, 1)
                answer = self._datanodes.ask(
                    member, request, BlockCommitted, timeout_ms=timeout_ms, tokens=self._tokens.of(self._block)
                )  # fmt: skip
            except DatanodeError as error:
                self._tokens.refused(self._block, error.status)
                if error.status in OF_THE_BLOCK:
                    raise
                pause_s = PAUSES.pause_s(paused + 1)
                if not deadline.has_room_for(pause_s):
                    raise
                hinted = self._named(error.hint) if error.status == NOT_LEADER else None
                followed = hinted is not None and hinted.datanode != self._leader
                self._leader = hinted.datanode if followed and hinted is not None else ""
                turn += 1
                if error.status in NOT_REACHED:
                    self._moved()
                if not followed:
                    time.sleep(pause_s)
                    paused += 1
            else:
                self._leader = member.datanode
                self.puts += 1
                return answer

    def _named(self, hint: str) -> Member | None:
        return next((member for member in self._members if hint in {member.datanode, member.address}), None)

    def watch(self, length: int, bcs_id: int, deadline: Deadline) -> bool:
        """Wait until all members, or after a time a majority, hold ``length`` bytes; return whether a majority does.

        Returns False early if every member has answered and the answer is no.
        """
        waited_for = [member for member in self._members if member.datanode not in self._failing]
        timeout_ms = self._options.watch_timeout_ms
        if len(waited_for) >= self._pipeline.majority:
            satisfied = self._ask(waited_for, length, bcs_id, timeout_ms, need=len(waited_for))
            if len(satisfied) >= self._pipeline.majority:
                if len(satisfied) < len(self._members):
                    self.fell_to_majority += 1
                # A member that was too slow once is not waited for again in this block.
                self._failing.update(member.datanode for member in waited_for if member.datanode not in satisfied)
                return True
        if deadline.has_passed:
            return False
        self._moved()
        left_ms = max(deadline.sooner(timeout_ms / 1000).left_ms, 1)
        again = self._ask(self._members, length, bcs_id, left_ms, need=self._pipeline.majority)
        if len(again) >= self._pipeline.majority:
            self.fell_to_majority += 1
            return True
        return False

    def _ask(self, members: Sequence[Member], length: int, bcs_id: int, timeout_ms: int, *, need: int) -> set[str]:
        request = WatchBlock(
            partition=self._pipeline.partition, container_id=self._location.container_id,
            local_id=self._location.local_id, length=length, bcs_id=bcs_id, timeout_ms=timeout_ms,
        )  # fmt: skip

        def satisfied(outcomes: Mapping[str, BlockWatched | DatanodeError]) -> set[str]:
            return {
                name for name, outcome in outcomes.items() if isinstance(outcome, BlockWatched) and outcome.satisfied
            }

        outcomes = self._datanodes.ask_all(
            members, request, BlockWatched, timeout_ms=timeout_ms + GRACE_MS,
            enough=lambda so_far: len(satisfied(so_far)) >= need,
        )  # fmt: skip
        found = satisfied(outcomes)
        for outcome in outcomes.values():
            refused = isinstance(outcome, DatanodeError) and outcome.status in OF_THE_BLOCK - {CHECKSUM_MISMATCH}
            if refused and isinstance(outcome, DatanodeError) and len(found) < self._pipeline.majority:
                raise outcome
        return found

    def make_durable(
        self, length: int, checksums: bytes, *, timeout_ms: int, committed: BlockCommitted | None = None
    ) -> BlockCommitted:
        """Commit and watch ``length`` bytes, as rule 3 says; return the index of the entry that committed them.

        ``committed`` is the answer to a PutBlock that was already sent. Raises DatanodeError.
        """
        deadline = Deadline.after_ms(timeout_ms)
        path = self._options.path
        while True:
            if committed is None:
                committed = self.put(length, checksums, deadline, wait_effective=path.waits_effective)
            if self.watch(length, committed.bcs_id, deadline):
                return committed
            if deadline.has_passed:
                where = f"block {self._location.container_id}/{self._location.local_id} on {self._pipeline.pipeline}"
                raise DatanodeError(
                    TIMED_OUT, f"no majority of replicas holds {length} bytes of {where} after {timeout_ms} ms"
                )
            committed, path = None, PATHS_AFTER[WayLeft.NOT_WATCHED]
            time.sleep(PAUSES.first_s)
