"""Windows of throughput, latency and lag, read from ``om.stats``."""

from __future__ import annotations

import time
from contextlib import closing, suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.codecs.codec import Undecodable, decode_as
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.messages import WindowStats
from schemas.topics import OM_STATS
from stratolog.errors import Unavailable

CONTACT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
READ_LIMIT = 500


TAIL_RECORDS = 20_000
"""Most records that are read of a partition, from its end: one for each window and micro-batch that changes it."""


def read_windows(bootstrap_servers: Brokers, since_ms: int) -> list[WindowStats]:
    """Return the windows that were counted since ``since_ms`` (ms since the epoch), in the order of the topic.

    Raises Unavailable if there is no such topic, or the brokers do not serve it to its end in time.
    """
    settings = client_settings(
        bootstrap_servers,
        {
            "group.id": "stratolog-stats",  # never committed to: partitions are assigned
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        },
    )
    with closing(Consumer(settings)) as consumer:
        try:
            return [one for one in _read(consumer) if one.counted_at_ms >= since_ms]
        except KafkaException as error:
            reason = f"{bootstrap_servers}: {OM_STATS} cannot be read: {error.args[0]}"
            raise Unavailable(f"{reason}; 'stratolog topics ensure' makes a topic that is missing") from error


def _read(consumer: Consumer) -> list[WindowStats]:
    left = _ranges(consumer)
    consumer.assign([TopicPartition(OM_STATS, number, first) for number, (first, _) in left.items()])
    found: list[WindowStats] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    while left:
        if time.monotonic() > deadline:
            raise Unavailable(f"{OM_STATS} is not served to its end within {READ_TIMEOUT_S:.0f} s")
        for message in consumer.consume(READ_LIMIT, 0.5):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            number = message.partition() or 0
            with suppress(Undecodable):  # anybody may write to the topic
                found.append(decode_as(WindowStats, message.value() or b""))
            if number in left and (message.offset() or 0) >= left[number][1] - 1:
                del left[number]
    return found


def _ranges(consumer: Consumer) -> dict[int, tuple[int, int]]:
    """Return first and end offset of what is to be read of each partition that has records."""
    topic = consumer.list_topics(OM_STATS, timeout=CONTACT_TIMEOUT_S).topics[OM_STATS]
    if topic.error is not None:
        raise KafkaException(topic.error)
    ranges: dict[int, tuple[int, int]] = {}
    for number in topic.partitions:
        first, end = consumer.get_watermark_offsets(TopicPartition(OM_STATS, number), timeout=CONTACT_TIMEOUT_S)
        if first < end:
            ranges[number] = max(first, end - TAIL_RECORDS), end
    return ranges
