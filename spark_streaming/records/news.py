"""News on topics, waited for cheaply: brokers answer a fetch when there is a record, and nobody asks for offsets.

A Tick is no news: it changes nothing, and leaders of datanodes append them while there is nothing else to append.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from schemas.codecs.codec import header_of
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.log import Tick
from transport.waiting.deadline import Deadline

_TICK = header_of(Tick)
METADATA_SECONDS = 10.0
"""How often topics and partitions are looked for that are new."""

ANSWER_SECONDS = 2.0
"""How long the brokers may take to name them; then they are asked again later."""

FETCH_WAIT_MS = 5_000
"""How long a broker keeps a fetch waiting for a record."""

MAX_SKIPPED = 10_000
"""Ticks after which there is news all the same, so that what is still to be read stays short."""

QUEUED_KIB = 256
"""Most that is fetched of the news: who waits needs to know only that there are some."""


class News:
    """Waits for records behind the places up to which topics have been read; for one thread."""

    def __init__(self, bootstrap_servers: Brokers, topics: Collection[str], read: Mapping[TopicPartition, int]) -> None:
        """``read``: the next offset of each partition that has been read; of others each record is news."""
        self._topics = frozenset(topics)
        self._read = {(one.topic, one.partition): offset for one, offset in read.items()}
        self._assigned: set[tuple[str, int]] = set()
        self._next_look = Deadline.after_s(0)
        self._skipped = 0
        self._consumer = Consumer(
            client_settings(
                bootstrap_servers,
                {
                    "group.id": "stratolog-audit-news",  # never committed to: partitions are assigned
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",  # what is left of a topic that has lost records has not been read
                    "isolation.level": "read_uncommitted",
                    "fetch.wait.max.ms": FETCH_WAIT_MS,
                    "queued.max.messages.kbytes": QUEUED_KIB,
                    "log_level": 0,
                },
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def has_come(self, timeout_s: float) -> bool:
        """Wait for news; say whether some have come. Brokers that do not answer have none.

        Returns early, without news, for each Tick.
        """
        if self._next_look.has_passed:
            self._assign_new()
            self._next_look = Deadline.after_s(METADATA_SECONDS)
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        error = message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)
        return error is None and self._is_news(message.value())

    def _is_news(self, value: bytes | None) -> bool:
        if not (value or b"").startswith(_TICK):
            return True
        self._skipped += 1
        return self._skipped > MAX_SKIPPED

    def _assign_new(self) -> None:
        try:
            topics = self._consumer.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException:
            return
        there = {(topic, number) for topic in self._topics if topic in topics for number in topics[topic].partitions}
        new = sorted(there - self._assigned)
        if new:
            places = [TopicPartition(*place, self._read.get(place, OFFSET_BEGINNING)) for place in new]
            self._consumer.incremental_assign(places)
            self._assigned |= set(new)
