"""The pipeline around the core: threads, backpressure, callbacks, closing, failure; over a connection in memory."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from producers.errors import ClientClosed, OutcomeUnknown, RequestFailed, StratologError, TooManyInFlight
from producers.requests.core.calls import Policy
from producers.requests.engine import MIN_LINGER_MS, OUTBOX_CALLS, RequestSettings, linger_ms_of
from schemas.codecs import codec
from schemas.records.messages import CreateVolume, Response
from schemas.result_codes import NOT_LEADER, VOLUME_ALREADY_EXISTS
from tests.support.sdk.memory import MemoryCluster, pipeline_to, volume_row
from transport.waiting.deadline import Deadline

PATIENCE_S = 60
Queue = SimpleQueue[Any]
FAST = Policy(silence_ms=20, silence_max_ms=50, refusal_ms=5, refusal_max_ms=10)


@pytest.fixture
def opened():
    made = []

    def open_pipeline(policy=FAST, cluster=None, **settings):
        pipeline, connection = pipeline_to(cluster or MemoryCluster(), policy, **settings)
        made.append((pipeline, connection))
        return pipeline, connection

    yield open_pipeline
    for pipeline, connection in made:
        connection.failure = None
        connection.release()
        pipeline.close(Deadline.after_ms(0))


def call(pipeline, volume):
    outcomes: Queue = SimpleQueue()
    pipeline.submit(CreateVolume(volume=volume), outcomes.put)
    return outcomes.get(timeout=PATIENCE_S)


def test_a_call_is_answered(opened):
    pipeline, _ = opened()
    response = call(pipeline, "v1")
    assert (response.status, response.index) == ("OK", 1)
    assert pipeline.positions() == {response.shard: 1}
    assert pipeline.in_flight == 0


def test_replies_are_read_some_other_way_when_none_comes_for_long(opened, monkeypatch):
    monkeypatch.setattr("producers.requests.engine.SILENT_BROKER_MS", 200)
    pipeline, connection = opened()
    time.sleep(0.5)
    assert connection.renewals == 0, "nothing is in flight"
    connection.held = True
    outcomes: Queue = SimpleQueue()
    pipeline.submit(CreateVolume(volume="v1"), outcomes.put)
    deadline_s = time.monotonic() + PATIENCE_S
    while connection.renewals == 0 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert connection.renewals >= 1
    connection.release()
    assert outcomes.get(timeout=PATIENCE_S).status == "OK"


def test_an_error_arrives_as_an_exception_object(opened):
    pipeline, _ = opened()
    call(pipeline, "v1")
    error = call(pipeline, "v1")
    assert isinstance(error, RequestFailed)
    assert error.status == VOLUME_ALREADY_EXISTS
    assert error.request == CreateVolume(volume="v1")


def test_a_lost_request_is_sent_again_byte_for_byte_and_has_one_effect(opened):
    pipeline, connection = opened()
    connection.lost = lambda sent: sent.sendings < 3
    assert call(pipeline, "v1").status == "OK"
    values = {sent.value for sent in connection.sent}
    assert len(connection.sent) >= 3
    assert len(values) == 1
    assert connection.cluster.index == 1


def test_refusals_are_retried_until_a_leader_answers(opened):
    pipeline, connection = opened()
    real = connection.cluster.execute
    refused: list[bytes] = []

    def execute(value, shard):
        if len(refused) < 3:
            refused.append(value)
            request = codec.decode(value)
            return Response(
                client_id=request.client_id, call_id=request.call_id, shard=shard, index=-1, status=NOT_LEADER,
                message="not me", result=None,
            )  # fmt: skip
        return real(value, shard)

    connection.cluster.execute = execute
    assert call(pipeline, "v1").status == "OK"
    assert len(set(refused)) == 1


def test_silence_until_the_deadline_is_an_unknown_outcome(opened):
    pipeline, connection = opened(Policy(deadline_ms=60, silence_ms=20, silence_max_ms=20))
    connection.lost = lambda _sent: True
    error = call(pipeline, "v1")
    assert isinstance(error, OutcomeUnknown)
    assert error.status == "DEADLINE_EXCEEDED"
    assert pipeline.in_flight == 0


def test_foreign_and_unreadable_replies_are_passed_over(opened):
    pipeline, connection = opened()
    foreign = Response(client_id=bytes(16), call_id=1, shard=0, index=1, status="OK", message="", result=None)
    connection.reply(b"", b"\xc3\x01garbage", codec.encode(foreign), codec.encode(volume_row("v1")))
    assert call(pipeline, "v1").status == "OK"


def test_thousands_in_flight_from_many_threads_are_each_answered_once(opened):
    pipeline, connection = opened(Policy(max_in_flight=500))
    told: Queue = SimpleQueue()

    def submit_many(thread):
        for number in range(500):
            pipeline.submit(CreateVolume(volume=f"v-{thread}-{number}"), told.put)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(submit_many, range(8)))
    outcomes = [told.get(timeout=PATIENCE_S) for _ in range(4000)]
    assert len({outcome.call_id for outcome in outcomes}) == 4000
    assert told.empty()
    assert connection.cluster.index == 4000


def test_one_thread_sees_its_requests_sent_in_order(opened):
    pipeline, connection = opened(Policy(max_in_flight=1000))
    told: Queue = SimpleQueue()
    for number in range(3000):
        pipeline.submit(CreateVolume(volume=f"v{number}"), told.put)
    for _ in range(3000):
        told.get(timeout=PATIENCE_S)
    ids = [sent.call_id for sent in connection.sent if sent.sendings == 1]
    assert ids == sorted(ids)


def test_requests_gather_when_many_are_in_flight(opened):
    pipeline, connection = opened(Policy(max_in_flight=4 * OUTBOX_CALLS))
    connection.held = True
    told: Queue = SimpleQueue()
    for number in range(2 * OUTBOX_CALLS):
        pipeline.submit(CreateVolume(volume=f"v{number}"), told.put)
    while not pipeline._linger_ms:
        time.sleep(0.001)
    for number in range(2 * OUTBOX_CALLS):
        pipeline.submit(CreateVolume(volume=f"w{number}"), told.put)
    connection.release()
    for _ in range(4 * OUTBOX_CALLS):
        told.get(timeout=PATIENCE_S)
    assert 1 < connection.largest_send <= OUTBOX_CALLS


def test_requests_of_a_block_leave_together(opened):
    pipeline, connection = opened()
    connection.held = True
    told: Queue = SimpleQueue()
    with pipeline.together():
        for number in range(3):
            pipeline.submit(CreateVolume(volume=f"v{number}"), told.put)
        with pipeline.together():
            pipeline.submit(CreateVolume(volume="inner"), told.put)
        other = threading.Thread(target=pipeline.submit, args=(CreateVolume(volume="w"), told.put))
        other.start()  # which sends what it finds, its own too
        other.join()
    connection.release()
    for _ in range(5):
        told.get(timeout=PATIENCE_S)
    assert connection.largest_send == 5
    pipeline.submit(CreateVolume(volume="after"), told.put)
    assert told.get(timeout=PATIENCE_S).status == "OK"


def test_a_request_of_a_block_without_room_is_refused_at_once(opened):
    pipeline, connection = opened(Policy(max_in_flight=2))
    connection.held = True
    told: Queue = SimpleQueue()
    with pipeline.together():
        for number in range(2):
            pipeline.submit(CreateVolume(volume=f"v{number}"), told.put)
        with pytest.raises(TooManyInFlight, match="in 0 ms"):
            pipeline.submit(CreateVolume(volume="v2"), told.put)
    connection.release()
    for _ in range(2):
        assert told.get(timeout=PATIENCE_S).status == "OK"


def test_an_error_within_a_block_does_not_hold_what_was_submitted(opened):
    pipeline, _ = opened()
    told: Queue = SimpleQueue()

    def submit_and_fail() -> None:
        with pipeline.together():
            pipeline.submit(CreateVolume(volume="v"), told.put)
            raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        submit_and_fail()
    assert told.get(timeout=PATIENCE_S).status == "OK"


def test_submitting_waits_for_room(opened):
    pipeline, connection = opened(Policy(max_in_flight=2))
    connection.held = True
    told: Queue = SimpleQueue()
    for number in range(2):
        pipeline.submit(CreateVolume(volume=f"v{number}"), told.put)
    third = threading.Thread(target=pipeline.submit, args=(CreateVolume(volume="v3"), told.put))
    third.start()
    assert pipeline.in_flight == 2
    connection.release()
    third.join(PATIENCE_S)
    assert [told.get(timeout=PATIENCE_S).status for _ in range(3)] == ["OK"] * 3


def test_no_room_within_the_deadline_is_said_and_nothing_is_sent(opened):
    # The first call ends at its own deadline, a little before the wait of the second would: either may win.
    pipeline, connection = opened(Policy(deadline_ms=200, max_in_flight=1))
    connection.lost = lambda _sent: True
    told: Queue = SimpleQueue()
    pipeline.submit(CreateVolume(volume="v1"), told.put)
    with contextlib.suppress(TooManyInFlight):
        pipeline.submit(CreateVolume(volume="v2"), told.put)
    assert isinstance(told.get(timeout=PATIENCE_S), OutcomeUnknown)


def test_a_callback_may_submit_though_other_threads_wait_for_room(opened):
    pipeline, _ = opened(Policy(max_in_flight=3))
    told: Queue = SimpleQueue()

    def chain(outcome, left):
        if isinstance(outcome, StratologError) or left == 0:
            told.put(outcome)
        else:
            volume = f"{threading.get_ident()}-{outcome.call_id}-{left}"
            pipeline.submit(CreateVolume(volume=volume), lambda next_outcome: chain(next_outcome, left - 1))

    def begin(thread):
        for number in range(50):
            pipeline.submit(CreateVolume(volume=f"b-{thread}-{number}"), lambda outcome: chain(outcome, 5))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(begin, range(4)))
    outcomes = [told.get(timeout=PATIENCE_S) for _ in range(200)]
    assert [outcome.status for outcome in outcomes] == ["OK"] * 200


def test_a_callback_that_submits_two_for_one_is_refused_at_once_when_there_is_no_room(opened):
    pipeline, connection = opened(Policy(max_in_flight=1))
    refused: Queue = SimpleQueue()

    def two(_outcome):
        pipeline.submit(CreateVolume(volume="v2"), refused.put)
        try:
            pipeline.submit(CreateVolume(volume="v3"), refused.put)
        except TooManyInFlight as error:
            refused.put(error)

    pipeline.submit(CreateVolume(volume="v1"), two)
    outcomes = [refused.get(timeout=PATIENCE_S) for _ in range(2)]
    assert {type(outcome) for outcome in outcomes} == {TooManyInFlight, Response}
    assert connection.cluster.index == 2


def test_a_faulty_callback_harms_no_other_call(opened, caplog):
    pipeline, _ = opened()

    def faulty(_outcome):
        raise ZeroDivisionError

    pipeline.submit(CreateVolume(volume="v1"), faulty)
    assert call(pipeline, "v2").status == "OK"
    assert "callback" in caplog.text


def test_closing_waits_for_answers_and_refuses_new_calls(opened):
    pipeline, connection = opened()
    connection.held = True
    told: Queue = SimpleQueue()
    pipeline.submit(CreateVolume(volume="v1"), told.put)
    timer = threading.Timer(0.05, connection.release)
    timer.start()
    assert pipeline.close(Deadline.after_ms(PATIENCE_S * 1000)) == []
    assert told.get(timeout=PATIENCE_S).status == "OK"
    assert connection.closed
    with pytest.raises(ClientClosed):
        pipeline.submit(CreateVolume(volume="v2"), told.put)
    assert pipeline.close(Deadline.after_ms(0)) == []


def test_closing_waits_for_callers_but_not_for_what_the_client_sent_on_its_own(opened):
    pipeline, connection = opened()
    connection.lost = lambda sent: b"own" in sent.value
    told: Queue = SimpleQueue()
    own = CreateVolume(volume="own")
    pipeline.submit(own, told.put)
    connection.held = True
    pipeline.submit(CreateVolume(volume="v1"), told.put)
    threading.Timer(0.05, connection.release).start()
    assert pipeline.close(Deadline.after_ms(PATIENCE_S * 1000), lambda body: body == own) == [own]
    assert [type(told.get(timeout=PATIENCE_S)) for _ in range(2)] == [Response, OutcomeUnknown]


def test_closing_names_what_is_unanswered(opened):
    pipeline, connection = opened()
    connection.lost = lambda _sent: True
    told: Queue = SimpleQueue()
    bodies = [CreateVolume(volume=f"v{number}") for number in range(3)]
    for body in bodies:
        pipeline.submit(body, told.put)
    assert pipeline.close(Deadline.after_ms(10)) == bodies
    for body in bodies:
        outcome = told.get(timeout=PATIENCE_S)
        assert isinstance(outcome, OutcomeUnknown)
        assert outcome.status == "CLIENT_CLOSED"
        assert outcome.request == body


def test_closing_wakes_whoever_waits_for_room(opened):
    pipeline, connection = opened(Policy(max_in_flight=1))
    connection.lost = lambda _sent: True
    told: Queue = SimpleQueue()
    pipeline.submit(CreateVolume(volume="v1"), told.put)

    def second():
        try:
            pipeline.submit(CreateVolume(volume="v2"), told.put)
        except StratologError as error:
            told.put(error)

    waiting = threading.Thread(target=second)
    waiting.start()
    pipeline.close(Deadline.after_ms(10))
    waiting.join(PATIENCE_S)
    assert {type(told.get(timeout=PATIENCE_S)) for _ in range(2)} == {OutcomeUnknown, ClientClosed}


def test_closing_from_a_callback_is_refused(opened):
    pipeline, _ = opened()
    told: Queue = SimpleQueue()

    def close(_outcome):
        try:
            pipeline.close(Deadline.after_ms(0))
        except RuntimeError as error:
            told.put(error)

    pipeline.submit(CreateVolume(volume="v1"), close)
    assert "callback" in str(told.get(timeout=PATIENCE_S))


def test_a_failing_connection_ends_all_calls_and_the_client(opened):
    pipeline, connection = opened()
    connection.held = True
    told: Queue = SimpleQueue()
    pipeline.submit(CreateVolume(volume="v1"), told.put)
    connection.fail(OSError("the cable is cut"))
    outcome = told.get(timeout=PATIENCE_S)
    assert isinstance(outcome, OutcomeUnknown)
    assert "the cable is cut" in str(outcome)
    with pytest.raises(ClientClosed, match="the cable is cut"):
        pipeline.submit(CreateVolume(volume="v2"), told.put)


@pytest.mark.parametrize(
    ("in_flight", "expected_ms"), [(0, 0.0), (1, 0.0), (199, 0.0), (200, MIN_LINGER_MS), (1000, 2.5), (10**6, 10.0)]
)
def test_lingering_follows_the_load(in_flight, expected_ms):
    assert linger_ms_of(in_flight, 10.0) == expected_ms


@pytest.mark.parametrize(
    ("name", "value"),
    [("bootstrap_servers", ""), ("max_linger_ms", -1), ("max_linger_ms", 5000), ("connect_timeout_ms", 0)],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        RequestSettings(**({"bootstrap_servers": "b:1", "caller": "me", "policy": Policy()} | {name: value}))
