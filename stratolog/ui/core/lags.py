"""How far replicas are behind their partition, and the audit behind the replicas. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.records.core.freshness import ReportedPartition, behind_partitions, judged
from spark_streaming.verdicts.core.words import INCREMENTAL
from stratolog.ui.core.observed import Observed
from stratolog.ui.core.replica_grid import ReplicaGrid
from stratolog.ui.core.words import Tone, partition_words

FAR_INDEXES = 10_000
"""A replica that is further behind is yellow."""


class ReplicaLag(NamedTuple):
    """A replica: how many indexes it is behind the newest of its partition; None if its node does not answer."""

    name: str
    where: str
    behind: int | None
    tone: Tone


class AuditLag(NamedTuple):
    """A partition: indexes that nobody has judged, time since the newest verdict in ms (None: there is none)."""

    where: str
    behind: int
    age_ms: int | None
    tone: Tone


def replica_lags(grids: Sequence[ReplicaGrid]) -> list[ReplicaLag]:
    """Return the lag of every replica, those furthest behind first."""
    found = []
    for grid in grids:
        names = dict(grid.columns)
        for node, _, cells in grid.rows:
            found += [
                ReplicaLag(node, names[cell.replica.shard], cell.behind, _tone(cell.behind))
                for cell in filter(None, cells)
            ]
    return sorted(found, key=lambda lag: (lag.behind is not None, -(lag.behind or 0), lag.where, lag.name))


def _tone(behind: int | None) -> Tone:
    if behind is None or behind > FAR_INDEXES:
        return Tone.WARN
    return Tone.GOOD


def audit_lags(seen: Observed, grids: Sequence[ReplicaGrid]) -> list[AuditLag]:
    """Return how far the audit is behind in each partition that has a replica."""
    shown = judged(seen.verdicts, seen.reported_ms, seen.now_ms)
    silent = behind_partitions([one.verdict for one in shown], seen.reported_ms)
    found = []
    for grid in grids:
        for number, _ in grid.columns:
            mine = [
                one
                for one in shown
                if (one.verdict.log, one.verdict.shard, one.verdict.basis) == (grid.log, number, INCREMENTAL)
            ]
            newest = max(
                (
                    cell.index or 0
                    for _, _, cells in grid.rows
                    for cell in cells
                    if cell and cell.replica.shard == number
                ),
                default=0,
            )
            reached = max((one.verdict.index for one in mine), default=0)
            stale = ReportedPartition(grid.log, number) in silent or not mine or "audit" in seen.stopped
            found.append(
                AuditLag(
                    partition_words(grid.log, number) if grid.log in (OM_LOG, DN_LOG) else grid.log,
                    max(0, newest - reached),
                    min((one.age_ms for one in mine), default=None),
                    Tone.STALE if stale else Tone.GOOD,
                )
            )
    return found
