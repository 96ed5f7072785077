"""The shell around :class:`~replicated_db.core.leading.leader.Leader`: claims a shard and serves it, on the thread that calls it.

One loop does everything for its shard: it takes proposals, seals batches, appends, polls reports, applies, replies. Batches adapt by
themselves: an idle leader seals what it has at once; a busy one lets requests queue while a few batches are in flight.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Protocol

from xxhash import xxh3_128_digest

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import AheadOfLog
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
    claim_for,
)
from replicated_db.core.log.log_reads import read_log
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading, advance, judge
from replicated_db.core.ports import ANSWER_WAIT_S, Appender, AppendRefused, Clock, Entry, Ids, Log, LogUnavailable
from schemas.codecs.codec import decode, encode
from schemas.records.log import RequestPosition

IDLE_WAIT_S = 0.01
"""How long an idle leader waits for a proposal before it looks at ticks and barriers."""

REPORT_WAIT_S = 0.002
CLAIM_WAIT_S = 10.0
READ_WAIT_S = 20.0
READ_STEP_S = 1.0
READ_LIMIT = 500
MAX_CLOCK_SKEW_MS = 60_000
"""A candidate whose wall clock is further than this from the broker's append time does not lead."""

PIPELINE_BATCH = 100
"""With a batch in flight, another is sealed only once it holds this many requests (or is full)."""

QUIET_MS = 2_000
"""A leader that has appended nothing for so long would not notice another one's claim."""

MAX_WAITING_TICKS = 10_000
REMEMBERED_CLAIMS = 64
NONCE_RANGE = (10, 40)
"""Where in a record's bytes its nonce lies: behind the schema's fingerprint and the term."""


class Intake(Protocol):
    """Where proposals come from."""

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return up to ``limit`` proposals, waiting at most ``wait_s`` seconds for the first."""

    def close(self) -> None:
        """Release what was opened."""


def take_queued(waiting: queue.SimpleQueue[Proposal], limit: int, wait_s: float) -> list[Proposal]:
    """Return up to ``limit`` proposals of a queue, waiting at most ``wait_s`` seconds for the first: ``Intake.take``."""
    taken: list[Proposal] = []
    with suppress(queue.Empty):
        taken.append(waiting.get(timeout=wait_s) if wait_s else waiting.get_nowait())
        while len(taken) < limit:
            taken.append(waiting.get_nowait())
    return taken


class Publisher(Protocol):
    """Where reports go."""

    def publish(self, replica: Replica, outcome: Offered) -> None:
        """Publish what applying a record asks for: digests at a barrier, evidence."""


class Outbox(Publisher, Protocol):
    """Where answers and reports go."""

    def reply(self, replies: Sequence[Reply]) -> None:
        """Send answers; they are effective and applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndex:
    """A record of the leader's own, effective after a reader asked: who has applied it may answer linearizably."""

    offset: int
    record_hash: bytes


class UnfitToLead(Exception):
    """The node must not lead for now; claiming again at once would only disturb the others."""


class NotLeading(Exception):
    """The shard is not led here (any more); ask another node."""


