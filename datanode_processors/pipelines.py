"""The pipelines of one datanode: which there are, requests to them, and what the stream server asks (port ``ports.Pipelines``).

Rules:
    - Which pipelines this datanode is a member of lies in REGISTRY, replaced atomically; they are opened again at start.
    - A request that goes through the log is executed if this node leads, else sent on to the leader, once: what was sent on (``Forwarded``)
      is executed or refused with NOT_LEADER, so no request goes round in circles.
    - What is asked of a replica (GetBlock, WatchBlock, ListContainer, reads) is answered from this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from heapq import merge
from operator import itemgetter
from typing import Any

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import (
    LOG_REQUESTS,
    PARTITIONS,
    block_row,
    blocks_of,
    check_block,
    check_chunk,
    check_deletion,
    check_members,
    check_put_block,
    containers_of,
    is_closed,
)
from datanode_processors.pipeline.leader_calls import ANSWER_STEP_S, ANSWER_TIMEOUT_S, LeaderCalls, unwrap
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.pipeline.registry import REGISTRY, read_registry, write_registry
from datanode_processors.repair.copies import Copies
from datanode_processors.repair.copy_sources import SOURCES_FILE
from datanode_processors.repair.copy_upkeep import CopyUpkeep
from datanode_processors.repair.scrubber import Place
from datanode_processors.repair.verifier import Verifier
from datanode_processors.wire.ports import Readable
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import StopProcess
from replicated_db.core.log.position import Position
from replicated_db.core.ports import Clock, Log, LogUnavailable
from replicated_db.shell.leader_loop import LeaderLoop, Publisher
from replicated_db.shell.logs import Note
from replicated_db.shell.process import when_brokers_answer
from replicated_db.shell.startup import check_replica
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.codecs.codec import decode_as
from schemas.column_families import BLOCK_TABLE, CONTAINER_TABLE
from schemas.records.datanode import (
    Accepted,
    BlockInfo,
    BlockRow,
    BlocksDeleted,
    CloseContainer,
    ClosePipeline,
    ContainerBlocks,
    ContainerRow,
    DeleteBlocks,
    FetchContainer,
    Forwarded,
    GetBlock,
    ListContainer,
    OpenPipeline,
    PutBlock,
    ReadBlock,
    SalvageBlock,
    WatchBlock,
    WriteChunk,
)
from schemas.records.log import Barrier, Batch, Merge, Put
from schemas.records.packets import CELL_BYTES

LOOK_INTERVAL_S = 0.05
"""How often elections and ticks are looked at."""

LOOKS_PER_SIZE = 20
"""Every so many looks, the containers' sizes are looked at."""

MAX_LISTED_BYTES = 3 * 1024 * 1024
"""Rows in one answer to ListContainer."""

DRAIN_S = 5.0


