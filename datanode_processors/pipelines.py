"""The pipelines of one datanode, and its copies of other pipelines' containers.

This module ties them together and answers requests. Rules:
    - The file REGISTRY says which pipelines this datanode is a member of. It is replaced atomically, and its pipelines
      are opened again at start (``pipeline/opening``).
    - A request that goes through the log is executed if this node leads, else sent on to the leader, once
      (``pipeline/log_requests``).
    - A question to a replica (GetBlock, WatchBlock, ListContainer, reads) is answered from this node's own
      (``block_answers``).

The stream server calls ``Pipelines`` through the port ``wire.ports.PipelineRequests``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from operator import itemgetter
from typing import Any

from datanode_processors.block_answers import BlockAnswers
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import is_closed
from datanode_processors.pipeline.core.request_checks import (
    LOG_REQUESTS,
    check_block,
    check_container,
    check_deletion,
    check_together,
)
from datanode_processors.pipeline.installs import PipelineInstalls
from datanode_processors.pipeline.leader_calls import unwrap
from datanode_processors.pipeline.log_requests import LogRequests
from datanode_processors.pipeline.opening import PipelineOpening
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.repair.copies import Copies
from datanode_processors.repair.copy_sources import SOURCES_FILE
from datanode_processors.repair.copy_upkeep import CopyUpkeep
from datanode_processors.repair.scrubber import Place
from datanode_processors.repair.verifier import Verifier
from datanode_processors.wire.ports import Readable
from datanode_processors.wire.wire import opening_of
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.log.position import Position
from replicated_db.shell.database.host import DatabaseHost
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.codecs.codec import decode_as
from schemas.column_families import BLOCK_TABLE, CONTAINER_TABLE, PIPELINE_TABLE
from schemas.records.datanode import (
    Accepted,
    BlockRow,
    BlocksDeleted,
    CloseContainer,
    ClosePipeline,
    ContainerRow,
    DeleteBlocks,
    FetchContainer,
    Forwarded,
    GetBlock,
    ListContainer,
    OpenPipeline,
    PipelineReport,
    PipelineRow,
    ReadBlock,
    SalvageBlock,
    WatchBlock,
    WatchBlocks,
    WriteBlocks,
)
from schemas.records.log import Barrier, Batch, Merge, Operation, Put
from schemas.sharding import pipeline_of

LOOK_INTERVAL_S = 0.2
"""How often the state of elections and ticks is checked at least."""

LOOKS_PER_WATCHDOG = 10
"""It is checked so many times in ``pipeline_watchdog_ms`` at least."""

LOOKS_PER_SIZE = 5
"""The containers' sizes are checked once in this many looks."""

DRAIN_S = 5.0


