"""The tail of a topic on a real broker: what is deleted, made anew, or ends with what is no record."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.support.local.stack import LocalKafka
from transport.topics import topic_tail
from transport.topics.topic_tail import TailStart, TopicTail, TopicUnavailable
from transport.waiting.deadline import Deadline

pytestmark = pytest.mark.integration

TIMEOUT_S = 60.0


class Topic:
    """A topic of the test's own."""

    def __init__(self, kafka: LocalKafka) -> None:
        self.kafka = kafka
        self.name = f"tail-{uuid.uuid4().hex[:8]}"

    def make(self, partitions: int = 2) -> None:
        deadline = Deadline.after_s(TIMEOUT_S)
        while True:  # a topic that was deleted a moment ago may still be there
            try:
                self.kafka.admin.create_topics([NewTopic(self.name, partitions, 1)])[self.name].result(TIMEOUT_S)
            except KafkaException:
                assert not deadline.has_passed
                time.sleep(0.2)
            else:
                return

    def delete(self) -> None:
        self.kafka.admin.delete_topics([self.name])[self.name].result(TIMEOUT_S)

    def append(self, *values: bytes, partition: int = 0, at_ms: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 0})
        for value in values:
            producer.produce(self.name, value, partition=partition, timestamp=at_ms)
        assert not producer.flush(TIMEOUT_S)

    def append_transaction(self, *values: bytes, commit: bool) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=0)
        producer.flush(TIMEOUT_S)
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        for done in self.kafka.admin.delete_records([TopicPartition(self.name, partition, offset)]).values():
            done.result(TIMEOUT_S)


@pytest.fixture
def topic(kafka_broker: LocalKafka) -> Topic:
    made = Topic(kafka_broker)
    made.make()
    return made


@pytest.fixture
def tail(topic: Topic) -> Iterator[TopicTail]:
    with TopicTail(topic.kafka.bootstrap_servers, topic.name, deadline=Deadline.after_s(TIMEOUT_S)) as tail:
        yield tail


def to_end(tail: TopicTail, timeout_s: float = TIMEOUT_S) -> list[bytes | None]:
    return [one.value() for messages in tail.to_end(Deadline.after_s(timeout_s)) for one in messages]


def new(tail: TopicTail, count: int) -> list[bytes | None]:
    found: list[Message] = []
    for messages in tail.until(Deadline.after_s(TIMEOUT_S)):
        found += messages
        if len(found) >= count:
            break
    return [one.value() for one in found]


def test_a_topic_that_ends_with_a_transactions_mark_is_read_to_its_end(topic: Topic, tail: TopicTail):
    """The mark has an offset and is no record: a reader that waits for it waits for ever."""
    topic.append(b"one")
    topic.append_transaction(b"two", commit=True)
    topic.append_transaction(b"three", commit=False)
    assert to_end(tail) == [b"one", b"two", b"three"], (
        "claims of an open or aborted transaction are records like others"
    )
    assert to_end(tail) == []
    topic.append_transaction(commit=True)
    topic.append(b"four")
    assert to_end(tail) == [b"four"]


