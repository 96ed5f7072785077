"""Faust's Kafka transport, fetching as a follower should: at once when the log was quiet, in groups while records flow.

Faust fetches each record as soon as it is there, which costs a follower about a millisecond of processor time per fetch and the broker as
much again: on a lightly loaded shard more than all the rest of the system (docs/performance.md). A follower gains nothing by
being that quick, for the leader answers from its own replica. So while records flow, the broker is asked to wait until there is
more to send, FLOWING_WAIT_MS at most (linearizable and session reads on a follower wait that much longer); when nothing came for
a while, it is asked to answer with the first record, and an idle node costs nothing.

A batch that fails its checksum is told to ``fatal`` with its offset: nothing of it was delivered, and the log is never skipped past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka.errors import CorruptRecordException
from faust.transport.drivers import aiokafka

from replicated_db.errors import corrupt_record

FLOWING_WAIT_MS = 20
FLOWING_MIN_BYTES = 256 * 1024
IDLE_WAIT_MS = 500
IDLE_MIN_BYTES = 1


class _Thread(aiokafka.AIOKafkaConsumerThread):
    consumer: Any

    async def _fetch_records(self, consumer: Any, *arguments: Any, **options: Any) -> Any:
        fetcher = consumer._fetcher
        try:
            records = await super()._fetch_records(consumer, *arguments, **options)
        except CorruptRecordException as error:
            self.consumer.transport.fatal(corrupt_record(*_broken_place(fetcher, str(error)), str(error)))
            raise
        # Faust has no setting for these; aiokafka's fetcher reads them for each request.
        if records:
            fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = FLOWING_MIN_BYTES, FLOWING_WAIT_MS
        else:
            fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = IDLE_MIN_BYTES, IDLE_WAIT_MS
        return records


class _Consumer(aiokafka.Consumer):
    def _new_consumer_thread(self) -> aiokafka.AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)


def _broken_place(fetcher: Any, said: str) -> tuple[str, int, int]:
    """Return (topic, partition, offset) of the batch that aiokafka has just refused; it names the partition alone."""
    for place, found in fetcher._records.items():
        batches = getattr(found, "_partition_records", None)
        if batches is not None and repr(place) in said:
            return place.topic, place.partition, batches.next_fetch_offset
    return "a topic", -1, -1


class FollowerTransport(aiokafka.Transport):
    """The transport to give to the app of a follower; ``fatal`` ends the process with the error that it is given."""

    Consumer = _Consumer

    def __init__(self, *arguments: Any, fatal: Callable[[BaseException], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fatal = fatal
