"""Findings of the passes over the topics: barriers, facts of the partitions, verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import BLOCKS, DIVERGED, EQUAL, LOG, SCRUBBED, UNKNOWN
from spark_streaming.batch.core.computed import LogPoint
from spark_streaming.records.core.reading import BASE, GENESIS
from spark_streaming.verdicts.core.written import LogBarrier, WrittenBatch


class LogPartition(NamedTuple):
    """A partition of a log: a shard, or a pipeline."""

    log: str
    shard: int


class VerdictKey(NamedTuple):
    """The subject of a verdict; a later verdict on the same subject replaces it."""

    partition: LogPartition
    node: str
    basis: str


class FactRow(NamedTuple):
    """A Genesis or Members record that counts, a base, or where and why a log is ``broken``.

    Only Genesis has ``shards``.
    """

    shard: int
    offset: int
    kind: str | None
    shards: int
    replicas: tuple[str, ...]
    broken: str | None


@dataclass(slots=True)
class PartitionFacts:
    """Facts from a partition's Genesis and its last Members record, and how its log is broken, if it is."""

    shards: int = 0
    replicas: list[str] = field(default_factory=list)
    broken: str | None = None
    late_from: int | None = None
    """Offset of the partition's first RequestBatch: from there on the oracle cannot compute the rows."""
    base: LogPoint | None = None
    """The base from which a trimmed log is judged: the oracle cannot compute its rows."""

    def is_late(self, offset: int) -> bool:
        """Say whether a RequestBatch lies before ``offset``."""
        return self.late_from is not None and self.late_from < offset


def facts_from(
    rows: Iterable[FactRow], late_from: Mapping[int, int], bases: Mapping[int, LogPoint]
) -> dict[int, PartitionFacts]:
    """Return each partition's facts. ``rows``: in order of offsets. ``late_from``: offset of the first RequestBatch."""
    found: dict[int, PartitionFacts] = {}
    for row in rows:
        fact = found.setdefault(row.shard, PartitionFacts())
        if row.broken is not None:
            fact.broken = f"offset {row.offset}: {row.broken}"
            continue
        if row.kind == BASE:
            continue
        fact.replicas = list(row.replicas)
        if row.kind == GENESIS:
            fact.shards = row.shards
    for shard, offset in late_from.items():
        found.setdefault(shard, PartitionFacts()).late_from = offset
    for shard, point in bases.items():
        found.setdefault(shard, PartitionFacts()).base = point
    return found


@dataclass(slots=True)
class GatheredVerdicts:
    """Findings of the passes: the barriers to judge at, and verdicts.

    While ``fixed`` is false, a shard's last barrier replaces the one before it. Once it is true, the barriers stay.
    """

    barriers: dict[LogPartition, LogBarrier] = field(default_factory=dict)
    verdicts: dict[VerdictKey, Verdict] = field(default_factory=dict)
    replicas: dict[LogPartition, list[str]] = field(default_factory=dict)
    fixed: bool = False

    def on_written(self, batch: WrittenBatch) -> None:
        """Take a micro-batch."""
        if not self.fixed:
            for barrier in sorted(batch.barriers, key=lambda barrier: barrier.offset):
                self.barriers[LogPartition(barrier.log, barrier.shard)] = barrier
        for verdict in batch.verdicts:
            if verdict.basis.endswith(BLOCKS):
                continue  # it compares members with each other; this job compares them with the log's rows
            key = VerdictKey(LogPartition(verdict.log, verdict.shard), verdict.node, verdict.basis)
            known = self.verdicts.get(key)
            last = self.barriers.get(key.partition)
            is_past = last is not None and verdict.barrier_offset > last.offset and verdict.basis != LOG
            if not is_past and (known is None or verdict.barrier_offset >= known.barrier_offset):
                self.verdicts[key] = verdict

    def judged(self, partition: LogPartition, node: str) -> Verdict | None:
        """Return the verdict that counts for a replica: the worst at the barrier, or an earlier one on a broken log."""
        last = self.barriers[partition].offset if partition in self.barriers else -1
        found = [
            verdict
            for key, verdict in self.verdicts.items()
            if key.partition == partition
            and key.node in (node, "")
            and (verdict.barrier_offset == last or key.basis == LOG)
        ]
        rank = {DIVERGED: 0, UNKNOWN: 1, EQUAL: 2}
        # Of equally bad verdicts, one that rests on a scrub says more.
        return min(
            found, key=lambda verdict: (rank[verdict.verdict], not verdict.basis.endswith(SCRUBBED)), default=None
        )

    def is_settled(self) -> bool:
        """Say whether every replica has a verdict at the barrier of its shard."""
        return all(
            (verdict := self.judged(partition, node)) is not None and verdict.verdict != UNKNOWN
            for partition, nodes in self.replicas.items()
            for node in nodes
        )
