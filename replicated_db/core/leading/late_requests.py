"""The leader's half of late validation: requests on their way into a RequestBatch, and the calls that wait for one (design, section 6).

The leader runs the gateway and preExecute only. It does not know what a request will do until its record is applied, so

    - a call that is being built or in flight, and will have a retry row, is remembered by its key: the same request again waits for
      the same answer, as it would for a row in the overlay;
    - nothing can be executed on the leader's rows meanwhile: whoever executes lets these records settle first
      (``Leader.late_pending``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replicated_db.core.execution.retry import retry_key
from replicated_db.core.execution.service import Proposal, Reply
from schemas.records.log import LateRequest, RequestPosition

OVERHEAD_BYTES = 100
"""Estimate of what a request costs in its record beyond its own bytes."""


@dataclass(slots=True, kw_only=True)
class LateBuilding:
    """A RequestBatch being built. ``repeats`` are requests that came again, with the number of the one that they repeat."""

    timestamp_ms: int
    first_index: int
    position: RequestPosition | None = None
    requests: list[LateRequest] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    repeats: list[tuple[Proposal, int]] = field(default_factory=list)
    size_bytes: int = 0


class LateRequests:
    """What one claim has logged for late validation and not settled."""

    def __init__(self) -> None:
        self.building: LateBuilding | None = None
        self._calls: dict[bytes, tuple[LateBuilding, int]] = {}
        self._in_flight = 0

    @property
    def pending(self) -> bool:
        """Whether a record is being built or in flight."""
        return self.building is not None or self._in_flight > 0

    def repeats(self, proposal: Proposal) -> bool:
        """Whether the same request is on its way already; then the proposal is answered with it."""
        found = self._calls.get(retry_key(proposal.client_id, proposal.call_id))
        if found is None:
            return False
        building, number = found
        if building.requests[number].request_hash != proposal.request_hash:
            return False
        building.repeats.append((proposal, number))
        return True

    def add(self, building: LateBuilding, proposal: Proposal, index: int, prepared: bytes, *, recorded: bool) -> None:
        """Append a request to the record being built. ``recorded``: neither a retry row nor its age will refuse it."""
        request = LateRequest(
            client_id=proposal.client_id, call_id=proposal.call_id, request_hash=proposal.request_hash,
            first_sent_at_ms=proposal.first_sent_at_ms, request_type=proposal.request_type, index=index, prepared=prepared,
        )  # fmt: skip
        if recorded:
            # A call id that is reused while the first call is in flight is the second one's mistake: the first is remembered.
            self._calls.setdefault(retry_key(proposal.client_id, proposal.call_id), (building, len(building.requests)))
        building.requests.append(request)
        building.proposals.append(proposal)
        building.size_bytes += len(prepared) + OVERHEAD_BYTES

    def seal(self) -> LateBuilding | None:
        """Return what is being built, which is in flight from now on."""
        building, self.building = self.building, None
        self._in_flight += building is not None
        return building

    def settle(self, building: LateBuilding, answers: Sequence[bytes]) -> list[Reply]:
        """Return the replies of a record that has been applied with these answers."""
        self._in_flight -= 1
        for proposal in building.proposals:
            key = retry_key(proposal.client_id, proposal.call_id)
            if (found := self._calls.get(key)) is not None and found[0] is building:
                del self._calls[key]
        replies = [
            Reply(proposal=proposal, response=answer)
            for proposal, answer in zip(building.proposals, answers, strict=True)
        ]
        return replies + [Reply(proposal=proposal, response=answers[number]) for proposal, number in building.repeats]
