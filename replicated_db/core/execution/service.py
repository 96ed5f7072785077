"""What a service brings to a replicated database: proposals in, operations and answers out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from replicated_db.core.execution.transaction import Transaction
from schemas.records.log import RequestPosition
from schemas.records.record import made_in_c, record

MAX_REQUEST_BYTES = 1024 * 1024
"""Most bytes that one request's operations and answer may take in a batch."""

MAX_REFUSAL_BYTES = 64 * 1024
"""Most bytes of an answer whose request keeps nothing: the answer may quote the request, not repeat it."""

MAX_MESSAGE_CHARACTERS = 1024
"""How many characters of an error's text go into an answer."""

MIN_LONG, MAX_LONG = -(1 << 63), (1 << 63) - 1
_IDS = struct.Struct("16s8s16sq")


def shortened(message: str) -> str:
    """Return an error's text, cut to MAX_MESSAGE_CHARACTERS: it may quote any length of the request.

    >>> shortened("x" * 2000)[-26:]
    'x… (2,000 characters long)'
    """
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return f"{message[:MAX_MESSAGE_CHARACTERS]}… ({len(message):,} characters long)"


def error_text(error: BaseException) -> str:
    """Return what an answer says about an exception."""
    return shortened(f"{type(error).__name__}: {error}")


class Refusal(Enum):
    """Answers that the replicated database itself gives; the service encodes them."""

    EXPIRED = "expired"
    CALL_ID_REUSED = "call id reused"
    TOO_LARGE = "too large"
    FAILED = "failed"
    PREPARED = "prepared"


@made_in_c
@dataclass(slots=True, kw_only=True)
class Proposal:
    """A request to execute. With a ``client_id`` it has a retry row; without one it is a local request (``submit``).

    ``body`` and ``reply_to`` are the service's own; ``position`` says where the request stands in its topic. A request
    with ``begins_batch`` (it takes a checkpoint, or restarts the log's sums) may only be the first of its batch. One
    with ``judged_first`` waits for that place only if it is not refused as the rows are. One
    with ``when_prepared`` is taken while the shard is prepared and takes no others. The client has the answers of its
    calls below ``answered_below`` and will not repeat them.
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
    judged_first: bool = False
    when_prepared: bool = False
    answered_below: int = 0
    standing: Any = None
    """What the service has found out about the caller; the service's own, too."""

    def fault(self) -> str | None:
        """Say why no record can hold this proposal's result; None if one can. It is then answered without one."""
        client, call, hashed, sent_ms, kind = (
            self.client_id, self.call_id, self.request_hash, self.first_sent_at_ms, self.request_type,
        )  # fmt: skip
        if not client:
            return None
        # Nearly every proposal is as it should be, and that is seen without packing it.
        if (
            type(client) is type(call) is type(hashed) is bytes and type(sent_ms) is int and type(kind) is str
            and len(client) == 16 and len(call) == 8 and len(hashed) == 16
            and MIN_LONG <= sent_ms <= MAX_LONG and kind.isascii()
        ):  # fmt: skip
            return None
        try:
            if len(client) != 16 or len(call) != 8 or len(hashed) != 16:
                return f"client id, call id and hash of {len(client)}, {len(call)}, {len(hashed)} bytes, not 16, 8, 16"
            _IDS.pack(client, call, hashed, sent_ms)
            kind.encode()
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            return error_text(error)
        return None


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
        """Encode an answer that the replicated database itself gives."""


@record
class Reply:
    """An answer that may leave now."""

    proposal: Proposal
    response: bytes
