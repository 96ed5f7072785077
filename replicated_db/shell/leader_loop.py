"""The shell around :class:`~replicated_db.core.leading.leader.Leader`: claims a shard and serves it.

One loop does everything for its shard, on the thread that calls it: it takes proposals, seals batches, appends, polls
reports, applies, replies. Batch sizes adapt by themselves: an idle leader seals what it has at once; a busy one lets
requests queue while a few batches are in flight.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Event, Lock
from typing import TYPE_CHECKING, Protocol

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.leading.leader import (
    Append,
    Deposed,
    Effective,
    Leader,
    LeaderLimits,
    Proposal,
    Reply,
    Service,
    Wait,
)
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import ANSWER_WAIT_S, Appender, AppendRefused, Clock, Ids, Log
from replicated_db.shell.claiming import Claimer
from replicated_db.shell.read_index import ReadIndex, ReadIndexes
from schemas.codecs.log_header import has_nonce
from schemas.records.log import RequestPosition

if TYPE_CHECKING:
    from replicated_db.shell.tracing.leader_spans import LeaderSpans

IDLE_WAIT_S = 0.25
"""How long an idle leader waits for a proposal at most; less if a barrier is due before.

It must turn within ``watchdog_ms``, and this is half of the shortest one. Readers, and who stops it, wake it.
"""

REPORT_WAIT_S = 0.002
PIPELINE_BATCH = 100
"""While a batch is in flight, the next one is sealed only once it holds this many requests (or is full)."""

QUIET_MS = 2_000
"""After this long without an append the follower fetches again: the leader would not notice another one's claim."""


