"""The leader of one shard, without I/O: proposals and delivery reports in, records to append and replies out.

Rules (design, sections 3 and 4):
    1. Execution is serial, against the overlay: read-your-writes needs no locks, admission is exact, a request is one
       transition.
    2. Every answer that depends on state, errors included, is in its batch and leaves only when that batch is effective and
       applied. At once go only hits on applied retry rows.
    3. A record is effective when its report is error-free, every earlier seq is effective and it lies directly behind the
       previous own one; otherwise what lies between is read first (``must_read``).
    4. After any failed or unknown append nothing more is appended under the nonce: :class:`Deposed` is raised, the shell
       drops this object and reads the log to learn the truth.
    5. Batch time = max(previous effective batch's, append time of the claim + time elapsed since).

A leader object lives for one claim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128_digest

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import AheadOfLog, BrokenLog, StopProcess
from replicated_db.core.execution.answered import AnsweredCalls
from replicated_db.core.execution.building import Building
from replicated_db.core.execution.expiry import Expiry
from replicated_db.core.execution.folding import BatchOperations
from replicated_db.core.execution.retry import BELOW_FLOOR, HASH_BYTES, is_below_floor, is_expired, retry_key
from replicated_db.core.execution.service import (
    MAX_REQUEST_BYTES,
    Executed,
    Proposal,
    Refusal,
    Reply,
    Service,
    error_text,
    unloggable,
)
from replicated_db.core.execution.shard_state import ControlOperation, state_after
from replicated_db.core.execution.transaction import Slots, Transaction
from replicated_db.core.leading.barriers import Barriers
from replicated_db.core.leading.late_requests import LateBuilding, LateRequests
from replicated_db.core.ports import DeliveryReport
from replicated_db.core.tables.column_families import RETRY
from replicated_db.core.tables.digests import next_chain
from replicated_db.core.tables.overlay import Overlay
from schemas import features
from schemas.codecs.codec import encode_at
from schemas.records.log import (
    Barrier,
    Batch,
    Checkpoint,
    CountingRecord,
    Genesis,
    LeaderClaim,
    RequestBatch,
    Tick,
)

__all__ = [
    "Append", "Deposed", "Effective", "Executed", "Leader", "LeaderLimits", "Proposal", "Refusal", "Reply", "Service", "claim_for",
]  # fmt: skip


class Deposed(Exception):
    """Nothing more may be appended under this claim; outcomes in flight are to be learned from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLimits:
    """Bounds of a leader. A batch closes at any of its limits; one request is bounded by itself.

    Only a leader that stood still, or waits long for acknowledgements, meets ``max_batch_age_ms``: what comes after that would have come
    long before, by the time of its batch. Retry rows of a client go early once it is ``early_removal_calls`` calls ahead of them (``answered``; 0 = never).
    A ``scrub_interval_ms`` of 0 means no scrub but the one that begins each claim.
    """

    max_batch_requests: int = 500
    max_batch_bytes: int = 2 * 1024 * 1024
    max_batch_age_ms: int = 1000
    max_request_bytes: int = MAX_REQUEST_BYTES
    max_in_flight: int = 3
    barrier_interval_ms: int = 1000
    scrub_interval_ms: int = 60_000
    early_removal_calls: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A record to append; ``token`` comes back in its delivery report."""

    token: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What became effective and applied: replies to send, ticks to answer, and what applying it said."""

    offset: int
    record: CountingRecord
    record_hash: bytes
    replies: list[Reply]
    outcome: Offered


@dataclass(slots=True, kw_only=True)
class _InFlight:
    seq: int
    layer: int | None
    record: CountingRecord
    value: bytes
    chain: bytes
    replies: list[Reply]
    late: LateBuilding | None = None
    report: DeliveryReport | None = None


