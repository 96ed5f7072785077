"""Block reports for the audit: what a member read from its disk, at the index of a scrub barrier (``BlockReport``).

Rules:
    - All members snapshot their rows at the same barrier, so their reports speak of the same blocks and lengths. The
      bytes are read from the disk afterwards, slowly.
    - A block that the log has deleted since the barrier counts as its row says, because its bytes are rightly gone.
    - One scan runs at a time; a barrier that comes during a scan is left out. A report that is left out says nothing
      (`unknown`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.core.digests import container_digest
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import block_row, blocks_of, containers_of
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.repair.scrubber import Pace, read_checksums
from replicated_db.core.errors import StoreFailure
from replicated_db.core.log.position import Position
from replicated_db.core.ports import Clock, StoreSnapshot
from replicated_db.shell.database.follower import NO_REPLICA_REPORT
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from replicated_db.shell.reports import Headers
from schemas.codecs.block_rows import block_key
from schemas.codecs.codec import encode
from schemas.records.datanode import (
    MAX_CONTAINERS_IN_REPORT,
    MAX_UNREADABLE,
    BlockReport,
    BlockRow,
    ContainerDigest,
)
from schemas.topics import DN_AUDIT

SCAN_BYTES_PER_SECOND = 64 * 1024 * 1024
MAX_WAITING = 16
"""Scans that wait for their turn, because barriers of different pipelines come at the same time."""

Send = Callable[[str, bytes, bytes, int, Headers], None]


class BlockReports(Background):
    """The reports of all pipelines of a datanode; scans run on a thread of its own."""

    end_wait_s = 5.0

    def __init__(
        self, blocks: BlockStore, *, node: str, cluster: str, clock: Clock, send: Send, note: Note,
        fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        super().__init__("block-reports", fatal)
        self._blocks = blocks
        self._node = node
        self._cluster = cluster
        self._clock = clock
        self._send = send
        self._note = note
        self._pace = Pace(SCAN_BYTES_PER_SECOND, self._stop)
        self._queue: Queue[tuple[Pipeline, Position, StoreSnapshot] | None] = Queue(MAX_WAITING)
        self._scanning: set[int] = set()
        self.start()

    def barrier(self, pipeline: Pipeline, at: Position) -> None:
        """Scan a pipeline's blocks as of a scrub barrier that was just applied, on the thread that applied it."""
        position, _, snapshot = pipeline.replica.snapshot()
        if position.offset == at.offset and pipeline.partition not in self._scanning and not self._stop.is_set():
            try:
                self._scanning.add(pipeline.partition)
                self._queue.put_nowait((pipeline, position, snapshot))
                return
            except Full:
                self._scanning.discard(pipeline.partition)
        snapshot.close()
        self._note(f"{pipeline.opened.pipeline}: block report at {at.index} left out", shard=pipeline.partition)

    def close(self) -> None:
        """Scan no more."""
        self._stop.set()
        with suppress(Full):
            self._queue.put_nowait(None)
        super().close()

    def run(self) -> None:
        """Scan what waits, and report it."""
        while (found := self._queue.get()) is not None and not self._stop.is_set():
            pipeline, position, snapshot = found
            try:
                report = self._scan(pipeline, position, snapshot)
                if not self._stop.is_set():
                    key = f"{pipeline.partition}/{self._node}".encode()
                    self._send(DN_AUDIT, encode(report), key, pipeline.partition, [("kind", NO_REPLICA_REPORT)])
            except StoreFailure:
                raise
            except Exception as error:  # a report that fails is a missing one: `unknown`
                self._note(f"{pipeline.opened.pipeline}: no block report: {error!r}", shard=pipeline.partition)
            finally:
                snapshot.close()
                self._scanning.discard(pipeline.partition)

    def _scan(self, pipeline: Pipeline, position: Position, snapshot: StoreSnapshot) -> BlockReport:
        containers: list[ContainerDigest] = []
        complete, named = True, 0
        for container_id in containers_of(snapshot):
            if len(containers) == MAX_CONTAINERS_IN_REPORT:
                complete = False
                break
            found: list[tuple[int, int, bytes]] = []
            damaged: list[bytes] = []
            for local_id, row in blocks_of(snapshot, container_id):
                if self._stop.is_set() or row.deleted:
                    continue
                length, checksums = self._read(pipeline, container_id, local_id, row)
                found.append((local_id, length, checksums))
                if (length, checksums) != (row.length, row.checksums):
                    damaged.append(block_key(container_id, local_id))
            damaged = damaged[: MAX_UNREADABLE - named]
            named += len(damaged)
            containers.append(
                ContainerDigest(
                    container_id=container_id, blocks=len(found), used_bytes=sum(length for _, length, _ in found),
                    digest=container_digest(container_id, found), unreadable=damaged,
                )
            )  # fmt: skip
        return BlockReport(
            cluster=self._cluster, datanode=self._node, partition=pipeline.partition, index=position.index,
            log_offset=position.offset, containers=containers, complete=complete, reported_at_ms=self._clock.wall_ms(),
        )  # fmt: skip

    def _read(self, pipeline: Pipeline, container_id: int, local_id: int, row: BlockRow) -> tuple[int, bytes]:
        try:
            found = read_checksums(self._blocks, container_id, local_id, row, self._pace.took)
        except BlockError:
            found = 0, b""
        if found != (row.length, row.checksums):
            now = block_row(pipeline.store, block_key(container_id, local_id))
            if now is not None and now.deleted:
                return row.length, row.checksums
        return found
