"""How one call is judged and run, whoever does it."""

from __future__ import annotations

from typing import Any

import pytest

from replicated_db.core.applying.late import LOGGED_LIMITS
from replicated_db.core.errors import StoreFailure
from replicated_db.core.execution.calls import RUN, CallRuling, RunLimits, judge_call, run_call
from replicated_db.core.execution.retry import BELOW_FLOOR, REQUEST_LIFETIME_MS, floor_value, retry_key
from replicated_db.core.execution.service import MAX_MESSAGE_CHARACTERS, MAX_REFUSAL_BYTES, Executed, shortened
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.column_families import RETRY
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay
from schemas.records.log import Members
from tests.support.replicated.kit import FAMILIES, START_MS, Kit, propose, put

CALL = propose(call=7)
KEY = retry_key(CALL.client_id, CALL.call_id)
SAME, OTHER = CALL.request_hash + b"answer", b"o" * 16 + b"answer"
LATER = START_MS + REQUEST_LIFETIME_MS


def floor(call: int) -> dict[bytes, bytes]:
    return {CALL.client_id: floor_value(call, START_MS)}


@pytest.mark.parametrize(
    ("rows", "batch_ms", "prepared", "now_ms", "ruling", "said"),
    [
        ({}, START_MS, None, 0, CallRuling.RUN, ""),
        (floor(7), START_MS, None, 0, CallRuling.RUN, ""),
        ({KEY: SAME}, START_MS, None, 0, CallRuling.REPEATED, b"answer"),
        ({KEY: SAME}, LATER, "c1", LATER, CallRuling.REPEATED, b"answer"),
        ({KEY: OTHER}, LATER, "c1", LATER, CallRuling.REFUSED, "the call id was used for another request"),
        ({}, LATER, None, 0, CallRuling.REFUSED, f"first sent at {START_MS} ms"),
        (floor(8), START_MS, None, 0, CallRuling.REFUSED, BELOW_FLOOR),
        ({}, START_MS, "c1", START_MS, CallRuling.REFUSED_AT_ONCE, "checkpoint c1"),
        ({}, LATER, "c1", LATER, CallRuling.REFUSED, f"first sent at {START_MS} ms"),
        ({}, START_MS, "c1", LATER, CallRuling.REFUSED_AT_ONCE, "checkpoint c1"),
    ],
    ids=["fresh", "at the floor", "repeated", "repeated, all else against it", "id reused", "expired", "below the floor", "prepared",
         "expired by clock and batch", "expired by the clock alone"],
)  # fmt: skip
def test_a_call_is_judged(
    rows: dict[bytes, bytes], batch_ms: int, prepared: str | None, now_ms: int, ruling: CallRuling, said: Any
):
    judgement = judge_call(CALL, lambda cf, key: rows.get(key) if cf == RETRY else None, batch_ms, prepared, now_ms)
    assert judgement.ruling is ruling
    assert said in (judgement.response if isinstance(said, bytes) else judgement.message)
    assert (judgement is RUN) == (ruling is CallRuling.RUN)


@pytest.mark.parametrize(("prepared", "ruling"), [(None, CallRuling.RUN), ("c1", CallRuling.REFUSED_AT_ONCE)])
def test_a_local_request_has_no_retry_row_to_be_judged_by(prepared: str | None, ruling: CallRuling):
    def get(cf: str, key: bytes) -> bytes | None:
        raise AssertionError(f"{key!r} of {cf} was read")

    assert judge_call(propose(client=b""), get, LATER, prepared, LATER).ruling is ruling


def run(body: Any, limits: RunLimits, *, first: bool = True) -> tuple[Executed, Transaction]:
    overlay = Overlay(MemoryStore(FAMILIES.names))
    overlay.open_layer(1)
    transaction = Transaction(FAMILIES, overlay, 5, ShardState(replicas=("n1",)))
    return run_call(Kit(), propose(body=body), transaction, START_MS, limits, first), transaction


@pytest.mark.parametrize("limits", [RunLimits(), LOGGED_LIMITS], ids=["executed", "logged"])
@pytest.mark.parametrize(
    ("body", "response"),
    [
        ([put(b"a", b"1")], b"done 5"),
        ("no", b"no"),
        (RuntimeError("half way"), b"failed|RuntimeError: half way|5"),
        ([put(b"a", bytes(2 << 20))], b"too large|its operations take 2097207 bytes; at most 1048576|5"),
        (lambda _: "text", b"failed|its response is a str|5"),
        (lambda t: t.checkpoint("c1") or b"made", b"failed|it may only begin a batch|5"),
    ],
    ids=["kept", "refused", "raises", "large", "a text", "a checkpoint"],
)
def test_a_call_runs_alike_wherever_it_is_executed(limits: RunLimits, body: Any, response: bytes):
    executed, _ = run(body, limits, first=False)
    assert executed == Executed(response=response, keep=response == b"done 5")


def test_the_first_of_a_batch_may_act_on_the_log_and_sees_what_it_leads_to():
    executed, transaction = run(lambda t: t.control(Members, replicas=["n1", "n2"]) or b"ok", RunLimits())
    assert executed == Executed(response=b"ok", keep=True)
    assert transaction.state.replicas == ("n1", "n2")


def test_what_no_record_can_hold_changes_no_state():
    executed, transaction = run(lambda t: t.control(Members, replicas=5) or b"ok", RunLimits())
    assert not executed.keep
    assert executed.response.startswith(b"failed|")
    assert transaction.state.replicas == ("n1",)


def test_bounds_of_answers_hold_where_the_leader_executes_and_not_in_what_logged_requests_mean():
    """What replicas derive from the log cannot change without a feature level."""
    long = "x" * (MAX_REFUSAL_BYTES + 1)
    assert run(long, RunLimits())[0].response.startswith(b"failed|its answer takes 65537 bytes")
    assert run(long, LOGGED_LIMITS)[0].response == long.encode()
    assert len(run(RuntimeError(long), RunLimits())[0].response) < MAX_MESSAGE_CHARACTERS + 100
    assert len(run(RuntimeError(long), LOGGED_LIMITS)[0].response) > MAX_REFUSAL_BYTES


def test_a_store_that_fails_stops():
    with pytest.raises(StoreFailure):
        run(StoreFailure("no disk"), LOGGED_LIMITS)


def test_an_error_that_quotes_the_request_is_cut_and_says_its_length():
    assert shortened("x" * MAX_MESSAGE_CHARACTERS) == "x" * MAX_MESSAGE_CHARACTERS
    long = "x" * (MAX_MESSAGE_CHARACTERS + 1)
    assert shortened(long) == f"{long[:-1]}… ({MAX_MESSAGE_CHARACTERS + 1:,} characters long)"


def test_answers_and_operations_may_be_as_long_as_their_bounds():
    assert run("x" * 64, RunLimits(refusal_bytes=64))[0].response == b"x" * 64
    assert run("x" * 65, RunLimits(refusal_bytes=64))[0].response.startswith(
        b"failed|its answer takes 65 bytes; at most 64"
    )
    executed, transaction = run([put(b"a", b"1")], RunLimits())
    size = transaction.size_bytes + len(executed.response)
    assert run([put(b"a", b"1")], RunLimits(kept_bytes=size))[0].keep
    assert run([put(b"a", b"1")], RunLimits(kept_bytes=size - 1))[0].response.startswith(b"too large|")