class Leader:
    """State of one claim that has been read as valid, with everything before it applied."""

    def __init__(
        self,
        replica: Replica,
        service: Service,
        limits: LeaderLimits,
        *,
        claim_offset: int,
        claim_time_ms: int,
        elapsed_ms: int,
    ) -> None:
        """Begin to lead. ``claim_time_ms`` is the broker's append time of the claim, ``elapsed_ms`` time since boot now."""
        position = replica.position
        self.replica = replica
        self.term = position.term
        self.nonce = position.nonce
        self.index = position.index
        self.state = replica.state
        self.limits = limits
        self._service = service
        self._chain = position.chain
        self._timestamp_ms = position.timestamp_ms
        self._clock_offset_ms = claim_time_ms - elapsed_ms
        self._seq = 0
        self._layer = 0
        self._last_offset = claim_offset
        self._overlay = Overlay(replica.store)
        self._in_flight: deque[_InFlight] = deque()
        self._building: Building | None = None
        self._late = LateRequests()
        self._must_read: _InFlight | None = None
        self._deposed: str | None = None
        self._answered = AnsweredCalls(limits.early_removal_calls)
        self._expiry = Expiry(limits.barrier_interval_ms)
        self._barriers = Barriers(
            interval_ms=limits.barrier_interval_ms, scrub_interval_ms=limits.scrub_interval_ms, elapsed_ms=elapsed_ms
        )
        replica.late.answer_for(self.nonce)

    # -- executing -------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of records appended and not yet effective."""
        return len(self._in_flight)

    @property
    def settled(self) -> bool:
        """Whether no batch is in flight; ticks and barriers may be."""
        return all(entry.layer is None and entry.late is None for entry in self._in_flight)

    @property
    def seq(self) -> int:
        """Number of the last record appended under this claim."""
        return self._seq

    @property
    def chain(self) -> bytes:
        """Chain after the last record appended under this claim."""
        return self._chain

    @property
    def building(self) -> int:
        """Number of requests in the batch being built."""
        late = self._late.building
        return (0 if self._building is None else self._building.requests) + (0 if late is None else len(late.requests))

    def has_room(self) -> bool:
        """Whether the batch being built takes another request."""
        building = self._building
        if building is None:
            late = self._late.building
            return late is None or self._has_room(len(late.requests), late.size_bytes)
        return self._has_room(building.requests, building.size_bytes)

    def _has_room(self, requests: int, size_bytes: int) -> bool:
        return requests < self.limits.max_batch_requests and size_bytes < self.limits.max_batch_bytes

    def is_stale(self, elapsed_ms: int) -> bool:
        """Whether the batch being built was opened too long ago to take another request: seal it first."""
        building = self._building or self._late.building
        return (
            building is not None
            and self.timestamp_ms(elapsed_ms) - building.timestamp_ms > self.limits.max_batch_age_ms
        )

    def timestamp_ms(self, elapsed_ms: int) -> int:
        """Return the batch time at ``elapsed_ms`` since boot."""
        return max(self._timestamp_ms, self._clock_offset_ms + elapsed_ms)

    def execute(self, proposal: Proposal, elapsed_ms: int) -> Reply | None:
        """Execute a proposal into the batch being built; return a reply only if it may leave at once.

        Raises StopProcess if the store fails. Any other exception of the service becomes the proposal's answer.
        """
        if (fault := proposal.fault()) is not None:
            return Reply(proposal=proposal, response=self._service.refuse(proposal, Refusal.FAILED, fault, -1))
        if self.state.prepared is not None and self._refuses(proposal, elapsed_ms):
            return self._refuse_prepared(proposal)
        building = self._building or self._open(elapsed_ms)
        if proposal.position is not None:
            building.position = proposal.position
        key = row = None
        if proposal.client_id:
            key = retry_key(proposal.client_id, proposal.call_id)
            row = self._overlay.get(RETRY, key)
            if row is not None and row[:HASH_BYTES] == proposal.request_hash:
                return self._repeat(proposal, key, row[HASH_BYTES:])
        if not building.requests and self.state.prepared is None:
            self._remove_old_rows(building)  # now, when an index is certain: without one no row may change
        refused = None if key is None else self._why_refused(proposal, building, row)
        if refused is None and self.state.prepared is not None and not proposal.begins_batch:
            # Expired by the clock, so it was let in; but not by the time of the batch, which was opened earlier.
            return self._refuse_prepared(proposal)
        index = self.index + 1
        if refused is None:
            response = self._run(proposal, building, index)
        else:
            response = self._service.refuse(proposal, *refused, index)
        self.index = index
        building.answer(proposal, response, index, recorded=refused is None)
        if refused is None and key is not None:
            self._overlay.set(RETRY, key, proposal.request_hash + response)
        return None

    def _why_refused(self, proposal: Proposal, building: Building, row: bytes | None) -> tuple[Refusal, str] | None:
        """Judge a call that is not a repeated one; ``row`` is what its id has in the retry cache."""
        self._answered.hear(proposal.client_id, proposal.answered_below)
        if row is not None:
            return Refusal.CALL_ID_REUSED, "the call id was used for another request"
        if is_expired(proposal.first_sent_at_ms, building.timestamp_ms):
            return Refusal.EXPIRED, f"first sent at {proposal.first_sent_at_ms} ms"
        if is_below_floor(self._overlay.get, proposal.client_id, proposal.call_id):
            return Refusal.EXPIRED, BELOW_FLOOR
        return None

    def _refuses(self, proposal: Proposal, elapsed_ms: int) -> bool:
        """Whether a prepared shard refuses a request: all but operators' commands, repeated ones and expired ones."""
        if proposal.begins_batch or is_expired(proposal.first_sent_at_ms, self.timestamp_ms(elapsed_ms)):
            return False
        return not proposal.client_id or self._retry_row(retry_key(proposal.client_id, proposal.call_id)) is None

    def _refuse_prepared(self, proposal: Proposal) -> Reply:
        message = f"the shard is prepared for an upgrade (checkpoint {self.state.prepared}) and takes no writes"
        return Reply(proposal=proposal, response=self._service.refuse(proposal, Refusal.PREPARED, message, -1))

    def _open(self, elapsed_ms: int) -> Building:
        if self._late.pending:
            raise ValueError("requests under late validation have not settled: what they write is not known yet")
        if self.replica.late.unwritten:
            self.replica.flush()
        timestamp_ms = self.timestamp_ms(elapsed_ms)
        self._layer += 1
        operations = BatchOperations(self.replica.families)
        self._building = building = Building(layer=self._layer, timestamp_ms=timestamp_ms, operations=operations)
        self._overlay.open_layer(self._layer)
        return building

    def _remove_old_rows(self, building: Building) -> None:
        timestamp_ms = building.timestamp_ms
        if self._answered.due and not self._in_flight and self.state.feature_level >= features.OPERATIONS:
            transaction = Transaction(self.replica.families, self._overlay, self.index)
            self._answered.remove(transaction, timestamp_ms)
            building.take(transaction)
        if timestamp_ms >= self._expiry.due_ms:
            transaction = Transaction(self.replica.families, self._overlay, self.index)
            self._expiry.remove(transaction, self.replica.store, timestamp_ms)
            building.take(transaction)

    def _repeat(self, proposal: Proposal, key: bytes, response: bytes) -> Reply | None:
        """Answer a repeated request: at once if its row is applied, else with its batch."""
        reply = Reply(proposal=proposal, response=response)
        layer = self._overlay.layer_of(RETRY, key)
        if layer is None:
            return reply
        if self._building is not None and self._building.layer == layer:
            self._building.replies.append(reply)
        else:
            next(entry for entry in self._in_flight if entry.layer == layer).replies.append(reply)
        return None

    def _run(self, proposal: Proposal, building: Building, index: int) -> bytes:
        transaction = Transaction(self.replica.families, self._overlay, index, self.state)
        transaction.settled = self._own_slots
        try:
            executed = self._service.execute(proposal, transaction, building.timestamp_ms)
            if (refused := self._refused(executed, transaction, building)) is not None:
                return self._service.refuse(proposal, *refused, index)
            if not executed.keep:
                return executed.response
            if (control := transaction.control_operation) is not None:
                # The rest of the batch lies behind the record and sees it.
                building.control, self.state = control, control.effect_on(self.state)
        except StopProcess:
            raise
        except Exception as error:
            return self._service.refuse(proposal, Refusal.FAILED, error_text(error), index)
        if transaction.checkpoint_name is not None:  # before the batch's own removals of old retry rows
            building.operations.begin_with(Checkpoint(name=transaction.checkpoint_name))
        building.take(transaction)
        return executed.response

    def _refused(self, executed: Executed, transaction: Transaction, building: Building) -> tuple[Refusal, str] | None:
        """Say why what a service has made of a request cannot be logged, None if it can."""
        if (refused := unloggable(executed, transaction, self.limits.max_request_bytes)) is not None:
            return refused
        if executed.keep and transaction.acts_on_log and building.requests:
            return Refusal.FAILED, "it may only begin a batch"
        return None

    def _own_slots(self) -> Slots | None:
        """Return the digests of the last index, None if batches are on their way to them."""
        with self.replica.lock:
            position = self.replica.position
            if not self.settled or position.nonce != self.nonce or position.index != self.index:
                return None
            return self.replica.digests.slots()

    # -- late validation -------------------------------------------------------------------------------------------

    def is_late(self, proposal: Proposal) -> bool:
        """Whether a proposal is to be logged as it is, for every replica to execute (:meth:`log`)."""
        return proposal.request_type in self.state.late and bool(proposal.client_id) and not proposal.begins_batch

    @property
    def late_pending(self) -> bool:
        """Whether logged requests have not settled; :meth:`execute` must wait until they have."""
        return self._late.pending

    @property
    def executed_building(self) -> bool:
        """Whether a batch of executed proposals is being built; :meth:`log` must wait until it is sealed."""
        return self._building is not None

    def log(self, proposal: Proposal, elapsed_ms: int) -> Reply | None:
        """Take a proposal into the RequestBatch being built: gateway and preExecute only; return a reply that may leave at once.

        What it does, reused call ids and expired requests included, is found where the record is applied. Raises StopProcess if the
        store fails.
        """
        if self._building is not None:
            raise ValueError("a batch of executed requests is being built: seal it first")
        if (fault := proposal.fault()) is not None:
            return Reply(proposal=proposal, response=self._service.refuse(proposal, Refusal.FAILED, fault, -1))
        executor = self.replica.late.executor
        if executor is None:
            raise BrokenLog(f"{proposal.request_type} is to be validated late, but this service cannot")
        if self._late.repeats(proposal):
            return None
        key = retry_key(proposal.client_id, proposal.call_id)
        row = self._retry_row(key)
        if row is not None and row[:HASH_BYTES] == proposal.request_hash:
            return self._repeat(proposal, key, row[HASH_BYTES:])
        if self.state.prepared is not None and self._refuses(proposal, elapsed_ms):
            return self._refuse_prepared(proposal)
        building = self._late.building
        timestamp_ms = self.timestamp_ms(elapsed_ms) if building is None else building.timestamp_ms
        try:
            prepared = executor.prepare(proposal, timestamp_ms, self.index + 1, self.state.feature_level)
        except StopProcess:
            raise
        except Exception as error:  # nothing can be logged of it; those before and behind it go on
            response = self._service.refuse(proposal, Refusal.FAILED, error_text(error), -1)
            return Reply(proposal=proposal, response=response)
        self.index += 1
        if building is None:
            building = self._late.building = LateBuilding(timestamp_ms=timestamp_ms, first_index=self.index)
        if proposal.position is not None:
            building.position = proposal.position
        below = is_below_floor(lambda _, row_key: self._retry_row(row_key), proposal.client_id, proposal.call_id)
        recorded = row is None and not below and not is_expired(proposal.first_sent_at_ms, building.timestamp_ms)
        self._late.add(building, proposal, self.index, prepared, recorded=recorded)
        return None

    def _retry_row(self, key: bytes) -> bytes | None:
        """Return a retry row in flight, in the table cache or in the store. With rows in the cache none is in the overlay."""
        late = self.replica.late
        return late.cache.get(RETRY, key) if late.unwritten else self._overlay.get(RETRY, key)

    def _seal_late(self) -> list[Append]:
        building = self._late.seal()
        if building is None:
            return []
        record = RequestBatch(
            **self._header(), first_index=building.first_index, last_index=self.index, timestamp_ms=building.timestamp_ms,
            request_position=building.position, requests=building.requests,
        )  # fmt: skip
        self._timestamp_ms = building.timestamp_ms
        self._barriers.written = True
        append = self._append(record)
        self._in_flight[-1].late = building
        return [append]

    # -- appending -------------------------------------------------------------------------------------------------

    def seal(self) -> list[Append]:
        """Close the batch being built and return what to append, in order; empty if there is nothing in it."""
        building = self._building
        if building is None:
            return self._seal_late()
        self._building = None
        if not building.requests:
            self._overlay.close_empty_layer()
            return []
        appends = []
        if (control := building.control) is not None:
            appends.append(self._control(control, self.index - building.requests))
        record = Batch(
            **self._header(), first_index=self.index - building.requests + 1, last_index=self.index,
            timestamp_ms=building.timestamp_ms, request_position=building.position,
            operations=building.operations.operations, results=building.results,
        )  # fmt: skip
        self._timestamp_ms = building.timestamp_ms
        self._barriers.written = True
        return [*appends, self._append(record, building.replies, building.layer)]

    def genesis(self, cluster: str, replicas: Sequence[str]) -> Append | None:
        """Return the Genesis record if the shard has none yet. Call first of all."""
        if self.replica.genesis is not None:
            return None
        identity = self.replica.identity
        record = Genesis(
            **self._header(), cluster=cluster, shard=identity.shard, shards=identity.shards,
            replicas=list(replicas), column_families=list(self.replica.families.names),
            feature_level=features.LATEST,
        )  # fmt: skip
        self.state = state_after(self.state, record)
        return self._append(record)

    def barrier(self, elapsed_ms: int) -> Append | None:
        """Return a barrier if one is due (``barriers``) and nothing is being built."""
        if not self._barriers.is_due(elapsed_ms):
            return None
        if self._building is not None or self._late.building is not None or self.in_flight >= self.limits.max_in_flight:
            return None
        return self._append(Barrier(**self._header(), index=self.index, scrub=self._barriers.take(elapsed_ms)))

    def tick(self) -> Append | None:
        """Return an empty record, by which readers see that this node still leads; None while a batch is being built."""
        if self._building is not None or self._late.building is not None:
            return None
        return self._append(Tick(**self._header()))

    def _control(self, operation: ControlOperation, index: int) -> Append:
        record: CountingRecord = operation.with_header(**self._header(), index=index)
        return self._append(record)

    def _header(self) -> dict[str, Any]:
        """Return the four fields that every record but a claim begins with."""
        return {"term": self.term, "nonce": self.nonce, "seq": self._seq + 1, "prev_chain": self._chain}

    def _append(self, record: CountingRecord, replies: list[Reply] | None = None, layer: int | None = None) -> Append:
        if self._deposed is not None:
            raise Deposed(self._deposed)
        value = encode_at(record, self.state.feature_level)
        self._seq += 1
        self._chain = next_chain(self._chain, value)
        self._in_flight.append(
            _InFlight(seq=self._seq, layer=layer, record=record, value=value, chain=self._chain, replies=replies or [])
        )
        return Append(token=self._seq, value=value)

    # -- delivery --------------------------------------------------------------------------------------------------

    def on_report(self, report: DeliveryReport) -> list[Effective]:
        """Take a delivery report; return what became effective by it, in order.

        Raises Deposed as soon as an append failed or its outcome is unknown, even if earlier ones are still in flight;
        AheadOfLog if offsets run backwards.
        """
        for entry in self._in_flight:
            if entry.seq == report.token:
                entry.report = report
                if report.error is not None or report.offset < 0:
                    raise self._depose(entry.seq, report.error or "no offset reported")
        return self._advance()

    def _depose(self, seq: int, reason: str) -> Deposed:
        self._deposed = f"seq {seq} of term {self.term}: {reason}"
        return Deposed(self._deposed)

    @property
    def must_read(self) -> int | None:
        """Offset up to which (inclusive) the log must be offered to the replica before going on; None if it need not."""
        entry = self._must_read
        return None if entry is None or entry.report is None else entry.report.offset

    def on_read(self) -> list[Effective]:
        """Go on after everything up to :attr:`must_read` has been offered to the replica."""
        entry, self._must_read = self._must_read, None
        if entry is None or entry.report is None:
            return []
        return [self._settle(entry, entry.report.offset), *self._advance()]

    def _advance(self) -> list[Effective]:
        effective: list[Effective] = []
        while self._must_read is None and self._in_flight and (report := self._in_flight[0].report) is not None:
            entry = self._in_flight[0]
            if report.offset <= self._last_offset:
                raise AheadOfLog(f"seq {entry.seq} lies at {report.offset}, not behind {self._last_offset}")
            if report.offset == self._last_offset + 1:
                effective.append(self._settle(entry, report.offset))
            else:
                self._must_read = entry
        return effective

    def _settle(self, entry: _InFlight, offset: int) -> Effective:
        """Apply a record that lies behind everything offered so far, and release its layer and its replies."""
        outcome = self.replica.offer(offset, entry.value, entry.record, entry.chain)
        position = self.replica.position
        record_hash = xxh3_128_digest(entry.value)
        if position.nonce != self.nonce or position.seq < entry.seq or self.replica.counted(offset) != record_hash:
            raise self._depose(entry.seq, f"did not count: term {position.term} leads")
        self._in_flight.popleft()
        self._last_offset = offset
        if entry.layer is not None:
            self._overlay.drop_layer(entry.layer)
        if entry.late is not None:
            self._overlay.forget()
            entry.replies += self._late.settle(entry.late, self.replica.late.take_answers(offset))
        return Effective(
            offset=offset,
            record=entry.record,
            record_hash=record_hash,
            replies=entry.replies,
            outcome=outcome,
        )


def claim_for(replica: Replica, nonce: bytes, address: str, wall_ms: int) -> LeaderClaim:
    """Return the claim of a candidate that has read to the end of the log."""
    return LeaderClaim(
        term=replica.position.term + 1, nonce=nonce, node=replica.identity.node, address=address, claimed_at_ms=wall_ms
    )
