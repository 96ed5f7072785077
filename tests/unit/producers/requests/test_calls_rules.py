"""The table of calls at its limits: when exactly something is due, what is just allowed, and what an outcome says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from producers.errors import RequestFailed
from producers.requests.core.calls import JITTER_SHARE, MAX_DEADLINE_MS, Calls, Policy, expired, unknown
from schemas.codecs import codec
from schemas.records.messages import CreateVolume, LogDigestBase
from schemas.result_codes import NOT_LEADER, OVERLOADED, VOLUME_NOT_FOUND, with_retry_after
from schemas.topics import MAX_REQUEST_BYTES
from tests.unit.producers.requests.test_calls import POLICY, answer, begin, table


def due(calls: Calls, now_ms: float) -> list[int]:
    return [call.call_id for call in calls.step(now_ms=now_ms).resend]


def test_a_refused_call_is_sent_again_though_one_before_it_is_unanswered():
    calls = table()
    for _ in range(3):
        begin(calls)
    calls.answer(answer(2, NOT_LEADER), now_ms=0)
    assert due(calls, 99) == []
    assert due(calls, 100) == [2]
    assert due(calls, 999) == []
    assert due(calls, 1_000) == [1, 3]
    begin(calls, now_ms=1_500)
    assert due(calls, 2_100) == [2]
    assert due(calls, 2_500) == [4]


def test_calls_that_end_are_looked_for_no_more():
    calls = table()
    for _ in range(4):
        begin(calls)
    for call_id in (2, 3, 4):
        calls.answer(answer(call_id, NOT_LEADER), now_ms=0)
    calls.answer(answer(3), now_ms=0)
    calls.answer(answer(4, VOLUME_NOT_FOUND), now_ms=0)
    assert calls._again == {2}
    calls.step(now_ms=10_000)
    assert (len(calls), calls._again) == (0, set())
    begin(calls)
    calls.answer(answer(5, NOT_LEADER), now_ms=0)
    calls.abandon()
    assert calls._again == set()


def test_one_that_was_sent_again_does_not_hide_those_behind_it():
    calls = table()
    begin(calls)
    begin(calls, now_ms=500)
    assert due(calls, 1_000) == [1]
    assert due(calls, 1_499) == []
    assert due(calls, 1_500) == [2]
    assert due(calls, 3_000) == [1]


@pytest.mark.parametrize(
    "limits",
    [
        {"deadline_ms": 1}, {"deadline_ms": MAX_DEADLINE_MS}, {"max_in_flight": 1}, {"overload_max_ms": 1},
        {"silence_ms": 1}, {"silence_ms": 7, "silence_max_ms": 7}, {"refusal_ms": 1}, {"refusal_ms": 7, "refusal_max_ms": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_just_in_range_is_taken(limits):
    assert Policy(**limits) == replace(Policy(), **limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"silence_ms": 8, "silence_max_ms": 7}, r"silence_ms must be in 1\.\.7, not 8"),
        ({"refusal_ms": 8, "refusal_max_ms": 7}, r"refusal_ms must be in 1\.\.7, not 8"),
        ({"deadline_ms": MAX_DEADLINE_MS + 1}, "not 300001"),
    ],
)
def test_a_policy_just_out_of_range_is_not(limits, message):
    with pytest.raises(ValueError, match=message):
        Policy(**limits)


def test_a_body_of_the_largest_size_is_sent():
    fits = CreateVolume(volume="v", owner="")
    spare = MAX_REQUEST_BYTES - len(begin(table(), body=fits).value)
    size = next(
        size for size in range(spare - 8, spare + 1)
        if len(begin(table(), body=replace(fits, owner="x" * size)).value) == MAX_REQUEST_BYTES
    )  # fmt: skip
    with pytest.raises(RequestFailed, match=f"{MAX_REQUEST_BYTES + 1} bytes are over the limit of {MAX_REQUEST_BYTES}"):
        begin(table(), body=replace(fits, owner="x" * (size + 1)))


@pytest.mark.parametrize("shard", [0, 3])
def test_the_first_and_the_last_shard_exist(shard):
    assert begin(table(), body=LogDigestBase(shard=shard, index=1, slots=[], sums=[], basis="oracle")).shard == shard


def test_the_index_of_a_shards_first_entry_is_a_position():
    calls = table()
    begin(calls)
    calls.answer(answer(1, index=0, shard=2), now_ms=0)
    assert calls.positions == {2: 0}


def test_jitter_stretches_a_refusals_wait_and_an_overload_too():
    assert JITTER_SHARE == 0.25
    calls = table(jitter=0.5)
    call = begin(calls)
    calls.answer(answer(1, NOT_LEADER), now_ms=0)
    assert call.due_ms == 112.5
    overloaded = replace(answer(1, OVERLOADED), message=with_retry_after("too many", 1_000))
    calls.answer(overloaded, now_ms=0)
    assert call.due_ms == 1_125
    assert (call.refusals, call.sendings) == (2, 1)
    assert due(calls, 1_125) == [1]
    assert call.due_ms == 1_125 + 2_250
    assert call.sendings == 2


def test_nothing_is_due_after_the_deadline():
    calls = table(Policy(deadline_ms=1_000, silence_ms=900, silence_max_ms=900, refusal_ms=500, refusal_max_ms=500))
    call = begin(calls)
    assert (call.due_ms, call.deadline_ms) == (900, 1_000)
    calls.answer(answer(1, NOT_LEADER), now_ms=700)
    assert call.due_ms == 900
    calls.answer(answer(1, OVERLOADED), now_ms=800)
    assert call.due_ms == 1_000
    call.due_ms = 950
    assert due(calls, 950) == [1]
    assert call.due_ms == 1_000
    assert calls.step(now_ms=999.9).expired == []
    assert calls.step(now_ms=1_000).expired == [call]


def test_an_overload_without_a_hint_waits_as_a_refusal_does():
    calls = table()
    call = begin(calls)
    calls.answer(answer(1, OVERLOADED), now_ms=10)
    assert call.due_ms == 110


def test_an_unknown_outcome_says_how_often_it_was_sent_and_what_was_said_last():
    calls = table()
    call = begin(calls)
    calls.step(now_ms=1_000)
    error = unknown(call, "STATUS", "so")
    assert (error.status, error.message, error.response) == ("STATUS", "so; sent 2 times; the outcome is unknown", None)
    refusal = answer(1, NOT_LEADER)
    calls.answer(refusal, now_ms=1_000)
    error = expired(call, POLICY)
    assert error.message == (
        f"no answer in 10000 ms: no leader of shard {call.shard} answers; sent 2 times, last refused with NOT_LEADER: why;"
        " the outcome is unknown"
    )
    assert error.response is refusal


def test_a_call_is_encoded_with_the_time_and_where_its_answer_goes():
    request = codec.decode(begin(table()).value)
    assert (request.first_sent_at_ms, request.reply_partition) == (1_700_000_000_000, 3)
