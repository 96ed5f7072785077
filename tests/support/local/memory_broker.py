"""A Kafka broker in the test's own process: the one that librdkafka brings along, started in milliseconds, without Java.

Real clients speak the real protocol with it: they produce, consume, ask for offsets and metadata. It creates each topic
that it is asked for, with PARTITIONS partitions. It knows no append times, transactions or truncation: what depends on
those needs a real broker (``make_stack``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Message, Producer, TopicPartition

PARTITIONS = 4
TIMEOUT_S = 30.0


class MemoryBroker:
    """The broker's address, and a producer of records."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        brokers = producer.list_topics(timeout=TIMEOUT_S).brokers.values()
        self.bootstrap_servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def append(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> None:
        """Append records in order; returns when the broker has them."""
        for value in values:
            self._producer.produce(topic, value, key, partition)
        assert not self._producer.flush(TIMEOUT_S), "the broker in memory does not take records"

    def create(self, *topics: str) -> None:
        """Create topics without records."""
        for topic in topics:
            assert len(self._producer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == PARTITIONS

    def read(self, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Message]:
        """Return exactly ``count`` records; waits for them."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "group.id": "tests", "log_level": 0}
        consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "error"})
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            found = consumer.consume(count, TIMEOUT_S)
        finally:
            consumer.close()
        assert len(found) == count, f"{topic}/{partition} has {len(found)} records from {offset} on, not {count}"
        return found

    def count(self, topic: str, partition: int = 0) -> int:
        """Return how many records a partition has."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "group.id": "tests", "log_level": 0}
        consumer = Consumer(settings)
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)[1])
        finally:
            consumer.close()


@contextmanager
def memory_broker() -> Iterator[MemoryBroker]:
    """Start a broker; it ends with the block, and its clients get no more answers."""
    settings = {"bootstrap.servers": "in this process", "test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 0}
    producer = Producer(settings)
    try:
        yield MemoryBroker(producer)
    finally:
        producer.purge()
        producer.flush(TIMEOUT_S)