class Pipelines:
    """All pipelines of this datanode, used by many threads: connections, the follower's event loop, leaders."""

    def __init__(
        self, config: DatanodeConfig, blocks: BlockStore, host: DatabaseHost, *, opened: Callable[[], None],
        tls: WireTls | None = None,
    ) -> None:  # fmt: skip
        """``host`` has the databases, ``opened`` is called before a pipeline is opened that was not known.

        ``tls``: how others are called.
        """
        self._config = config
        self._look_s = min(LOOK_INTERVAL_S, config.pipeline_watchdog_ms / 1000 / LOOKS_PER_WATCHDOG)
        self._blocks = blocks
        self._fatal = fatal = host.fatal
        note = host.note
        self._changed: Callable[[], None] = lambda: None
        self._scanned: Callable[[Pipeline, Position], None] = lambda _, __: None
        self._stopping = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="elections", daemon=True)
        self.table = PipelineTable(config.node)
        self.verifier = Verifier(
            blocks, node=config.node, cluster=config.cluster, note=note, fatal=fatal, changed=self._told,
            tls=tls,
        )  # fmt: skip
        self.copies = Copies(blocks, node=config.node, cluster=config.cluster, note=note, tls=tls)
        self.upkeep = CopyUpkeep(
            blocks, self.copies, node=config.node, cluster=config.cluster, sources_file=config.data_dir / SOURCES_FILE,
            is_own=lambda container_id: pipeline_of(container_id) in self.table,
            interval_s=config.block_scrub_interval_ms / 1000, note=note, fatal=fatal, changed=self._told,
            tls=tls,
        )  # fmt: skip
        self._opening = PipelineOpening(
            config, blocks, host, self.table, opened=opened, wanted=self.verifier.verify, added=self.verifier.add
        )  # fmt: skip
        self._log_requests = LogRequests(config, self.table, host.clock, tls)
        self._answers = BlockAnswers(blocks, self.table, self.verifier, self.copies, self.upkeep)

    # -- life ------------------------------------------------------------------------------------------------------

    def open_known(self) -> None:
        """Open the pipelines of the registry.

        Raises StopProcess kinds, LogUnavailable, OSError or ValueError for a bad registry.
        """
        self._opening.open_known()

    def start(
        self, follow: Callable[[int], None], changed: Callable[[], None], scanned: Callable[[Pipeline, Position], None],
        read: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Begin elections.

        ``follow`` adds a partition to those that are fetched. ``changed`` is called when a heartbeat would say
        something new, ``scanned`` at scrub barriers. ``read`` is called with the bytes of copies that are read in the
        background, and may sleep.
        """
        self._scanned = scanned
        self._opening.follow = follow
        self._changed = changed
        for pipeline in self.all():
            follow(pipeline.partition)
        self.verifier.start()
        self.upkeep.start(read)
        self.installs.start()
        self._watching.start()

    def stop(self) -> None:
        """Hand the leaderships over once requests in flight are settled."""
        self._stopping.set()
        self.installs.close()
        for pipeline in self.all():
            pipeline.stop()
        for pipeline in self.all():
            pipeline.join(DRAIN_S)
        self.verifier.stop()
        self.upkeep.stop()

    def close(self) -> None:
        """Close the connections to leaders."""
        self._log_requests.close()

    @property
    def installs(self) -> PipelineInstalls:
        """The pipelines whose replica is installed from a member."""
        return self._opening.installs

    @property
    def forwarded(self) -> int:
        """Requests sent on to a leader."""
        return self._log_requests.forwarded

    @property
    def fetched_bytes(self) -> int:
        """Bytes fetched from peers to repair blocks here."""
        return self.verifier.fetched_bytes + self.upkeep.fetched_bytes

    def all(self) -> list[Pipeline]:
        """Return the pipelines by partition."""
        return self.table.all()

    def reports(self) -> list[PipelineReport]:
        """Return what heartbeats say of the pipelines here, those that are installed included."""
        return [*(pipeline.report() for pipeline in self.all()), *self.installs.reports()]

    def _told(self) -> None:
        self._changed()

    def _watch(self) -> None:
        leading: dict[int, bool] = {}
        looks = 0
        try:
            while not self._stopping.wait(self._look_s):
                pipelines = self.all()
                for pipeline in pipelines:
                    pipeline.look()
                if (looks := looks + 1) % LOOKS_PER_SIZE == 0:
                    self._close_full_containers()
                now = {pipeline.partition: pipeline.loop.leading for pipeline in pipelines}
                if now != leading:
                    leading = now
                    self._changed()
        except BaseException as error:
            self._fatal(error)

    def _close_full_containers(self) -> None:
        """Close containers that hold enough. Only where this node leads, and without waiting for the answer."""
        for usage in self._blocks.containers():
            pipeline = self.table.get(pipeline_of(usage.container_id))
            if usage.closed or usage.used_bytes < self._config.container_bytes or pipeline is None:
                continue
            if pipeline.loop.leading and not is_closed(pipeline.store, usage.container_id):
                # The leadership is lost, or the leader overloaded: the next look asks again.
                with suppress(BlockError):
                    pipeline.proposals.submit(
                        CloseContainer(partition=pipeline.partition, container_id=usage.container_id)
                    )

    # -- what is applied -------------------------------------------------------------------------------------------

    def on_record(self, replica: Replica, outcome: Offered) -> None:
        """Take note of a counting record that was applied here; called on the thread that applied it."""
        pipeline = self.table.member(replica.identity.shard)
        batch = outcome.record
        if isinstance(batch, Batch):
            blocks: list[bytes] = []
            for operation in batch.operations:
                if isinstance(operation, Merge) and operation.cf == BLOCK_TABLE:
                    blocks.append(operation.key)
                else:
                    self._observe(pipeline, operation)
            if blocks:
                self.verifier.verify_all(pipeline, blocks)
        elif isinstance(batch, Barrier) and batch.scrub:
            self._scanned(pipeline, outcome.position)
        pipeline.on_applied()

    def _observe(self, pipeline: Pipeline, operation: Operation) -> None:
        if isinstance(operation, Put) and operation.cf == CONTAINER_TABLE:
            row = decode_as(ContainerRow, operation.value)
            if row.closed:
                self.verifier.close_container(pipeline, row.container_id)
        elif isinstance(operation, Put) and operation.cf == PIPELINE_TABLE:
            self._opening.on_row(decode_as(PipelineRow, operation.value))

    def committed_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        """Yield (partition, container id, local id, row) of what is committed here, copies included, behind a place.

        The blocks come in the order of places.
        """
        return merge(
            self._answers.committed_blocks(after), self.upkeep.committed_blocks(after), key=itemgetter(0, 1, 2)
        )

    def repair(self, partition: int, container_id: int, local_id: int, cells: list[int]) -> None:
        """Have the bad cells fetched that the scrubber found."""
        pipeline = self.table.get(partition)
        if pipeline is None and partition in self.table:
            return  # its rows are being installed; all its blocks are compared afterwards
        if pipeline is None:
            reason = f"the copy of block {container_id}/{local_id} here is damaged in {len(cells)} cells"
            self.upkeep.damaged(container_id, local_id, reason)
        else:
            for cell in cells:
                self.verifier.repair(pipeline, block_key(container_id, local_id), cell)

    # -- requests --------------------------------------------------------------------------------------------------

    def members_for(self, request: Any) -> tuple[int, Sequence[str]]:
        """Return partition and members of the pipeline that a forwarded request or stream is for; raises BlockError."""
        inner = request
        if isinstance(request, Forwarded):
            inner = unwrap(request)
        elif isinstance(request, WriteBlocks):
            inner, _ = opening_of(request)
        partition = getattr(inner, "partition", None)
        if not isinstance(partition, int):
            raise BlockError(codes.INVALID_REQUEST, f"a {type(inner).__name__} names no pipeline")
        return partition, self.table.member(partition).members

    def handle(self, request: Any) -> Any:
        """Answer a request; raises BlockError. Blocks until the answer is known."""
        if isinstance(request, OpenPipeline):
            return self._open(request)
        if isinstance(request, DeleteBlocks) and request.partition not in self.table:
            return self._delete_copies(request)
        if isinstance(request, (Forwarded, *LOG_REQUESTS)):
            return self._log_requests.execute(request)
        if isinstance(request, WatchBlock):
            check_block(request.partition, request.container_id, request.local_id)
            return self.table.member(request.partition).watch(request)
        if isinstance(request, WatchBlocks):
            check_together(request)
            return self.table.member(request.partition).watch_all(request)
        if isinstance(request, GetBlock):
            return self._answers.block_info(request)
        if isinstance(request, ListContainer):
            return self._answers.list_container(request)
        if isinstance(request, FetchContainer):
            return self._fetch_container(request)
        raise BlockError(codes.INVALID_REQUEST, f"a {type(request).__name__} is no request to a datanode")

    def _open(self, request: OpenPipeline) -> Accepted:
        if self._stopping.is_set():
            raise BlockError(codes.STOPPING, f"datanode {self._config.node} is stopping")
        pipeline = self._opening.open(request)
        self._changed()
        if pipeline is None:
            return Accepted(detail=f"{request.pipeline} is followed once its replica is installed from a member")
        # A request for a closed generation says no more than where its members are: it does not go through the log.
        if pipeline.loop.leading and self._opening.is_for_the_log(pipeline, request):
            self._log_requests.wait_for(pipeline, request)
        return Accepted(detail=f"{request.pipeline} is followed")

    def _fetch_container(self, request: FetchContainer) -> Accepted:
        check_container(request.partition, request.container_id)
        pipeline = self.table.member(request.partition) if request.partition in self.table else None
        if pipeline is not None and self._config.node in pipeline.members:
            self.verifier.add(pipeline)
            return Accepted(
                detail=f"datanode {self._config.node} is a member of {pipeline.opened.pipeline}: "
                "its own replica repairs"
            )
        known = self.copies.is_here(request.container_id)
        answer = self.copies.fetch(request)
        self.upkeep.named(request.container_id, request.sources)
        if not known:  # the holder of a copy must know whom to ask, even if it is killed now
            self.upkeep.save()
        return answer

    def _delete_copies(self, request: DeleteBlocks) -> BlocksDeleted:
        check_deletion(request)
        try:
            return self.copies.delete(request)
        finally:
            self.upkeep.deleted(request.blocks)

    def close_pipeline(self, request: ClosePipeline, timeout_s: float) -> None:
        """Close a pipeline through the log, whoever leads, and wait until that is applied here; raises BlockError."""
        self._log_requests.close_pipeline(request, timeout_s)

    def close_container(self, container_id: int) -> None:
        """Have a container closed in the store, whatever its pipeline says: the datanode takes no more blocks."""
        pipeline = self.table.get(pipeline_of(container_id))
        if pipeline is not None:
            self.verifier.close_container(pipeline, container_id)
        else:
            self._blocks.close_container(container_id)

    # -- for the stream server -------------------------------------------------------------------------------------

    def check_stream(self, partition: int, container_id: int, local_id: int) -> None:
        """Raise an error if a block takes no bytes here.

        The error is NO_SUCH_PIPELINE, PIPELINE_CLOSED, CONTAINER_CLOSED or BLOCK_DELETED.
        """
        self._answers.check_stream(partition, container_id, local_id)

    def address_of(self, partition: int, datanode: str) -> str:
        """Return where a member of a pipeline is, as the Object Manager has told; raises BlockError."""
        pipeline = self.table.member(partition)
        if datanode not in pipeline.members:
            raise BlockError(
                codes.INVALID_REQUEST,
                f"datanode {datanode} is no member of {pipeline.opened.pipeline}: {', '.join(pipeline.members)} are",
            )
        return pipeline.address_of(datanode)

    def readable(self, request: ReadBlock | SalvageBlock) -> Readable:
        """Return what may be read of a block (``block_answers``); raises BlockError."""
        return self._answers.readable(request)

    def on_corrupt_cell(self, container_id: int, local_id: int, offset: int) -> None:
        """Note that the cell at ``offset`` is missing or does not have its checksum.

        The cell is fetched from a peer.
        """
        self._answers.on_corrupt_cell(container_id, local_id, offset)
