"""Batches of operations: each proposal is executed on the leader's rows, and its operations and answer are logged.

The rows of an open batch, and of the batches in flight, are layers of the overlay. A repeated call is answered at once
if its retry row is applied, else together with the batch that writes that row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from replicated_db.core.applying.replica import Replica
from replicated_db.core.execution.answered import AnsweredCalls
from replicated_db.core.execution.calls import RUN, CallJudgement, CallRuling, RunLimits, judge_call, run_call
from replicated_db.core.execution.expiry import Expiry
from replicated_db.core.execution.folding import BatchOperations
from replicated_db.core.execution.retry import Get, retry_key
from replicated_db.core.execution.service import Proposal, Reply, Service
from replicated_db.core.execution.shard_state import ControlOperation, ShardState
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.builder import Header, SealedRecord
from replicated_db.core.leading.in_flight import RecordsInFlight
from replicated_db.core.leading.phases import LeaderEvent, LeaderPhase
from replicated_db.core.tables.column_families import RETRY
from replicated_db.core.tables.digests import DigestSlots
from replicated_db.core.tables.overlay import Overlay
from schemas import features
from schemas.records.log import Batch, Checkpoint, CountingRecord, RequestPosition, Result

OVERHEAD_BYTES = 100
"""Estimated size of a request's result in its record beyond the response."""


@dataclass(slots=True, kw_only=True)
class OperationsBatch:
    """A batch, and the control records to append before it. Its rows are in ``layer``."""

    layer: int
    first_index: int
    timestamp_ms: int
    operations: BatchOperations
    control: tuple[ControlOperation, ...] = ()
    results: list[Result] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    position: RequestPosition | None = None
    size_bytes: int = 0
    requests: int = 0
    answered: dict[bytes, int] = field(default_factory=dict)
    """By client, below which call its latest request says that all have been answered."""

    def keep(self, transaction: Transaction) -> None:
        """Commit a transaction into the batch."""
        self.operations.extend(transaction.commit())
        self.size_bytes += transaction.size_bytes

    def answer(self, proposal: Proposal, response: bytes, index: int, *, recorded: bool) -> None:
        """Count a request in, with its answer. ``recorded``: the request gets a retry row."""
        self.requests += 1
        self.replies.append(Reply(proposal=proposal, response=response))
        if not proposal.client_id:
            return
        self.results.append(
            Result(
                client_id=proposal.client_id, call_id=proposal.call_id, request_hash=proposal.request_hash,
                first_sent_at_ms=proposal.first_sent_at_ms, request_type=proposal.request_type, index=index,
                recorded=recorded, response=response,
            )
        )  # fmt: skip
        self.size_bytes += len(response) + OVERHEAD_BYTES

    def control_record(self, control: ControlOperation, header: Header) -> CountingRecord:
        """Return one of the control records."""
        record: CountingRecord = control.with_header(**header, index=self.first_index - 1)
        return record

    def record(self, header: Header) -> Batch:
        """Return the batch as a record."""
        return Batch(
            **header, first_index=self.first_index, last_index=self.first_index + self.requests - 1,
            timestamp_ms=self.timestamp_ms, request_position=self.position,
            operations=self.operations.operations, results=self.results,
        )  # fmt: skip


