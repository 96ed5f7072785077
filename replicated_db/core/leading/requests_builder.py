"""Late validation's batches (design, section 6): each proposal is logged as it is, for every replica to execute.

The leader only runs the gateway and preExecute. It does not know what a request will do until its record is applied. So
it remembers, by its key, each call that is being built or in flight and will have a retry row: the same request, sent
again, waits for the same answer, as it would for a row in the overlay. Any other fault of a call is found where the
record is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import BrokenLog, StopProcess
from replicated_db.core.execution.calls import RUN, CallJudgement, CallRuling
from replicated_db.core.execution.retry import Get, retry_key
from replicated_db.core.execution.service import Proposal, Refusal, Reply, Service, error_text
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.leading.builder import Header, SealedRecord
from replicated_db.core.leading.phases import LeaderEvent, LeaderPhase
from replicated_db.core.tables.overlay import Overlay
from schemas.records.log import LateRequest, RequestBatch, RequestPosition

OVERHEAD_BYTES = 100
"""Estimated size of a request in its record beyond its own bytes."""


class _Repeat(NamedTuple):
    """A repeated proposal, and the number in its batch of the request that it repeats."""

    proposal: Proposal
    number: int


@dataclass(slots=True, kw_only=True)
class RequestsBatch:
    """A RequestBatch being built or in flight."""

    timestamp_ms: int
    first_index: int
    position: RequestPosition | None = None
    logged: list[LateRequest] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    repeats: list[_Repeat] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def requests(self) -> int:
        """Number of requests so far."""
        return len(self.logged)

    def record(self, header: Header) -> RequestBatch:
        """Return the batch as a record."""
        return RequestBatch(
            **header, first_index=self.first_index, last_index=self.first_index + len(self.logged) - 1,
            timestamp_ms=self.timestamp_ms, request_position=self.position, requests=self.logged,
        )  # fmt: skip


class _LoggedCall(NamedTuple):
    """Where a call that is being built or in flight is: its batch, and its number there."""

    batch: RequestsBatch
    number: int


class RequestsBuilder:
    """Logs proposals of one claim.

    ``repeat`` answers a call that has a retry row. ``on_settled`` is called when no logged requests are in flight any
    more.
    """

    phase = LeaderPhase.LOGGING
    event = LeaderEvent.LOG

    def __init__(
        self, replica: Replica, service: Service, overlay: Overlay, nonce: bytes, *,
        read: Get, repeat: Callable[[Proposal, bytes], Reply | None], on_settled: Callable[[], None],
    ) -> None:  # fmt: skip
        self.batch: RequestsBatch | None = None
        self.get = read
        self._replica = replica
        self._service = service
        self._overlay = overlay
        self._repeat = repeat
        self._on_settled = on_settled
        self._calls: dict[bytes, _LoggedCall] = {}
        self._in_flight = 0
        replica.late.answer_for(nonce)

    @staticmethod
    def is_for(proposal: Proposal, state: ShardState) -> bool:
        """Whether a proposal is to be logged as it is: its type is in late mode."""
        late = state.late
        return bool(late) and proposal.request_type in late and bool(proposal.client_id) and not proposal.begins_batch

    def take(
        self, proposal: Proposal, judgement: CallJudgement, state: ShardState, index: int, timestamp_ms: int
    ) -> Reply | None:
        """Prepare a proposal and log it.

        Returns a reply if the proposal cannot be logged, or if it repeats a call whose row is applied. Raises
        StopProcess if the store fails, BrokenLog if there is no executor.
        """
        executor = self._replica.late.executor
        if executor is None:
            raise BrokenLog(f"{proposal.request_type} is to be validated late, but this service cannot")
        if self._is_on_its_way(proposal):
            return None
        if judgement.ruling is CallRuling.REPEATED:
            return self._repeat(proposal, judgement.response)
        try:
            prepared = executor.prepare(proposal, timestamp_ms, index, state.feature_level)
        except StopProcess:
            raise
        except Exception as error:  # this proposal cannot be logged; those before and after it go on
            response = self._service.refuse(proposal, Refusal.FAILED, error_text(error), -1)
            return Reply(proposal=proposal, response=response)
        batch = self.batch
        if batch is None:
            batch = self.batch = RequestsBatch(timestamp_ms=timestamp_ms, first_index=index)
        if proposal.position is not None:
            batch.position = proposal.position
        if judgement is RUN:
            # If a call id is reused while its first call is in flight, the second request is wrong: keep the first.
            key = retry_key(proposal.client_id, proposal.call_id)
            self._calls.setdefault(key, _LoggedCall(batch, len(batch.logged)))
        batch.logged.append(
            LateRequest(
                client_id=proposal.client_id, call_id=proposal.call_id, request_hash=proposal.request_hash,
                first_sent_at_ms=proposal.first_sent_at_ms, request_type=proposal.request_type, index=index,
                prepared=prepared,
            )
        )  # fmt: skip
        batch.proposals.append(proposal)
        batch.size_bytes += len(prepared) + OVERHEAD_BYTES
        return None

    def seal(self) -> list[SealedRecord]:
        """Close the batch; from now on it is in flight."""
        batch, self.batch = self.batch, None
        if batch is None:
            return []
        self._in_flight += 1
        return [SealedRecord(batch.record, partial(self._on_applied, batch))]

    def _is_on_its_way(self, proposal: Proposal) -> bool:
        """Whether the same request is being built or in flight; then the proposal gets that request's answer."""
        found = self._calls.get(retry_key(proposal.client_id, proposal.call_id))
        if found is None or found.batch.logged[found.number].request_hash != proposal.request_hash:
            return False
        found.batch.repeats.append(_Repeat(proposal, found.number))
        return True

    def _on_applied(self, batch: RequestsBatch, offset: int) -> list[Reply]:
        self._overlay.forget()
        answers = self._replica.late.take_answers(offset)
        for proposal in batch.proposals:
            key = retry_key(proposal.client_id, proposal.call_id)
            if (found := self._calls.get(key)) is not None and found.batch is batch:
                del self._calls[key]
        self._in_flight -= 1
        if not self._in_flight:
            self._on_settled()
        replies = [
            Reply(proposal=proposal, response=answer) for proposal, answer in zip(batch.proposals, answers, strict=True)
        ]
        return replies + [Reply(proposal=proposal, response=answers[number]) for proposal, number in batch.repeats]