class LeaderLoop:
    """Leads one shard, for one claim after another. ``lead`` runs on the shard's thread; ``read_index`` on any."""

    def __init__(
        self, replica: Replica, log: Log, service: Service, limits: LeaderLimits, *,
        clock: Clock, ids: Ids, address: str, outbox: Outbox, intake: Callable[[RequestPosition | None], Intake],
        cluster: str, replicas: Sequence[str], hint: Callable[[], RequestPosition | None],
        settled: Callable[[Effective], None] | None = None,
    ) -> None:  # fmt: skip
        self.replica = replica
        self.log = log
        self._service = service
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._address = address
        self._outbox = outbox
        self._intake = intake
        self._cluster = cluster
        self._replicas = replicas
        self._hint = hint
        self._lock = Lock()
        self._ticks: deque[Future[ReadIndex]] = deque()
        self._ticking: deque[tuple[int, list[Future[ReadIndex]]]] = deque()
        self._one_at_a_time = Lock()
        self._settled = settled
        self._nonce = b""
        self._claims: deque[bytes] = deque(maxlen=REMEMBERED_CLAIMS)
        self._turned_ms = 0
        self._held: Sequence[Proposal] = ()
        self.leading = False
        self.follower_may_rest: Callable[[bool], None] = lambda _: None
        """Told True when this loop appends, so that it applies all that comes and finds what others append before its own next record;
        False when it has appended nothing for QUIET_MS, stands still, or leads no more. On the shard's thread, and on that of :meth:`look`."""
        self._rests = False
        self._appended_ms = 0
        self.times_led = 0
        """Claims that were won and served: one whose requests cannot be read helps nobody."""
        self.batches = 0
        self.requests = 0

    # -- from any thread -------------------------------------------------------------------------------------------

    def read_index(self) -> Future[ReadIndex]:
        """Ask for a read index; many askers share one Tick. The future fails with NotLeading."""
        future: Future[ReadIndex] = Future()
        # An asker that gives up must not be able to cancel it: settling a cancelled future raises, on the shard's thread.
        future.set_running_or_notify_cancel()
        with self._lock:
            if not self.leading or len(self._ticks) >= MAX_WAITING_TICKS:
                future.set_exception(NotLeading(f"shard {self.replica.identity.shard} is not led here"))
            else:
                self._ticks.append(future)
        return future

    def leaves_to_leader(self, value: bytes) -> bool:
        """Whether the follower of this node should leave a record to this loop: it is one of the claim that leads here.

        The loop has it decoded already and applies it as soon as it is effective; doing it twice would halve the node's speed.
        """
        return self.leading and value.find(self._nonce, *NONCE_RANGE) >= 0

    def claimed(self, nonce: bytes) -> bool:
        """Whether a claim is one of this loop's own: of the last REMEMBERED_CLAIMS since the process started."""
        return nonce in self._claims

    def beat(self, wait_s: float = 0.0) -> None:
        """Say that the thread of this loop is getting on; it may be silent for ``wait_s`` now, because it asks the brokers something.

        A broker that is silent is no stall of this node, which the other shards would suffer from, too.
        """
        self._turned_ms = self._clock.elapsed_ms() + round(wait_s * 1000)

    def turned_ago_ms(self) -> int:
        """Return how long ago the loop turned last: what a watchdog looks at."""
        return max(0, self._clock.elapsed_ms() - self._turned_ms)

    def look(self) -> None:
        """Have the follower go on if the thread of this loop stands still. Call now and then, from another thread."""
        if self._rests and self.turned_ago_ms() > QUIET_MS:
            self.follower_may_rest(False)

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
        leader = self._claim(appender, stop)
        if leader is None:
            return "another candidate was faster"
        self._held = ()
        self.beat(ANSWER_WAIT_S)
        intake = self._intake(self._hint())
        try:
            with self._lock:
                self._nonce = leader.nonce
                self.leading = True
            self.times_led += 1
            self._serve(leader, appender, intake, stop)
        except (Deposed, AppendRefused):
            self._resign()
            self._catch_up()
            raise
        finally:
            self._resign()
            intake.close()
        return "stopped"

    def _catch_up(self) -> None:
        """Read what the follower left to this loop while it led (:meth:`leaves_to_leader`).

        If the brokers do not answer, the follower reads it instead, before the next record that it applies.
        """
        with suppress(LogUnavailable):
            self._read_to(self._log_end())

    def _log_end(self) -> int:
        self.beat(ANSWER_WAIT_S)
        end = self.log.bounds()[1]
        self.beat()
        return end

    def _claim(self, appender: Appender, stop: Event) -> Leader | None:
        self._read_to(self._log_end())
        self._compare_with_log(self.replica.position)
        before, anchor = self.replica.read_offset, self.replica.anchor
        nonce = self._ids.nonce()
        self._claims.append(nonce)
        claim = claim_for(self.replica, nonce, self._address, self._clock.wall_ms())
        appender.append(0, encode(claim))
        deadline_ms = self._clock.elapsed_ms() + CLAIM_WAIT_S * 1000
        report = None
        while report is None and self._clock.elapsed_ms() < deadline_ms and not stop.is_set():
            self.beat()
            report = next(iter(appender.poll(0.1)), None)
        if report is None or report.error is not None or report.offset < 0:
            raise LogUnavailable(f"claim of term {claim.term}: {report.error if report else 'no report in time'}")
        elapsed_ms = self._clock.elapsed_ms()
        if abs(report.timestamp_ms - self._clock.wall_ms()) > MAX_CLOCK_SKEW_MS:
            raise UnfitToLead(f"this node's clock is over {MAX_CLOCK_SKEW_MS} ms from the broker's; it does not lead")
        if report.offset <= before:
            raise AheadOfLog(f"the claim lies at {report.offset}, but this replica has read up to {before}")
        # A delivery report proves nothing: the claim must be read from the log as valid, everything before it applied.
        self._read_to(report.offset + 1)
        leader = Leader(
            self.replica, self._service, self._limits,
            claim_offset=report.offset, claim_time_ms=report.timestamp_ms, elapsed_ms=elapsed_ms,
        )  # fmt: skip
        # The leader has read the position once; looking again here could see another's claim, applied meanwhile.
        if leader.nonce != nonce:
            return None
        self._read_again(anchor, leader, report.offset)
        return leader

    def _read_again(self, position: Position, leader: Leader, claim_offset: int) -> None:
        """Judge once more what lies between ``position``, the anchor before the claim, and the claim; raises AheadOfLog if it differs.

        If the log lost its tail meanwhile, what this replica had read of that tail must not stand: a leader whose chain is not the
        log's would write a record that stops every replica for good.
        """
        self._compare_with_log(position)
        while (following := position.offset + 1) <= claim_offset:
            entries = self._read_some(following, min(READ_LIMIT, claim_offset + 1 - following))
            if not entries:
                raise LogUnavailable(f"no record from offset {following} on within {READ_WAIT_S} s")
            for entry in entries:
                record = decode(entry.value)
                if judge(position, record).takes_effect:
                    position = advance(position, record, entry.offset, entry.value)
                else:
                    position = replace(position, offset=entry.offset)
        if position.chain != leader.chain:
            shard = self.replica.identity.shard
            raise AheadOfLog(f"shard {shard}: the log has lost records that this replica had read before its claim")

    def _compare_with_log(self, position: Position) -> None:
        """Compare the log's record at the replica's position with the one applied; raises AheadOfLog if they differ."""
        if position.offset < 0:
            return
        shard = self.replica.identity.shard
        entries = self._read_some(position.offset, 1)
        if not entries:
            raise LogUnavailable(
                f"shard {shard}: offset {position.offset}, which this replica has applied, cannot be read"
            )
        if xxh3_128_digest(entries[0].value) != position.record_hash:
            raise AheadOfLog(
                f"shard {shard}, offset {position.offset}: the log holds another record than the one applied"
            )

    def _read_some(self, offset: int, limit: int) -> Sequence[Entry]:
        """Return what the log has from ``offset`` on, empty after READ_WAIT_S without a record; the loop turns meanwhile."""
        deadline_ms = self._clock.elapsed_ms() + READ_WAIT_S * 1000
        entries = self._read_step(offset, limit)
        while not entries and self._clock.elapsed_ms() < deadline_ms:
            entries = self._read_step(offset, limit)
        return entries

    def _read_step(self, offset: int, limit: int) -> Sequence[Entry]:
        self.beat(READ_STEP_S + ANSWER_WAIT_S)
        entries = read_log(self.log, offset, limit, READ_STEP_S)
        self.beat()
        return entries

    def _read_to(self, end: int) -> None:
        """Offer everything below offset ``end`` to the replica; raises LogUnavailable after READ_WAIT_S without a record."""
        deadline_ms = self._clock.elapsed_ms() + READ_WAIT_S * 1000
        while (following := self.replica.read_offset + 1) < end:
            entries = self._read_step(following, min(READ_LIMIT, end - following))
            for entry in entries:
                self._take(self.replica.offer(entry.offset, entry.value))
            if entries:
                deadline_ms = self._clock.elapsed_ms() + READ_WAIT_S * 1000
            elif self._clock.elapsed_ms() > deadline_ms:
                raise LogUnavailable(f"no record from offset {following} on within {READ_WAIT_S} s")

    def _take(self, outcome: Offered) -> None:
        if outcome.reading is Reading.COUNTS:
            self._outbox.publish(self.replica, outcome)

    def _serve(self, leader: Leader, appender: Appender, intake: Intake, stop: Event) -> None:
        self._append(appender, [leader.genesis(self._cluster, self._replicas)])
        while True:
            self.beat()
            if self.replica.evidence is not None:
                raise Deposed(f"shard {self.replica.identity.shard} is flagged: {self.replica.evidence}")
            if self._turned_ms - self._appended_ms > QUIET_MS:
                self._let_rest(False)
            busy = leader.in_flight > 0
            self._poll(leader, appender, REPORT_WAIT_S if leader.in_flight >= self._limits.max_in_flight else 0)
            if stop.is_set():
                if self._drain(leader, appender):
                    return
                continue
            self._barriers_and_ticks(leader, appender)
            if leader.in_flight < self._limits.max_in_flight:
                self._fill(leader, appender, intake, busy=busy)

    def _let_rest(self, rests: bool) -> None:
        if rests is not self._rests:
            self._rests = rests
            self.follower_may_rest(rests)

    def _fill(self, leader: Leader, appender: Appender, intake: Intake, *, busy: bool) -> None:
        """Execute what has queued; seal unless it pays to wait for more."""
        room = self._limits.max_batch_requests - leader.building
        waiting = busy or leader.building > 0
        proposals = self._held or intake.take(room, 0 if waiting else IDLE_WAIT_S)
        elapsed_ms = self._clock.elapsed_ms()
        if leader.is_stale(elapsed_ms):
            self._append(appender, leader.seal())
        taken = self._offer(leader, appender, proposals, elapsed_ms)
        self.requests += taken
        if leader.in_flight == 0 or leader.building >= PIPELINE_BATCH or not leader.has_room():
            self._append(appender, leader.seal())
        if not taken and leader.in_flight:
            self._poll(leader, appender, REPORT_WAIT_S)

    def _offer(self, leader: Leader, appender: Appender, proposals: Sequence[Proposal], elapsed_ms: int) -> int:
        """Have the leader take proposals; return how many it took, and hold back the others until what is in flight has settled."""
        at_once: list[Reply] = []
        taken = len(proposals)
        for number, proposal in enumerate(proposals):
            while (said := leader.take(proposal, elapsed_ms)) is Wait.SEAL:
                self._append(appender, leader.seal())
            if isinstance(said, Reply):
                at_once.append(said)
            elif said is Wait.SETTLE:
                self._append(appender, leader.seal())
                taken = number
                break
        self._held = proposals[taken:]
        if at_once:
            self._outbox.reply(at_once)
        return taken

    def _drain(self, leader: Leader, appender: Appender) -> bool:
        """Seal and settle what was taken; return whether nothing is left."""
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
                self._read_to(offset + 1)
                self._settle(leader.on_read())

    def _settle(self, effective: Sequence[Effective]) -> None:
        for one in effective:
            self._take(one.outcome)
            if one.replies:
                self.batches += 1
                self._outbox.reply(one.replies)
                if self._settled is not None:
                    self._settled(one)
            self._answer_ticks(one)

    def _answer_ticks(self, effective: Effective) -> None:
        seq = effective.record.seq
        while self._ticking and self._ticking[0][0] <= seq:
            index = ReadIndex(offset=effective.offset, record_hash=effective.record_hash)
            for future in self._ticking.popleft()[1]:
                future.set_result(index)

    def _barriers_and_ticks(self, leader: Leader, appender: Appender) -> None:
        self._append(appender, [leader.barrier(self._clock.elapsed_ms())])
        if not self._ticks or leader.in_flight > self._limits.max_in_flight:
            return
        # First take the askers, then append: the record must have been produced after the question came.
        with self._lock:
            asked = list(self._ticks)
            self._ticks.clear()
        appends: list[Append | None] = [*leader.seal()] or [leader.tick()]
        self._ticking.append((leader.seq, asked))
        self._append(appender, appends)

    def _resign(self) -> None:
        with self._lock:
            self.leading = False
            waiting = [*self._ticks, *(future for _, futures in self._ticking for future in futures)]
            self._ticks.clear()
            self._ticking.clear()
        for future in waiting:
            future.set_exception(NotLeading(f"shard {self.replica.identity.shard} lost its leader"))
        self._let_rest(False)