class OperationsBuilder:
    """Executes the proposals of one claim.

    ``read`` reads a retry row while no batch is open. ``on_state`` is called with the state after a control record.
    """

    phase = LeaderPhase.EXECUTING
    event = LeaderEvent.EXECUTE

    def __init__(
        self, replica: Replica, service: Service, overlay: Overlay, records: RecordsInFlight, limits: RunLimits, *,
        answered: AnsweredCalls, expiry: Expiry, read: Get, on_state: Callable[[ShardState], None],
    ) -> None:  # fmt: skip
        self.batch: OperationsBatch | None = None
        self.get = read
        self._replica = replica
        self._families = replica.families
        self._service = service
        self._overlay = overlay
        self._records = records
        self._limits = limits
        self._answered = answered
        self._expiry = expiry
        self._read = read
        self._on_state = on_state
        self._layer = 0
        self._in_flight: dict[int, OperationsBatch] = {}

    def take(
        self, proposal: Proposal, judgement: CallJudgement, state: ShardState, index: int, timestamp_ms: int
    ) -> Reply | None:
        """Execute a proposal into the batch, or refuse it there.

        Returns a reply only for a repeated call whose row is applied. Raises StopProcess if the store fails. Any other
        exception of the service becomes the proposal's answer.
        """
        batch = self.batch or self._open(index, timestamp_ms)
        if proposal.position is not None:
            batch.position = proposal.position
        if judgement is not RUN and judgement.ruling is CallRuling.REPEATED:
            return self.repeat(proposal, judgement.response)
        # Not earlier: only now is it certain that this batch has an index, and without an index no row may change.
        if not batch.requests and state.prepared is None and self._remove_old_rows(batch, state) and judgement is RUN:
            # The call's floor may have risen.
            judgement = judge_call(proposal, self.get, batch.timestamp_ms)
        client_id = proposal.client_id
        if client_id:
            batch.answered[client_id] = proposal.answered_below
        if judgement is not RUN:
            response = self._service.refuse(proposal, judgement.refusal, judgement.message, index)
            batch.answer(proposal, response, index, recorded=False)
            return None
        transaction = Transaction(self._families, self._overlay, index, state, self._own_slots)
        executed = run_call(self._service, proposal, transaction, batch.timestamp_ms, self._limits, not batch.requests)
        response = executed.response
        if executed.keep:
            if transaction.control_operations or transaction.checkpoint_name is not None:
                self._begin_with(transaction, batch)
            batch.keep(transaction)
        batch.answer(proposal, response, index, recorded=True)
        if client_id:
            key = client_id + proposal.call_id  # the retry_key
            self._overlay.set(RETRY, key, proposal.request_hash + response)
        return None

    def would_refuse(self, proposal: Proposal, state: ShardState, index: int, timestamp_ms: int) -> bool:
        """Say whether a proposal changes nothing, as the rows are behind all that was executed. It is not taken."""
        if self._replica.late.unwritten:
            self._replica.flush()
        if proposal.fault() is not None or judge_call(proposal, self.get, timestamp_ms) is not RUN:
            return True
        transaction = Transaction(self._families, self._overlay, index, state, self._own_slots)
        return not run_call(self._service, proposal, transaction, timestamp_ms, self._limits, True).keep

    def repeat(self, proposal: Proposal, response: bytes) -> Reply | None:
        """Answer a repeated call: at once if its row is applied, else with its batch."""
        reply = Reply(proposal=proposal, response=response)
        layer = self._overlay.layer_of(RETRY, retry_key(proposal.client_id, proposal.call_id))
        if layer is None:
            return reply
        batch = self.batch if self.batch is not None and self.batch.layer == layer else self._in_flight[layer]
        batch.replies.append(reply)
        return None

    def seal(self) -> list[SealedRecord]:
        """Close the batch; return the batch, after the control records that were asked for."""
        batch, self.batch, self.get = self.batch, None, self._read
        if batch is None:
            return []
        if not batch.requests:
            self._overlay.close_empty_layer()
            return []
        self._in_flight[batch.layer] = batch
        self._answered.on_requests(batch.answered)
        before = [SealedRecord(partial(batch.control_record, control)) for control in batch.control]
        return [*before, SealedRecord(batch.record, partial(self._on_applied, batch))]

    def _on_applied(self, batch: OperationsBatch, _offset: int) -> list[Reply]:
        self._overlay.drop_layer(batch.layer)
        del self._in_flight[batch.layer]
        return batch.replies

    def _open(self, index: int, timestamp_ms: int) -> OperationsBatch:
        if self._replica.late.unwritten:
            self._replica.flush()
        self._layer += 1
        operations = BatchOperations(self._families)
        self.batch = batch = OperationsBatch(
            layer=self._layer, first_index=index, timestamp_ms=timestamp_ms, operations=operations
        )
        self._overlay.open_layer(self._layer)
        self.get = self._overlay.get
        return batch

    def _remove_old_rows(self, batch: OperationsBatch, state: ShardState) -> bool:
        """Remove old retry rows at the beginning of a batch; return whether rows of answered calls were removed."""
        timestamp_ms, before = batch.timestamp_ms, batch.first_index - 1
        removed = False
        if self._answered.due and not self._records and state.feature_level >= features.OPERATIONS:
            transaction = Transaction(self._families, self._overlay, before)
            self._answered.remove(transaction, timestamp_ms)
            removed = bool(transaction.operations)
            batch.keep(transaction)
        if timestamp_ms >= self._expiry.due_ms:
            transaction = Transaction(self._families, self._overlay, before)
            self._expiry.remove(transaction, self._replica.store, timestamp_ms)
            batch.keep(transaction)
        return removed

    def _begin_with(self, transaction: Transaction, batch: OperationsBatch) -> None:
        """Let a batch begin with what its first request asks of the log itself."""
        if transaction.control_operations:
            # The rest of the batch follows the control records and sees their effect.
            batch.control = transaction.control_operations
            self._on_state(transaction.state)
        if transaction.checkpoint_name is not None:  # it precedes even the batch's own removals of old retry rows
            batch.operations.begin_with(Checkpoint(name=transaction.checkpoint_name))

    def _own_slots(self) -> DigestSlots | None:
        """Return the digests at the last index; None while batches before it are in flight."""
        batch, replica = self.batch, self._replica
        with replica.lock:
            position = replica.position
            before = -1 if batch is None else batch.first_index + batch.requests - 1
            if not self._records.settled or position.nonce != self._records.nonce or position.index != before:
                return None
            return replica.digests.slots()
