"""One call: judged once (:func:`judge_call`) and run once (:func:`run_call`).

A leader and a replica that applies logged requests use the same code. A call is a client's request with its ids. The
rows and the time of the batch decide:

    - A call that has a retry row is not run again: the same request gets the recorded answer, a different one is
      refused.
    - An expired call, and one below its client's floor, is refused.
    - A prepared shard takes no writes and refuses them at once: such a refusal takes no index and is in no batch.
    - A run that raises, or whose result is more than a batch can hold, is answered with a refusal and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from replicated_db.core.errors import StopProcess
from replicated_db.core.execution.retry import BELOW_FLOOR, HASH_BYTES, Get, is_below_floor, is_expired
from replicated_db.core.execution.service import (
    MAX_REFUSAL_BYTES,
    MAX_REQUEST_BYTES,
    Executed,
    Refusal,
    error_text,
)
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.column_families import RETRY
from schemas.result_codes import clock_gap

R_contra = TypeVar("R_contra", contravariant=True)
R = TypeVar("R")


class ClientCall(Protocol):
    """What identifies a call. A request without a ``client_id`` is a local one and has no retry row."""

    @property
    def client_id(self) -> bytes:
        """The caller: 16 bytes, or none."""

    @property
    def call_id(self) -> bytes:
        """Number of the call, 8 bytes big-endian."""

    @property
    def request_hash(self) -> bytes:
        """Hash of the request; a repetition of the call has the same hash."""

    @property
    def first_sent_at_ms(self) -> int:
        """When the client first sent the call, by the client's clock."""


class CallRuling(Enum):
    """What to do with a call."""

    RUN = "run it"
    REPEATED = "answer what its retry row says"
    REFUSED = "refuse it, with an index"
    REFUSED_AT_ONCE = "refuse it, without an index"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallJudgement:
    """A ruling, with the recorded ``response`` of a repeated call, or the ``refusal`` and its ``message``."""

    ruling: CallRuling
    response: bytes = b""
    refusal: Refusal = Refusal.FAILED
    message: str = ""


RUN = CallJudgement(ruling=CallRuling.RUN)
REUSED = CallJudgement(
    ruling=CallRuling.REFUSED,
    refusal=Refusal.CALL_ID_REUSED,
    message="the call id was used for another request",
)
ANSWERED = CallJudgement(ruling=CallRuling.REFUSED, refusal=Refusal.EXPIRED, message=BELOW_FLOOR)


def judge_call(
    call: ClientCall, get: Get, timestamp_ms: int, prepared: str | None = None, now_ms: int = 0
) -> CallJudgement:
    """Judge a call by the rows that ``get`` reads, for a batch of ``timestamp_ms``.

    ``prepared`` is the checkpoint of a Prepare that is in force for this call. ``now_ms`` is the time that a batch
    opened now would have: a call that is expired by this time is refused as expired, whatever the shard's state.
    """
    client_id = call.client_id
    if not client_id:
        return RUN if prepared is None else _refused_as_prepared(prepared)
    call_id = call.call_id
    row = get(RETRY, client_id + call_id)  # the retry_key
    if row is not None:
        if row[:HASH_BYTES] == call.request_hash:
            return CallJudgement(ruling=CallRuling.REPEATED, response=row[HASH_BYTES:])
        return REUSED
    sent_ms = call.first_sent_at_ms
    if prepared is not None and not is_expired(sent_ms, now_ms):
        return _refused_as_prepared(prepared)
    if is_expired(sent_ms, timestamp_ms):
        message = clock_gap(sent_ms, timestamp_ms)
        return CallJudgement(ruling=CallRuling.REFUSED, refusal=Refusal.EXPIRED, message=message)
    if is_below_floor(get, client_id, call_id):
        return ANSWERED
    # Expired by ``now_ms``, but not by the time of its batch, which was opened earlier.
    return RUN if prepared is None else _refused_as_prepared(prepared)


def _refused_as_prepared(checkpoint: str) -> CallJudgement:
    return CallJudgement(
        ruling=CallRuling.REFUSED_AT_ONCE, refusal=Refusal.PREPARED,
        message=f"the shard is prepared for an upgrade (checkpoint {checkpoint}) and takes no writes",
    )  # fmt: skip


class CallRunner(Protocol[R_contra]):
    """What runs calls: a service, or an executor of logged requests. ``request`` is the runner's form of a call."""

    def execute(self, request: R_contra, transaction: Transaction, timestamp_ms: int, /) -> Executed:
        """Execute against the transaction. An exception becomes Refusal.FAILED and changes nothing."""

    def refuse(self, request: R_contra, refusal: Refusal, message: str, index: int, /) -> bytes:
        """Encode an answer that the replicated database itself gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Bounds of a run, in bytes: of what is kept, answer included, and of the answer if nothing is kept (None = none).

    ``shortens``: whether the text of an exception is cut short (``service.shortened``).
    """

    kept_bytes: int = MAX_REQUEST_BYTES
    refusal_bytes: int | None = MAX_REFUSAL_BYTES
    shortens: bool = True


class RunRefusal(NamedTuple):
    """Why the result of a run is not logged."""

    refusal: Refusal
    message: str


def run_call(
    runner: CallRunner[R], request: R, transaction: Transaction, timestamp_ms: int, limits: RunLimits, first: bool
) -> Executed:
    """Run a call in a transaction; return the answer, and whether to keep the transaction.

    ``first``: the call is the first of its batch; only such a call may act on the log itself. If it asks for a control
    record, the transaction's ``state`` afterwards includes that record's effect. A result that cannot be logged, by its
    kind, its size or its place in the batch, is answered with a refusal. Raises StopProcess kinds; any other exception
    of the runner becomes the answer.
    """
    try:
        executed = runner.execute(request, transaction, timestamp_ms)
        response = executed.response
        if type(response) is not bytes:
            refused = RunRefusal(Refusal.FAILED, f"its response is a {type(response).__name__}")
        elif not executed.keep:
            if limits.refusal_bytes is None or len(response) <= limits.refusal_bytes:
                return executed
            text = f"its answer takes {len(response)} bytes; at most {limits.refusal_bytes}"
            refused = RunRefusal(Refusal.FAILED, text)
        elif (size_bytes := transaction.size_bytes + len(response)) > limits.kept_bytes:
            text = f"its operations take {size_bytes} bytes; at most {limits.kept_bytes}"
            refused = RunRefusal(Refusal.TOO_LARGE, text)
        elif not first and (transaction.control_operations or transaction.checkpoint_name is not None):
            refused = RunRefusal(Refusal.FAILED, "it may only begin a batch")
        else:
            for control in transaction.control_operations:
                transaction.state = control.effect_on(transaction.state)
            return executed
    except StopProcess:
        raise
    except Exception as error:
        text = error_text(error) if limits.shortens else f"{type(error).__name__}: {error}"
        refused = RunRefusal(Refusal.FAILED, text)
    return Executed(response=runner.refuse(request, *refused, transaction.index), keep=False)
