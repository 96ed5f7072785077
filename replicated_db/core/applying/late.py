"""Late validation: from logged requests to the batch that they amount to (design, section 6).

A RequestBatch holds requests, not results. Every replica executes them in order against its own rows, and so derives
the Batch that a leader-side execution would have logged: the same operations, results and retry rows. From there on
(the plan, the digests, the rows) the code is the same as for a Batch. Rules:

    - Only the record and the replicated rows decide: the record's time, its indexes, retry rows. Settings and clocks
      never do.
    - Each request is judged and run as a leader does it (``execution.calls``), by the record's time. No request may act
      on the log itself.
    - Old retry rows are removed as in a Batch: oldest first, with each record the rows of at most
      MAX_EXPIRIES_PER_BATCH old batches.

A service brings its own part as :class:`Executor`. The log never says what an executor makes of a request. So replicas
with different executors diverge, and only a comparison of the replicas shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from replicated_db.core.errors import BrokenLog
from replicated_db.core.execution.calls import RUN, CallRuling, RunLimits, judge_call, run_call
from replicated_db.core.execution.expiry import remove_rows
from replicated_db.core.execution.folding import BatchOperations
from replicated_db.core.execution.retry import RETENTION_MS, expired, is_dead, retry_key
from replicated_db.core.execution.service import Executed, Proposal, Refusal
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.ports import StoreView
from replicated_db.core.tables.column_families import RETRY, Families
from replicated_db.core.tables.overlay import Overlay
from schemas.records.log import Batch, LateRequest, RequestBatch, Result

LOGGED_LIMITS = RunLimits(refusal_bytes=None, shortens=False)
"""Limits of a logged request. They are part of the log's meaning: replicas with different limits would diverge."""


class Executor(Protocol):
    """How a service validates and executes a logged request. Pure: equal rows give equal operations and answers.

    A request must lead to the same operations and response whether the leader executes it alone (``Service.execute``)
    or it passes through ``prepare`` and ``execute``.
    """

    def prepare(self, proposal: Proposal, timestamp_ms: int, index: int, feature_level: int) -> bytes:
        """Return the request with everything that only a leader may choose, in schemas of ``feature_level``.

        A refusal is part of the bytes. An exception says that the request cannot be logged at all: it is answered with
        Refusal.FAILED, without an index.
        """

    def execute(self, prepared: bytes, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a prepared request. An exception becomes Refusal.FAILED and changes nothing."""

    def refuse(self, prepared: bytes, refusal: Refusal, message: str, index: int) -> bytes:
        """Encode an answer that the replicated database itself gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What a RequestBatch amounts to: the batch, and how many of its requests were refused."""

    batch: Batch
    invalid: int


def derive_batch(
    families: Families, view: StoreView, record: RequestBatch, executor: Executor, state: ShardState
) -> Derived:
    """Execute a counting record against ``view``; ``state`` is how the shard is run at the record's place in the log.

    Raises BrokenLog if the record's requests are not numbered one by one through its indexes, and StopProcess kinds
    that the store raises.
    """
    overlay = Overlay(view)
    overlay.open_layer(1)
    execution = _Execution(families, overlay, record, executor, state)
    operations = BatchOperations(families)
    execution.expire_retry_rows(view, operations)
    results: list[Result] = []
    for index, request in enumerate(record.requests, record.first_index):
        if request.index != index:
            raise BrokenLog(f"request {index} of a RequestBatch is numbered {request.index}")
        results.append(execution.answer(request, operations))
    if record.first_index + len(results) != record.last_index + 1:
        raise BrokenLog(f"{len(results)} requests in a RequestBatch of {record.first_index}..{record.last_index}")
    batch = Batch(
        term=record.term, nonce=record.nonce, seq=record.seq, prev_chain=record.prev_chain,
        first_index=record.first_index, last_index=record.last_index, timestamp_ms=record.timestamp_ms,
        request_position=record.request_position, operations=operations.operations, results=results,
    )  # fmt: skip
    return Derived(batch=batch, invalid=execution.invalid)


class _Execution:
    """Working state of one derivation; the overlay holds what the record's earlier requests wrote."""

    __slots__ = ("executor", "families", "invalid", "overlay", "record", "state")

    def __init__(
        self, families: Families, overlay: Overlay, record: RequestBatch, executor: Executor, state: ShardState
    ) -> None:
        self.families = families
        self.overlay = overlay
        self.record = record
        self.executor = executor
        self.state = state
        self.invalid = 0

    def expire_retry_rows(self, view: StoreView, operations: BatchOperations) -> None:
        """Delete the retry rows of the oldest batches that are past their retention and still have retry rows."""
        transaction = Transaction(self.families, self.overlay, self.record.first_index)
        oldest = expired(view, b"", self.record.timestamp_ms - RETENTION_MS)
        # Each replica forgets dead expiry rows at its own time, so dead ones must not use up the record's share.
        remove_rows(transaction, (batch for batch in oldest if not is_dead(transaction.get, *batch)))
        operations.extend(transaction.commit())

    def answer(self, request: LateRequest, operations: BatchOperations) -> Result:
        """Execute or refuse a request, append its operations, and return its result."""
        judgement = judge_call(request, self.overlay.get, self.record.timestamp_ms)
        if judgement is RUN:
            response = self._run(request, operations)
            key = retry_key(request.client_id, request.call_id)
            self.overlay.set(RETRY, key, request.request_hash + response)
        elif judgement.ruling is CallRuling.REPEATED:
            response = judgement.response
        else:
            self.invalid += 1
            response = self.executor.refuse(request.prepared, judgement.refusal, judgement.message, request.index)
        return Result(
            client_id=request.client_id, call_id=request.call_id, request_hash=request.request_hash,
            first_sent_at_ms=request.first_sent_at_ms, request_type=request.request_type, index=request.index,
            recorded=judgement is RUN, response=response,
        )  # fmt: skip

    def _run(self, request: LateRequest, operations: BatchOperations) -> bytes:
        transaction = Transaction(self.families, self.overlay, request.index, self.state)
        executed = run_call(
            self.executor, request.prepared, transaction, self.record.timestamp_ms, LOGGED_LIMITS, False
        )
        if executed.keep:
            operations.extend(transaction.commit())
        else:
            self.invalid += 1
        return executed.response
