"""A replicated database: one replica of one shard, with all that belongs to it, from opening to closing.

A service gives it families, operators and a store (``replica_of``), and what executes requests, takes them in and
answers them (``DatabaseService``). It decides on what threads the database works:

1. A follower feeds it every record of the log, in order, on one thread: :meth:`ReplicatedDatabase.leaves_to_leader`,
   ``fill`` and ``apply``.
2. A leader's thread calls ``database.loop.lead(stop)`` for each claim. The follower leaves that claim's records to it.
   What the leader leaves unapplied in the end is read from the log before the next record is applied.
3. Readers ask on any thread. What :meth:`ReplicatedDatabase.snapshot` shows is of one position.
4. :meth:`ReplicatedDatabase.close` comes last, when nobody feeds, leads or reads any more.

Applying is idempotent by offset: a record that comes twice changes nothing. A failure to apply is raised, and must end
the process before anybody hears that the record was taken.

``embedded`` is a database with a thread of its own, for a service in one process; ``host`` has what all databases of a
process share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.late import Executor
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.leading.leader import Effective, LeaderLimits, Service
from replicated_db.core.log.log_reads import EndPatience, read_log
from replicated_db.core.log.position import Position
from replicated_db.core.log.quorum import BATCH_CLAIMS, BarrierDigest, Judgement, Quorum
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import Clock, Ids, Log, LogUnavailable, Store, StoreSnapshot
from replicated_db.core.tables.column_families import Families
from replicated_db.core.tables.digests import MASK
from replicated_db.shell.leader_loop import Intake, LeaderLoop, Outbox, Publisher
from replicated_db.shell.logs import Note, Notes
from schemas.records.log import RequestPosition
from schemas.records.messages import AuditReport
from schemas.records.verdict_words import INCREMENTAL

if TYPE_CHECKING:
    from replicated_db.shell.tracing.leader_spans import LeaderSpans

FILL_WAIT_S = 1.0
FILL_PAUSE_S = 0.5
"""Pause between two attempts to fill a gap while the brokers do not serve its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseService:
    """What a service gives its database to lead and to publish with."""

    executes: Service
    """Turns a request into operations (``core/leading``)."""
    intake: Callable[[RequestPosition | None], Intake]
    """Opens where the requests of a claim come from, given the request that was applied last, if that is known."""
    outbox: Outbox
    """Where the leader's answers go, and what its records ask to be published."""
    reports: Publisher
    """Where what the records of other leaders ask to be published goes."""
    limits: LeaderLimits
    address: str
    """Where readers and clients find this process while it leads; it is in the claim."""
    replicas: Sequence[str]
    """The members that a new log names."""
    on_settled: Callable[[Effective], None] = lambda _: None
    spans: LeaderSpans | None = None


