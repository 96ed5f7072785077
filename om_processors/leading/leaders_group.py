"""The node's consumer in the leaders' group: it learns who owns a shard, and never reads.

Assignment is cooperative and sticky. A revocation is acknowledged when ``on_revoked`` returns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from om_processors.config import NodeConfig
from om_processors.leading.core.leadership_events import (
    Event,
    GroupSettled,
    GroupUnsettled,
    ShardsAssigned,
    ShardsLost,
    ShardsRevoked,
)
from schemas.kafka.client_settings import client_settings
from schemas.leader_names import member_name
from schemas.topics import LEADER_GROUP, OM_REQUESTS, SILENT_BROKER_MS

POLL_S = 0.2
STATISTICS_MS = 2_000
"""How often librdkafka reports the state of the group."""


def consumer_settings(config: NodeConfig, group: str) -> dict[str, Any]:
    """Return librdkafka's settings for a consumer of this node in ``group``."""
    timeout_ms = config.session_timeout_ms
    return client_settings(
        config.bootstrap_servers,
        {
            "group.id": group,
            "client.id": member_name(config.node, config.address),
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": timeout_ms,
            "heartbeat.interval.ms": max(timeout_ms // 5, 100),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # as every reader does (kafka_log): the log's end is behind its last record
            "isolation.level": "read_uncommitted",
            "topic.metadata.refresh.interval.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": SILENT_BROKER_MS,
        },
    )


class LeadersGroup:
    """Passes on what the group says, as events, on the thread that calls :meth:`stay`."""

    def __init__(self, config: NodeConfig, tell: Callable[[Event], None]) -> None:
        self._config = config
        self._tell = tell

    def stay(self, wanted: Callable[[], bool], drain: Callable[[], None]) -> None:
        """Be a member while ``wanted`` returns True; then call ``drain``, and leave."""
        consumer = Consumer(
            consumer_settings(self._config, LEADER_GROUP)
            | {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self.on_statistics}
        )
        consumer.subscribe([OM_REQUESTS], on_assign=self.on_assigned, on_revoke=self.on_revoked, on_lost=self.on_lost)
        try:
            while wanted():
                consumer.poll(POLL_S)
        finally:
            drain()
            consumer.close()

    def on_statistics(self, statistics: str) -> None:
        """Take the consumer's state in the group, which librdkafka reports now and then."""
        if json.loads(statistics).get("cgrp", {}).get("join_state") == "steady":
            self._tell(GroupSettled())
        else:
            self._tell(GroupUnsettled(now_s=time.monotonic()))

    def on_assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take shards, without reading their requests."""
        fresh = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(fresh)
        if fresh:
            consumer.pause(fresh)
        self._tell(ShardsAssigned(shards=tuple(p.partition for p in partitions)))

    def on_revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Give shards back, after they are drained."""
        self._tell(ShardsRevoked(shards=tuple(p.partition for p in partitions)))
        consumer.incremental_unassign(partitions)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Note that others have the shards."""
        self._tell(ShardsLost(shards=tuple(p.partition for p in partitions)))
        consumer.incremental_unassign(partitions)
