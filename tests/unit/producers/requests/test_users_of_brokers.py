"""A client that brokers know by its user: whose topic of responses it reads, and what it does when they refuse it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from producers.errors import NotConnected
from producers.requests import transport as module
from producers.requests.transport import GRACE_S, LOGIN_PAUSE_S, Transport
from schemas.kafka.connection import connection
from schemas.kafka.reply_keys import reply_key
from schemas.kafka.troubles import AUTHENTICATION
from schemas.topics import OM_REQUESTS, OM_RESPONSES
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from transport.waiting.deadline import Deadline

OWN = "om.responses.ann"
REFUSED = KafkaError(AUTHENTICATION, "wrong password")


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as running:
        running.create(OM_REQUESTS, OM_RESPONSES)
        yield running


class Clock:
    """A pause takes as long as it says, and nothing else takes any time."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.pauses = 0

    def monotonic(self) -> float:
        return self.now_s

    __call__ = monotonic

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self.now_s += seconds


class Ann:
    """A connection whose user is ann; the brokers' answers about topics are the test's."""

    def __init__(self, broker: MemoryBroker, password: Path, clock: Clock) -> None:
        self.clock = clock
        self.transport = Transport(
            broker.bootstrap_servers, bytes(16), message_timeout_ms=5_000, connect_timeout_ms=30_000
        )
        self._real = self.transport._consumer, self.transport._producer
        settings = {
            "security.protocol": "SASL_PLAINTEXT", "sasl.username": "ann", "sasl.password.file": str(password),
        }  # fmt: skip
        self.transport._brokers = connection(broker.bootstrap_servers, settings)
        self.transport._logged_in_s = clock.now_s
        self.transport._grace = Deadline.after_s(GRACE_S, clock)
        self.asked: list[float] = []
        self.logins: list[tuple[str, str, str]] = []
        self.topics: Callable[[], set[str]] = set
        fake: Any = SimpleNamespace(list_topics=self._list_topics, set_sasl_credentials=self._login("consumer"))
        self.transport._consumer = fake
        fake = SimpleNamespace(poll=lambda _: 0, set_sasl_credentials=self._login("producer"))
        self.transport._producer = fake

    def _login(self, who: str) -> Callable[[str, str], None]:
        return lambda user, password: self.logins.append((who, user, password))

    def _list_topics(self, timeout: float) -> SimpleNamespace:
        self.asked.append(timeout)
        return SimpleNamespace(topics=dict.fromkeys(self.topics()))

    def reply_topic(self, within_s: float = 10.0) -> str:
        return self.transport._find_reply_topic(Deadline.after_s(within_s, self.clock))

    def close(self) -> None:
        self.transport._consumer, self.transport._producer = self._real
        self.transport.close()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("first\n")
    return file


@pytest.fixture
def ann(broker: MemoryBroker, password: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ann]:
    made = Ann(broker, password, Clock())
    monkeypatch.setattr(module, "time", made.clock)
    yield made
    monkeypatch.undo()
    made.close()


@pytest.mark.parametrize(
    ("topics", "found"), [({OWN, OM_RESPONSES}, OWN), ({OWN}, OWN), ({OM_RESPONSES}, OM_RESPONSES)]
)
def test_a_user_reads_its_own_responses_if_it_has_a_topic(ann: Ann, topics: set[str], found: str) -> None:
    ann.topics = lambda: topics
    assert ann.reply_topic() == found
    assert ann.asked == [module.ASK_S]
    assert ann.clock.pauses == 0


def test_rights_that_brokers_learn_of_a_little_later_are_awaited(ann: Ann) -> None:
    ann.topics = lambda: {OM_REQUESTS} if len(ann.asked) < 4 else {OM_REQUESTS, OWN}
    assert ann.reply_topic() == OWN
    assert ann.clock.pauses == 3


def test_a_user_without_rights_is_told_so_after_a_grace(ann: Ann) -> None:
    ann.topics = lambda: {OM_REQUESTS}
    began_s = ann.clock.now_s
    with pytest.raises(NotConnected, match=f"user 'ann' may read neither {OWN} nor {OM_RESPONSES}"):
        ann.reply_topic(100.0)
    assert GRACE_S <= ann.clock.now_s - began_s < GRACE_S + 0.2


