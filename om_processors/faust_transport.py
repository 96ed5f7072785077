"""Faust's Kafka transport, fetching as a follower should: at once when the log was quiet, in groups while records flow.

Faust fetches each record as soon as it is there, which costs a follower about a millisecond of processor time per fetch and the broker as
much again: on a lightly loaded shard more than all the rest of the system (docs/performance.md). A follower gains nothing by
being that quick, for the leader answers from its own replica. So while records flow, the broker is asked to wait until there is
more to send, FLOWING_WAIT_MS at most (linearizable and session reads on a follower wait that much longer); when nothing came for
a while, it is asked to answer with the first record, and an idle node costs nothing.
"""

from __future__ import annotations

from typing import Any

from faust.transport.drivers import aiokafka

FLOWING_WAIT_MS = 20
FLOWING_MIN_BYTES = 256 * 1024
IDLE_WAIT_MS = 500
IDLE_MIN_BYTES = 1


class _Thread(aiokafka.AIOKafkaConsumerThread):
    async def _fetch_records(self, consumer: Any, *arguments: Any, **options: Any) -> Any:
        records = await super()._fetch_records(consumer, *arguments, **options)
        # Faust has no setting for these; aiokafka's fetcher reads them for each request.
        fetcher = consumer._fetcher
        if records:
            fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = FLOWING_MIN_BYTES, FLOWING_WAIT_MS
        else:
            fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = IDLE_MIN_BYTES, IDLE_WAIT_MS
        return records


class _Consumer(aiokafka.Consumer):
    def _new_consumer_thread(self) -> aiokafka.AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)


class FollowerTransport(aiokafka.Transport):
    """The transport to give to the app of a follower."""

    Consumer = _Consumer
