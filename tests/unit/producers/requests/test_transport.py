"""The client's way to Kafka and back: real clients, and the broker that librdkafka brings along."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from producers.errors import NotConnected
from producers.requests import transport as module
from producers.requests.core.calls import Call
from producers.requests.transport import Transport
from producers.waiting import WORD_EACH_MS
from schemas.codecs.envelopes import requests_in
from schemas.records.messages import CreateVolume
from schemas.topics import OM_LOG, OM_REQUESTS, OM_RESPONSES
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.local.waiting import eventually

CLIENT_ID = bytes(15) + b"\x06"
PARTITION = 6 % PARTITIONS
WAIT_MS = 30_000.0


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as running:
        running.create(OM_REQUESTS, OM_RESPONSES)
        yield running


def connected(bootstrap_servers: str, *, connect_timeout_ms: int = 30_000) -> Transport:
    return Transport(bootstrap_servers, CLIENT_ID, message_timeout_ms=5_000, connect_timeout_ms=connect_timeout_ms)


@pytest.fixture
def transport(broker: MemoryBroker) -> Iterator[Transport]:
    made = connected(broker.bootstrap_servers)
    yield made
    made.close()


def call(value: bytes, shard: int, proof: bytes | None = None, trace_key: bytes | None = None) -> Call:
    return Call(
        call_id=1, shard=shard, body=CreateVolume(volume="v"), value=value, done=lambda _: None, due_ms=0.0,
        deadline_ms=0.0, proof=proof, trace_key=trace_key,
    )  # fmt: skip


def received(transport: Transport, count: int, *, gather: bool = False) -> list[bytes]:
    """Return replies, at least ``count``."""
    found: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_MS / 1000
    while len(found) < count and time.monotonic() < deadline_s:
        found += transport.receive(200, gather=gather)
    return found


def test_the_topics_say_how_many_shards_there_are_and_where_replies_come(transport: Transport) -> None:
    assert (transport.shards, transport.reply_partition) == (PARTITIONS, PARTITION)


def test_replies_to_this_client_arrive_in_order_from_the_moment_of_connecting_on(
    broker: MemoryBroker, transport: Transport
) -> None:
    broker.append(OM_RESPONSES, b"before", partition=PARTITION, key=CLIENT_ID)
    late = connected(broker.bootstrap_servers)
    broker.append(OM_RESPONSES, b"of another", partition=PARTITION, key=b"another")
    broker.append(OM_RESPONSES, b"elsewhere", partition=PARTITION + 1, key=CLIENT_ID)
    broker.append(OM_RESPONSES, b"1", None, b"2", partition=PARTITION, key=CLIENT_ID)
    assert received(late, 2) == [b"1", b"2"]
    assert late.receive(0, gather=False) == []
    late.close()
    assert received(transport, 3) == [b"before", b"1", b"2"]


def test_who_gathers_takes_what_comes_meanwhile(broker: MemoryBroker, transport: Transport) -> None:
    broker.append(OM_RESPONSES, *(str(number).encode() for number in range(50)), partition=PARTITION, key=CLIENT_ID)
    assert received(transport, 50, gather=True) == [str(number).encode() for number in range(50)]
    began_s = time.monotonic()
    assert transport.receive(150, gather=True) == []
    assert time.monotonic() - began_s >= 0.14


def test_a_reader_that_is_made_anew_goes_on_where_the_last_one_was(broker: MemoryBroker, transport: Transport) -> None:
    broker.append(OM_RESPONSES, b"1", b"2", partition=PARTITION, key=CLIENT_ID)
    assert received(transport, 2) == [b"1", b"2"]
    broker.append(OM_RESPONSES, b"3", partition=PARTITION, key=CLIENT_ID)
    before = transport._consumer
    transport.renew()
    with pytest.raises(RuntimeError):
        before.poll(0)  # it is closed
    assert received(transport, 1) == [b"3"]
    transport._consumer.close()
    transport.renew()
    broker.append(OM_RESPONSES, b"4", partition=PARTITION, key=CLIENT_ID)
    assert received(transport, 1) == [b"4"], "also when the last one was closed before"


def test_an_error_is_not_taken_for_a_reply(transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    at = transport._next_reply

    class Failing:
        """A consumer's answer when a partition cannot be read: librdkafka passes errors on as messages."""

        def poll(self, _: float) -> SimpleNamespace:
            error = KafkaError(KafkaError._ALL_BROKERS_DOWN)
            return SimpleNamespace(error=lambda: error, key=lambda: CLIENT_ID, value=lambda: b"text", offset=lambda: 99)

        def consume(self, *_: float) -> list[SimpleNamespace]:
            return []

    real, transport._consumer = transport._consumer, Failing()  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        assert transport.receive(0, gather=False) == []
    transport._consumer = real
    assert transport._next_reply == at
    assert [record.getMessage().startswith("reading replies: ") for record in caplog.records] == [True]


