"""What faults of brokers need to know: who leads the log, who is the active controller, who is in sync."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import PartitionMetadata

from schemas.topics import OM_LOG, OM_REQUESTS, OM_RESPONSES
from tests.support.stack import TestStack

PATIENCE_S = 180.0
ASK_S = 10.0
TOPICS = (OM_LOG, OM_REQUESTS, OM_RESPONSES)


def data_folder(stack: TestStack, number: int) -> Path:
    """Return where a broker keeps its partitions."""
    return stack.kafka.cluster.folder / f"broker-{number}" / "data"


def partitions_of(stack: TestStack, topic: str) -> list[PartitionMetadata]:
    """Return a topic's partitions, as any broker tells; raises KafkaException if none does.

    (An admin request would be for the broker that was named as controller last: with that one killed it waits in vain.)
    """
    found = stack.kafka.admin.list_topics(topic, timeout=ASK_S).topics[topic].partitions
    return [found[number] for number in sorted(found)]


def leader_of_log(stack: TestStack, shard: int = 0) -> int:
    """Return the number of the broker that leads the partition of a shard's log."""
    found: list[int] = []

    def known() -> bool:
        try:
            found[:] = [partitions_of(stack, OM_LOG)[shard].leader]
        except (KafkaException, LookupError):  # nobody answers, or does not know it yet
            return False
        return found[0] > 0

    stack.wait("the log's partition is led", known, PATIENCE_S)
    return found[0]


def active_controller(stack: TestStack) -> int:
    """Return the number of the active controller: the leader of the newest epoch that any broker has on disk.

    (What clients are told is any broker that forwards to it.)
    """
    newest = (-1, -1)
    for number in stack.kafka.processes:
        path = data_folder(stack, number) / "__cluster_metadata-0" / "quorum-state"
        state = json.loads(path.read_text())
        newest = max(newest, (state["leaderEpoch"], state["leaderId"]))
    return newest[1] if newest[1] in stack.kafka.processes else leader_of_log(stack)


def is_in_sync(stack: TestStack, number: int, shard: int = 0) -> bool:
    """Say whether a broker's copy of a shard's log is in sync; while nobody can tell, it is taken to be."""
    try:
        return number in partitions_of(stack, OM_LOG)[shard].isrs
    except (KafkaException, LookupError):
        return True


def wait_in_sync(stack: TestStack) -> None:
    """Wait until all copies of the partitions that writes pass through are in sync."""

    def in_sync() -> bool:
        try:
            return all(
                len(partition.isrs) == len(partition.replicas)
                for topic in TOPICS
                for partition in partitions_of(stack, topic)
            )
        except (KafkaException, LookupError):
            return False

    stack.wait("all copies in sync", in_sync, PATIENCE_S)
