"""A plain producer of the sinks: a Spark job for a micro-batch's few records would cost far more than sending them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Producer

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.topics import MAX_MESSAGE_BYTES

SEND_SECONDS = 60.0
"""How long the brokers may take for a micro-batch's records, before the query fails."""


class Sender:
    """Sends records to one topic, in order within a key, and waits until the brokers have them."""

    def __init__(self, bootstrap_servers: Brokers, topic: str) -> None:
        self._topic = topic
        self._settings = client_settings(
            bootstrap_servers,
            {
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # as Java's producers: a key stays in its partition
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "delivery.timeout.ms": int(SEND_SECONDS * 1000),
                "log_level": 0,
            },
        )
        self._producer: Producer | None = None

    def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Send records with their keys; raises KafkaException if the brokers do not take all of them."""
        if not records:
            return
        producer = self._producer = self._producer or Producer(self._settings)
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for key, value in records:
            self._produce(producer, key, value, delivered)
        left = producer.flush(SEND_SECONDS)
        if failed or left:
            self._producer = None
            late = KafkaError(KafkaError._MSG_TIMED_OUT, f"{left} records are not at {self._topic}")
            raise KafkaException(failed[0] if failed else late)

    def _produce(self, producer: Producer, key: bytes, value: bytes | None, delivered: Callable[..., None]) -> None:
        while True:
            try:
                producer.produce(self._topic, value, key=key, on_delivery=delivered)
            except BufferError:  # the producer's queue is full
                producer.poll(0.1)
            else:
                return
