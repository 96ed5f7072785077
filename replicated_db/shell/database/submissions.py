"""Submissions of an embedded database: plain operations, each with its own answer.

Rules:
    - A submission has a retry row like any request, so it is executed once even if the leadership changes meanwhile.
    - It stays pending from claim to claim, until it is answered, expires, or the database is closed.
    - At most MAX_PENDING are unanswered; a further one is refused.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from xxhash import xxh3_128_digest

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import Refused
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Executed, Proposal, Refusal, Reply
from replicated_db.core.ports import Clock, Ids
from replicated_db.shell.leader_loop import take_queued
from schemas.records.log import Checkpoint, Operation, RequestPosition

MAX_PENDING = 10_000
"""How many submissions may be unanswered. A further one is refused."""


class SubmissionUnknown(Exception):
    """The database was closed, or the submission expired, before its answer was known."""


class _Submission(NamedTuple):
    """A submission without an answer yet."""

    proposal: Proposal
    future: Future[int]


class Submissions:
    """Pending submissions: the intake, the outbox and the service of a database in one. ``add`` runs on any thread."""

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

    def reopen(self, hint: RequestPosition | None) -> Submissions:  # noqa: ARG002 - the intake of LeaderLoop
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
