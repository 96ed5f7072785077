"""Requests that go through a pipeline's log: executed if this node leads, else sent on to the leader, once.

A request that was sent on (``Forwarded``) is executed or refused with NOT_LEADER, so no request goes round in circles.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.request_checks import check_chunk, check_put_block, check_together
from datanode_processors.pipeline.leader_calls import ANSWER_STEP_S, ANSWER_TIMEOUT_S, LeaderCalls, unwrap
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.core.ports import Clock
from replicated_db.shell.system import deadline_by
from schemas import stream_errors as codes
from schemas.records.datanode import ClosePipeline, Forwarded, PutBlock, PutBlocks, WriteChunk


class LogRequests:
    """The log requests of one datanode; for many threads."""

    def __init__(
        self, config: DatanodeConfig, pipelines: PipelineTable, clock: Clock, tls: WireTls | None = None
    ) -> None:  # fmt: skip
        self._config = config
        self._pipelines = pipelines
        self._clock = clock
        self._leaders = LeaderCalls(node=config.node, cluster=config.cluster, tls=tls)

    def close(self) -> None:
        """Close the connections to leaders that are kept."""
        self._leaders.close()

    @property
    def forwarded(self) -> int:
        """Requests sent on to a leader."""
        return self._leaders.sent

    def execute(self, request: Any) -> Any:
        """Answer a request that goes through the log, or that another member sent on; raises BlockError.

        Blocks until the answer is there.
        """
        if isinstance(request, Forwarded):
            return self._execute(unwrap(request), forward=False)
        return self._execute(request, forward=True)

    def _execute(self, request: Any, *, forward: bool) -> Any:
        if isinstance(request, PutBlock):
            check_put_block(request)
        elif isinstance(request, WriteChunk):
            check_chunk(request)
        elif isinstance(request, PutBlocks):
            check_together(request)
        pipeline = self._pipelines.member(request.partition)
        if pipeline.loop.leading:
            return self.wait_for(pipeline, request)
        leader = pipeline.leader_address()
        if not forward or not leader or leader == self._config.address:
            raise BlockError(
                codes.NOT_LEADER, f"datanode {self._config.node} does not lead {pipeline.opened.pipeline}", hint=leader
            )
        return self._leaders.ask(leader, request)

    def wait_for(self, pipeline: Pipeline, request: Any) -> Any:
        """Have a request executed by this node, which leads, and return the answer; raises BlockError."""
        answer = pipeline.proposals.submit(request)
        deadline = deadline_by(self._clock, ANSWER_TIMEOUT_S)
        while True:
            try:
                return answer.result(ANSWER_STEP_S)
            except FutureTimeoutError:
                if deadline.has_passed:
                    raise BlockError(
                        codes.TIMED_OUT, f"{pipeline.opened.pipeline}: not effective after {ANSWER_TIMEOUT_S:.0f} s"
                    ) from None

    def close_pipeline(self, request: ClosePipeline, timeout_s: float) -> None:
        """Close a pipeline through the log, whoever leads, and wait until that is applied here; raises BlockError."""
        pipeline = self._pipelines.member(request.partition)
        deadline = deadline_by(self._clock, timeout_s)
        while not pipeline.is_closed():
            try:
                self._execute(request, forward=True)
            except BlockError as error:
                passes = error.code in (codes.NOT_LEADER, codes.OVERLOADED, codes.TIMED_OUT, codes.NO_SUCH_PIPELINE)
                if not passes or deadline.has_passed:
                    raise
            with pipeline.changed:
                pipeline.changed.wait(ANSWER_STEP_S)
            if deadline.has_passed:
                raise BlockError(
                    codes.TIMED_OUT, f"{pipeline.opened.pipeline} is not closed here after {timeout_s:.0f} s"
                )
