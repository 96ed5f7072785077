"""What faults of brokers need to know: who leads the log, who is the active controller, who is in sync.

Each broker is asked by itself. A broker that is cut off from the others goes on telling what it knew before, and a client library asks
whichever broker it likes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from schemas.topics import OM_LOG, OM_REQUESTS, OM_RESPONSES
from tests.support.local.stack import TestStack

ASK_MS = 3_000
TOPICS = (OM_LOG, OM_REQUESTS, OM_RESPONSES)


def data_folder(stack: TestStack, number: int) -> Path:
    """Return where a broker keeps its partitions."""
    return stack.kafka.cluster.folder / f"broker-{number}" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as one broker tells it; brokers by number, ``leader`` -1 if there is none."""

    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


def as_told_by(stack: TestStack, number: int, topic: str) -> dict[int, Partition]:
    """Return a topic's partitions as one broker tells, empty if it does not answer or does not know the topic."""
    listener = stack.kafka.cluster.listeners[number - 1]
    try:
        answer = asyncio.run(_ask(listener.host, listener.broker, topic))
    except (KafkaError, OSError, TimeoutError):
        return {}
    return {
        partition: Partition(leader=leader, replicas=frozenset(replicas), in_sync=frozenset(in_sync))
        for error, name, _, partitions in answer.topics
        if not error and name == topic
        for _, partition, leader, replicas, in_sync, *_ in partitions
    }


async def _ask(host: str, port: int, topic: str) -> Any:
    async with asyncio.timeout(ASK_MS / 1000):
        connection = await create_conn(host, port, request_timeout_ms=ASK_MS)
        try:
            return await connection.send(MetadataRequest([topic]))
        finally:
            connection.close()


def _told(stack: TestStack, topic: str) -> Iterator[tuple[int, dict[int, Partition]]]:
    """Iterate over what each broker that should run tells."""
    for number in sorted(stack.kafka.processes):
        yield number, as_told_by(stack, number, topic)


def leader_of_log(stack: TestStack, shard: int = 0) -> int:
    """Return the number of the broker that leads the partition of a shard's log."""

    def known() -> int | None:
        told = {found[shard].leader for _, found in _told(stack, OM_LOG) if shard in found}
        return told.pop() if len(told) == 1 and -1 not in told else None

    number: int = stack.wait("all brokers know the leader of the log's partition", known)
    return number


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
    """Say whether a broker's copy of a shard's log is in sync, as the others tell; while none of them can tell, it is taken to be."""
    told = [found[shard] for other, found in _told(stack, OM_LOG) if other != number and shard in found]
    return all(number in partition.in_sync for partition in told)


def wait_in_sync(stack: TestStack) -> None:
    """Wait until all copies of the partitions that writes pass through are in sync, and every broker knows."""

    def in_sync() -> bool:
        return all(
            found and all(partition.in_sync == partition.replicas for partition in found.values())
            for topic in TOPICS
            for _, found in _told(stack, topic)
        )

    stack.wait("all copies in sync", in_sync)
