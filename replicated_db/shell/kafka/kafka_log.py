"""The log on Kafka (confluent-kafka): one partition of a log topic.

Reading assigns the partition explicitly (no group, no offset reset). Appending uses one idempotent producer per claim.
A closed appender purges its queue, so that nothing leaves later under an abandoned nonce. The safety of the log rests
on the reading rule, never on the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, Producer, TopicPartition

from replicated_db.core.errors import corrupt_record
from replicated_db.core.ports import (
    ANSWER_WAIT_S,
    AppendRefused,
    DeliveryReport,
    Entry,
    LogBounds,
    LogUnavailable,
    OffsetOutOfRange,
)
from replicated_db.shell.kafka.fresh_consumer import FreshConsumer
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.topics import SILENT_BROKER_MS

DELIVERY_TIMEOUT_MS = 30_000
"""An append that is not acknowledged within this time has an unknown outcome."""

QUEUE_MAX_MESSAGES = 1000
FETCH_MAX_BYTES = 16 * 1024 * 1024
REQUEST_TIMEOUT_S = ANSWER_WAIT_S


def consumer_settings(bootstrap_servers: Brokers, **extra: Any) -> dict[str, Any]:
    """Return settings of a consumer that assigns partitions itself and never resets an offset."""
    return client_settings(
        bootstrap_servers,
        {
            "group.id": "stratolog-unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # librdkafka's default stops at the first record of any open transaction, and anybody may open one. The
            # other readers (aiokafka, Spark) read on, and all must read the same log. Records of an aborted transaction
            # are judged like any record: claims decide, not Kafka.
            "isolation.level": "read_uncommitted",
            # This check is off by default; without it a record damaged on disk would be handed over as it is.
            "check.crcs": True,
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 100,
            "fetch.max.bytes": FETCH_MAX_BYTES,
            "queued.max.messages.kbytes": FETCH_MAX_BYTES // 1024,
            "topic.metadata.refresh.interval.ms": 30_000,
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": SILENT_BROKER_MS,
            **extra,
        },
    )


Headers = Sequence[tuple[str, bytes]]
"""Headers of a record."""


class KafkaAppender:
    """Appends the records of one claim. ``headers`` is asked for those of each record."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, partition: int, headers: Callable[[], Headers] | None = None
    ) -> None:
        self._headers = headers
        self._producer = Producer(dict(settings))
        self._topic = topic
        self._partition = partition
        self._reports: list[DeliveryReport] = []

    def append(self, token: int, value: bytes) -> None:
        """Hand over a record."""

        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            self._reports.append(
                DeliveryReport(
                    token=token,
                    offset=-1 if error is not None or offset is None else offset,
                    timestamp_ms=message.timestamp()[1] if error is None else 0,
                    error=None if error is None else error.str(),
                )
            )

        try:
            if self._headers is not None and (headers := self._headers()):
                self._producer.produce(
                    self._topic, value, partition=self._partition, on_delivery=report, headers=[*headers]
                )
            else:
                self._producer.produce(self._topic, value, partition=self._partition, on_delivery=report)
        except BufferError as error:
            raise AppendRefused(f"{QUEUE_MAX_MESSAGES} records wait for the broker") from error
        except KafkaException as error:
            raise AppendRefused(str(error)) from error

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        """Return the reports that have arrived."""
        self._producer.poll(wait_s)
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """Purge the records that are queued and in flight."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._producer.poll(0)


class KafkaLog:
    """A partition of a log topic. The caller asks the cluster for ``topic_id`` once (an admin call).

    ``headers`` gives those of each record that is appended.
    """

    def __init__(
        self, bootstrap_servers: Brokers, topic: str, partition: int, topic_id: str,
        headers: Callable[[], Headers] | None = None,
    ) -> None:  # fmt: skip
        self._headers = headers
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._partition = partition
        self._topic_id = topic_id
        self._reader = FreshConsumer(consumer_settings(bootstrap_servers))
        self._next: int | None = None

    def topic_id(self) -> str:
        """Return the id of the topic's incarnation."""
        return self._topic_id

    def bounds(self) -> LogBounds:
        """Return the watermarks of the partition."""
        try:
            low, high = self._reader.consumer.get_watermark_offsets(self._where(), timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                # The partition is new, and this consumer looked before. It would look again half a minute later.
                self._reader.renew()
            raise LogUnavailable(str(error)) from error
        return LogBounds(low, high)

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        """Return up to ``limit`` entries from ``offset`` on; raises BrokenLog for a record that fails its checksum."""
        if self._next != offset:
            self._reader.assign(self._where(offset))
            self._next = offset
        entries: list[Entry] = []
        messages = self._reader.consume(1, wait_s)
        if messages and limit > 1:
            messages += self._reader.consume(limit - 1, 0)
        for message in messages:
            error = message.error()
            if error is not None:
                self._next = None
                if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                    # This broker may be cut off from the others: the next attempt begins with one chosen at random.
                    self._reader.renew()
                    raise OffsetOutOfRange(f"{self._topic}/{self._partition}: offset {offset}: {error.str()}")
                if entries:
                    # Messages after the error are dropped with it: the next read assigns afresh.
                    return entries
                if error.code() == KafkaError._BAD_MSG:
                    place = message.offset()
                    raise corrupt_record(self._topic, self._partition, offset if place is None else place, error.str())
                raise LogUnavailable(error.str())
            entries.append(
                Entry(offset=message.offset() or 0, timestamp_ms=message.timestamp()[1], value=message.value() or b"")
            )
        if entries:
            self._next = entries[-1].offset + 1
        return entries

    def rest(self) -> None:
        """Fetch no more. A consumer with a partition goes on asking for it, and holds up to FETCH_MAX_BYTES."""
        if self._next is not None:
            self._next = None
            self._reader.rest()

    def appender(self) -> KafkaAppender:
        """Return a fresh idempotent producer for one claim."""
        settings = client_settings(
            self._bootstrap_servers,
            {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": QUEUE_MAX_MESSAGES,
                "message.max.bytes": FETCH_MAX_BYTES,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 1000,
                "socket.timeout.ms": SILENT_BROKER_MS,
            },
        )
        return KafkaAppender(settings, self._topic, self._partition, self._headers)

    def close(self) -> None:
        """Close the reading side."""
        self._reader.close()

    def _where(self, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topic, self._partition, offset)
