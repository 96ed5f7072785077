"""A consumer of one partition that is replaced when it has heard nothing for a while.

A broker that is cut off from the other brokers, but not from its clients, still takes itself for the leader of its
partitions: it answers every fetch with nothing. That is no error. librdkafka asks the broker that it last used who
leads which partition, so such a consumer would stay with this broker until the others reach it again. The only sign is
silence. A new consumer begins with a broker chosen at random.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from schemas.topics import SILENT_BROKER_MS


class FreshConsumer:
    """Reads one partition from a given place on, for one thread. ``consume`` returns errors among the messages."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._place: TopicPartition | None = None
        self._silent_since_s: float | None = None
        self._consumer = Consumer(self._settings)

    @property
    def consumer(self) -> Consumer:
        """The present consumer, for questions about the partition. Do not keep it."""
        return self._consumer

    def assign(self, place: TopicPartition) -> None:
        """Read from ``place`` on."""
        self._place = place
        self._silent_since_s = None
        self._consumer.assign([place])

    def rest(self) -> None:
        """Read nothing until the next :meth:`assign`."""
        self._place = None
        self._silent_since_s = None
        self._consumer.unassign()

    def consume(self, limit: int, wait_s: float) -> list[Message]:
        """Return up to ``limit`` messages; wait at most ``wait_s`` for all of them."""
        messages = self._consumer.consume(limit, wait_s)
        if not messages:
            now_s = time.monotonic()
            if self._silent_since_s is None:
                self._silent_since_s = now_s
            elif (now_s - self._silent_since_s) * 1000 >= SILENT_BROKER_MS:
                self.renew()
            return messages
        self._silent_since_s = None
        last = messages[-1]
        if self._place is not None and last.error() is None and (offset := last.offset()) is not None:
            self._place.offset = offset + 1
        return messages

    def renew(self) -> None:
        """Replace the consumer by one that begins with a broker chosen at random, and read on from the same place."""
        self._silent_since_s = None
        self.close()
        self._consumer = Consumer(self._settings)
        if self._place is not None:
            self._consumer.assign([self._place])

    def close(self) -> None:
        """Close the consumer."""
        with suppress(KafkaException):
            self._consumer.close()
