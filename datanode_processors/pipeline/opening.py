"""Opening pipelines on a member: those of its registry at start, others when the Object Manager asks for them.

A pipeline whose replica wants a member's checkpoint is opened once that is installed (``installs``).

``core/member_registry`` decides; this module has the replicas, the file REGISTRY, and the locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.chunk_store import ChunkReader, ChunkStore
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES, pipeline_row
from datanode_processors.pipeline.core.member_registry import (
    Adopt,
    MemberRegistry,
    OpenReplica,
    OpenStep,
    PipelineState,
    SaveRegistry,
    TellOpened,
)
from datanode_processors.pipeline.core.request_checks import check_members
from datanode_processors.pipeline.installs import PipelineInstalls, PipelineToInstall
from datanode_processors.pipeline.pipeline import Pipeline, folder_of
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.pipeline.registry import REGISTRY, read_registry, write_registry
from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.bootstrap.opening import BootstrapPolicy, ReplicaToOpen, look_at
from replicated_db.shell.database.host import DatabaseHost
from schemas import stream_errors as codes
from schemas.records.datanode import OpenPipeline, PipelineRow


class PipelineOpening:
    """Opens the pipelines of one datanode; for many threads."""

    def __init__(
        self, config: DatanodeConfig, blocks: BlockStore, host: DatabaseHost, pipelines: PipelineTable, *,
        opened: Callable[[], None], wanted: Callable[[Pipeline, bytes], None], added: Callable[[Pipeline], None],
    ) -> None:  # fmt: skip
        """``opened`` is called before an unknown pipeline is opened, ``added`` after each opening.

        ``wanted`` is passed to the Pipeline.
        """
        self._config = config
        self._blocks = blocks
        self._host = host
        self._pipelines = pipelines
        self._opened = opened
        self._wanted = wanted
        self._added = added
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._registry = MemberRegistry()
        self.follow: Callable[[int], None] = lambda _: None
        """Adds a partition to those that are fetched."""
        self.installs = PipelineInstalls(self._policy, self._on_installed, host.note, host.fatal)

    def open_known(self) -> None:
        """Open the pipelines of the registry.

        Raises StopProcess kinds, LogUnavailable, OSError or ValueError for a bad registry.
        """
        for opened in read_registry(self._config.data_dir / REGISTRY):
            with self._lock:
                self._registry.remember(opened)
            self._open_replica(opened)

    def open(self, request: OpenPipeline) -> Pipeline | None:
        """Follow a pipeline as the request says, and have it in the registry; raises BlockError.

        Returns None if its replica is to be installed first.
        """
        check_members(request)
        if self._config.node not in [member.datanode for member in request.members]:
            raise BlockError(
                codes.INVALID_REQUEST,
                f"datanode {self._config.node} is no member of {request.pipeline} as it was asked",
            )
        with self._opening:
            with self._lock:
                steps = self._registry.ask(request)
            try:
                for step in steps:
                    self._do(step, request)
            except BaseException:
                self._give_up(request.partition)
                raise
        return self._pipelines.get(request.partition)

    def _give_up(self, partition: int) -> None:
        """Forget a pipeline whose replica was not opened: the next request begins anew."""
        with self._lock:
            if self._registry.state_of(partition) is PipelineState.OPENING:
                self._registry.on_failure(partition)

    def _do(self, step: OpenStep, request: OpenPipeline) -> None:
        match step:
            case TellOpened():
                self._opened()
            case OpenReplica():
                self._open_and_follow(request)
            case Adopt():
                with self._lock:
                    self._registry.adopt(request)
                if (pipeline := self._pipelines.get(request.partition)) is not None:
                    pipeline.opened = request
            case SaveRegistry():
                with self._lock:
                    listed = self._registry.opened()
                write_registry(self._config.data_dir / REGISTRY, listed)
                with self._lock:
                    self._registry.on_saved(request.partition)

    def _open_and_follow(self, request: OpenPipeline) -> None:
        try:
            if self._open_replica(request):
                self.follow(request.partition)
        except LogUnavailable as error:
            raise BlockError(codes.FAILED, f"{request.pipeline}: {error}") from error
        except StopProcess as error:
            raise BlockError(codes.FAILED, f"{request.pipeline} is not opened here: {error}") from error

    def _open_replica(self, opened: OpenPipeline) -> bool:
        """Open a replica, and return whether it can be followed. If not, it is installed from a member first."""
        place = self._place(opened.partition)
        found = look_at(place, self._config.bootstrap_records, self._host.note)
        if isinstance(found, Replica):
            self._opened_replica(opened.partition, place, found)
            return True
        self._pipelines.expect(opened.partition)
        with self._lock:
            self._registry.on_wants_checkpoint(opened.partition)
        self.installs.add(
            PipelineToInstall(partition=opened.partition, pipeline=opened.pipeline, place=place, wants=found)
        )
        return False

    def _place(self, partition: int) -> ReplicaToOpen:
        folder = folder_of(self._config.data_dir, partition)
        return self._host.place(
            partition, folder, DN_FAMILIES, lambda: ChunkStore(folder, DN_FAMILIES.names, self._blocks),
            reader=ChunkReader,
        )  # fmt: skip

    def _policy(self, partition: int) -> BootstrapPolicy:
        """Say who may be asked for a checkpoint: the other members, where the last request says that they are."""
        with self._lock:
            members = self._registry.asked_for(partition).members
        own = self._config.node
        peers = [ServingPeer(one.datanode, one.http_address) for one in members if one.datanode != own]
        return self._host.policy(
            lambda: [peer for peer in peers if peer.address], searches=1, stopping=lambda: self.installs.is_stopping
        )

    def _on_installed(self, partition: int, place: ReplicaToOpen, replica: Replica) -> None:
        with self._opening:
            self._opened_replica(partition, place, replica)
            self.follow(partition)

    def _opened_replica(self, partition: int, place: ReplicaToOpen, replica: Replica) -> None:
        """Make the pipeline of an open replica; requests find it from here on."""
        with self._lock:
            opened = self._registry.asked_for(partition)
        pipeline = Pipeline(opened, replica, place.log, self._config, self._blocks, self._host, self._wanted)
        row = pipeline_row(pipeline.store)
        with self._lock:
            self._registry.on_replica(partition)
            if row is not None:
                self._registry.on_row(row)
        self._pipelines.put(partition, pipeline)
        self._added(pipeline)

    def on_row(self, row: PipelineRow) -> None:
        """Take note of a pipeline's row that was applied here; called on the thread that applied it."""
        with self._lock:
            self._registry.on_row(row)

    def is_for_the_log(self, pipeline: Pipeline, request: OpenPipeline) -> bool:
        """Whether a leader is to bring the request to the log: not if its generation is closed."""
        row = pipeline_row(pipeline.store)
        with self._lock:
            if row is not None:
                self._registry.on_row(row)
            return self._registry.is_for_the_log(request)
