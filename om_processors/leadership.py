"""Who leads: this node's membership of the leaders' group, and a thread for each shard it is given (design, section 4).

Rules:
    - The group's consumer only says who owns a shard; it never reads. Assignment is cooperative and sticky.
    - A node joins only while its lag is bounded and none of its replicas is flagged.
    - Revocation drains before it is acknowledged.
    - A deposed leader leaves the group and claims only after a new assignment, with jitter.
    - A StopProcess of any shard ends the process.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from om_processors.config import NodeConfig
from replicated_db.errors import StopProcess
from replicated_db.leader_loop import LeaderLoop, UnfitToLead
from replicated_db.ports import LogUnavailable
from schemas.topics import LEADER_GROUP, OM_LOG, OM_REQUESTS

DRAIN_S = 5.0
"""How long a revocation waits for batches in flight."""

MAX_FAILING_S = 30.0
"""How long a node that owns a shard may fail to claim it before it leaves the group to others."""

POLL_S = 0.2
RETRY_S = 0.5
MAX_JITTER_S = 1.0
UNFIT_WAIT_S = 60.0
"""How long a node that is unfit to lead (its clock is wrong) stays out of the group."""
MAX_LAG_RECORDS = 1_000
"""A node further behind the log's end than this does not join."""


class _Shard:
    """The thread that leads one shard while it is assigned here."""

    def __init__(
        self, loop: LeaderLoop, note: Callable[[str], None], *,
        deposed: Callable[[], None], unfit: Callable[[], None], fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self.stop = threading.Event()
        self._loop = loop
        self._note = note
        self._deposed = deposed
        self._unfit = unfit
        self._fatal = fatal
        shard = loop.replica.identity.shard
        self.thread = threading.Thread(target=self._run, name=f"leader-{shard}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        shard = self._loop.replica.identity.shard
        failing_since = None
        try:
            while not self.stop.is_set():
                try:
                    reason = self._loop.lead(self.stop)
                except LogUnavailable as error:
                    failing_since = failing_since or time.monotonic()
                    if time.monotonic() - failing_since > MAX_FAILING_S:
                        self._note(f"shard {shard}: {error}; leaving the group, so that another node may try")
                        self._unfit()
                        return
                    self._note(f"shard {shard}: {error}; trying again")
                    self.stop.wait(RETRY_S)
                    continue
                except UnfitToLead as error:
                    self._note(f"shard {shard}: {error}")
                    self._unfit()
                    return
                self._note(f"shard {shard}: leadership ended: {reason}")
                if not self.stop.is_set():
                    self._deposed()
                return
        except BaseException as error:
            self._fatal(error)


class Leadership:
    """Runs on a thread of its own; ``stop`` drains and leaves the group."""

    def __init__(
        self, config: NodeConfig, loops: Mapping[int, LeaderLoop],
        note: Callable[[str], None], fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._loops = loops
        self._note = note
        self._fatal = fatal
        self._shards: dict[int, _Shard] = {}
        self._stop = threading.Event()
        self._leave = threading.Event()
        self._out_until = 0.0
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    def start(self) -> None:
        """Start looking for shards to lead."""
        self._thread.start()

    def stop(self) -> None:
        """Drain, hand over and leave the group."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(DRAIN_S * 2)

    def leave(self) -> None:
        """Leave the group for a while: this node was deposed, or one of its replicas is flagged."""
        self._leave.set()

    def _stay_out(self) -> None:
        self._out_until = time.monotonic() + UNFIT_WAIT_S
        self._leave.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._fit():
                    self._member()
                    self._stop.wait(random.uniform(0, MAX_JITTER_S))
                else:
                    self._stop.wait(POLL_S)
        except BaseException as error:
            self._fatal(error)

    def _fit(self) -> bool:
        """Whether this node may lead: healthy, and near the end of every log."""
        if time.monotonic() < self._out_until or any(loop.replica.evidence for loop in self._loops.values()):
            return False
        consumer = Consumer(self._settings("stratolog-lag"))
        try:
            for loop in self._loops.values():
                replica = loop.replica
                partition = TopicPartition(OM_LOG, replica.identity.shard)
                end = consumer.get_watermark_offsets(partition, timeout=5)[1]
                if end - 1 - replica.read_offset > MAX_LAG_RECORDS:
                    return False
        except (KafkaException, StopProcess) as error:
            self._note(f"cannot learn the log's end: {error}")
            return False
        finally:
            consumer.close()
        return True

    def _settings(self, group: str) -> dict[str, Any]:
        timeout_ms = self._config.session_timeout_ms
        return {
            "bootstrap.servers": self._config.bootstrap_servers,
            "group.id": group,
            "client.id": self._config.node,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": timeout_ms,
            "heartbeat.interval.ms": max(timeout_ms // 5, 100),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
        }

    def _member(self) -> None:
        """Be a member of the group until told to leave."""
        self._leave.clear()
        consumer = Consumer(self._settings(LEADER_GROUP))
        consumer.subscribe([OM_REQUESTS], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        try:
            while not (self._stop.is_set() or self._leave.is_set()):
                consumer.poll(POLL_S)
                if any(loop.replica.evidence is not None for loop in self._loops.values()):
                    self._note("a replica is flagged: this node leads nothing")
                    self._leave.set()
        finally:
            self._end(list(self._shards), drain=True)
            consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        fresh = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(fresh)
        if fresh:
            consumer.pause(fresh)
        for partition in partitions:
            self._note(f"shard {partition.partition} is assigned here")
            loop = self._loops[partition.partition]
            self._shards[partition.partition] = _Shard(
                loop, self._note, deposed=self._leave.set, unfit=self._stay_out, fatal=self._fatal
            )

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._end([p.partition for p in partitions], drain=True)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note(f"lost shards {[p.partition for p in partitions]}: silent for longer than the session time-out")
        self._end([p.partition for p in partitions], drain=False)
        consumer.incremental_unassign(partitions)

    def _end(self, shards: list[int], *, drain: bool) -> None:
        ending = [self._shards.pop(shard) for shard in shards if shard in self._shards]
        for shard in ending:
            shard.stop.set()
        deadline = time.monotonic() + (DRAIN_S if drain else 0)
        for shard in ending:
            shard.thread.join(max(0.0, deadline - time.monotonic()))