def test_requests_go_to_their_shards_in_order_and_many_in_a_record(broker: MemoryBroker, transport: Transport) -> None:
    ends = {shard: broker.count(OM_REQUESTS, shard) for shard in range(PARTITIONS)}
    transport.send([call(b"a1", 0), call(b"b1", 1), call(b"a2", 0), call(b"b2", 1), call(b"a3", 0)])
    for shard, values in {0: [b"a1", b"a2", b"a3"], 1: [b"b1", b"b2"]}.items():
        (record,) = broker.read(OM_REQUESTS, 1, shard, ends[shard])
        assert (requests_in(record.value() or b""), record.key()) == (values, None)
    assert [broker.count(OM_REQUESTS, shard) for shard in (2, 3)] == [ends[2], ends[3]]


def test_a_proven_request_has_a_record_of_its_own_behind_what_was_sent_before_it(
    broker: MemoryBroker, transport: Transport
) -> None:
    at, other = broker.count(OM_REQUESTS, 2), broker.count(OM_REQUESTS, 3)
    calls = [call(b"1", 2), call(b"x", 3), call(b"2", 2), call(b"secret", 2, b"proof"), call(b"3", 2), call(b"y", 3)]
    transport.send(calls)
    found = broker.read(OM_REQUESTS, 3, 2, at)
    assert [(requests_in(record.value() or b""), record.key()) for record in found] == [
        ([b"1", b"2"], None), ([b"secret"], b"proof"), ([b"3"], None),
    ]  # fmt: skip
    (record,) = broker.read(OM_REQUESTS, 1, 3, other)
    assert requests_in(record.value() or b"") == [b"x", b"y"]


def test_a_traced_call_has_a_record_of_its_own_unless_a_proof_takes_its_place(
    broker: MemoryBroker, transport: Transport
) -> None:
    at = broker.count(OM_REQUESTS, 1)
    transport.send([call(b"1", 1), call(b"2", 1, None, b"trace"), call(b"3", 1), call(b"4", 1, b"proof", b"trace")])
    found = broker.read(OM_REQUESTS, 4, 1, at)
    assert [(record.value(), record.key()) for record in found] == [
        (b"1", None), (b"2", b"trace"), (b"3", None), (b"4", b"proof"),
    ]  # fmt: skip


@pytest.mark.parametrize("proof", [None, b"proof"])
def test_what_the_producers_queue_does_not_take_is_dropped_and_said_and_the_rest_goes_on(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, proof: bytes | None
) -> None:
    monkeypatch.setattr(module, "PRODUCER_QUEUE_MESSAGES", 1)
    monkeypatch.setattr(module, "PRODUCER_QUEUE_KBYTES", 1)
    transport = connected(broker.bootstrap_servers)
    at = broker.count(OM_REQUESTS, 1)
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        transport.send([call(b"0" * 1024, 0), call(b"1" * 1024, 0, proof), call(b"2" * 1024, 2), call(b"3", 1)])
    assert caplog.records
    assert all("not taken by the producer" in record.getMessage() for record in caplog.records)
    transport.close()
    caplog.clear()
    transport = connected(broker.bootstrap_servers)
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        transport.send([call(b"alone", 1)])
    assert not caplog.records
    assert (broker.read(OM_REQUESTS, 1, 1, at)[0].value() or b"") in {b"alone", b"3"}
    transport.close()


class Asked:
    """A consumer whose first answers are errors, as of a cluster that is just electing leaders; then the real one's."""

    def __init__(self, real: Consumer, failures: int, what: str) -> None:
        self._real, self._failures, self._what = real, failures, what
        self.asked = 0

    def _answer(self, what: str, *arguments: object, **words: object) -> object:
        if what == self._what:
            self.asked += 1
            if self.asked <= self._failures:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT, "try again"))
        return getattr(self._real, what)(*arguments, **words)

    def list_topics(self, *arguments: object, **words: object) -> object:
        return self._answer("list_topics", *arguments, **words)

    def get_watermark_offsets(self, *arguments: object, **words: object) -> object:
        return self._answer("get_watermark_offsets", *arguments, **words)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@pytest.mark.parametrize("what", ["list_topics", "get_watermark_offsets"])
