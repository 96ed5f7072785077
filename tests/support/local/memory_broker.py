"""A Kafka broker in the test's own process: the one that librdkafka brings along, started in milliseconds, without Java.

Real clients speak the real protocol with it: they produce, consume, ask for offsets and metadata. It creates each topic
that it is asked for, with PARTITIONS partitions. It knows no append times, transactions or truncation: what depends on
those needs a real broker (``make_stack``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from crc32c import crc32c

from schemas.codecs.varints import encode_long

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

    def append_damaged(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Append a batch of one record whose checksum is wrong: this broker stores what it gets, as a disk does."""
        question = _produce_request(topic, partition, _damaged_batch(value))
        host, _, port = self.bootstrap_servers.partition(",")[0].rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
            sock.sendall(len(question).to_bytes(4, "big") + question)
            assert sock.recv(4), "the broker in memory does not take the batch"

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


def _damaged_batch(value: bytes) -> bytes:
    """Return a batch in Kafka's format of version 2, with one record, whose CRC32C is one bit off."""
    inner = b"\0" + encode_long(0) + encode_long(0) + encode_long(-1) + encode_long(len(value)) + value + encode_long(0)
    record = encode_long(len(inner)) + inner
    body = struct.pack(">hiqqqhii", 0, 0, 1, 1, -1, -1, -1, 1) + record
    return struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body) ^ 1) + body


def _produce_request(topic: str, partition: int, records: bytes) -> bytes:
    """Return a request of Kafka's API Produce, version 7, that waits for all acknowledgements."""
    header = struct.pack(">hhih", 0, 7, 1, 1) + b"t" + struct.pack(">hhi", -1, -1, 5_000)
    name = struct.pack(">ih", 1, len(topic)) + topic.encode()
    return header + name + struct.pack(">iii", 1, partition, len(records)) + records


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
