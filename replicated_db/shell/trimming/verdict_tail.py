"""The newest verdicts of the audit, read from the end of ``om.verdicts``."""

from __future__ import annotations

import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.audit_view import AuditView
from replicated_db.core.trimming.places import AuditPlace
from replicated_db.shell.kafka.kafka_log import consumer_settings
from schemas.codecs.codec import Undecodable, decode_as
from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.topics import OM_VERDICTS

TAIL_RECORDS = 10_000
"""Verdicts that are read of each partition at first; afterwards only what is new."""

READ_LIMIT = 1_000
READ_WAIT_S = 10.0
"""How long reading to the topic's end may take."""


class VerdictTail:
    """Follows the verdicts on one log. For one thread at a time."""

    def __init__(self, bootstrap_servers: Brokers, log: str) -> None:
        self._settings = consumer_settings(bootstrap_servers)
        self._view = AuditView(log)
        self._consumer: Consumer | None = None
        self._next: dict[int, int] = {}
        """By partition: the next offset to read."""

    def place(self, shard: int) -> AuditPlace | str | None:
        """Read what is new, and return how far the audit has come with a shard; in words, why that is not known."""
        try:
            self._read_on()
        except (KafkaException, LogUnavailable) as error:
            self.close()
            return str(error)
        return self._view.place(shard)

    def _read_on(self) -> None:
        deadline_s = time.monotonic() + READ_WAIT_S
        consumer = self._consumer or self._begin()
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(OM_VERDICTS, number), timeout=READ_WAIT_S)[1]
            for number in self._next
        }
        while any(self._next[number] < end for number, end in ends.items()):
            if time.monotonic() > deadline_s:
                raise LogUnavailable(f"{OM_VERDICTS} is not served to its end within {READ_WAIT_S:.0f} s")
            for message in consumer.consume(READ_LIMIT, 0.2):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                self._next[message.partition() or 0] = (message.offset() or 0) + 1
                with suppress(Undecodable):  # anybody may write to the topic
                    self._view.take([decode_as(Verdict, message.value() or b"")])

    def _begin(self) -> Consumer:
        self._consumer = consumer = Consumer(self._settings)
        topic = consumer.list_topics(OM_VERDICTS, timeout=READ_WAIT_S).topics[OM_VERDICTS]
        if topic.error is not None:
            raise KafkaException(topic.error)
        for number in topic.partitions:
            first, end = consumer.get_watermark_offsets(TopicPartition(OM_VERDICTS, number), timeout=READ_WAIT_S)
            self._next[number] = max(first, end - TAIL_RECORDS)
        consumer.assign([TopicPartition(OM_VERDICTS, number, offset) for number, offset in self._next.items()])
        return consumer

    def close(self) -> None:
        """Let go of the connection; the next question begins anew."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
            self._next.clear()
