"""An embedded database: a replicated database that has a thread of its own, for a service in one process.

The thread follows the log. Between :meth:`EmbeddedDatabase.lead` and :meth:`EmbeddedDatabase.resign` it asks to lead
instead. ``replicated_db`` shows how to use it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.errors import StopProcess, StoreFailure
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.log.log_reads import EndPatience, read_log
from replicated_db.core.log.position import Position
from replicated_db.core.ports import Clock, Ids, Log, LogUnavailable, Store, StoreSnapshot
from replicated_db.core.tables.column_families import Families, families
from replicated_db.core.tables.merge import MergeOperator
from replicated_db.core.tables.overlay import Overlay
from replicated_db.shell.claiming import UnfitToLead
from replicated_db.shell.database.database import DatabaseService, ReplicatedDatabase, replica_of
from replicated_db.shell.database.submissions import Submissions
from replicated_db.shell.startup import check_beginning, check_replica, rows_off
from replicated_db.shell.system import SystemClock, SystemIds
from schemas.records.log import Delete, Merge, Operation, Put
from transport.waiting.deadline import Deadline

FOLLOW_WAIT_S = 0.05
READ_LIMIT = 500
AWAIT_STEP_S = 0.005
"""How often a reader who waits for an index looks."""

ADDRESS = "local"


class EmbeddedDatabase(ReplicatedDatabase):
    """A database that follows and leads by itself, and takes operations."""

    def __init__(
        self, replica: Replica, log: Log, *, limits: LeaderLimits, clock: Clock, ids: Ids, replicas: Sequence[str]
    ) -> None:
        self._submissions = submissions = Submissions(ids, clock)
        service = DatabaseService(
            executes=submissions, intake=submissions.reopen, outbox=submissions, reports=submissions, limits=limits,
            address=ADDRESS, replicas=replicas,
        )  # fmt: skip
        super().__init__(replica, log, service, clock=clock, ids=ids)
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
    ) -> EmbeddedDatabase:  # fmt: skip
        """Open a replica and begin to follow its log.

        ``store`` makes the store for the families. Raises ValueError for illegal families, StoreFailure if the store
        does not open or has lost rows, AheadOfLog if the log is not the one that this replica has read, NeedsCheckpoint
        if the log begins behind this replica, LogUnavailable.
        """
        declared = families(column_families, merge_operators)
        replica = replica_of(identity, declared, lambda: store(declared))
        try:
            check_replica(replica, log, lambda _: None)
            check_beginning(replica, log)
            if rows_off(replica, lambda _: None):
                raise StoreFailure(f"{identity.node}: the database has lost rows. Move it away: the log has them all")
            replica.store.trust()
        except BaseException:
            replica.store.close()
            raise
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
        self.loop.wake()

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
        """Return a row's value as this replica has it now. Raises StopProcess if the replica has stopped."""
        self._check_alive()
        return super().get(cf, key)

    def iterate(self, cf: str, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop). Raises StopProcess if the replica has stopped."""
        self._check_alive()
        return super().iterate(cf, start, stop)

    def snapshot(self) -> tuple[Position, StoreSnapshot]:
        """Return a position and a snapshot at it. Raises StopProcess if the replica has stopped."""
        self._check_alive()
        return super().snapshot()

    def await_index(self, index: int, timeout_s: float) -> None:
        """Wait until this replica has applied the submission of ``index``; what is read from then on has it.

        Raises TimeoutError after ``timeout_s``, StopProcess if the replica has stopped.
        """
        deadline = Deadline.after_s(timeout_s)
        while self.replica.position.index < index:
            self._check_alive()
            if deadline.has_passed:
                raise TimeoutError(f"index {index} is not applied here after {timeout_s} s")
            self._closing.wait(deadline.sooner(AWAIT_STEP_S).left_s)
        self._check_alive()

    def close(self) -> None:
        """Drain, stop and close the store. Submissions still pending fail with SubmissionUnknown."""
        self._closing.set()
        self.resign()
        self._thread.join()
        self._submissions.abandon()
        super().close()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    if self._following.is_set():
                        self._follow()
                    else:
                        self.loop.lead(self._following)
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
            self.apply(entry.offset, entry.value)
        if not entries:
            self._closing.wait(FOLLOW_WAIT_S / 10)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise StopProcess(f"this replica has stopped: {self._failure}") from self._failure
