"""Brokers that are handed from module to module: a broker's first minute costs more processor time than all that a test asks of it.

Topic names are fixed by the contract, so two modules never share a broker at one time, and a broker comes back without topics and without
a group of leaders. Who kills or reconfigures a broker, or leaves it paused, starts one of his own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException

from schemas.topics import LEADER_GROUP
from stratolog.local.processes import wait_until
from tests.support.local.stack import LocalKafka

CLEARED_WITHIN_S = 30.0
"""Members of a group that were killed are in it until their session ends."""
ADMIN_TIMEOUT_S = 10.0


class BrokerPool:
    """Brokers of one test process. ``new_folder`` returns a directory for another one."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._idle: list[LocalKafka] = []
        self._all: list[LocalKafka] = []

    def lease(self) -> LocalKafka:
        """Return a broker without topics; raises Unavailable if it cannot be started."""
        while self._idle:
            kafka = self._idle.pop()
            if all(process.is_running() for process in kafka.processes.values()):
                return kafka
        kafka = LocalKafka(self._new_folder()).start()
        self._all.append(kafka)
        return kafka

    def give_back(self, kafka: LocalKafka) -> None:
        """Take back a broker that nobody uses any more. One that cannot be cleared is stopped."""
        try:
            if wait_until(lambda: _is_clear(kafka), CLEARED_WITHIN_S, interval_s=0.2):
                self._idle.append(kafka)
                return
        except KafkaException:
            pass
        kafka.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for kafka in self._all:
            kafka.close()


def _is_clear(kafka: LocalKafka) -> bool:
    """Delete what can be deleted; return whether nothing is left."""
    admin = kafka.admin
    topics = [name for name in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics if not name.startswith("__")]
    if topics:
        for deleted in admin.delete_topics(topics, operation_timeout=ADMIN_TIMEOUT_S).values():
            deleted.result()
    listed = admin.list_consumer_groups(request_timeout=ADMIN_TIMEOUT_S).result()
    if listed.errors:
        return False
    if LEADER_GROUP in {group.group_id for group in listed.valid}:  # the others have names that nobody will use again
        left = admin.delete_consumer_groups([LEADER_GROUP], request_timeout=ADMIN_TIMEOUT_S)[LEADER_GROUP]
        if left.exception() is not None:  # its members are gone, but their session is not over yet
            return False
    return not topics
