"""A consumer of one partition that is made anew when it has heard nothing for a while.

A broker that is cut off from the others, but not from its clients, goes on leading its partitions in its own eyes: it answers every fetch, with
nothing. That is no error, and librdkafka asks the broker that it used last who leads what, so such a consumer would stay there for as long as
the others are out of that broker's reach. Silence is the sign that shows here; a new consumer begins with a broker chosen at random.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from schemas.topics import SILENT_BROKER_MS


class FreshConsumer:
    """Reads one partition from where it is told; for one thread. Errors of records and brokers come as ``consume`` returns them."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._place: TopicPartition | None = None
        self._silent_since_s: float | None = None
        self._consumer = Consumer(self._settings)

    @property
    def consumer(self) -> Consumer:
        """The present one, for questions about the partition; not to be kept."""
        return self._consumer

    def assign(self, place: TopicPartition) -> None:
        """Read from ``place`` on."""
        self._place = place
        self._silent_since_s = None
        self._consumer.assign([place])

    def consume(self, limit: int, wait_s: float) -> list[Message]:
        """Return up to ``limit`` messages, waiting at most ``wait_s`` for all of them."""
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
        """Begin anew, with a broker chosen at random, where reading stands."""
        self._silent_since_s = None
        self.close()
        self._consumer = Consumer(self._settings)
        if self._place is not None:
            self._consumer.assign([self._place])

    def close(self) -> None:
        """Close the consumer."""
        with suppress(KafkaException):
            self._consumer.close()
