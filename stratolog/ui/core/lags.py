"""How far replicas are behind their partition, and the audit behind the replicas. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from schemas.records.verdict_words import INCREMENTAL
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.records.core.freshness import JudgedVerdict, ReportedPartition, behind_partitions, judged
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
    """Return how far the audit is behind in each partition that has a replica, the silent ones and the last first."""
    shown = judged(seen.verdicts, seen.reported_ms, seen.now_ms)
    silent = behind_partitions([one.verdict for one in shown], seen.reported_ms)
    by_partition: dict[ReportedPartition, list[JudgedVerdict]] = {}
    for one in shown:
        if one.verdict.basis == INCREMENTAL:
            by_partition.setdefault(ReportedPartition(one.verdict.log, one.verdict.shard), []).append(one)
    found = []
    for grid in grids:
        newest = _newest_indexes(grid)
        for number, _ in grid.columns:
            partition = ReportedPartition(grid.log, number)
            mine = by_partition.get(partition, [])
            is_silent = partition in silent or not mine or "audit" in seen.stopped or seen.is_cut_off
            found.append(_audit_lag(partition, mine, newest.get(number, 0), is_silent=is_silent))
    return sorted(found, key=lambda lag: (lag.tone is Tone.GOOD, -lag.behind))  # stable: else in the logs' order


def _newest_indexes(grid: ReplicaGrid) -> dict[int, int]:
    newest: dict[int, int] = {}
    for cell in (cell for _, _, cells in grid.rows for cell in cells if cell):
        newest[cell.replica.shard] = max(cell.index or 0, newest.get(cell.replica.shard, 0))
    return newest


def _audit_lag(
    partition: ReportedPartition, mine: Sequence[JudgedVerdict], newest: int, *, is_silent: bool
) -> AuditLag:  # fmt: skip
    log, number = partition
    reached = max((one.verdict.index for one in mine), default=0)
    return AuditLag(
        partition_words(log, number) if log in (OM_LOG, DN_LOG) else log, max(0, newest - reached),
        min((one.age_ms for one in mine), default=None), Tone.STALE if is_silent else Tone.GOOD,
    )  # fmt: skip
