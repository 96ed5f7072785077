"""Opening pipelines on a member: those of its registry at start, others when the Object Manager asks for them.

``core/member_registry`` decides; this module has the replicas, the file REGISTRY, and the locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import pipeline_row
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
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.pipeline.registry import REGISTRY, read_registry, write_registry
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import Clock, Log, LogUnavailable
from replicated_db.shell.leader_loop import LeaderLoop, Publisher
from replicated_db.shell.logs import Note
from replicated_db.shell.process import when_brokers_answer
from replicated_db.shell.startup import check_replica
from schemas import stream_errors as codes
from schemas.records.datanode import OpenPipeline, PipelineRow


class PipelineOpening:
    """Opens the pipelines of one datanode; for many threads."""

    def __init__(
        self, config: DatanodeConfig, blocks: BlockStore, topic_id: str, pipelines: PipelineTable, *, clock: Clock,
        note: Note, fatal: Callable[[BaseException], None], opened: Callable[[], None],
        wanted: Callable[[Pipeline, bytes], None], added: Callable[[Pipeline], None],
    ) -> None:  # fmt: skip
        """``opened`` is called before an unknown pipeline is opened, ``added`` after each opening.

        ``wanted`` is passed to the Pipeline.
        """
        self._config = config
        self._blocks = blocks
        self._topic_id = topic_id
        self._pipelines = pipelines
        self._clock = clock
        self._note = note
        self._fatal = fatal
        self._opened = opened
        self._wanted = wanted
        self._added = added
        self._outbox: Publisher | None = None
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._registry = MemberRegistry()
        self.follow: Callable[[int], None] = lambda _: None
        """Adds a partition to those that are fetched."""
        self.replicas: dict[int, Replica] = {}
        self.loops: dict[int, LeaderLoop] = {}
        self.follower_logs: dict[int, Log] = {}

    def open_known(self, outbox: Publisher) -> None:
        """Open the pipelines of the registry.

        Raises StopProcess kinds, LogUnavailable, OSError or ValueError for a bad registry.
        """
        self._outbox = outbox
        for opened in read_registry(self._config.data_dir / REGISTRY):
            with self._lock:
                self._registry.remember(opened)
            self._open_replica(opened)

    def open(self, request: OpenPipeline) -> Pipeline:
        """Follow a pipeline as the request says, and have it in the registry; raises BlockError."""
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
        return self._pipelines.member(request.partition)

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
                self._pipelines.member(request.partition).opened = request
            case SaveRegistry():
                with self._lock:
                    listed = self._registry.opened()
                write_registry(self._config.data_dir / REGISTRY, listed)
                with self._lock:
                    self._registry.on_saved(request.partition)

    def _open_and_follow(self, request: OpenPipeline) -> None:
        try:
            self._open_replica(request)
            self.follow(request.partition)
        except LogUnavailable as error:
            raise BlockError(codes.FAILED, f"{request.pipeline}: {error}") from error
        except StopProcess as error:
            raise BlockError(codes.FAILED, f"{request.pipeline} is not opened here: {error}") from error

    def _open_replica(self, opened: OpenPipeline) -> None:
        pipeline = self._pipeline(opened)
        row = pipeline_row(pipeline.store)
        with self._lock:
            self._registry.on_replica(opened.partition)
            if row is not None:
                self._registry.on_row(row)
            self.replicas[opened.partition] = pipeline.replica
            self.loops[opened.partition] = pipeline.loop
            self.follower_logs[opened.partition] = pipeline.follower_log
        self._pipelines.put(opened.partition, pipeline)
        self._added(pipeline)

    def _pipeline(self, opened: OpenPipeline) -> Pipeline:
        if self._outbox is None:
            raise RuntimeError("open_known comes first")
        pipeline = Pipeline(
            opened, self._config, self._blocks, self._topic_id, clock=self._clock, outbox=self._outbox, note=self._note,
            fatal=self._fatal, wanted=self._wanted,
        )  # fmt: skip
        try:
            when_brokers_answer(lambda: check_replica(pipeline.replica, pipeline.log, self._note))
        except BaseException:
            pipeline.close()
            raise
        return pipeline

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
