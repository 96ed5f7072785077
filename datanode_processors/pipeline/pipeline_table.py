"""The pipelines that are followed here, by partition."""

from __future__ import annotations

import threading

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.pipeline import Pipeline
from schemas import stream_errors as codes


class PipelineTable:
    """The table of one datanode; for many threads. Pipelines are added and never removed."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._pipelines: dict[int, Pipeline] = {}

    def __contains__(self, partition: int) -> bool:
        return partition in self._pipelines

    def put(self, partition: int, pipeline: Pipeline) -> None:
        """Add a pipeline."""
        with self._lock:
            self._pipelines[partition] = pipeline

    def get(self, partition: int) -> Pipeline | None:
        """Return the pipeline of a partition, None if there is none here."""
        return self._pipelines.get(partition)

    def member(self, partition: int) -> Pipeline:
        """Return the pipeline of a partition; raises BlockError NO_SUCH_PIPELINE if there is none here."""
        pipeline = self._pipelines.get(partition)
        if pipeline is None:
            raise BlockError(
                codes.NO_SUCH_PIPELINE, f"datanode {self._node} is no member of a pipeline on partition {partition}"
            )
        return pipeline

    def all(self) -> list[Pipeline]:
        """Return the pipelines by partition."""
        with self._lock:
            return [self._pipelines[partition] for partition in sorted(self._pipelines)]
