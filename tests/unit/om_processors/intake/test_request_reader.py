"""How requests are read from their topic: on a broker in this process, without the reader's thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from om_processors.intake.gateway import Received
from om_processors.intake.request_reader import MAX_OUT_OF_RANGE, RESUME_BACK_MS, RequestReader
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell.kafka.kafka_log import REQUEST_TIMEOUT_S
from schemas.codecs.codec import Undecodable, decode_as
from schemas.records.log import RequestPosition
from schemas.records.messages import Request
from schemas.topics import OM_REQUESTS
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.om.requests import SHARD, WAIT_S, position, request


class Case:
    """A reader whose thread does not run."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        broker.create(OM_REQUESTS)
        self.clock = ManualClock(now_ms=1_000_000)
        self.noted: list[str] = []
        self.arrived: list[Received] = []
        self.unreadable: list[Received] = []
        self._found: RequestReader | None = None

    def reader(self, hint: RequestPosition | None = None) -> RequestReader:
        self._found = RequestReader(
            bootstrap_servers=self.broker.bootstrap_servers, shard=SHARD, clock=self.clock, hint=hint,
            log=self.noted.append, arrived=self.arrived.extend, unreadable=self._on_unreadable, failed=lambda _: None,
            beat=lambda _: None,
        )  # fmt: skip
        return self._found

    def _on_unreadable(self, received: Received, error: Undecodable) -> None:
        self.unreadable.append(received)
        assert str(error)

    def say(self, *values: bytes) -> None:
        self.broker.append(OM_REQUESTS, *values, partition=SHARD)

    def names(self, count: int) -> list[str]:
        """Return the volumes of requests that have arrived, once there are so many."""
        assert self._found is not None
        while len(self.arrived) < count:
            self._found.read(10, WAIT_S)
        found = [decode_as(Request, one.value).body for one in self.arrived]
        return [body.volume for body in found if hasattr(body, "volume")]

    def close(self) -> None:
        if self._found is not None:
            self._found._reader.close()


@pytest.fixture
def case() -> Iterator[Case]:
    with memory_broker() as broker:
        case = Case(broker)
        yield case
        case.close()


@pytest.mark.parametrize(
    "code", [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION]
)
def test_after_a_truncation_other_brokers_are_asked_before_anything_is_read_again(case: Case, code: int):
    case.say(request("vol0"), request("vol1", 2))
    found = case.reader(position(1, request("vol0")))
    for _ in range(MAX_OUT_OF_RANGE - 1):
        before = found._reader.consumer
        assert found._recover(KafkaError(code, "beyond the end"))
        assert found._reader.consumer is not before, "another broker may answer this one"
    assert case.noted == [f"{OM_REQUESTS}/{SHARD}: beyond the end"] * (MAX_OUT_OF_RANGE - 1)
    assert case.names(1) == ["vol1"], "it goes on where it was"
    for _ in range(MAX_OUT_OF_RANGE):
        assert found._recover(KafkaError(code, "beyond the end"))
    assert "(hint: none)" in case.noted[-1], "all say so: it resumes ten minutes back"
    assert found._out_of_range == 0


def test_what_librdkafka_tries_again_by_itself_needs_no_recovery(case: Case):
    case.say(b"before")
    found = case.reader(position(1, b"before"))
    assert not found._recover(KafkaError(KafkaError._TRANSPORT, "connection lost"))
    assert case.noted == []


def test_a_damaged_record_is_passed_over_and_told_once(case: Case):
    """Its requests are sent again: nobody answers them. librdkafka alone would read nothing more, or all again."""
    case.say(request("vol0"))
    found = case.reader(position(1, request("vol0")))
    case.broker.append_damaged(OM_REQUESTS, b"a text that says something. " * 20, SHARD)
    case.say(request("vol1", 2), request("vol2", 3))
    assert case.names(2) == ["vol1", "vol2"]
    (told,) = [text for text in case.noted if "CRC32C" in text]
    assert told.startswith(f"{OM_REQUESTS}/{SHARD}: offset 1 is passed over, and sent again by the clients")
    assert found._next_offset == 4


class Failed:
    """A message that tells of an error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code, "why")


def test_errors_among_records_are_passed_over_until_one_says_that_the_log_was_cut(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    case.say(b"before")
    found = case.reader(position(1, b"before"))
    case.say(request("vol1"), request("vol2", 2))
    one, two = case.broker.read(OM_REQUESTS, 2, SHARD, offset=1)
    messages: list[Any] = [Failed(KafkaError._TRANSPORT), one, Failed(KafkaError.OFFSET_OUT_OF_RANGE), two]
    answers = iter([messages])
    monkeypatch.setattr(found._reader, "consume", lambda *_: next(answers, []))
    found.read(10, 0.0)
    assert case.names(1) == ["vol1"], "what came behind it is read again"
    assert found._next_offset == 2
    assert found._out_of_range == 1


def test_without_a_hint_the_last_ten_minutes_are_read_again(case: Case):
    """The broker in this process knows no times, so that its answer is given here."""
    case.say(*(request(f"vol{number}") for number in range(4)))
    found = case.reader()
    asked = []

    class Timed:
        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def offsets_for_times(self, since: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            asked.append(([(one.topic, one.partition, one.offset) for one in since], timeout))
            return [TopicPartition(OM_REQUESTS, SHARD, 2)]

    timed: Any = Timed(found._reader.consumer)
    found._reader._consumer = timed
    found._resume(None)
    assert asked == [([(OM_REQUESTS, SHARD, case.clock.wall_ms() - RESUME_BACK_MS)], REQUEST_TIMEOUT_S)]
    assert case.names(2) == ["vol2", "vol3"]
    assert RESUME_BACK_MS == 600_000