def test_a_question_is_repeated_until_time_is_up(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    made: list[Asked] = []
    failures = 2

    def consumer(settings: dict[str, object]) -> Asked:
        made.append(Asked(Consumer(settings), failures, what))
        return made[-1]

    monkeypatch.setattr(module, "Consumer", consumer)
    transport = connected(broker.bootstrap_servers)
    assert made[0].asked >= 3
    broker.append(OM_RESPONSES, b"1", partition=PARTITION, key=CLIENT_ID)
    assert received(transport, 1) == [b"1"]
    transport.close()
    failures = 1_000
    with pytest.raises(NotConnected, match="try again") as caught:
        connected(broker.bootstrap_servers, connect_timeout_ms=250)
    assert broker.bootstrap_servers in str(caught.value)
    assert 2 <= made[1].asked < 10, "it does not ask without a pause"
    with pytest.raises(RuntimeError):
        made[1].poll(0)  # type: ignore[operator]


def test_a_topic_that_is_not_there_is_named(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
    answer = SimpleNamespace(topics={OM_REQUESTS: unknown}, cluster_id=None)
    monkeypatch.setattr(Asked, "_answer", lambda *_, **__: answer)
    monkeypatch.setattr(module, "Consumer", lambda settings: Asked(Consumer(settings), 0, ""))
    with pytest.raises(NotConnected, match=f"topic {OM_REQUESTS}: .*UNKNOWN_TOPIC_OR_PART"):
        connected(broker.bootstrap_servers, connect_timeout_ms=250)


@pytest.mark.parametrize(
    ("of_log", "error", "shards"),
    [(2, None, 2), (PARTITIONS + 2, None, PARTITIONS), (0, KafkaError.TOPIC_AUTHORIZATION_FAILED, PARTITIONS)],
)
def test_partitions_of_requests_beyond_the_logs_are_no_shards(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, of_log: int, error: int | None, shards: int
) -> None:
    """Somebody has added some. A client that counted them looked for volumes in other shards, and for a shard that is not there."""
    told = SimpleNamespace(partitions=range(of_log), error=None if error is None else KafkaError(error))

    class Grown(Asked):
        def list_topics(self, *arguments: object, **words: object) -> object:
            asked = super().list_topics(*arguments, **words)
            return SimpleNamespace(topics={OM_LOG: told}) if arguments == (OM_LOG,) else asked

    monkeypatch.setattr(module, "Consumer", lambda settings: Grown(Consumer(settings), 0, ""))
    transport = connected(broker.bootstrap_servers)
    assert transport.shards == shards
    transport.close()


def test_that_no_broker_is_left_is_said_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 5.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    down, other = KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError._TRANSPORT)
    report = module._BrokersDown()
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        report(other)
        assert caplog.records == []
        report(down)
        report(down)
        assert [record.getMessage() for record in caplog.records] == ["no broker can be reached; trying on"]
        now_s += WORD_EACH_MS / 1000
        report(down)
    assert len(caplog.records) == 2


def test_who_serves_waits_for_nothing(transport: Transport) -> None:
    """The client's one thread does it between replies: each wait there would be one of every request."""
    waits: list[float] = []
    real, transport._producer = transport._producer, SimpleNamespace(poll=waits.append)  # type: ignore[assignment]
    transport.serve()
    transport._producer = real
    assert waits == [0]


def test_a_delivery_that_failed_is_for_a_person_who_looks(caplog: pytest.LogCaptureFixture) -> None:
    message: object = SimpleNamespace()
    with caplog.at_level(logging.DEBUG, "stratolog.client"):
        module._log_failed_delivery(None, message)  # type: ignore[arg-type]
        assert caplog.records == []
        module._log_failed_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), message)  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_a_request_that_no_broker_takes_is_dropped_when_its_time_is_up(caplog: pytest.LogCaptureFixture) -> None:
    with memory_broker() as short, caplog.at_level(logging.DEBUG, "stratolog.client"):
        short.create(OM_REQUESTS, OM_RESPONSES)
        transport = Transport(short.bootstrap_servers, CLIENT_ID, message_timeout_ms=100, connect_timeout_ms=30_000)
        transport._producer.produce(OM_REQUESTS, b"nowhere", partition=PARTITIONS + 5)

        def told() -> bool:
            transport.serve()
            return any("was not delivered" in record.getMessage() for record in caplog.records)

        eventually(told)
        transport.close()
