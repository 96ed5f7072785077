"""The table of calls in flight: numbering, retries, deadlines, matching, limits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from producers.errors import OutcomeUnknown, RequestFailed, StratologError, TooManyInFlight
from producers.requests.core.calls import (
    JITTER_SHARE,
    MAX_DEADLINE_MS,
    RESENDS_PER_STEP,
    Call,
    Calls,
    Policy,
    expired,
    outcome_of,
    unknown,
)
from schemas.codecs import codec
from schemas.records.messages import CreateVolume, DeleteVolume, LogDigestBase, Request, Response
from schemas.result_codes import (
    NOT_LEADER,
    OK,
    OVERLOADED,
    REQUEST_EXPIRED,
    REQUEST_TOO_LARGE,
    VOLUME_NOT_FOUND,
    clock_gap,
    with_retry_after,
)
from schemas.sharding import shard_of
from schemas.topics import MAX_REQUEST_BYTES
from tests.support.local.secret import SECRET

ME = bytes(range(16))
POLICY = Policy(
    deadline_ms=10_000, max_in_flight=5, silence_ms=1_000, silence_max_ms=4_000, refusal_ms=100, refusal_max_ms=300
)


def table(policy=POLICY, shards=4, jitter=0.0, secret=SECRET):
    return Calls(
        ME, caller="alice", reply_partition=3, shards=shards, policy=policy, jitter=lambda: jitter, secret=secret
    )


def begin(calls, now_ms=0.0, body=None) -> Call:
    call: Call = calls.begin(body or DeleteVolume(volume="v1"), print, now_ms=now_ms, wall_ms=1_700_000_000_000)
    return call


def answer(call_id, status=OK, client_id=ME, index=7, shard=1, message="why"):
    return Response(
        client_id=client_id, call_id=call_id, shard=shard, index=index, status=status, message=message, result=None
    )


def test_a_request_carries_everything_that_the_server_needs():
    request = codec.decode_as(Request, begin(table(), body=CreateVolume(volume="v1", owner="bob")).value)
    assert request == Request(
        client_id=ME,
        call_id=1,
        first_sent_at_ms=1_700_000_000_000,
        answered_below=1,
        reply_partition=3,
        caller="alice",
        body=CreateVolume(volume="v1", owner="bob"),
    )


def test_the_shard_is_the_volumes():
    for number in range(50):
        body = CreateVolume(volume=f"volume-{number}")
        calls = table(policy=Policy(max_in_flight=50))
        assert begin(calls, body=body).shard == shard_of(body.volume, 4)


def test_the_shard_of_a_digest_base_is_the_one_it_names():
    body = LogDigestBase(shard=2, index=1, slots=[], sums=[], basis="oracle")
    assert begin(table(), body=body).shard == 2


def test_a_privileged_request_has_a_proof_beside_its_bytes():
    body = LogDigestBase(shard=2, index=1, slots=[], sums=[], basis="oracle")
    call = begin(table(), body=body)
    assert call.proof == SECRET.proof(call.value)
    assert codec.decode_as(Request, call.value).body == body
    assert begin(table()).proof is None, "an ordinary one has none"


def test_without_the_secret_a_privileged_request_is_not_sent():
    calls = table(secret=None)
    with pytest.raises(RequestFailed, match="PERMISSION_DENIED: .*the cluster's secret"):
        begin(calls, body=LogDigestBase(shard=2, index=1, slots=[], sums=[], basis="oracle"))
    assert len(calls) == 0
    assert begin(calls).call_id == 1


@pytest.mark.parametrize("shard", [-1, 4])
def test_a_shard_that_does_not_exist_is_refused(shard):
    with pytest.raises(RequestFailed, match=f"shard {shard} "):
        begin(table(), body=LogDigestBase(shard=shard, index=1, slots=[], sums=[], basis="oracle"))


def test_an_answer_ends_its_call_once():
    calls = table()
    call = begin(calls)
    assert calls.on_response(answer(1), now_ms=5.0) is call
    assert calls.on_response(answer(1), now_ms=6.0) is None
    assert len(calls) == 0


def test_other_clients_answers_are_ignored():
    calls = table()
    begin(calls)
    assert calls.on_response(answer(1, client_id=bytes(16)), now_ms=5.0) is None
    assert len(calls) == 1


def test_answers_to_calls_never_made_are_ignored():
    assert table().on_response(answer(99), now_ms=0.0) is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [(VOLUME_NOT_FOUND, RequestFailed), (REQUEST_EXPIRED, OutcomeUnknown), ("NEW_CODE", RequestFailed)],
)
def test_a_final_error_becomes_an_exception_with_request_and_response(status, kind):
    calls = table()
    begin(calls)
    response = answer(1, status)
    call = calls.on_response(response, now_ms=1.0)
    assert call is not None
    error = outcome_of(call, response)
    assert isinstance(error, kind)
    assert (error.status, error.message, error.request, error.response) == (status, "why", call.body, response)
    assert "DeleteVolume /v1" in str(error)


@pytest.mark.parametrize(
    ("gap_ms", "sendings", "kind", "said"),
    [
        (301_000, 1, RequestFailed, "301 s behind the cluster's: set it right, to less than 300 s. Nothing was done"),
        (301_000, 2, OutcomeUnknown, "301 s behind the cluster's: .*may still have an effect"),
        (-301_000, 1, OutcomeUnknown, "301 s ahead of the cluster's: .*may still have an effect"),
        (-3_600_000, 1, RequestFailed, "3600 s ahead of the cluster's: .*Nothing was done"),
        (-3_600_000, 2, OutcomeUnknown, "3600 s ahead of the cluster's: "),
    ],
)
def test_a_wrong_clock_is_named_and_by_how_much(gap_ms: int, sendings: int, kind: type[StratologError], said: str):
    calls = table()
    call = begin(calls)
    call.sendings = sendings
    response = answer(1, REQUEST_EXPIRED, message=clock_gap(1_700_000_000_000, 1_700_000_000_000 + gap_ms))
    error = outcome_of(call, response)
    assert type(error) is kind
    assert re.search(f"this machine's clock is {said}", str(error))
    assert "1700000000" not in str(error)
    assert (error.status, error.response) == (REQUEST_EXPIRED, response)


def test_ok_is_the_response_itself():
    response = answer(1)
    assert outcome_of(begin(table()), response) is response


def test_silence_sends_the_same_bytes_again_ever_more_seldom():
    calls = table()
    call = begin(calls)
    sent = call.value
    at_ms = []
    for now_ms in range(0, 10_000, 100):
        for due in calls.step(now_ms=now_ms).resend:
            assert due is call
            assert due.value == sent
            at_ms.append(now_ms)
    assert at_ms == [1_000, 3_000, 7_000]
    assert calls.step(now_ms=10_000).expired == [call]


def test_jitter_stretches_later_waits_by_at_most_a_quarter():
    calls = table(jitter=0.999)
    call = begin(calls)
    assert calls.step(now_ms=1_000).resend == [call]
    assert calls.step(now_ms=3_000).resend == []
    assert calls.step(now_ms=3_500).resend == [call]


@pytest.mark.parametrize("status", [NOT_LEADER, OVERLOADED])
def test_a_refusal_is_sent_again_soon_and_ends_nothing(status):
    calls = table()
    call = begin(calls)
    now_ms, waits = 0.0, []
    for _ in range(4):
        assert calls.on_response(answer(1, status, index=-1), now_ms=now_ms) is None
        begun_ms = now_ms
        while not calls.step(now_ms=now_ms).resend:
            now_ms += 10
        waits.append(now_ms - begun_ms)
    assert waits == [100, 200, 300, 300]
    assert calls.on_response(answer(1), now_ms=now_ms) is call


def overloaded(after_ms):
    return replace(answer(1, OVERLOADED, index=-1), message=with_retry_after("too many requests", after_ms))


def test_an_overloaded_leader_is_left_alone_for_as_long_as_it_asks():
    calls = table(policy=replace(POLICY, deadline_ms=60_000, overload_max_ms=5_000))
    call = begin(calls)
    calls.on_response(overloaded(3_000), now_ms=0.0)
    assert calls.step(now_ms=2_999).resend == [], "not even by silence"
    assert calls.step(now_ms=3_000).resend == [call]
    calls.on_response(overloaded(60_000), now_ms=3_000)
    assert calls.step(now_ms=7_999).resend == []
    assert calls.step(now_ms=8_000).resend == [call], "the policy bounds the wait"
    calls.on_response(overloaded(1), now_ms=8_000)
    assert calls.step(now_ms=8_299).resend == [], "a short hint does not shorten the usual wait"
    assert calls.step(now_ms=8_300).resend == [call]
    calls.on_response(overloaded(5_000), now_ms=59_000)
    assert calls.step(now_ms=60_000).expired == [call]


def test_a_second_refusal_does_not_put_the_sending_off():
    calls = table()
    call = begin(calls)
    for now_ms in (0.0, 90.0, 95.0):
        calls.on_response(answer(1, NOT_LEADER), now_ms=now_ms)
    assert calls.step(now_ms=100).resend == [call]


def test_at_the_deadline_the_outcome_is_unknown_and_says_what_came():
    calls = table()
    call = begin(calls)
    calls.on_response(answer(1, NOT_LEADER), now_ms=9_990)
    step = calls.step(now_ms=10_000)
    assert step.expired == [call]
    assert step.resend == []
    error = expired(call, POLICY)
    assert isinstance(error, OutcomeUnknown)
    assert error.status == "DEADLINE_EXCEEDED"
    assert error.request == call.body
    assert "10000 ms" in str(error)
    assert "NOT_LEADER" in str(error)
    assert "DeleteVolume /v1" in str(error)


def test_an_answer_after_the_deadline_is_ignored():
    calls = table()
    begin(calls)
    calls.step(now_ms=10_000)
    assert calls.on_response(answer(1), now_ms=10_001) is None


def test_a_deadline_shorter_than_the_first_wait_holds():
    calls = table(Policy(deadline_ms=5, max_in_flight=5))
    call = begin(calls)
    assert calls.step(now_ms=4).expired == []
    assert calls.step(now_ms=5).expired == [call]


def test_answered_below_is_the_lowest_call_that_may_be_repeated():
    calls = table()
    for _ in range(4):
        begin(calls)
    assert calls.answered_below == 1
    calls.on_response(answer(2), now_ms=0)
    assert calls.answered_below == 1
    calls.on_response(answer(1), now_ms=0)
    assert calls.answered_below == 3
    assert codec.decode_as(Request, begin(calls).value).answered_below == 3
    for call_id in (3, 4, 5):
        calls.on_response(answer(call_id), now_ms=0)
    assert codec.decode_as(Request, begin(calls).value).answered_below == 6


def test_a_refused_call_holds_answered_below():
    calls = table()
    begin(calls)
    begin(calls)
    calls.on_response(answer(1, OVERLOADED), now_ms=0)
    assert calls.answered_below == 1


def test_the_limit_of_calls_in_flight_holds_and_sends_nothing():
    calls = table()
    for _ in range(5):
        begin(calls)
    with pytest.raises(TooManyInFlight, match="5 requests in flight"):
        begin(calls)
    calls.on_response(answer(4), now_ms=0)
    assert begin(calls).call_id == 6


@pytest.mark.parametrize(
    "body",
    [
        CreateVolume(volume="v\udc80"),
        CreateVolume(volume=7),  # type: ignore[arg-type]
        CreateVolume(volume="v", quota_in_bytes=2**63),
        CreateVolume(volume="v", quota_in_bytes="much"),  # type: ignore[arg-type]
        "no request at all",
    ],
)
def test_a_body_that_the_schema_does_not_allow_is_refused_and_takes_no_place(body):
    calls = table()
    with pytest.raises(RequestFailed) as caught:
        begin(calls, body=body)
    assert caught.value.status == "INVALID_REQUEST"
    assert caught.value.request is body
    assert len(calls) == 0
    assert begin(calls).call_id == 1


def test_a_request_that_is_too_large_is_refused_with_its_size():
    with pytest.raises(RequestFailed, match="over the limit") as caught:
        begin(table(), body=CreateVolume(volume="v", owner="x" * 1024 * 1024))
    assert caught.value.status == REQUEST_TOO_LARGE


def test_positions_are_the_highest_index_of_each_shard():
    calls = table()
    for call_id, (shard, index) in enumerate([(0, 5), (1, 9), (0, 3)], start=1):
        begin(calls)
        calls.on_response(answer(call_id, shard=shard, index=index), now_ms=0)
    begin(calls)
    calls.on_response(answer(4, "UNDECODABLE", shard=2, index=-1), now_ms=0)
    assert calls.positions == {0: 5, 1: 9}


def test_a_step_sends_a_bounded_number_and_the_rest_at_the_next():
    calls = table(Policy(max_in_flight=2 * RESENDS_PER_STEP))
    for _ in range(RESENDS_PER_STEP + 10):
        begin(calls)
    assert len(calls.step(now_ms=2_000).resend) == RESENDS_PER_STEP
    assert len(calls.step(now_ms=2_001).resend) == 10
    assert calls.step(now_ms=2_002).resend == []


def test_abandon_forgets_and_returns_all():
    calls = table()
    begun = [begin(calls) for _ in range(3)]
    assert calls.abandon() == begun
    assert len(calls) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overload_max_ms", 0),
        ("deadline_ms", 0),
        ("deadline_ms", 300_001),
        ("max_in_flight", 0),
        ("silence_ms", 0),
        ("refusal_ms", 0),
    ],
)
def test_a_policy_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        Policy(**{name: value})


@given(sendings=st.integers(1, 10**9))
def test_waits_stay_bounded_however_often_a_call_was_sent(sendings):
    calls = table(jitter=0.999)
    call = begin(calls)
    call.sendings = sendings
    call.refusals = sendings
    calls.on_response(answer(1, OVERLOADED), now_ms=0)
    assert call.due_ms <= 300 * 1.25
    calls.step(now_ms=500)
    assert 500 < call.due_ms <= 500 + 4_000 * 1.25


class CallsModel(RuleBasedStateMachine):
    """The table against a plain model: every call ends once, none is due too late, bytes never change."""

    def __init__(self):
        super().__init__()
        self.calls = table()
        self.now_ms = 0.0
        self.bytes_of: dict[int, bytes] = {}
        self.begun_ms: dict[int, float] = {}
        self.touched_ms: dict[int, float] = {}
        self.ended: set[int] = set()

    def open_ids(self):
        return sorted(set(self.bytes_of) - self.ended)

    @rule()
    def submit(self):
        if len(self.open_ids()) >= POLICY.max_in_flight:
            with pytest.raises(TooManyInFlight):
                begin(self.calls, self.now_ms)
            return
        call = begin(self.calls, self.now_ms)
        assert call.call_id == len(self.bytes_of) + 1
        self.bytes_of[call.call_id] = call.value
        self.begun_ms[call.call_id] = self.touched_ms[call.call_id] = self.now_ms

    @precondition(lambda self: self.bytes_of)
    @rule(data=st.data(), status=st.sampled_from([OK, VOLUME_NOT_FOUND, NOT_LEADER, OVERLOADED, REQUEST_EXPIRED]))
    def respond(self, data, status):
        call_id = data.draw(st.sampled_from(sorted(self.bytes_of)))
        call = self.calls.on_response(answer(call_id, status), now_ms=self.now_ms)
        final = status not in {NOT_LEADER, OVERLOADED}
        assert (call is not None) == (final and call_id not in self.ended)
        if call is not None:
            assert call.call_id == call_id
            self.ended.add(call_id)

    @rule(passed_ms=st.integers(0, 6_000))
    def time_passes(self, passed_ms):
        self.now_ms += passed_ms
        step = self.calls.step(now_ms=self.now_ms)
        for call in step.resend:
            assert call.call_id not in self.ended
            assert call.value == self.bytes_of[call.call_id]
            self.touched_ms[call.call_id] = self.now_ms
        for call in step.expired:
            assert self.now_ms >= self.begun_ms[call.call_id] + POLICY.deadline_ms
            assert call.call_id not in self.ended
            self.ended.add(call.call_id)
        for call_id in self.open_ids():
            assert self.now_ms < self.begun_ms[call_id] + POLICY.deadline_ms
            assert self.now_ms - self.touched_ms[call_id] < POLICY.silence_max_ms * 1.25

    @invariant()
    def the_table_holds_exactly_what_is_open(self):
        assert [call.call_id for call in self.calls] == self.open_ids()
        assert self.calls.answered_below == min([*self.open_ids(), len(self.bytes_of) + 1])


TestCallsModel = CallsModel.TestCase


# -- The table of calls at its limits: when exactly something is due, what is just allowed, and what an o


def due(calls: Calls, now_ms: float) -> list[int]:
    return [call.call_id for call in calls.step(now_ms=now_ms).resend]


def test_a_refused_call_is_sent_again_though_one_before_it_is_unanswered():
    calls = table()
    for _ in range(3):
        begin(calls)
    calls.on_response(answer(2, NOT_LEADER), now_ms=0)
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
        calls.on_response(answer(call_id, NOT_LEADER), now_ms=0)
    calls.on_response(answer(3), now_ms=0)
    calls.on_response(answer(4, VOLUME_NOT_FOUND), now_ms=0)
    assert calls._again == {2}
    calls.step(now_ms=10_000)
    assert (len(calls), calls._again) == (0, set())
    begin(calls)
    calls.on_response(answer(5, NOT_LEADER), now_ms=0)
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
    calls.on_response(answer(1, index=0, shard=2), now_ms=0)
    assert calls.positions == {2: 0}


def test_jitter_stretches_a_refusals_wait_and_an_overload_too():
    assert JITTER_SHARE == 0.25
    calls = table(jitter=0.5)
    call = begin(calls)
    calls.on_response(answer(1, NOT_LEADER), now_ms=0)
    assert call.due_ms == 112.5
    overloaded = replace(answer(1, OVERLOADED), message=with_retry_after("too many", 1_000))
    calls.on_response(overloaded, now_ms=0)
    assert call.due_ms == 1_125
    assert (call.refusals, call.sendings) == (2, 1)
    assert due(calls, 1_125) == [1]
    assert call.due_ms == 1_125 + 2_250
    assert call.sendings == 2


def test_nothing_is_due_after_the_deadline():
    calls = table(Policy(deadline_ms=1_000, silence_ms=900, silence_max_ms=900, refusal_ms=500, refusal_max_ms=500))
    call = begin(calls)
    assert (call.due_ms, call.deadline_ms) == (900, 1_000)
    calls.on_response(answer(1, NOT_LEADER), now_ms=700)
    assert call.due_ms == 900
    calls.on_response(answer(1, OVERLOADED), now_ms=800)
    assert call.due_ms == 1_000
    call.due_ms = 950
    assert due(calls, 950) == [1]
    assert call.due_ms == 1_000
    assert calls.step(now_ms=999.9).expired == []
    assert calls.step(now_ms=1_000).expired == [call]


def test_an_overload_without_a_hint_waits_as_a_refusal_does():
    calls = table()
    call = begin(calls)
    calls.on_response(answer(1, OVERLOADED), now_ms=10)
    assert call.due_ms == 110


def test_an_unknown_outcome_says_how_often_it_was_sent_and_what_was_said_last():
    calls = table()
    call = begin(calls)
    calls.step(now_ms=1_000)
    error = unknown(call, "STATUS", "so")
    assert (error.status, error.message, error.response) == ("STATUS", "so; sent 2 times; the outcome is unknown", None)
    refusal = answer(1, NOT_LEADER)
    calls.on_response(refusal, now_ms=1_000)
    error = expired(call, POLICY)
    assert error.message == (
        f"no answer in 10000 ms: no leader of shard {call.shard} answers; sent 2 times, last refused with NOT_LEADER: why;"
        " the outcome is unknown"
    )
    assert error.response is refusal


def test_a_call_is_encoded_with_the_time_and_where_its_answer_goes():
    request = codec.decode(begin(table()).value)
    assert (request.first_sent_at_ms, request.reply_partition) == (1_700_000_000_000, 3)
