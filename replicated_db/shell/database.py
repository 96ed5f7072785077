"""A replicated database for a service: column families and merge operators in, ``submit`` and reads out.

One object is one replica of one shard. It follows the log on a thread of its own. Between
:meth:`ReplicatedDatabase.lead` and :meth:`ReplicatedDatabase.resign` that thread asks to lead instead. A submission has
a retry row like any request, so it is executed once even if the leadership changes meanwhile.

    database = ReplicatedDatabase.open(identity, ["stock"], [ADD_INT64], store=..., log=..., replicas=["a", "b", "c"])
    database.lead()
    index = database.submit([database.merge("stock", b"bolts", "add_int64", encode_int64(5))]).result()
    database.get("stock", b"bolts")
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from xxhash import xxh3_128_digest

from replicated_db.core.applying.replica import Identity, Offered, Replica
from replicated_db.core.errors import Refused, StopProcess
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Executed, LeaderLimits, Proposal, Refusal, Reply
from replicated_db.core.log.log_reads import EndPatience, read_log
from replicated_db.core.log.position import Position
from replicated_db.core.ports import Clock, Ids, Log, LogUnavailable, OffsetOutOfRange, Store, StoreSnapshot
from replicated_db.core.tables.column_families import Families, families
from replicated_db.core.tables.merge import MergeOperator
from replicated_db.core.tables.overlay import Overlay
from replicated_db.shell.claiming import UnfitToLead
from replicated_db.shell.leader_loop import LeaderLoop, take_queued
from replicated_db.shell.system import SystemClock, SystemIds
from schemas.records.log import Checkpoint, Delete, Merge, Operation, Put, RequestPosition

MAX_PENDING = 10_000
"""How many submissions may be unanswered. A further one is refused."""

FOLLOW_WAIT_S = 0.05
READ_LIMIT = 500
ADDRESS = "local"


class SubmissionUnknown(Exception):
    """The database was closed, or the submission expired, before its answer was known."""


class _Submission(NamedTuple):
    """A submission without an answer yet."""

    proposal: Proposal
    future: Future[int]


class _Submissions:
    """Pending submissions: the intake, the outbox and the service of a database in one place."""

    def __init__(self, ids: Ids, clock: Clock) -> None:
        self._clock = clock
        self._client_id = ids.nonce()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[bytes, _Submission] = {}
        self._queue: queue.SimpleQueue[Proposal | None] = queue.SimpleQueue()
        self._closed = False

    def add(self, operations: Sequence[Operation]) -> Future[int]:
        """Queue operations; raises Refused if too many submissions are pending, or the database is closed."""
        future: Future[int] = Future()
        # Running futures cannot be cancelled: settling a cancelled one would raise on the database's thread.
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise Refused("the database is closed")
            if len(self._pending) >= MAX_PENDING:
                raise Refused(f"{MAX_PENDING} submissions are unanswered")
            call_id = next(self._numbers).to_bytes(8, "big")
            proposal = Proposal(
                client_id=self._client_id, call_id=call_id, request_hash=xxh3_128_digest(repr(operations).encode()),
                first_sent_at_ms=self._clock.wall_ms(), request_type="submit", body=operations, reply_to=None,
                begins_batch=any(isinstance(operation, Checkpoint) for operation in operations),
            )  # fmt: skip
            self._pending[call_id] = _Submission(proposal, future)
            self._queue.put(proposal)
        return future

    def reopen(self, hint: RequestPosition | None) -> _Submissions:  # noqa: ARG002 - the intake of LeaderLoop
        """Queue every pending submission again for a new claim; retry rows absorb those already executed."""
        with self._lock:
            self._queue = queue.SimpleQueue()
            for submission in self._pending.values():
                self._queue.put(submission.proposal)
        return self

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return queued submissions."""
        return take_queued(self._queue, limit, wait_s)

    def wake(self) -> None:
        """End a wait in :meth:`take`."""
        self._queue.put(None)

    def close(self) -> None:
        """Do nothing at the end of a claim: pending submissions stay pending."""

    def reply(self, replies: Sequence[Reply]) -> None:
        """Resolve the futures of answered submissions."""
        for reply in replies:
            with self._lock:
                submission = self._pending.pop(reply.proposal.call_id, None)
            if submission is None:
                continue
            future = submission.future
            kind, text = reply.response[:1], reply.response[1:]
            if kind == b"i":
                future.set_result(int(text))
            elif kind == b"e":
                future.set_exception(SubmissionUnknown(text.decode()))
            else:
                future.set_exception(Refused(text.decode()))

    def publish(self, replica: Replica, outcome: Offered) -> None:  # noqa: ARG002 - a port's signature
        """Release a scrub's snapshot. Nobody receives digests."""
        if outcome.snapshot is not None:
            outcome.snapshot.close()

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:  # noqa: ARG002
        """Execute the operations, which were checked when they were submitted."""
        for operation in proposal.body:
            transaction.submit(operation)
        return Executed(response=b"i%d" % transaction.index, keep=True)

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:  # noqa: ARG002
        """Encode a refusal."""
        return (b"e" if refusal is Refusal.EXPIRED else b"r") + f"{refusal.value}: {message}".encode()

    def abandon(self) -> None:
        """Fail every pending submission, because the database closes."""
        with self._lock:
            pending, self._pending = self._pending, {}
            self._closed = True
        for _, future in pending.values():
            future.set_exception(SubmissionUnknown("the database was closed"))