class Pipelines:
    """For many threads: connections, the follower's event loop, leaders."""

    def __init__(
        self, config: DatanodeConfig, blocks: BlockStore, topic_id: str, *, clock: Clock, note: Note,
        fatal: Callable[[BaseException], None], opened: Callable[[], None],
    ) -> None:  # fmt: skip
        """``opened`` is told before a pipeline is opened that was not known."""
        self._opened = opened
        self._config = config
        self._blocks = blocks
        self._topic_id = topic_id
        self._clock = clock
        self._note = note
        self._fatal = fatal
        self._outbox: Publisher | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._pipelines: dict[int, Pipeline] = {}
        self._leaders = LeaderCalls(node=config.node, cluster=config.cluster)
        self._follow: Callable[[int], None] = lambda _: None
        self._changed: Callable[[], None] = lambda: None
        self._scanned: Callable[[Pipeline, Position], None] = lambda _, __: None
        self._stopping = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="elections", daemon=True)
        self.verifier = Verifier(
            blocks, node=config.node, cluster=config.cluster, note=note, fatal=fatal, changed=self._told
        )
        self.copies = Copies(blocks, node=config.node, cluster=config.cluster, note=note)
        self.upkeep = CopyUpkeep(
            blocks, self.copies, node=config.node, cluster=config.cluster, sources_file=config.data_dir / SOURCES_FILE,
            is_own=lambda container_id: container_id % PARTITIONS in self._pipelines,
            interval_s=config.block_scrub_interval_ms / 1000, note=note, fatal=fatal, changed=self._told,
        )  # fmt: skip
        self.replicas: dict[int, Replica] = {}
        self.loops: dict[int, LeaderLoop] = {}
        self.follower_logs: dict[int, Log] = {}

    # -- life ------------------------------------------------------------------------------------------------------

    def open_known(self, outbox: Publisher) -> None:
        """Open the pipelines of the registry. Raises StopProcess kinds, LogUnavailable, OSError or ValueError for a bad registry."""
        self._outbox = outbox
        for opened in read_registry(self._config.data_dir / REGISTRY):
            self._add(opened)

    def start(
        self, follow: Callable[[int], None], changed: Callable[[], None], scanned: Callable[[Pipeline, Position], None],
        read: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Begin elections.

        ``follow`` fetches a partition more, ``changed`` is told when a heartbeat would say something new, ``scanned`` of scrub barriers,
        ``read`` of the bytes of copies that are read in the background; it may sleep.
        """
        self._scanned = scanned
        self._follow = follow
        self._changed = changed
        for partition in list(self._pipelines):
            follow(partition)
        self.verifier.start()
        self.upkeep.start(read)
        self._watching.start()

    def stop(self) -> None:
        """Hand the leaderships over after what is in flight."""
        self._stopping.set()
        for pipeline in self.all():
            pipeline.stop()
        for pipeline in self.all():
            pipeline.join(DRAIN_S)
        self.verifier.stop()
        self.upkeep.stop()

    def close(self) -> None:
        """Close the stores."""
        self._leaders.close()
        for pipeline in self.all():
            pipeline.close()

    @property
    def forwarded(self) -> int:
        """Requests sent on to a leader."""
        return self._leaders.sent

    @property
    def fetched_bytes(self) -> int:
        """Bytes fetched from peers to repair blocks here."""
        return self.verifier.fetched_bytes + self.upkeep.fetched_bytes

    def all(self) -> list[Pipeline]:
        """Return the pipelines by partition."""
        with self._lock:
            return [self._pipelines[partition] for partition in sorted(self._pipelines)]

    def _told(self) -> None:
        self._changed()

    def _watch(self) -> None:
        leading: dict[int, bool] = {}
        looks = 0
        try:
            while not self._stopping.wait(LOOK_INTERVAL_S):
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
        """Close containers that hold enough; only where this node leads, and without waiting for the answer."""
        for usage in self._blocks.containers():
            pipeline = self._pipelines.get(usage.container_id % PARTITIONS)
            if usage.closed or usage.used_bytes < self._config.container_bytes or pipeline is None:
                continue
            if pipeline.loop.leading and not is_closed(pipeline.store, usage.container_id):
                # Lost with the leadership, or overloaded: the next look asks again.
                with suppress(BlockError):
                    pipeline.proposals.submit(
                        CloseContainer(partition=pipeline.partition, container_id=usage.container_id)
                    )

    def _add(self, opened: OpenPipeline) -> Pipeline:
        if self._outbox is None:
            raise RuntimeError("open_known comes first")
        pipeline = Pipeline(
            opened, self._config, self._blocks, self._topic_id, clock=self._clock, outbox=self._outbox, note=self._note,
            fatal=self._fatal, wanted=self.verifier.verify,
        )  # fmt: skip
        try:
            when_brokers_answer(lambda: check_replica(pipeline.replica, pipeline.log, self._note))
        except BaseException:
            pipeline.close()
            raise
        partition = pipeline.partition
        with self._lock:
            self.replicas[partition] = pipeline.replica
            self.loops[partition] = pipeline.loop
            self.follower_logs[partition] = pipeline.follower_log
            self._pipelines[partition] = pipeline
        self.verifier.add(pipeline)
        return pipeline

    # -- what is applied -------------------------------------------------------------------------------------------

    def observe(self, replica: Replica, outcome: Offered) -> None:
        """Take note of a counting record that was applied here, on the thread that applied it."""
        pipeline = self._pipelines[replica.identity.shard]
        batch = outcome.record
        if isinstance(batch, Batch):
            for operation in batch.operations:
                if isinstance(operation, Merge) and operation.cf == BLOCK_TABLE:
                    self.verifier.verify(pipeline, operation.key)
                elif isinstance(operation, Put) and operation.cf == CONTAINER_TABLE:
                    row = decode_as(ContainerRow, operation.value)
                    if row.closed:
                        self.verifier.close_container(pipeline, row.container_id)
        elif isinstance(batch, Barrier) and batch.scrub:
            self._scanned(pipeline, outcome.position)
        pipeline.applied()

    def committed_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        """Yield (partition, container id, local id, row) of what is committed here behind a place, copies too, in the order of places."""
        return merge(self._own_blocks(after), self.upkeep.committed_blocks(after), key=itemgetter(0, 1, 2))

    def _own_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        for pipeline in self.all():
            if after is not None and pipeline.partition < after[0]:
                continue
            for container_id in list(containers_of(pipeline.store)):
                for local_id, row in list(blocks_of(pipeline.store, container_id)):
                    if not row.deleted and (after is None or (pipeline.partition, container_id, local_id) > after):
                        yield pipeline.partition, container_id, local_id, row

    def repair(self, partition: int, container_id: int, local_id: int, cells: list[int]) -> None:
        """Have cells fetched that the scrubber found bad."""
        pipeline = self._pipelines.get(partition)
        if pipeline is None:
            reason = f"the copy of block {container_id}/{local_id} here is damaged in {len(cells)} cells"
            self.upkeep.damaged(container_id, local_id, reason)
        else:
            for cell in cells:
                self.verifier.repair(pipeline, block_key(container_id, local_id), cell)

    # -- requests --------------------------------------------------------------------------------------------------

    def handle(self, request: Any) -> Any:
        """Answer a request; raises BlockError. Blocks until the answer is there."""
        if isinstance(request, Forwarded):
            return self._execute(unwrap(request), forward=False)
        if isinstance(request, OpenPipeline):
            return self._open(request)
        if isinstance(request, DeleteBlocks) and request.partition not in self._pipelines:
            return self._delete_copies(request)
        if isinstance(request, LOG_REQUESTS):
            return self._execute(request, forward=True)
        if isinstance(request, WatchBlock):
            check_block(request.partition, request.container_id, request.local_id)
            return self._pipeline(request.partition).watch(request)
        if isinstance(request, GetBlock):
            return self._block_info(request)
        if isinstance(request, ListContainer):
            return self._list_container(request)
        if isinstance(request, FetchContainer):
            return self._fetch_container(request)
        raise BlockError(codes.INVALID_REQUEST, f"a {type(request).__name__} is no request to a datanode")

    def _pipeline(self, partition: int) -> Pipeline:
        pipeline = self._pipelines.get(partition)
        if pipeline is None:
            raise BlockError(
                codes.NO_SUCH_PIPELINE,
                f"datanode {self._config.node} is no member of a pipeline on partition {partition}",
            )
        return pipeline

    def _open(self, request: OpenPipeline) -> Accepted:
        check_members(request)
        if self._config.node not in [member.datanode for member in request.members]:
            raise BlockError(
                codes.INVALID_REQUEST,
                f"datanode {self._config.node} is no member of {request.pipeline} as it was asked",
            )
        if self._stopping.is_set():
            raise BlockError(codes.STOPPING, f"datanode {self._config.node} is stopping")
        with self._opening:
            pipeline = self._pipelines.get(request.partition)
            if pipeline is None:
                self._opened()
                try:
                    pipeline = self._add(request)
                    self._follow(request.partition)
                except LogUnavailable as error:
                    raise BlockError(codes.FAILED, f"{request.pipeline}: {error}") from error
                except StopProcess as error:
                    raise BlockError(codes.FAILED, f"{request.pipeline} is not opened here: {error}") from error
            elif not _is_same(pipeline.opened, request):
                raise BlockError(
                    codes.INVALID_REQUEST,
                    f"partition {request.partition} is {pipeline.opened.pipeline}, generation {pipeline.opened.generation}, of "
                    f"{', '.join(pipeline.members)} here",
                )
            elif request.generation > pipeline.opened.generation:
                self._opened()
            if pipeline.opened != request or pipeline.unsaved:
                pipeline.opened, pipeline.unsaved = request, True
                write_registry(self._config.data_dir / REGISTRY, [one.opened for one in self.all()])
                pipeline.unsaved = False
        self._changed()
        # Of one that is closed no more is told than where its members are.
        if pipeline.loop.leading and not (pipeline.generation == request.generation and pipeline.is_closed()):
            self._wait(pipeline, request)
        return Accepted(detail=f"{request.pipeline} is followed")

    def _execute(self, request: Any, *, forward: bool) -> Any:
        if isinstance(request, PutBlock):
            check_put_block(request)
        elif isinstance(request, WriteChunk):
            check_chunk(request)
        pipeline = self._pipeline(request.partition)
        if pipeline.loop.leading:
            return self._wait(pipeline, request)
        leader = pipeline.leader_address()
        if not forward or not leader or leader == self._config.address:
            raise BlockError(
                codes.NOT_LEADER, f"datanode {self._config.node} does not lead {pipeline.opened.pipeline}", hint=leader
            )
        return self._leaders.ask(leader, request)

    def close_pipeline(self, request: ClosePipeline, timeout_s: float) -> None:
        """Close a pipeline through the log, whoever leads, and wait until that is applied here; raises BlockError."""
        pipeline = self._pipeline(request.partition)
        deadline_ms = self._clock.elapsed_ms() + int(timeout_s * 1000)
        while not pipeline.is_closed():
            try:
                self._execute(request, forward=True)
            except BlockError as error:
                passes = error.code in (codes.NOT_LEADER, codes.OVERLOADED, codes.TIMED_OUT, codes.NO_SUCH_PIPELINE)
                if not passes or self._clock.elapsed_ms() > deadline_ms:
                    raise
            with pipeline.changed:
                pipeline.changed.wait(ANSWER_STEP_S)
            if self._clock.elapsed_ms() > deadline_ms:
                raise BlockError(
                    codes.TIMED_OUT, f"{pipeline.opened.pipeline} is not closed here after {timeout_s:.0f} s"
                )

    def close_container(self, container_id: int) -> None:
        """Have a container closed in the store, whatever its pipeline says: the datanode takes no more blocks."""
        pipeline = self._pipelines.get(container_id % PARTITIONS)
        if pipeline is not None:
            self.verifier.close_container(pipeline, container_id)
        else:
            self._blocks.close_container(container_id)

    def _wait(self, pipeline: Pipeline, request: Any) -> Any:
        answer = pipeline.proposals.submit(request)
        deadline_ms = self._clock.elapsed_ms() + int(ANSWER_TIMEOUT_S * 1000)
        while True:
            try:
                return answer.result(ANSWER_STEP_S)
            except FutureTimeoutError:
                if self._clock.elapsed_ms() > deadline_ms:
                    raise BlockError(
                        codes.TIMED_OUT, f"{pipeline.opened.pipeline}: not effective after {ANSWER_TIMEOUT_S:.0f} s"
                    ) from None

    def _block_info(self, request: GetBlock) -> BlockInfo:
        check_block(request.partition, request.container_id, request.local_id)
        row = self._row(request.partition, request.container_id, request.local_id)
        if row is None:
            raise BlockError(
                codes.NO_SUCH_BLOCK, f"block {request.container_id}/{request.local_id} is not committed here"
            )
        stored = 0 if row.deleted else self._blocks.written_length(request.container_id, request.local_id)
        return BlockInfo(
            container_id=request.container_id, local_id=request.local_id, length=row.length, bcs_id=row.bcs_id,
            bytes_per_checksum=row.bytes_per_checksum, checksums=row.checksums, deleted=row.deleted, stored_length=stored,
        )  # fmt: skip

    def _row(self, partition: int, container_id: int, local_id: int) -> BlockRow | None:
        """Return a block's row: the replica's, or a copy's. Raises NO_SUCH_PIPELINE."""
        pipeline = self._pipelines.get(partition)
        row = None if pipeline is None else pipeline.block(container_id, local_id)
        if row is None:
            row = self.copies.block(container_id, local_id)
        return self._pipeline(partition).block(container_id, local_id) if row is None else row

    def _fetch_container(self, request: FetchContainer) -> Accepted:
        check_block(request.partition, request.container_id, 1)
        pipeline = self._pipelines.get(request.partition)
        if pipeline is not None and self._config.node in pipeline.members:
            self.verifier.add(pipeline)
            return Accepted(
                detail=f"datanode {self._config.node} is a member of {pipeline.opened.pipeline}: its own replica repairs"
            )
        known = self.copies.is_here(request.container_id)
        answer = self.copies.fetch(request)
        self.upkeep.named(request.container_id, request.sources)
        if not known:  # a copy that was taken is one whose holder knows whom to ask, killed the next moment or not
            self.upkeep.save()
        return answer

    def _delete_copies(self, request: DeleteBlocks) -> BlocksDeleted:
        check_deletion(request)
        try:
            return self.copies.delete(request)
        finally:
            self.upkeep.deleted(request.blocks)

    def _list_container(self, request: ListContainer) -> ContainerBlocks:
        check_block(request.partition, request.container_id, 1)
        if request.partition not in self._pipelines:
            return self.copies.listed(request.container_id)
        store = self._pipeline(request.partition).store
        rows, size = [], 0
        for local_id, row in blocks_of(store, request.container_id):
            rows.append(block_key(request.container_id, local_id) + encode_block_row(row))
            size += len(rows[-1])
            if size > MAX_LISTED_BYTES:
                raise BlockError(
                    codes.OVERLOADED, f"the rows of container {request.container_id} take over {MAX_LISTED_BYTES} bytes"
                )
        return ContainerBlocks(
            container_id=request.container_id, closed=is_closed(store, request.container_id), blocks=rows
        )

    # -- for the stream server -------------------------------------------------------------------------------------

    def check_stream(self, partition: int, container_id: int, local_id: int) -> None:
        """Raise NO_SUCH_PIPELINE, PIPELINE_CLOSED, CONTAINER_CLOSED or BLOCK_DELETED if the block takes no bytes here."""
        check_block(partition, container_id, local_id)
        pipeline = self._pipeline(partition)
        if pipeline.is_closed():
            raise BlockError(codes.PIPELINE_CLOSED, f"{pipeline.opened.pipeline} is closed")
        if is_closed(pipeline.store, container_id):
            raise BlockError(codes.CONTAINER_CLOSED, f"container {container_id} is closed")
        row = pipeline.block(container_id, local_id)
        if row is None:
            return
        if row.deleted:
            raise BlockError(codes.BLOCK_DELETED, f"block {container_id}/{local_id} is deleted")
        self._blocks.committed(container_id, local_id, row.length)

    def readable(self, request: ReadBlock | SalvageBlock) -> Readable:
        """Return what may be read of a block: the committed bytes; with ``committed_only`` false (a peer repairs) what is stored.

        Of a block that is unhealthy here only a SalvageBlock may read: who has any choice reads a healthy replica. Whoever reads, each cell
        is verified before it is sent. Raises NO_SUCH_PIPELINE, NO_SUCH_BLOCK, BLOCK_DELETED, or NOT_COMMITTED if this replica has not
        applied ``bcs_id`` or does not have the bytes.
        """
        container_id, local_id = request.container_id, request.local_id
        check_block(request.partition, container_id, local_id)
        name = f"block {container_id}/{local_id}"
        if request.partition not in self._pipelines:
            return self._readable_copy(name, request)
        pipeline = self._pipeline(request.partition)
        # First the index: what is read behind it is at least as new.
        index = pipeline.replica.position.index
        row = pipeline.block(container_id, local_id)
        if row is not None and row.deleted:
            raise BlockError(codes.BLOCK_DELETED, f"{name} is deleted")
        salvage = isinstance(request, SalvageBlock)
        if isinstance(request, ReadBlock) and not request.committed_only:
            return self._stored(name, request, row)
        if index < request.bcs_id:
            raise BlockError(
                codes.NOT_COMMITTED, f"{name}: index {index} is applied here, {request.bcs_id} is asked for"
            )
        if row is None:
            raise BlockError(codes.NO_SUCH_BLOCK, f"{name} is not committed")
        reason = pipeline.unhealthy.get(block_key(container_id, local_id))
        if reason is not None and not salvage:
            raise BlockError(codes.NOT_COMMITTED, f"{name} is being repaired here: {reason}")
        written = self._blocks.written_length(container_id, local_id)
        if written < row.length:
            if reason is None:
                self.verifier.verify(pipeline, block_key(container_id, local_id))
            if not salvage:
                raise BlockError(codes.NOT_COMMITTED, f"{name}: its bytes are not here")
        return _committed(row, written)

    def _readable_copy(self, name: str, request: ReadBlock | SalvageBlock) -> Readable:
        """Return what may be read of a copy: what came with it as committed, never what its file happens to hold."""
        row = self._row(request.partition, request.container_id, request.local_id)
        if row is None or row.deleted:
            raise BlockError(codes.BLOCK_DELETED if row else codes.NO_SUCH_BLOCK, f"{name} is not in the copy here")
        if row.bcs_id < request.bcs_id:
            raise BlockError(
                codes.NOT_COMMITTED, f"{name}: the copy here is of index {row.bcs_id}, not {request.bcs_id}"
            )
        written = self._blocks.written_length(request.container_id, request.local_id)
        if written < row.length:
            reason = f"{name}: the copy here has {written} of {row.length} bytes, it is damaged"
            self.upkeep.damaged(request.container_id, request.local_id, reason)
            if not isinstance(request, SalvageBlock):
                raise BlockError(codes.NOT_COMMITTED, reason)
        return _committed(row, written)

    def _stored(self, name: str, request: ReadBlock, row: BlockRow | None) -> Readable:
        """Return what a peer may read that repairs itself. What is not committed here it verifies against its own row."""
        written = self._blocks.written_length(request.container_id, request.local_id)
        if row is not None and (written or not row.length):
            return _committed(row, written)
        found = self._blocks.checksums(request.container_id, request.local_id, written, CELL_BYTES) if written else None
        if found is None:
            raise BlockError(codes.NO_SUCH_BLOCK, f"{name} is not stored here")
        return Readable(length=written, bytes_per_checksum=CELL_BYTES, checksums=found)

    def found_corrupt(self, container_id: int, local_id: int, offset: int) -> None:
        """Take note that the cell at ``offset`` has not its checksum, or is missing.

        It is fetched from a peer, the block is unhealthy until then.
        """
        pipeline = self._pipelines.get(container_id % PARTITIONS)
        if pipeline is None:
            self._found_corrupt_copy(container_id, local_id, offset)
            return
        key = block_key(container_id, local_id)
        row = block_row(pipeline.store, key)
        if row is None or row.deleted or offset >= row.length:
            return
        self.verifier.repair(pipeline, key, offset // row.bytes_per_checksum)

    def _found_corrupt_copy(self, container_id: int, local_id: int, offset: int) -> None:
        try:
            row = self.copies.block(container_id, local_id)
        except BlockError:  # its rows are damaged too: the next look or scrub says so
            return
        if row is not None and not row.deleted and offset < row.length:
            reason = f"the copy of block {container_id}/{local_id} here is damaged at {offset}"
            self.upkeep.damaged(container_id, local_id, reason)


def _committed(row: BlockRow, written: int) -> Readable:
    """Return a block as it is committed, of which ``written`` bytes are here."""
    return Readable(
        length=row.length, bytes_per_checksum=row.bytes_per_checksum, checksums=row.checksums,
        stored=min(written, row.length),
    )  # fmt: skip


def _is_same(known: OpenPipeline, asked: OpenPipeline) -> bool:
    """Whether two say the same but for addresses, or the second a later generation of it."""

    def parts(one: OpenPipeline) -> tuple[str, list[str]]:
        return one.pipeline, [member.datanode for member in one.members]

    return parts(known) == parts(asked) and known.generation <= asked.generation
