"""The end of a topic and what comes behind it: all partitions, assigned, from so many records before their ends."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers

CONTACT_TIMEOUT_S = 5.0
READ_LIMIT = 500
MAX_QUEUED_KIB = 8 * 1024
"""What a consumer keeps in memory of records that were not asked for yet."""
MAX_BEHIND = 20_000
"""A reader that is further behind the end skips records (:meth:`TopicTail.skipped`)."""


class TopicTail:
    """Reads a topic; close it. Raises KafkaException if there is no such topic, or no broker answers."""

    def __init__(self, bootstrap_servers: Brokers, topic: str, records: int) -> None:
        self._topic = topic
        self._records = records
        self._consumer = Consumer(
            client_settings(
                bootstrap_servers,
                {
                    "group.id": "stratolog-ui",  # never committed to: partitions are assigned
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_uncommitted",  # a stranger's open transaction would hide all later records
                    "queued.max.messages.kbytes": MAX_QUEUED_KIB,
                    "allow.auto.create.topics": False,
                    "log_level": 0,
                },
            )
        )
        try:
            self._consumer.assign(self._beginnings())
        except BaseException:
            self._consumer.close()
            raise

    def _beginnings(self) -> list[TopicPartition]:
        found = self._consumer.list_topics(self._topic, timeout=CONTACT_TIMEOUT_S).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return [self._place(number) for number in found.partitions]

    def _place(self, partition: int) -> TopicPartition:
        asked = TopicPartition(self._topic, partition)
        first, end = self._consumer.get_watermark_offsets(asked, timeout=CONTACT_TIMEOUT_S)
        return TopicPartition(self._topic, partition, max(first, end - self._records))

    def poll(self, timeout_s: float) -> list[Message]:
        """Return new records, at most READ_LIMIT; wait ``timeout_s`` for the first. Raises KafkaException."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        return list(_records([first, *self._consumer.consume(READ_LIMIT - 1, 0)]))

    def skipped(self) -> dict[int, int]:
        """Go on near the end in partitions that are too far behind; return how many records that leaves out of each."""
        left_out = {}
        for place in self._consumer.position(self._consumer.assignment()):
            _, end = self._consumer.get_watermark_offsets(place, cached=True)
            if place.offset >= 0 and end - place.offset > MAX_BEHIND:
                target = end - self._records
                self._consumer.seek(TopicPartition(self._topic, place.partition, target))
                left_out[place.partition] = target - place.offset
        return left_out

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()


def _records(messages: list[Message]) -> Iterator[Message]:
    for message in messages:
        error = message.error()
        if error is None:
            yield message
        elif error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(error)
