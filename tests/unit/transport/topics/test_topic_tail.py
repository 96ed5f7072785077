"""The tail of a topic, read from a broker in this process. What a real broker alone can do is in
``tests/integration/test_topic_tail.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message, TopicPartition

from schemas.codecs.codec import encode
from schemas.records.log import Tick
from schemas.records.messages import WindowStats
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from transport.topics import topic_tail
from transport.topics.topic_tail import TailStart, TopicTail, TopicUnavailable, records_of
from transport.waiting.deadline import Deadline

TOPIC = "tail"
PATIENCE_S = 30.0

MakeTail = Callable[..., TopicTail]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        broker.create(TOPIC)
        yield broker


@pytest.fixture
def make_tail(broker: MemoryBroker) -> Iterator[MakeTail]:
    made: list[TopicTail] = []

    def make(start: TailStart = topic_tail.FIRST_RECORD) -> TopicTail:
        made.append(TopicTail(broker.bootstrap_servers, TOPIC, start, Deadline.after_s(PATIENCE_S)))
        return made[-1]

    yield make
    for tail in made:
        tail.close()


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def to_end(tail: TopicTail) -> list[bytes | None]:
    return [value for messages in tail.to_end(Deadline.after_s(PATIENCE_S)) for value in values(messages)]


def new(tail: TopicTail, count: int) -> list[bytes | None]:
    """Return so many records that have come, or what has within PATIENCE_S."""
    found: list[bytes | None] = []
    for messages in tail.until(Deadline.after_s(PATIENCE_S)):
        found += values(messages)
        if len(found) >= count:
            break
    return found


def test_it_begins_with_the_first_record_of_every_partition(broker: MemoryBroker, make_tail: MakeTail):
    for number in range(PARTITIONS):
        broker.append(TOPIC, b"a%d" % number, b"b%d" % number, partition=number)
    tail = make_tail()
    assert sorted(map(str, to_end(tail))) == sorted(
        str(b"%c%d" % (name, n)) for name in b"ab" for n in range(PARTITIONS)
    )
    assert to_end(tail) == [], "it goes on where it was"
    broker.append(TOPIC, b"c", partition=1)
    assert to_end(tail) == [b"c"]


def test_it_begins_so_many_records_before_each_end(broker: MemoryBroker, make_tail: MakeTail):
    broker.append(TOPIC, *(b"%d" % number for number in range(9)))
    broker.append(TOPIC, b"other", partition=3)
    assert sorted(map(str, to_end(make_tail(TailStart(last_records=2))))) == sorted(map(str, [b"7", b"8", b"other"]))


def test_from_now_on_it_reads_what_comes(broker: MemoryBroker, make_tail: MakeTail):
    broker.append(TOPIC, b"before")
    tail = make_tail(TailStart(last_records=0))
    assert tail.poll(0.05) == []
    broker.append(TOPIC, b"after", partition=2)
    assert new(tail, 1) == [b"after"]


def test_a_poll_waits_for_a_record_though_partitions_end(broker: MemoryBroker, make_tail: MakeTail):
    """The end of an empty partition is no answer: whoever reads the past would take it for the end of all."""
    tail = make_tail()
    broker.append(TOPIC, b"one", partition=3)
    assert values(tail.poll(PATIENCE_S)) == [b"one"]


def test_a_poll_is_bounded(broker: MemoryBroker, make_tail: MakeTail, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_tail, "READ_LIMIT", 3)
    broker.append(TOPIC, *(b"%d" % number for number in range(10)))
    tail = make_tail()
    sizes: list[int] = []
    while sum(sizes) < 10:
        sizes.append(len(tail.poll(PATIENCE_S)))
    assert max(sizes) <= 3
    assert to_end(make_tail()) == [b"%d" % number for number in range(10)]


def test_until_ends_with_its_deadline(make_tail: MakeTail):
    assert list(make_tail().until(Deadline.after_s(0.1))) == [[]]
    assert list(make_tail().until(Deadline.after_s(-1))) == []


def test_what_is_not_served_in_time_is_an_error_and_read_later(broker: MemoryBroker, make_tail: MakeTail):
    tail = make_tail()
    places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    tail._consumer.pause(places)
    broker.append(TOPIC, b"one")
    with pytest.raises(TopicUnavailable, match="tail cannot be read: it is not served to its end in time"):
        list(tail.to_end(Deadline.after_s(2.0)))
    tail._consumer.resume(places)
    assert to_end(tail) == [b"one"]


def test_who_is_too_far_behind_may_skip(broker: MemoryBroker, make_tail: MakeTail, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_tail, "READ_LIMIT", 1)
    broker.append(TOPIC, *(b"%d" % number for number in range(120)))
    tail = make_tail()
    read = len(tail.poll(PATIENCE_S))
    assert tail.skip_behind(most=120, kept=1) == {}
    assert tail.skip_behind(most=30, kept=5) == {0: 115 - read}
    assert new(tail, 5) == [b"%d" % number for number in range(115, 120)]
    assert tail.skip_behind(most=30, kept=5) == {}


def test_a_broker_that_does_not_answer_is_an_error_within_the_deadline():
    with pytest.raises(TopicUnavailable, match="tail cannot be read: "):
        TopicTail("127.0.0.1:1", TOPIC, deadline=Deadline.after_s(0.1))


def test_a_damaged_record_is_an_error_and_no_reason_to_read_all_again(broker: MemoryBroker, make_tail: MakeTail):
    """librdkafka goes on anywhere after it: at the first record, and so on for ever."""
    broker.append(TOPIC, b"one")
    broker.append_damaged(TOPIC, b"a text that says something. " * 20)
    tail = make_tail()
    found: list[bytes | None] = []

    def follow() -> None:
        for messages in tail.until(Deadline.after_s(PATIENCE_S)):
            found.extend(values(messages))

    with pytest.raises(TopicUnavailable, match="offset 1 .* failed CRC32C check"):
        follow()
    assert found in ([], [b"one"])


def test_strangers_records_are_left_out(broker: MemoryBroker, make_tail: MakeTail):
    window = WindowStats(
        cluster="c", log="om.log", shard=3, source="log", start_ms=0, seconds=10, late=0, counted_at_ms=1, rows=[]
    )
    tick = Tick(term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32))
    broker.append(TOPIC, b"nonsense", None, b"", encode(tick), encode(window))
    messages = [message for some in make_tail().to_end(Deadline.after_s(PATIENCE_S)) for message in some]
    assert len(messages) == 5
    assert list(records_of(WindowStats, messages)) == [window]
