"""What wakes a sleeping audit: records, partitions and topics that are new, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from schemas.codecs.codec import encode
from schemas.records.log import Tick
from spark_streaming.records import news
from spark_streaming.records.news import News
from tests.support.local.stack import LocalKafka

pytestmark = pytest.mark.integration


def comes(waiting: News, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if waiting.has_come(0.1):
            return True
    return False


def test_only_what_has_not_been_read_is_news(kafka_broker: LocalKafka, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(news, "METADATA_SECONDS", 0.2)
    name = uuid4().hex[:8]
    log, later = f"log-{name}", f"later-{name}"
    # A producer learns of new partitions when it asks for its metadata again.
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "topic.metadata.refresh.interval.ms": 100}
    )

    def made(futures: Mapping[str, Any]) -> None:
        for future in futures.values():
            future.result()

    def send(topic: str, partition: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                producer.produce(topic, b"record", partition=partition)
                break
            except KafkaException:
                assert time.monotonic() < deadline
                producer.poll(0.1)
        assert producer.flush(30) == 0

    made(kafka_broker.admin.create_topics([NewTopic(log, 2, 1)]))
    for _ in range(3):
        send(log, 0)
    read = {TopicPartition(log, 0): 3, TopicPartition(log, 1): 0}

    def waits(do: Callable[[], None]) -> bool:
        """Whether it sleeps, and what is done then wakes it."""
        with News(kafka_broker.bootstrap_servers, [log, later], read) as waiting:
            assert not comes(waiting, 1.0)
            do()
            return comes(waiting)

    assert waits(lambda: send(log, 1))
    read[TopicPartition(log, 1)] = 1
    assert waits(lambda: send(log, 0))
    read[TopicPartition(log, 0)] = 4

    def grow() -> None:
        made(kafka_broker.admin.create_partitions([NewPartitions(log, 3)]))
        send(log, 2)

    assert waits(grow)
    read[TopicPartition(log, 2)] = 1

    def make() -> None:
        made(kafka_broker.admin.create_topics([NewTopic(later, 1, 1)]))
        send(later, 0)

    assert waits(make)
    with News(kafka_broker.bootstrap_servers, [log], {**read, TopicPartition(log, 0): 2}) as behind:
        assert comes(behind), "what came before the sleep was not read"


def test_ticks_are_no_news_until_there_are_many(kafka_broker: LocalKafka, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(news, "MAX_SKIPPED", 3)
    log = f"log-{uuid4().hex[:8]}"
    kafka_broker.admin.create_topics([NewTopic(log, 1, 1)])[log].result()
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})

    def tick(count: int) -> None:
        for seq in range(count):
            producer.produce(log, encode(Tick(term=1, nonce=b"n" * 16, seq=seq, prev_chain=b"c" * 32)), partition=0)
        assert producer.flush(30) == 0

    with News(kafka_broker.bootstrap_servers, [log], {TopicPartition(log, 0): 0}) as waiting:
        tick(3)
        assert not comes(waiting, 2.0)
        tick(1)
        assert comes(waiting)
    with News(kafka_broker.bootstrap_servers, [log], {TopicPartition(log, 0): 2}) as waiting:
        producer.produce(log, b"no record of ours", partition=0)
        assert producer.flush(30) == 0
        assert comes(waiting)


def test_brokers_that_are_gone_have_no_news(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(news, "ANSWER_SECONDS", 0.2)
    with News("127.0.0.1:1", ["log"], {}) as waiting:
        assert not comes(waiting, 0.5)