def test_brokers_that_name_no_topic_at_all_are_asked_until_time_is_up(ann: Ann) -> None:
    began_s = ann.clock.now_s
    with pytest.raises(NotConnected, match="may read neither"):
        ann.reply_topic(5.0)
    assert 5.0 <= ann.clock.now_s - began_s < 5.2


def test_brokers_that_do_not_answer_are_asked_again_and_named(ann: Ann) -> None:
    def fail() -> set[str]:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer yet"))

    ann.topics = fail
    with pytest.raises(NotConnected, match="no answer yet"):
        ann.reply_topic(1.0)
    assert len(ann.asked) > 5
    ann.topics = lambda: {OWN} if len(ann.asked) > 20 else fail()
    assert ann.reply_topic() == OWN


def test_a_user_whom_brokers_refuse_is_told_so_after_a_grace(ann: Ann) -> None:
    ann.transport._troubles.note(REFUSED)

    def fail() -> set[str]:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer yet"))

    ann.topics = fail
    began_s = ann.clock.now_s
    with pytest.raises(NotConnected, match="user 'ann' was refused: wrong password"):
        ann.reply_topic(100.0)
    assert GRACE_S <= ann.clock.now_s - began_s < GRACE_S + 0.2


def test_requests_name_the_topic_of_their_answers_where_it_is_the_users_own(ann: Ann) -> None:
    assert ann.transport._key_of(b"request", b"proof") == b"proof"
    ann.transport._reply_topic = OWN
    assert ann.transport._key_of(b"request", b"proof") == reply_key(OWN, b"proof")
    assert ann.transport._key_of(b"request") == reply_key(OWN, None)


def test_a_password_that_brokers_refuse_is_read_again_now_and_then(
    ann: Ann, password: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ann.transport.serve()
    assert ann.logins == [], "nobody refuses it"
    password.write_text("second\n")
    ann.transport._troubles.note(REFUSED)
    ann.clock.now_s += LOGIN_PAUSE_S - 0.01
    ann.transport.serve()
    assert ann.logins == []
    ann.clock.now_s += 0.02
    with caplog.at_level(logging.INFO, "stratolog.client"):
        ann.transport.serve()
    assert ann.logins == [("producer", "ann", "second"), ("consumer", "ann", "second")]
    assert caplog.messages == ["the brokers refuse user 'ann': its password is read again"]
    ann.clock.now_s += LOGIN_PAUSE_S
    ann.transport.serve()
    assert len(ann.logins) == 2, "nobody has refused the new one"
    ann.transport._troubles.note(REFUSED)
    ann.transport.serve()
    assert len(ann.logins) == 4


def test_a_password_that_cannot_be_read_is_told_and_the_client_goes_on(
    ann: Ann, password: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password.unlink()
    ann.transport._troubles.note(REFUSED)
    ann.clock.now_s += LOGIN_PAUSE_S
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        ann.transport.serve()
    assert ann.logins == []
    assert len(caplog.messages) == 1
    assert str(password) in caplog.text


def test_a_client_without_a_user_has_no_password_to_read(broker: MemoryBroker) -> None:
    transport = Transport(broker.bootstrap_servers, bytes(16), message_timeout_ms=5_000, connect_timeout_ms=30_000)
    real = transport._producer
    transport._producer = SimpleNamespace(poll=lambda _: 0)  # type: ignore[assignment]
    transport._troubles.note(REFUSED)
    transport._logged_in_s = time.monotonic() - 100
    transport.serve()
    assert transport._who() == "this client"
    transport._producer = real
    transport.close()


def test_a_shard_whose_requests_are_not_taken_does_not_stop_the_others(
    ann: Ann, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[tuple[int, int]] = []

    def produce_batch(_: str, values: list[object], *, partition: int) -> int:
        if partition == 0:
            raise BufferError("queue full")
        sent.append((partition, len(values)))
        return len(values) - (partition == 1)

    fake: Any = SimpleNamespace(produce_batch=produce_batch)
    ann.transport._producer = fake
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        ann.transport._send_requests({0: [b"a", b"b"], 1: [b"c"], 2: [b"d"]})
    assert sent == [(1, 1), (2, 1)]
    assert caplog.messages == [
        "of 2 requests some were not taken by the producer: queue full",
        "1 of 1 records of requests were not taken by the producer",
    ]
