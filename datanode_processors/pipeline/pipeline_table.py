"""The pipelines that this datanode is a member of, by partition: those followed, and those being installed."""

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
        self._awaited: set[int] = set()

    def __contains__(self, partition: int) -> bool:
        return partition in self._pipelines or partition in self._awaited

    def expect(self, partition: int) -> None:
        """Note that a pipeline is to come: its replica is being installed."""
        with self._lock:
            self._awaited.add(partition)

    def put(self, partition: int, pipeline: Pipeline) -> None:
        """Add a pipeline."""
        with self._lock:
            self._pipelines[partition] = pipeline
            self._awaited.discard(partition)

    def get(self, partition: int) -> Pipeline | None:
        """Return the pipeline of a partition, None if it is not followed here."""
        return self._pipelines.get(partition)

    def member(self, partition: int) -> Pipeline:
        """Return the pipeline of a partition.

        Raises BlockError: NO_SUCH_PIPELINE if there is none here, NOT_COMMITTED while its replica is being installed.
        """
        pipeline = self._pipelines.get(partition)
        if pipeline is None and partition in self._awaited:
            raise BlockError(
                codes.NOT_COMMITTED, f"datanode {self._node} installs its replica of partition {partition}: ask another"
            )
        if pipeline is None:
            raise BlockError(
                codes.NO_SUCH_PIPELINE, f"datanode {self._node} is no member of a pipeline on partition {partition}"
            )
        return pipeline

    def all(self) -> list[Pipeline]:
        """Return the pipelines by partition."""
        with self._lock:
            return [self._pipelines[partition] for partition in sorted(self._pipelines)]