def test_what_was_deleted_is_left_out(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """Records are large here, so that the client has not fetched them all before they go."""
    monkeypatch.setattr(topic_tail, "MAX_QUEUED_KIB", 1)
    with TopicTail(topic.kafka.bootstrap_servers, topic.name) as tail:
        topic.append(*(b"%d" % number + bytes(900_000) for number in range(9)))
        topic.delete_before(8)
        found = [(value or b"")[:1] for value in to_end(tail)]
        assert len(found) < 9
        assert found[-1] == b"8"
        topic.append(b"9")
        assert to_end(tail) == [b"9"]


def test_a_topic_made_anew_is_read_from_its_first_record(topic: Topic, tail: TopicTail):
    topic.append(*(b"old %d" % number for number in range(9)))
    assert len(to_end(tail)) == 9
    topic.delete()
    topic.make()
    topic.append(b"new 0", b"new 1")
    deadline = Deadline.after_s(TIMEOUT_S)
    found: list[bytes | None] = []
    while len(found) < 2 and not deadline.has_passed:
        try:
            found += to_end(tail, 5.0)
        except TopicUnavailable:  # the old partitions are still in the client's memory
            continue
    assert found == [b"new 0", b"new 1"]


def test_a_topic_that_is_made_anew_while_it_is_followed(topic: Topic, tail: TopicTail, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_tail, "LOOK_EVERY_S", 0.5)
    topic.append(*(b"old %d" % number for number in range(9)))
    assert len(new(tail, 9)) == 9
    topic.delete()
    assert tail.poll(1.0) == []
    topic.make()
    topic.append(b"new 0", b"new 1")
    assert new(tail, 2) == [b"new 0", b"new 1"]


def test_a_topic_that_stays_away_is_an_error(topic: Topic, tail: TopicTail, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_tail, "GONE_S", 1.0)
    monkeypatch.setattr(topic_tail, "LOOK_EVERY_S", 0.5)
    topic.append(b"one")
    assert to_end(tail) == [b"one"]
    topic.delete()
    with pytest.raises(TopicUnavailable, match=f"{topic.name} cannot be read: .*[Uu]nknown topic"):
        for _ in tail.until(Deadline.after_s(TIMEOUT_S)):
            pass


def test_a_topic_that_does_not_exist_is_an_error(kafka_broker: LocalKafka):
    with pytest.raises(TopicUnavailable, match="nowhere cannot be read: .*[Uu]nknown topic"):
        TopicTail(kafka_broker.bootstrap_servers, "nowhere")


def test_partitions_that_are_new_are_read(topic: Topic, tail: TopicTail, monkeypatch: pytest.MonkeyPatch):
    topic.append(b"one")
    assert to_end(tail) == [b"one"]
    topic.kafka.admin.create_partitions([NewPartitions(topic.name, 4)])[topic.name].result(TIMEOUT_S)
    topic.append(b"two", partition=3)
    deadline = Deadline.after_s(TIMEOUT_S)
    while not (found := to_end(tail)) and not deadline.has_passed:
        pass  # the broker may not have heard of it
    assert found == [b"two"]
    monkeypatch.setattr(topic_tail, "LOOK_EVERY_S", 0.5)
    topic.kafka.admin.create_partitions([NewPartitions(topic.name, 5)])[topic.name].result(TIMEOUT_S)
    tail._next_look = Deadline.after_s(0)
    topic.append(b"three", partition=4)
    assert new(tail, 1) == [b"three"], "also without being asked for the end"


def test_it_begins_at_a_moment(topic: Topic):
    for number in range(4):
        topic.append(b"%d" % number, at_ms=1_000_000 + number)
    topic.append(b"old", partition=1, at_ms=5)
    starts = {1_000_002: [b"2", b"3"], 0: [b"0", b"1", b"2", b"3", b"old"], 9_000_000: []}
    for since_ms, wanted in starts.items():
        with TopicTail(topic.kafka.bootstrap_servers, topic.name, TailStart(since_ms=since_ms)) as tail:
            assert sorted(map(str, to_end(tail))) == sorted(map(str, wanted))
    both = TailStart(since_ms=1_000_001, last_records=1)
    with TopicTail(topic.kafka.bootstrap_servers, topic.name, both) as tail:
        assert to_end(tail) == [b"3"], "the later one of both"


def test_a_broker_that_dies_is_waited_for(make_kafka: Callable[..., LocalKafka]):
    kafka = make_kafka()
    topic = Topic(kafka)
    topic.make()
    topic.append(b"before")
    with TopicTail(kafka.bootstrap_servers, topic.name) as tail:
        assert new(tail, 1) == [b"before"]
        kafka.kill_broker(1)
        assert tail.poll(0.5) == []
        with pytest.raises(TopicUnavailable):
            to_end(tail, 0.5)
        kafka.start_broker(1)
        topic.append(b"after")
        assert new(tail, 1) == [b"after"]
        assert to_end(tail) == []
