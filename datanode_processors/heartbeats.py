"""Heartbeats: what a datanode says of itself on ``dn.heartbeats``, each second and at once when something has changed.

A lost heartbeat loses nothing: the next one says everything again. Containers beyond MAX_REPORTED_CONTAINERS are
reported in turns: the changed ones first, in up to half of a heartbeat, and then those whose turn it is. So each one is
named again and again, however much changes: the Object Manager forgets what is not
(``om_processors/fleet/core/containers.py``).
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipelines import Pipelines
from replicated_db.core.ports import Clock
from schemas.codecs.block_rows import block_of_key
from schemas.codecs.codec import encode
from schemas.records.datanode import MAX_REPORTED_CONTAINERS, ContainerReport, Heartbeat
from schemas.sharding import pipeline_of
from schemas.topics import DN_HEARTBEATS

MIN_INTERVAL_S = 0.05
"""The least time between two heartbeats, however much changes."""

Send = Callable[[str, bytes, bytes, int], None]


class Heartbeats:
    """Sends until it is stopped, on a thread of its own."""

    def __init__(
        self, config: DatanodeConfig, blocks: BlockStore, pipelines: Pipelines, *, streams: Callable[[], int],
        layout_version: int, prepared: Callable[[], bool], clock: Clock, send: Send,
        fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._blocks = blocks
        self._pipelines = pipelines
        self._streams = streams
        self._layout_version = layout_version
        self._prepared = prepared
        self._clock = clock
        self._send = send
        self._fatal = fatal
        self._incarnation = os.urandom(16)
        self._reported: dict[int, ContainerReport] = {}
        self._after = -1
        """The container that had its turn last."""
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self.sent = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def changed(self) -> None:
        """Send the next one now."""
        self._due.set()

    def stop(self) -> None:
        """Send no more."""
        self._stopping.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._due.clear()
                self._send(DN_HEARTBEATS, encode(self.heartbeat()), self._config.node.encode(), -1)
                self.sent += 1
                self._stopping.wait(MIN_INTERVAL_S)
                self._due.wait(self._config.datanode_heartbeat_interval_ms / 1000)
        except BaseException as error:
            if not self._stopping.is_set():
                self._fatal(error)

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this moment."""
        config = self._config
        try:
            capacity, free = self._blocks.capacity_bytes(), self._blocks.free_bytes()
        except (OSError, BlockError):  # a disk that does not answer takes no blocks
            capacity, free = 0, 0
        return Heartbeat(
            cluster=config.cluster, datanode=config.node, incarnation=self._incarnation, address=config.address,
            http_address=config.http_address, rack=config.rack, capacity_bytes=capacity, free_bytes=free,
            active_streams=self._streams(), layout_version=self._layout_version, upgrade_prepared=self._prepared(),
            pipelines=self._pipelines.reports(), containers=self._containers(),
            sent_at_ms=self._clock.wall_ms(),
        )  # fmt: skip

    def _containers(self) -> list[ContainerReport]:
        unhealthy = {block_of_key(key)[0] for pipeline in self._pipelines.all() for key in list(pipeline.unhealthy)}
        unhealthy |= self._pipelines.upkeep.unhealthy_containers()
        reports = [
            ContainerReport(
                container_id=usage.container_id, partition=pipeline_of(usage.container_id), closed=usage.closed,
                blocks=usage.blocks, used_bytes=usage.used_bytes, healthy=usage.container_id not in unhealthy,
            )
            for usage in self._blocks.containers()
        ]  # fmt: skip
        if len(reports) <= MAX_REPORTED_CONTAINERS:
            return reports
        before, self._reported = self._reported, {}
        changed = [report for report in reports if before.get(report.container_id) != report]
        start = bisect_right(reports, self._after, key=lambda report: report.container_id)
        turn = {report.container_id: report for report in changed[: MAX_REPORTED_CONTAINERS // 2]}
        for report in [*reports[start:], *reports[:start]]:
            if len(turn) == MAX_REPORTED_CONTAINERS:
                break
            turn[report.container_id] = report
            self._after = report.container_id
        # Of what has changed and found no room, what was reported before counts: it has changed in the next turn, too.
        for report in reports:
            said = turn.get(report.container_id) or before.get(report.container_id)
            if said is not None:
                self._reported[report.container_id] = said
        return list(turn.values())
