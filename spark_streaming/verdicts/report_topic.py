"""The topic of the replicas' reports, read again by the operator itself: reports that were held back for want of room.

Spark reads logs and reports at rates that do not know each other. On a backlog the reports of an hour arrive long
before the barriers that they name. The operator keeps a bounded number, and remembers where the others lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.codecs.codec import Undecodable, decode
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.messages import AuditReport
from schemas.topics import MAX_MESSAGE_BYTES
from spark_streaming.records.sources import FETCH_WAIT_MS
from spark_streaming.verdicts.core.inputs import ReplicaReport
from spark_streaming.verdicts.state import replica_report
from transport.waiting.deadline import Deadline

READ_SECONDS = 30.0
"""How long the brokers may give no record where there must be some, before the query fails."""

POLL_SECONDS = 0.5
READ_LIMIT = 100


class KafkaReportTopic:
    """:class:`ReportTopic` of one partition on the brokers."""

    def __init__(self, bootstrap_servers: Brokers, topic: str, partition: int) -> None:
        self._partition = TopicPartition(topic, partition)
        self._settings = client_settings(
            bootstrap_servers,
            {
                "group.id": "stratolog-audit-reports",  # never committed to: the partition is assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",  # what the topic has lost is left out
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "queued.max.messages.kbytes": 2 * MAX_MESSAGE_BYTES // 1024,
                "log_level": 0,
            },
        )

    def read(self, first: int, end: int) -> Iterator[ReplicaReport]:
        """Yield the reports from ``first`` on, before ``end``; raises KafkaException if they are not served."""
        at = self._partition
        with closing(Consumer(self._settings)) as consumer:
            consumer.assign([TopicPartition(at.topic, at.partition, first)])
            for message in _messages(consumer):
                offset = message.offset() or 0
                if offset < end and (report := _report(message, at.partition, offset)) is not None:
                    yield report
                if offset >= end - 1:
                    return


def _messages(consumer: Consumer) -> Iterator[Message]:
    """Yield messages up to the partition's end."""
    deadline = Deadline.after_s(READ_SECONDS)
    while not deadline.has_passed:
        for message in consumer.consume(READ_LIMIT, POLL_SECONDS):
            error = message.error()
            if error is None:
                deadline = Deadline.after_s(READ_SECONDS)
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no report within {READ_SECONDS:.0f} s"))


def _report(message: Message, partition: int, offset: int) -> ReplicaReport | None:
    try:
        found = decode(message.value() or b"")
    except Undecodable:
        return None  # it was judged when Spark brought it
    return replica_report(partition, offset, found) if isinstance(found, AuditReport) else None