class ReplicatedDatabase:
    """One replica of one shard of a service's database."""

    def __init__(
        self, replica: Replica, log: Log, service: DatabaseService, *, clock: Clock, ids: Ids,
        follower_log: Log | None = None, members: frozenset[str] = frozenset(), note: Note = lambda *_, **__: None,
        now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """``replica`` is open and checked against its log.

        A log serves one thread: ``log`` is the leader's from here on, ``follower_log`` fills the follower's gaps.
        Without it the log must serve both. ``members`` judge reports while the log names none.
        """
        self.replica = replica
        self.loop = LeaderLoop(
            replica, log, service.executes, service.limits, clock=clock, ids=ids, address=service.address,
            outbox=service.outbox, intake=service.intake, replicas=service.replicas, on_settled=service.on_settled,
            spans=service.spans,
        )  # fmt: skip
        self._log = log
        self._follower_log = log if follower_log is None else follower_log
        self._reports = service.reports
        self._members = members
        self._quorum = Quorum(me=replica.identity.node, members=members)
        self._note = note
        self._now_s = now_s
        self._sleep = sleep

    @property
    def shard(self) -> int:
        """The shard: the partition of the log."""
        return self.replica.identity.shard

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return self.loop.leading

    # -- following: on the follower's thread -----------------------------------------------------------------------

    def leaves_to_leader(self, value: bytes) -> bool:
        """Whether this process's leader applies a record. If not, :meth:`fill` the gap before it and :meth:`apply` it.

        Ask once for each record: the leader may resign at any moment. What it left is then before the next record.
        """
        return self.loop.leaves_to_leader(value)

    def has_gap(self, offset: int) -> bool:
        """Whether records before ``offset`` have not been offered, because this process's leader left them."""
        return offset > self.replica.read_offset + 1

    def fill(self, end: int) -> None:
        """Offer the records before ``end`` that were left to this process's leader. Waits for brokers that are slow.

        Raises AheadOfLog once they have said for a while that the log ends before, and what :meth:`apply` raises.
        """
        with self.replica.reading_again():
            try:
                self._fill(end)
            finally:
                self._follower_log.rest()

    def _fill(self, end: int) -> None:
        patience = EndPatience()
        while (following := self.replica.read_offset + 1) < end:
            try:
                entries = read_log(self._follower_log, following, end - following, FILL_WAIT_S)
            except LogUnavailable as error:
                self._note(f"shard {self.shard}: {error}; trying again", shard=self.shard)
                patience.on_failure(error, self._now_s())
                self._sleep(FILL_PAUSE_S)
                continue
            patience.on_answer()
            for entry in entries:
                self.apply(entry.offset, entry.value)

    def apply(self, offset: int, value: bytes) -> None:
        """Offer a record of the log, and publish what it asks for. Everything before it must have been offered.

        Raises AheadOfLog, BrokenLog or StoreFailure, each of which must end the process.
        """
        self._publish(offset, self.replica.offer(offset, value))

    def _publish(self, offset: int, outcome: Offered) -> None:
        shard = self.shard
        if outcome.reading is Reading.COUNTS:
            if outcome.digests is not None:
                self._settle_by_digests()
            self._reports.publish(self.replica, outcome)
            if outcome.evidence is not None:
                self._error(f"shard {shard}: false claim found: {outcome.evidence}")
        elif outcome.reading is not None and outcome.reading is not Reading.VALID_CLAIM:
            self._note(f"shard {shard}, offset {offset}: {outcome.reading.value}", shard=shard, offset=offset)

    def hear(self, report: AuditReport) -> None:
        """Take a member's report, and act on what it settles."""
        quorum, shard = self._quorum, self.shard
        quorum.members = frozenset(self.replica.state.replicas) or self._members
        quorum.on_report(report)
        if report.evidence is None and report.basis == INCREMENTAL:
            quorum.on_barrier(report.node, BarrierDigest(report.index, f"{sum(report.sums) & MASK:016x}"))
            self._settle_by_digests()
        own = self.replica.evidence
        judgement, evidence = quorum.judge(own)
        if judgement is Judgement.SETTLE:
            self._note(
                f"shard {shard}: a majority has the same row: the leader was wrong; flag taken away", shard=shard
            )
            self.replica.settle(of=own)
        elif judgement is Judgement.FLAG and evidence is not None:
            self._error(f"shard {shard}: a majority contradicts this node's batch: {evidence}")
            self.replica.flag(evidence)

    @property
    def unsettled(self) -> bool:
        """Whether digests of healthy members may take this replica's flag away."""
        evidence = self.replica.evidence
        return evidence is not None and evidence.claim in BATCH_CLAIMS

    def _settle_by_digests(self) -> None:
        """Take the flag away if a majority has the same digest at a barrier behind the evidence."""
        own = self.replica.evidence
        if own is not None and (agreeing := self._quorum.agreeing(own, self.replica.barrier_digests())):
            self._note(
                f"shard {self.shard}: {', '.join(agreeing)} and this replica hold the same behind the batch at index "
                f"{own.index}: it is settled; flag taken away",
                shard=self.shard,
            )
            self.replica.settle(of=own)

    def _error(self, message: str) -> None:
        Notes({self.shard: self.replica}).error(message, shard=self.shard)

    def hear_healthy(self, node: str) -> None:
        """Take a member's report without evidence: its earlier evidence no longer stands."""
        self._quorum.forget(node)

    # -- reading: on any thread ------------------------------------------------------------------------------------

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return a row's value as this replica has it now."""
        return self.replica.store.get(cf, key)

    def iterate(self, cf: str, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop), over the rows as this replica has them now."""
        return self.replica.store.iterate(cf, start, stop)

    def snapshot(self) -> tuple[Position, StoreSnapshot]:
        """Return a position and a snapshot of every family at that position. Close the snapshot."""
        position, _, snapshot = self.replica.snapshot()
        return position, snapshot

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what late validation has in memory, and close the store. Raises StoreFailure."""
        with self.replica.lock:
            self.replica.flush()
            self.replica.store.close()


def replica_of(
    identity: Identity, families: Families, store: Callable[[], Store], executor: Executor | None = None
) -> Replica:
    """Open a store, and the replica in it. The store is closed again if its replica is another one's.

    Raises StoreFailure, WrongCluster. With an ``executor`` late validation is possible.
    """
    opened = store()
    try:
        return Replica(identity, families, opened, threading.RLock(), executor, threading.Lock())
    except BaseException:
        opened.close()
        raise
