"""The leader of one shard, without I/O: proposals and delivery reports in, records to append and replies out.

Rules (design, sections 3 and 4):
    1. Execution is serial, against the overlay: read-your-writes needs no locks, admission is exact, a request is one
       transition.
    2. Every answer that depends on state, errors included, is in its batch and leaves only when that batch is effective
       and applied. Hits on applied retry rows, and the refusals of a prepared shard, leave at once.
    3. A record is effective when it is known to count (``in_flight``).
    4. After any failed or unknown append nothing more is appended under the nonce: :class:`Deposed` is raised. The
       shell then drops this object and reads the log to learn the truth.
    5. Batch time = max(previous effective batch's, append time of the claim + time elapsed since).

A leader judges each proposal once (``execution.calls``) and hands it to one of two builders (``builder``). One executes
proposals and logs the operations, the other logs the proposals as they are. The table in ``phases`` says what is legal
when. A leader object lives for one claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replicated_db.core.applying.replica import Replica
from replicated_db.core.execution.answered import AnsweredCalls
from replicated_db.core.execution.calls import RUN, CallRuling, RunLimits, judge_call
from replicated_db.core.execution.expiry import Expiry
from replicated_db.core.execution.service import (
    MAX_REQUEST_BYTES,
    Executed,
    Proposal,
    Refusal,
    Reply,
    Service,
)
from replicated_db.core.execution.shard_state import ShardState, state_after
from replicated_db.core.leading.barriers import Barriers
from replicated_db.core.leading.builder import BatchBuilder, OnApplied, OpenBatch
from replicated_db.core.leading.in_flight import Append, Deposed, Effective, RecordsInFlight
from replicated_db.core.leading.operations_builder import OperationsBuilder
from replicated_db.core.leading.phases import TRANSITIONS, LeaderEvent, LeaderPhase, Wait
from replicated_db.core.leading.requests_builder import RequestsBuilder
from replicated_db.core.ports import DeliveryReport
from replicated_db.core.tables.overlay import Overlay
from schemas import features
from schemas.records.log import Barrier, CountingRecord, Genesis, LeaderClaim, Tick

__all__ = [
    "Append", "Deposed", "Effective", "Executed", "Leader", "LeaderLimits", "LeaderPhase", "Proposal", "Refusal",
    "Reply", "Service", "Wait", "claim_for",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLimits:
    """Bounds of a leader. A batch closes at any of its limits; one request has a limit of its own.

    A batch reaches ``max_batch_age_ms`` only if the leader stood still or waits long for acknowledgements. After a
    stall, later requests must not receive an old batch time. A client's retry rows are removed early once the client is
    ``early_removal_calls`` calls ahead of them (``answered``; 0 = never). With a ``scrub_interval_ms`` of 0 there is no
    scrub but the one that begins each claim.
    """

    max_batch_requests: int = 500
    max_batch_bytes: int = 2 * 1024 * 1024
    max_batch_age_ms: int = 1000
    max_request_bytes: int = MAX_REQUEST_BYTES
    max_in_flight: int = 3
    barrier_interval_ms: int = 1000
    scrub_interval_ms: int = 60_000
    early_removal_calls: int = 128


class Leader:
    """State of one claim that was read as valid, with everything before it applied."""

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
        """Begin to lead.

        ``claim_time_ms`` is the broker's append time of the claim, ``elapsed_ms`` the time since boot now.
        """
        position = replica.position
        self.replica = replica
        self.term = position.term
        self.nonce = position.nonce
        self.state = replica.state
        """How the shard is run, including every record that has been appended or is being built."""
        self.limits = limits
        self.phase = LeaderPhase.IDLE
        self._service = service
        self._index = position.index
        self._timestamp_ms = position.timestamp_ms
        self._clock_offset_ms = claim_time_ms - elapsed_ms
        self._overlay = Overlay(replica.store)
        self._records = RecordsInFlight(replica, claim_offset)
        self._barriers = Barriers(
            interval_ms=limits.barrier_interval_ms, scrub_interval_ms=limits.scrub_interval_ms, elapsed_ms=elapsed_ms
        )
        self._operations = OperationsBuilder(
            replica, service, self._overlay, self._records, RunLimits(kept_bytes=limits.max_request_bytes),
            answered=AnsweredCalls(limits.early_removal_calls), expiry=Expiry(limits.barrier_interval_ms),
            read=self._read,
            on_state=self._on_state,
        )  # fmt: skip
        self._requests = RequestsBuilder(
            replica, service, self._overlay, self.nonce,
            read=self._read, repeat=self._operations.repeat, on_settled=self._on_settled,
        )  # fmt: skip
        self._builders: dict[LeaderPhase, BatchBuilder] = {
            builder.phase: builder for builder in (self._operations, self._requests)
        }

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of records appended and not yet effective."""
        return len(self._records)

    @property
    def settled(self) -> bool:
        """Whether no batch is in flight. Ticks and barriers may be."""
        return self._records.settled

    @property
    def seq(self) -> int:
        """Number of the last record appended under this claim."""
        return self._records.seq

    @property
    def chain(self) -> bytes:
        """Chain after the last record appended under this claim."""
        return self._records.chain

    @property
    def index(self) -> int:
        """Index of the last request taken."""
        return self._index + self.building

    @property
    def building(self) -> int:
        """Number of requests in the batch being built."""
        batch = self._batch
        return 0 if batch is None else batch.requests

    @property
    def _batch(self) -> OpenBatch | None:
        builder = self._builders.get(self.phase)
        return None if builder is None else builder.batch

    def has_room(self) -> bool:
        """Whether the batch being built has room for another request."""
        batch, limits = self._batch, self.limits
        return batch is None or (
            batch.requests < limits.max_batch_requests and batch.size_bytes < limits.max_batch_bytes
        )

    def is_stale(self, elapsed_ms: int) -> bool:
        """Whether the batch being built was opened too long ago to take another request. Then seal it first."""
        batch = self._batch
        return batch is not None and self.timestamp_ms(elapsed_ms) - batch.timestamp_ms > self.limits.max_batch_age_ms

    def timestamp_ms(self, elapsed_ms: int) -> int:
        """Return the batch time at ``elapsed_ms`` since boot."""
        return max(self._timestamp_ms, self._clock_offset_ms + elapsed_ms)

    # -- phases ----------------------------------------------------------------------------------------------------

    def _after(self, event: LeaderEvent) -> LeaderPhase | Wait:
        """Return the phase after an event, or what it must wait for. Raises Deposed if nothing is legal any more."""
        found = TRANSITIONS[self.phase].get(event)
        if found is None:
            raise Deposed(self._records.deposed or f"{event} while {self.phase}")
        return found

    def _enter(self, event: LeaderEvent) -> None:
        if isinstance(after := self._after(event), LeaderPhase):
            self.phase = after

    def _on_settled(self) -> None:
        self._enter(LeaderEvent.SETTLED)

    def _on_state(self, state: ShardState) -> None:
        self.state = state

    # -- proposals -------------------------------------------------------------------------------------------------

    def take(self, proposal: Proposal, elapsed_ms: int) -> Reply | Wait | None:
        """Put a proposal into the batch being built, by the mode of its request type.

        Returns None if the proposal is in, or waits for another one's answer. Returns a Reply if that may leave at
        once. Returns a Wait if the proposal has not been taken: do what the Wait says, then offer the proposal again.
        A proposal that begins a batch waits until everything before it has settled, because it may have to compare
        what the rows have become, unless it will be refused (``judged_first``).
        Raises StopProcess if the store fails, Deposed after a failed append.
        """
        state = self.state
        builder: BatchBuilder = self._operations
        if state.late and self._requests.is_for(proposal, state):
            builder = self._requests
        if self.phase is not builder.phase and isinstance(wait := self._after(builder.event), Wait):
            return wait
        batch, limits = builder.batch, self.limits
        if batch is None:
            index, timestamp_ms = self._index + 1, self.timestamp_ms(elapsed_ms)
        elif batch.requests < limits.max_batch_requests and batch.size_bytes < limits.max_batch_bytes:  # it has room
            index, timestamp_ms = self._index + batch.requests + 1, batch.timestamp_ms
        else:
            return Wait.SEAL
        prepared = state.prepared
        if proposal.begins_batch and (first := self._wait_to_begin(proposal, state, index, timestamp_ms)) is not None:
            return first
        if proposal.when_prepared:
            prepared = None
        if (fault := proposal.fault()) is not None:
            return self._refuse(proposal, Refusal.FAILED, fault)
        now_ms = timestamp_ms if prepared is None else self.timestamp_ms(elapsed_ms)
        judgement = judge_call(proposal, builder.get, timestamp_ms, prepared, now_ms)
        if judgement is not RUN and judgement.ruling is CallRuling.REFUSED_AT_ONCE:
            return self._refuse(proposal, judgement.refusal, judgement.message)
        reply = builder.take(proposal, judgement, state, index, timestamp_ms)
        if batch is None and builder.batch is not None:
            self.phase = builder.phase
        return reply

    def _wait_to_begin(self, proposal: Proposal, state: ShardState, index: int, timestamp_ms: int) -> Wait | None:
        """Say what a proposal must wait for that may only begin a batch.

        None: it begins one now, or is refused as the rows are, which any batch can hold: nobody who is refused ends the
        batches of others.
        """
        if index > self._index + 1:
            wait = Wait.SEAL
        elif not self._records.settled:
            wait = Wait.SETTLE
        else:
            return None
        refused = proposal.judged_first and self._operations.would_refuse(proposal, state, index, timestamp_ms)
        return None if refused else wait

    def _refuse(self, proposal: Proposal, refusal: Refusal, message: str) -> Reply:
        return Reply(proposal=proposal, response=self._service.refuse(proposal, refusal, message, -1))

    def _read(self, cf: str, key: bytes) -> bytes | None:
        """Return a retry row in flight, in the table cache or in the store.

        While the cache holds rows, the overlay holds no row in flight.
        """
        late = self.replica.late
        return late.cache.get(cf, key) if late.unwritten else self._overlay.get(cf, key)

    # -- appending -------------------------------------------------------------------------------------------------

    def seal(self) -> list[Append]:
        """Close the batch being built; return what to append, in order. An empty batch gives an empty list."""
        builder = self._builders.get(self.phase)
        self._enter(LeaderEvent.SEAL)
        if builder is None or (batch := builder.batch) is None:
            return []
        appends = [self._append(sealed.make(self._records.header()), sealed.on_applied) for sealed in builder.seal()]
        if appends:
            self._index += batch.requests
            self._timestamp_ms = batch.timestamp_ms
            self._barriers.written = True
        return appends

    def genesis(self, cluster: str, replicas: Sequence[str]) -> Append | None:
        """Return the Genesis record if the shard has none yet. Call it before anything else."""
        if self.replica.genesis is not None:
            return None
        identity = self.replica.identity
        record = Genesis(
            **self._records.header(), cluster=cluster, shard=identity.shard, shards=identity.shards,
            replicas=list(replicas), column_families=list(self.replica.families.names),
            feature_level=features.LATEST,
        )  # fmt: skip
        self.state = state_after(self.state, record)
        return self._append(record)

    def barrier(self, elapsed_ms: int) -> Append | None:
        """Return a barrier if one is due (``barriers``) and nothing is being built."""
        if not self._barriers.is_due(elapsed_ms) or self.in_flight >= self.limits.max_in_flight:
            return None
        if isinstance(self._after(LeaderEvent.STAND_ALONE), Wait):
            return None
        scrub = self._barriers.take(elapsed_ms, self.timestamp_ms(elapsed_ms))
        return self._append(Barrier(**self._records.header(), index=self.index, scrub=scrub))

    def barrier_in_ms(self, elapsed_ms: int) -> int:
        """Return how many milliseconds there are until a barrier is due, if nothing is written meanwhile."""
        return self._barriers.due_in_ms(elapsed_ms)

    def tick(self) -> Append | None:
        """Return an empty record, which proves to readers that this node still leads; None while building a batch."""
        if isinstance(self._after(LeaderEvent.STAND_ALONE), Wait):
            return None
        return self._append(Tick(**self._records.header()))

    def _append(self, record: CountingRecord, on_applied: OnApplied | None = None) -> Append:
        return self._records.append(record, self.state.feature_level, on_applied)

    # -- delivery --------------------------------------------------------------------------------------------------

    def on_report(self, report: DeliveryReport) -> list[Effective]:
        """Take a delivery report; return the records that it makes effective, in order.

        Raises Deposed as soon as an append failed or its outcome is unknown, even if earlier ones are still in flight;
        AheadOfLog if offsets run backwards.
        """
        try:
            return self._records.on_report(report)
        except Deposed:
            self._enter(LeaderEvent.FAILED)
            raise

    @property
    def must_read(self) -> int | None:
        """Offset up to which (inclusive) the log must be offered to the replica first; None if nothing must be read."""
        return self._records.must_read

    def on_read(self) -> list[Effective]:
        """Go on after everything up to :attr:`must_read` has been offered to the replica.

        Raises as :meth:`on_report` does.
        """
        try:
            return self._records.on_read()
        except Deposed:
            self._enter(LeaderEvent.FAILED)
            raise


def claim_for(replica: Replica, nonce: bytes, address: str, wall_ms: int) -> LeaderClaim:
    """Return the claim of a candidate that has read the log to its end."""
    return LeaderClaim(
        term=replica.position.term + 1, nonce=nonce, node=replica.identity.node, address=address, claimed_at_ms=wall_ms
    )