class ReplicatedDatabase:
    """One replica of one shard of a service's database."""

    def __init__(
        self, replica: Replica, log: Log, *, limits: LeaderLimits, clock: Clock, ids: Ids, replicas: Sequence[str]
    ) -> None:
        self.replica = replica
        self._log = log
        self._submissions = _Submissions(ids, clock)
        self._loop = LeaderLoop(
            replica, log, self._submissions, limits, clock=clock, ids=ids, address=ADDRESS, outbox=self._submissions,
            intake=self._submissions.reopen, cluster=replica.identity.cluster, replicas=replicas, hint=lambda: None,
        )  # fmt: skip
        self._closing = threading.Event()
        self._following = threading.Event()
        self._following.set()
        self._failure: BaseException | None = None
        self._clock = clock
        self._patience = EndPatience()
        self._thread = threading.Thread(target=self._run, name=f"database-{replica.identity.node}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, identity: Identity, column_families: Sequence[str], merge_operators: Sequence[MergeOperator] = (), *,
        store: Callable[[Families], Store], log: Log, replicas: Sequence[str], limits: LeaderLimits | None = None,
        clock: Clock | None = None, ids: Ids | None = None,
    ) -> ReplicatedDatabase:  # fmt: skip
        """Open a replica and begin to follow its log.

        ``store`` makes the store for the families. Raises ValueError for illegal families, StoreFailure if the store
        does not open, AheadOfLog if the log is not the one that this replica has read.
        """
        declared = families(column_families, merge_operators)
        replica = Replica(identity, declared, store(declared), threading.RLock())
        try:
            at_position = log.read(replica.position.offset, 1, 10.0) if replica.position.offset >= 0 else ()
        except OffsetOutOfRange:
            at_position = ()
        replica.adopt_topic(log.topic_id(), at_position[0].value if at_position else None)
        return cls(
            replica,
            log,
            limits=limits or LeaderLimits(),
            clock=clock or SystemClock(),
            ids=ids or SystemIds(),
            replicas=replicas,
        )

    # -- writing ---------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Ask to lead: claim the shard, and claim again whenever the leadership is lost, until :meth:`resign`."""
        self._following.clear()

    def resign(self) -> None:
        """Settle what is in flight, stop leading, and go on following."""
        self._following.set()
        self._loop.wake()

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return self._loop.leading

    def submit(self, operations: Sequence[Operation]) -> Future[int]:
        """Submit operations to be applied as one.

        The future gives their managed index once they are effective and applied. Their hashes need not be filled in
        (see :meth:`put`, :meth:`delete`, :meth:`merge`). While another replica leads, a submission waits until this one
        leads. Raises Refused, whose message names the input, if an operation is illegal; nothing has happened then.
        """
        self._check_alive()
        trial = Transaction(self.replica.families, Overlay(self.replica.store), 0)
        for operation in operations:
            trial.submit(operation)
        return self._submissions.add(list(operations))

    @staticmethod
    def put(cf: str, key: bytes, value: bytes) -> Put:
        """Return a Put to submit."""
        return Put(cf=cf, key=key, value=value, prev=None)

    @staticmethod
    def delete(cf: str, key: bytes) -> Delete:
        """Return a Delete to submit."""
        return Delete(cf=cf, key=key, prev=None)

    @staticmethod
    def merge(cf: str, key: bytes, operator: str, operand: bytes) -> Merge:
        """Return a Merge to submit."""
        return Merge(cf=cf, key=key, operator=operator, operand=operand, prev=None, next=0)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return a row's value as this replica has it now."""
        self._check_alive()
        return self.replica.store.get(cf, key)

    def iterate(self, cf: str, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop), over the rows as this replica has them now."""
        self._check_alive()
        return self.replica.store.iterate(cf, start, stop)

    def snapshot(self) -> tuple[Position, StoreSnapshot]:
        """Return a position and a snapshot of every family at that position. Close the snapshot."""
        self._check_alive()
        position, _, snapshot = self.replica.snapshot()
        return position, snapshot

    def close(self) -> None:
        """Drain, stop and close the store. Submissions still pending fail with SubmissionUnknown."""
        self._closing.set()
        self._following.set()
        self._thread.join()
        self._submissions.abandon()
        self.replica.store.close()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    if self._following.is_set():
                        self._follow()
                    else:
                        self._loop.lead(self._following)
                except LogUnavailable as error:
                    self._patience.on_failure(error, self._clock.elapsed_ms() / 1000)
                    self._closing.wait(FOLLOW_WAIT_S)
                except UnfitToLead:
                    self._closing.wait(FOLLOW_WAIT_S)
        except BaseException as error:  # kept for callers: every later call raises it
            self._failure = error
            self._submissions.abandon()

    def _follow(self) -> None:
        entries = read_log(self._log, self.replica.read_offset + 1, READ_LIMIT, FOLLOW_WAIT_S)
        self._patience.on_answer()
        for entry in entries:
            outcome = self.replica.offer(entry.offset, entry.value)
            self._submissions.publish(self.replica, outcome)
        if not entries:
            self._closing.wait(FOLLOW_WAIT_S / 10)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise StopProcess(f"this replica has stopped: {self._failure}") from self._failure
