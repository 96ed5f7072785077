"""The batch that a leader is building: what the executed requests have come to so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicated_db.core.execution.folding import BatchOperations
from replicated_db.core.execution.service import Proposal, Reply
from replicated_db.core.execution.shard_state import ControlOperation
from replicated_db.core.execution.transaction import Transaction
from schemas.records.log import RequestPosition, Result

OVERHEAD_BYTES = 100
"""Estimate of what a request's result costs in its record beyond the response."""


@dataclass(slots=True, kw_only=True)
class Building:
    """A batch, and the control record to append before it, if any. Its rows are in the overlay's ``layer``."""

    layer: int
    timestamp_ms: int
    operations: BatchOperations
    control: ControlOperation | None = None
    results: list[Result] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    position: RequestPosition | None = None
    size_bytes: int = 0
    requests: int = 0

    def take(self, transaction: Transaction) -> None:
        """Commit a transaction into the batch."""
        self.operations.extend(transaction.commit())
        self.size_bytes += transaction.size_bytes

    def answer(self, proposal: Proposal, response: bytes, index: int, *, recorded: bool) -> None:
        """Count a request in, with its answer. ``recorded``: it will have a retry row."""
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
