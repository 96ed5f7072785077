"""What trimming asks of the brokers: a log's bounds, when a record was appended, and to delete what lies before one."""

from __future__ import annotations

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from xxhash import xxh3_128_digest

from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogBounds, LogUnavailable, OffsetOutOfRange
from replicated_db.shell.kafka.kafka_log import KafkaLog
from schemas.codecs.codec import Undecodable, decode
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.log import DigestBase

DELETE_TIMEOUT_S = 30.0
READ_WAIT_S = 5.0


class KafkaRecords:
    """One partition of a log topic. For one thread at a time."""

    def __init__(self, bootstrap_servers: Brokers, topic: str, partition: int, topic_id: str) -> None:
        self._topic = topic
        self._partition = partition
        self._log = KafkaLog(bootstrap_servers, topic, partition, topic_id)
        self._admin = AdminClient(
            client_settings(bootstrap_servers, {"socket.timeout.ms": int(DELETE_TIMEOUT_S * 1000), "log_level": 0})
        )

    def bounds(self) -> LogBounds:
        """Return where the log begins and ends; raises LogUnavailable."""
        return self._log.bounds()

    def base_logged_at_ms(self, offset: int) -> int | None:
        """Return when the DigestBase at ``offset`` was appended, None if there is none; raises LogUnavailable."""
        try:
            entries = self._log.read(offset, 1, READ_WAIT_S)
            if entries and entries[0].offset == offset and isinstance(decode(entries[0].value), DigestBase):
                return entries[0].timestamp_ms
        except (OffsetOutOfRange, Undecodable, StopProcess):
            return None
        finally:
            self._log.rest()
        return None

    def hash_at(self, offset: int) -> str | None:
        """Return the hash of the record at ``offset``, None if it cannot be read; raises LogUnavailable."""
        try:
            entries = self._log.read(offset, 1, READ_WAIT_S)
        except (OffsetOutOfRange, StopProcess):
            return None
        finally:
            self._log.rest()
        return xxh3_128_digest(entries[0].value).hex() if entries and entries[0].offset == offset else None

    def first_logged_at_ms(self) -> int | None:
        """Return when the log's first record was appended, None if there is none; raises LogUnavailable."""
        first, end = self._log.bounds()
        try:
            entries = self._log.read(first, 1, READ_WAIT_S) if first < end else ()
        except (OffsetOutOfRange, StopProcess):
            return None
        finally:
            self._log.rest()
        return entries[0].timestamp_ms if entries else None

    def delete_before(self, offset: int) -> int:
        """Delete the records before ``offset``; return the log's first offset from then on. Raises LogUnavailable.

        An error says nothing about what was deleted. To ask again does no harm.
        """
        try:
            asked = self._admin.delete_records(
                [TopicPartition(self._topic, self._partition, offset)], request_timeout=DELETE_TIMEOUT_S
            )
            return int(next(iter(asked.values())).result().low_watermark)
        except KafkaException as error:
            raise LogUnavailable(f"{self._topic}/{self._partition}: {error.args[0].str()}") from error

    def close(self) -> None:
        """Close the connections."""
        self._log.close()
