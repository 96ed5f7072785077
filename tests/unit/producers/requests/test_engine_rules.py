"""The engine's settings at their limits, and what its poller does now and then."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from producers.errors import ClientClosed, InvalidArgument, OutcomeUnknown, TooManyInFlight
from producers.requests import engine
from producers.requests.bodies import token_of
from producers.requests.caller import default_caller
from producers.requests.core.calls import Policy
from producers.requests.engine import CLIENT_ID_BYTES, RequestEngine, RequestSettings, linger_ms_of, make_settings
from schemas.access.credentials import SECRET_BYTES, Credentials
from schemas.codecs.codec import encode, header_of
from schemas.records.messages import CreateVolume, Response, Responses
from schemas.security.certificates import Role
from tests.support.local.secret import SECRET
from tests.support.local.waiting import eventually
from tests.support.sdk.memory import MemoryCluster, MemoryConnection, pipeline_to
from tests.support.security.certified import Certified
from transport.waiting.deadline import Deadline

WAIT_S = 30.0
Open = Callable[..., tuple[RequestEngine, MemoryConnection]]


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[tuple[RequestEngine, MemoryConnection]] = []

    def begin(**policy: Any) -> tuple[RequestEngine, MemoryConnection]:
        made.append(pipeline_to(MemoryCluster(), Policy(**policy)))
        return made[-1]

    yield begin
    for pipeline, connection in made:
        connection.release()
        pipeline.close(Deadline.after_ms(0))


def submitted(pipeline: RequestEngine, *volumes: str) -> SimpleQueue[Any]:
    told: SimpleQueue[Any] = SimpleQueue()
    for volume in volumes:
        pipeline.submit(CreateVolume(volume=volume), told.put)
    return told


def settings(**changes: Any) -> RequestSettings:
    return replace(RequestSettings(bootstrap_servers="b:1", caller="me", policy=Policy()), **changes)


def made(**changes: Any) -> RequestSettings:
    given: dict[str, Any] = {
        "caller": "me", "deadline_ms": 5, "max_in_flight": 6, "max_linger_ms": 7.5, "connect_timeout_ms": 8,
    } | changes  # fmt: skip
    return make_settings(given.pop("bootstrap_servers", "b:1"), **given)


def test_settings_just_in_range_are_taken() -> None:
    for value in (0, 1_000):
        assert settings(max_linger_ms=value).max_linger_ms == value
    assert settings(connect_timeout_ms=1).connect_timeout_ms == 1
    with pytest.raises(ValueError, match=r"max_linger_ms must be in 0\.\.1000, not 1000\.5"):
        settings(max_linger_ms=1_000.5)


def test_arguments_become_settings() -> None:
    found = made(cluster_secret=SECRET)
    assert (found.bootstrap_servers, found.caller, found.secret) == ("b:1", "me", SECRET)
    assert (found.policy.deadline_ms, found.policy.max_in_flight) == (5, 6)
    assert (found.max_linger_ms, found.connect_timeout_ms) == (7.5, 8)
    assert made(caller=None).caller == default_caller()
    assert made().secret is None
    assert (made(deadline_ms=1).policy.deadline_ms, made(max_in_flight=1).policy.max_in_flight) == (1, 1)
    assert (made(max_linger_ms=0).max_linger_ms, made(connect_timeout_ms=1).connect_timeout_ms) == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bootstrap_servers": ""}, {"bootstrap_servers": " , "}, {"deadline_ms": 0}, {"deadline_ms": 300_001},
        {"max_in_flight": 0}, {"max_linger_ms": -1}, {"max_linger_ms": 1_001}, {"connect_timeout_ms": 0},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        made(**wrong)


def test_gathering_begins_where_it_is_worth_while() -> None:
    assert linger_ms_of(200, 10.0) == 0.5
    assert linger_ms_of(10_000, 0.5) == 0.5
    assert linger_ms_of(10_000, 0.4) == 0.0


def test_each_client_has_an_id_of_its_own(opened: Open) -> None:
    first, second = opened()[0], opened()[0]
    assert first.client_id != second.client_id
    assert len(first.client_id) == CLIENT_ID_BYTES == 16
    assert first.shards == MemoryCluster().shards
    thread = first._poller
    assert thread is not None
    assert (thread.daemon, thread.name) == (True, "stratolog-client")


def test_the_connection_is_served_now_and_then(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[None] = []
    monkeypatch.setattr(MemoryConnection, "serve", lambda _: served.append(None))
    opened()
    eventually(lambda: len(served) >= 2, timeout_s=WAIT_S)


def test_without_gathering_a_request_goes_out_at_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "IDLE_WAIT_MS", 60_000)
    pipeline, connection = opened()
    told = submitted(pipeline, "v1")
    assert len(connection.sent) == 1
    assert told.get(timeout=WAIT_S).status == "OK"
    pipeline._stop = True
    connection.fail(OSError("the end"))


def test_a_request_that_gathers_is_sent_by_the_poller(opened: Open) -> None:
    pipeline, connection = opened(max_in_flight=2_000)
    connection.held = True
    first = submitted(pipeline, *(f"v{number}" for number in range(250)))
    eventually(lambda: pipeline._linger_ms > 0, timeout_s=WAIT_S)
    second = submitted(pipeline, "w1", "w2")
    eventually(lambda: len(connection.sent) == 252, timeout_s=WAIT_S)
    assert not pipeline._outbox
    connection.release()
    assert {told.get(timeout=WAIT_S).status for told in [first] * 250 + [second] * 2} == {"OK"}
    eventually(lambda: pipeline._linger_ms == 0, timeout_s=WAIT_S)


def test_no_room_says_how_many_and_how_long(opened: Open) -> None:
    pipeline, connection = opened(max_in_flight=1, deadline_ms=60_000)
    connection.held = True
    told = submitted(pipeline, "v1")
    object.__setattr__(pipeline._settings.policy, "deadline_ms", 20)
    with pytest.raises(TooManyInFlight, match="1 requests in flight are the limit; none ended in 20 ms") as caught:
        submitted(pipeline, "v2")
    assert caught.value.request == CreateVolume(volume="v2")
    assert pipeline._waiting == 0
    assert len(connection.sent) == 1
    connection.release()
    assert told.get(timeout=WAIT_S).status == "OK"
    assert submitted(pipeline, "v3").get(timeout=WAIT_S).status == "OK", "there is room again"


def test_positions_are_a_copy(opened: Open) -> None:
    pipeline, _ = opened()
    submitted(pipeline, "v1").get(timeout=WAIT_S)
    before = pipeline.positions()
    pipeline.positions().clear()
    assert pipeline.positions() == before != {}


def test_silence_is_counted_only_while_something_is_in_flight(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SILENT_BROKER_MS", 10_000_000)
    pipeline, connection = opened()
    connection.held = True
    assert pipeline._silent_ms == 0
    told = submitted(pipeline, "v1")
    eventually(lambda: pipeline._silent_ms > 0, timeout_s=WAIT_S)
    assert connection.renewals == 0
    connection.release()
    told.get(timeout=WAIT_S)
    eventually(lambda: pipeline._silent_ms == 0, timeout_s=WAIT_S)


def test_a_client_that_asks_nothing_never_renews_its_connection(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SILENT_BROKER_MS", 3)
    monkeypatch.setattr(engine, "IDLE_WAIT_MS", 1)
    rounds: list[None] = []
    monkeypatch.setattr(MemoryConnection, "serve", lambda _: rounds.append(None))
    _, connection = opened()
    eventually(lambda: len(rounds) > 20, timeout_s=WAIT_S)
    assert connection.renewals == 0


def test_a_client_that_is_closed_tells_what_is_unanswered_and_closes_its_connection(opened: Open) -> None:
    pipeline, connection = opened()
    connection.held = True
    told = submitted(pipeline, "v1")
    assert pipeline.close(Deadline.after_ms(0)) == [CreateVolume(volume="v1")]
    outcome = told.get(timeout=WAIT_S)
    assert isinstance(outcome, OutcomeUnknown)
    assert "the client was closed before an answer came" in outcome.message
    assert (pipeline.in_flight, pipeline._outbox, connection.closed) == (0, [], True)
    assert pipeline._poller is not None
    assert not pipeline._poller.is_alive()
    with pytest.raises(ClientClosed, match="the client is closed") as caught:
        submitted(pipeline, "v2")
    assert caught.value.request == CreateVolume(volume="v2")


def test_who_waits_for_room_is_told_when_the_client_fails(opened: Open) -> None:
    pipeline, connection = opened(max_in_flight=1)
    connection.held = True
    submitted(pipeline, "v1")
    raised: SimpleQueue[Exception] = SimpleQueue()

    def second() -> None:
        try:
            submitted(pipeline, "v2")
        except ClientClosed as error:
            raised.put(error)

    waiting = threading.Thread(target=second, daemon=True)
    waiting.start()
    eventually(lambda: pipeline._waiting == 1, timeout_s=WAIT_S)
    connection.fail(OSError("the cable is cut"))
    assert "the client failed: OSError: the cable is cut" in str(raised.get(timeout=WAIT_S))
    waiting.join(WAIT_S)
    assert pipeline.close(Deadline.after_ms(60_000)) == []
    assert connection.closed


def test_a_call_takes_room_until_its_caller_has_been_told(opened: Open) -> None:
    pipeline, _ = opened(max_in_flight=1)
    telling, at_last, told = threading.Event(), threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        telling.set()
        at_last.wait(WAIT_S)

    pipeline.submit(CreateVolume(volume="v1"), slow)
    assert telling.wait(WAIT_S)
    waiting = threading.Thread(target=pipeline.submit, args=(CreateVolume(volume="v2"), lambda _: told.set()))
    waiting.start()
    eventually(lambda: pipeline._waiting == 1)
    with pipeline._lock:
        assert not pipeline._has_room_or_is_closed()
    assert not told.is_set()
    at_last.set()
    waiting.join(WAIT_S)
    assert told.wait(WAIT_S)


ANN = Credentials("ann:1", bytes(SECRET_BYTES))


def test_credentials_say_who_calls_and_nobody_else_may_be_named() -> None:
    assert made(caller=None, credentials=ANN).caller == "ann"
    assert made(caller="ann", credentials=ANN).credentials is ANN
    with pytest.raises(InvalidArgument, match="caller must be 'ann', whose credentials these are, not 'bob'"):
        made(caller="bob", credentials=ANN)


def test_nodes_are_not_reached_in_clear_where_tls_is_given(tmp_path: Path) -> None:
    files = Certified(tmp_path / "authority").files("me", Role.CLIENT)
    assert made(tls=files, nodes=["https://a:1", "b:2"]).tls is not None
    with pytest.raises(InvalidArgument, match="nodes must not be reached in clear, as 'tls' is given: 'http://a:1'"):
        made(tls=files, nodes=["b:2", "http://a:1"])
    with pytest.raises(InvalidArgument, match="tls cannot be used"):
        made(tls=replace(files, ca=tmp_path / "none"))
    assert made(nodes=["http://a:1"]).tls is None


def test_a_record_of_replies_that_cannot_be_read_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    good = Response(client_id=bytes(16), call_id=1, shard=0, index=7, status="OK", message="", result=None)
    bad_envelope = header_of(Responses) + b"\xff"
    with caplog.at_level(logging.ERROR, "stratolog.client"):
        assert engine._decoded([bad_envelope, b"\xff", encode(good)]) == [good]
    assert [message.split(":")[0] for message in caplog.messages] == [
        "a record of replies cannot be read", "a reply cannot be read",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [KeyError("no entry"), OSError("no such user")])
def test_a_user_without_a_name_is_called_by_its_number(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", fail)
    assert default_caller() == str(os.getuid())


def test_a_delegation_token_is_derived_from_the_credentials_that_asked_for_it() -> None:
    answer = Response(client_id=bytes(16), call_id=1, shard=0, index=7, status="OK", message="", result=None)
    assert token_of(ANN, answer).token == ANN.of_token(7).token
    with pytest.raises(InvalidArgument, match="credentials must be given to the client"):
        token_of(None, answer)
