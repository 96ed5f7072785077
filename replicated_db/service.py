"""What a service brings to a replicated database: proposals in, operations and answers out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from replicated_db.transaction import Transaction
from schemas.log import RequestPosition
from schemas.record import record

MAX_REQUEST_BYTES = 1024 * 1024
"""What one request's operations and answer may take in a batch."""


class Refusal(Enum):
    """Answers that the replicated database itself gives; the service encodes them."""

    EXPIRED = "expired"
    CALL_ID_REUSED = "call id reused"
    TOO_LARGE = "too large"
    FAILED = "failed"
    PREPARED = "prepared"


@dataclass(slots=True, kw_only=True)
class Proposal:
    """A request to execute. With a ``client_id`` it has a retry row; without, it is a local one (``submit``).

    ``body`` and ``reply_to`` are the service's own; ``position`` says where the request stands in its topic. One that
    ``begins_batch`` (it takes a checkpoint, or restarts the log's sums) may only be the first of its batch.
    Calls below ``answered_below`` have been answered to the client, which will not repeat them.
    """

    client_id: bytes
    call_id: bytes
    request_hash: bytes
    first_sent_at_ms: int
    request_type: str
    body: Any
    reply_to: Any
    position: RequestPosition | None = None
    begins_batch: bool = False
    answered_below: int = 0


@record
class Executed:
    """A service's answer, and whether the transaction's operations are to be kept."""

    response: bytes
    keep: bool


class Service(Protocol):
    """What a service brings: how a proposal becomes operations and a response. Pure."""

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute against the transaction. An exception becomes Refusal.FAILED and changes nothing."""

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:
        """Encode an answer of the replicated database's own."""


@record
class Reply:
    """An answer that may leave now."""

    proposal: Proposal
    response: bytes