class Intake(Protocol):
    """Where proposals come from."""

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return up to ``limit`` proposals; wait at most ``wait_s`` seconds for the first."""

    def wake(self) -> None:
        """End a wait in ``take``; for any thread."""

    def close(self) -> None:
        """Release what the intake has opened."""


def take_queued(waiting: queue.SimpleQueue[Proposal | None], limit: int, wait_s: float) -> list[Proposal]:
    """Do what ``Intake.take`` does, with a queue: wait at most ``wait_s`` seconds for the first proposal.

    None in the queue ends the wait.
    """
    taken: list[Proposal] = []
    with suppress(queue.Empty):
        first = waiting.get(timeout=wait_s) if wait_s else waiting.get_nowait()
        if first is not None:
            taken.append(first)
        while len(taken) < limit:
            if (more := waiting.get_nowait()) is not None:
                taken.append(more)
    return taken


class Publisher(Protocol):
    """Where reports go."""

    def publish(self, replica: Replica, outcome: Offered) -> None:
        """Publish what the outcome of a record asks for: digests at a barrier, evidence."""


class Outbox(Publisher, Protocol):
    """Where answers and reports go."""

    def reply(self, replies: Sequence[Reply]) -> None:
        """Send answers. Their batch is effective and applied, and was published just before."""


class LeaderLoop:
    """Leads one shard, for one claim after another. Call ``lead`` on the shard's thread, ``read_index`` on any."""

    def __init__(
        self, replica: Replica, log: Log, service: Service, limits: LeaderLimits, *,
        clock: Clock, ids: Ids, address: str, outbox: Outbox, intake: Callable[[RequestPosition | None], Intake],
        replicas: Sequence[str], on_settled: Callable[[Effective], None] = lambda _: None,
        spans: LeaderSpans | None = None,
    ) -> None:  # fmt: skip
        """``intake`` opens the intake of a claim, given the request that the replica applied last, if that is known."""
        self.replica = replica
        self.log = log
        self._limits = limits
        self._clock = clock
        self._outbox = outbox
        self._intake = intake
        self._replicas = replicas
        self._claimer = Claimer(
            replica, log, service, limits, clock=clock, ids=ids, address=address,
            on_turn=self._on_turn, on_offered=self._publish,
        )  # fmt: skip
        self._read_indexes = ReadIndexes(replica.identity.shard, self.wake)
        self._taking: Intake | None = None
        self._leader: Leader | None = None
        self._one_at_a_time = Lock()
        self._on_settled = on_settled
        self._spans = spans
        self._nonce = b""
        self._turned_ms = 0
        self._held: Sequence[Proposal] = ()
        self.leading = False
        self.on_rest: Callable[[bool], None] = lambda _: None
        """Called on the shard's thread and on that of :meth:`look`.

        True while the leader applies every record itself, so the follower need not fetch: each own append shows the
        leader what others appended before it. False when the leader has appended nothing for QUIET_MS, stands still, or
        leads no more.
        """
        self._rests = False
        self._appended_ms = 0
        self.times_led = 0
        """Claims that were won and then served. A claim does not count if the intake could not be opened."""
        self.batches = 0
        self.requests = 0

    # -- from any thread -------------------------------------------------------------------------------------------

    def read_index(self) -> Future[ReadIndex]:
        """Ask for a read index. Many askers share one Tick. The future fails with NotLeading."""
        return self._read_indexes.ask()

    def log_time_ms(self) -> int:
        """Return the present time of the shard's log, in ms since the epoch; that of the last batch while it leads not.

        Rows and records carry it. It begins with the brokers' time of the claim, and goes on with the time since boot:
        the wall clock may be set while a node leads.
        """
        leader = self._leader
        return self.replica.position.timestamp_ms if leader is None else leader.timestamp_ms(self._clock.elapsed_ms())

    def wake(self) -> None:
        """End a wait for proposals: there is something else to do."""
        if (intake := self._taking) is not None:
            intake.wake()

    def leaves_to_leader(self, value: bytes) -> bool:
        """Whether this node's follower should leave a record to this loop, because the claim that leads here wrote it.

        The loop has the record decoded already and applies it as soon as it is effective. To do both twice would halve
        the node's speed.
        """
        return self.leading and has_nonce(value, self._nonce)

    def has_claimed(self, nonce: bytes) -> bool:
        """Whether ``nonce`` is of one of this loop's last REMEMBERED_CLAIMS claims since the process started."""
        return self._claimer.has_claimed(nonce)

    def beat(self, wait_s: float = 0.0) -> None:
        """Say that this loop's thread is alive. For ``wait_s`` from now it may be silent, because it asks the brokers.

        A silent broker is no stall of this node. If it counted as one, the node's other shards would suffer too.
        """
        self._turned_ms = self._clock.elapsed_ms() + round(wait_s * 1000)

    def _on_turn(self, wait_s: float) -> None:
        self.beat(wait_s)

    def turned_ago_ms(self) -> int:
        """Return how long ago the loop last turned. A watchdog looks at this."""
        return max(0, self._clock.elapsed_ms() - self._turned_ms)

    def look(self) -> None:
        """Wake the follower if this loop's thread stands still. Call it now and then, from another thread."""
        if self._rests and self.turned_ago_ms() > QUIET_MS:
            self.on_rest(False)

    # -- the shard's thread ----------------------------------------------------------------------------------------

    def lead(self, stop: Event) -> str:
        """Claim the shard and lead it until ``stop`` is set (then drain) or deposed; return why it ended.

        Raises StopProcess kinds, and LogUnavailable if the brokers cannot be reached for the claim.
        """
        with self._one_at_a_time:
            appender = self.log.appender()
            try:
                return self._lead(appender, stop)
            except Deposed as reason:
                return str(reason)
            except AppendRefused as reason:
                return f"append refused: {reason}"
            finally:
                appender.close()

    def _lead(self, appender: Appender, stop: Event) -> str:
        leader = self._claimer.claim(appender, stop)
        if leader is None:
            return "another candidate was faster"
        self._held = ()
        self.beat(ANSWER_WAIT_S)
        intake = self._taking = self._intake(self.replica.request_position)
        try:
            self._nonce = leader.nonce
            self._leader = leader
            self._read_indexes.open()
            self.leading = True
            self.times_led += 1
            self._serve(leader, appender, intake, stop)
        except (Deposed, AppendRefused):
            self._resign()
            self._claimer.catch_up()
            raise
        finally:
            self._resign()
            self._leader = self._taking = None
            if self._spans is not None:
                self._spans.drop("this claim ended before the answer")
            intake.close()
        return "stopped"

    def _publish(self, outcome: Offered) -> None:
        if outcome.reading is Reading.COUNTS:
            self._outbox.publish(self.replica, outcome)

    def _serve(self, leader: Leader, appender: Appender, intake: Intake, stop: Event) -> None:
        self._append(appender, [leader.genesis(self.replica.identity.cluster, self._replicas)])
        while True:
            self.beat()
            if self.replica.evidence is not None:
                raise Deposed(f"shard {self.replica.identity.shard} is flagged: {self.replica.evidence}")
            if self._turned_ms - self._appended_ms > QUIET_MS:
                self._let_rest(False)
            self._poll(leader, appender, REPORT_WAIT_S if leader.in_flight >= self._limits.max_in_flight else 0)
            if stop.is_set():
                if self._drain(leader, appender):
                    return
                continue
            self._barriers_and_ticks(leader, appender)
            if leader.in_flight < self._limits.max_in_flight:
                self._fill(leader, appender, intake)

    def _let_rest(self, rests: bool) -> None:
        if rests is not self._rests:
            self._rests = rests
            self.on_rest(rests)

    def _fill(self, leader: Leader, appender: Appender, intake: Intake) -> None:
        """Execute the queued proposals; seal unless it pays to wait for more."""
        room = self._limits.max_batch_requests - leader.building
        # A Tick in flight counts: whoever waits for it must not wait for a proposal too.
        waiting = leader.in_flight > 0 or leader.building > 0
        proposals = self._held or intake.take(room, 0 if waiting else self._idle_s(leader))
        elapsed_ms = self._clock.elapsed_ms()
        if leader.is_stale(elapsed_ms):
            self._append(appender, leader.seal())
        taken = self._offer(leader, appender, proposals, elapsed_ms)
        self.requests += taken
        if leader.in_flight == 0 or leader.building >= PIPELINE_BATCH or not leader.has_room():
            self._append(appender, leader.seal())
        if not taken and leader.in_flight:
            self._poll(leader, appender, REPORT_WAIT_S)

    def _idle_s(self, leader: Leader) -> float:
        """Return for how many seconds there is nothing to do if nobody proposes or asks for anything."""
        return min(IDLE_WAIT_S, leader.barrier_in_ms(self._clock.elapsed_ms()) / 1000)

    def _offer(self, leader: Leader, appender: Appender, proposals: Sequence[Proposal], elapsed_ms: int) -> int:
        """Offer proposals to the leader; return how many it took.

        The others are held back until what is in flight has settled.
        """
        at_once: list[Reply] = []
        taken = len(proposals)
        spans = self._spans
        for number, proposal in enumerate(proposals):
            while (said := leader.take(proposal, elapsed_ms)) is Wait.SEAL:
                self._append(appender, leader.seal())
            if isinstance(said, Reply):
                at_once.append(said)
            elif said is Wait.SETTLE:
                self._append(appender, leader.seal())
                taken = number
                break
            elif spans is not None:
                spans.taken(proposal)
        self._held = proposals[taken:]
        if at_once:
            self._outbox.reply(at_once)
            if spans is not None:
                spans.answered(at_once)
        return taken

    def _drain(self, leader: Leader, appender: Appender) -> bool:
        """Seal and settle the proposals taken; return whether nothing is left."""
        self._append(appender, leader.seal())
        self._poll(leader, appender, REPORT_WAIT_S)
        return leader.in_flight == 0

    def _append(self, appender: Appender, appends: Sequence[Append | None]) -> None:
        for append in appends:
            if append is not None:
                appender.append(append.token, append.value)
                self._appended_ms = self._turned_ms
                self._let_rest(True)

    def _poll(self, leader: Leader, appender: Appender, wait_s: float) -> None:
        for report in appender.poll(wait_s):
            self._settle(leader.on_report(report))
            while (offset := leader.must_read) is not None:
                self._claimer.read_foreign(offset + 1)
                self._settle(leader.on_read())

    def _settle(self, effective: Sequence[Effective]) -> None:
        for one in effective:
            self._publish(one.outcome)
            if one.replies:
                self.batches += 1
                self._outbox.reply(one.replies)
                if self._spans is not None:
                    self._spans.answered(one.replies, one.offset)
                self._on_settled(one)
            self._read_indexes.on_effective(one)

    def _barriers_and_ticks(self, leader: Leader, appender: Appender) -> None:
        self._append(appender, [leader.barrier(self._clock.elapsed_ms())])
        if not self._read_indexes.are_asked or leader.in_flight > self._limits.max_in_flight:
            return
        # Take the askers before appending: the record must have been produced after their question arrived.
        asked = self._read_indexes.take()
        appends: list[Append | None] = [*leader.seal()] or [leader.tick()]
        self._read_indexes.wait_for(leader.seq, asked)
        self._append(appender, appends)

    def _resign(self) -> None:
        self.leading = False
        self._read_indexes.close()
        self._let_rest(False)
