"""The grid: nodes by shards, datanodes by pipelines; each cell is one replica. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, INCREMENTAL, SCRUBBED
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.records.core.freshness import JudgedVerdict, judged
from stratolog.nodes.core.leaders import is_leader, view_of
from stratolog.ui.core.observed import Json, Observed
from stratolog.ui.core.verdict_book import JudgedReplica, standing
from stratolog.ui.core.words import Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCell:
    """One replica: what its node says of it, and what the audit does. ``index`` is None if the node does not answer."""

    replica: JudgedReplica
    role: str
    index: int | None
    behind: int | None
    flagged: bool
    verdict: str
    age_ms: int | None
    scanned_ms: int | None
    tone: Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGrid:
    """Rows are nodes, columns are partitions of one log; a cell that is None has no replica."""

    log: str
    columns: Sequence[tuple[int, str]]
    rows: Sequence[tuple[str, bool, Sequence[ReplicaCell | None]]]
    """(node, whether it answers, cells)"""


def grids_of(seen: Observed) -> list[ReplicaGrid]:
    """Return the grid of the Object Manager's nodes, and the datanodes' if there are any."""
    marks = _Marks(seen)
    shards = [(shard, f"shard {shard}") for shard in range(seen.shards)]
    found = [_grid(OM_LOG, shards, seen.nodes, _om_views(seen), marks)]
    if seen.datanodes or seen.datanode_statuses:
        names = {str(one["datanode"]) for one in seen.datanodes} | set(seen.datanode_statuses)
        statuses = {name: seen.datanode_statuses.get(name) for name in sorted(names)}
        pipelines = sorted({int(one["partition"]): str(one["pipeline"]) for one in _open(seen.pipelines)}.items())
        found.append(_grid(DN_LOG, pipelines, statuses, _dn_views(statuses), marks))
    return found


def _open(pipelines: Sequence[Json]) -> Iterator[Json]:
    return (one for one in pipelines if one["state"] != "CLOSED")


def _om_views(seen: Observed) -> Mapping[tuple[str, int], Json]:
    return {
        (name, shard): view
        for name, status in seen.nodes.items()
        for shard in range(seen.shards)
        if (view := view_of(status, shard))
    }


def _dn_views(statuses: Mapping[str, Json | None]) -> Mapping[tuple[str, int], Json]:
    return {
        (name, int(view["shard"])): view
        for name, status in statuses.items()
        for view in (status or {}).get("pipelines", ())
    }


class _Marks:
    """The audit's verdicts by replica."""

    def __init__(self, seen: Observed) -> None:
        self._shown: dict[tuple[JudgedReplica, str], JudgedVerdict] = {}
        for one in judged(seen.verdicts, seen.reported_ms, seen.now_ms):
            key = JudgedReplica(one.verdict.log, one.verdict.shard, one.verdict.node)
            self._shown[key, one.verdict.basis] = one
        self._diverged = {JudgedReplica(one.log, one.shard, one.node) for one in standing(seen.verdicts)}
        self._is_dead = "audit" in seen.stopped or seen.is_cut_off

    def of(self, replica: JudgedReplica) -> tuple[str, int | None, int | None, Tone]:
        """Return the verdict in a word, its age and that of the last full scan in ms, and the tone."""
        newest = self._shown.get((replica, INCREMENTAL)) or self._shown.get((replica, SCRUBBED))
        scan = self._shown.get((replica, SCRUBBED))
        scanned_ms = None if scan is None else scan.age_ms
        if replica in self._diverged:
            return DIVERGED, None if newest is None else newest.age_ms, scanned_ms, Tone.BAD
        if newest is None:
            return "not judged", None, scanned_ms, Tone.STALE
        stale = newest.is_stale or self._is_dead
        tone = Tone.STALE if stale else Tone.GOOD if newest.verdict.verdict == EQUAL else Tone.WARN
        return newest.verdict.verdict, newest.age_ms, scanned_ms, tone


def _grid(
    log: str, columns: Sequence[tuple[int, str]], statuses: Mapping[str, Json | None],
    views: Mapping[tuple[str, int], Json], marks: _Marks,
) -> ReplicaGrid:  # fmt: skip
    newest = {
        number: max((int(view["applied_index"]) for (_, at), view in views.items() if at == number), default=0)
        for number, _ in columns
    }
    rows = [
        (
            name,
            status is not None,
            [
                _cell(JudgedReplica(log, number, name), status, views.get((name, number)), newest[number], marks)
                for number, _ in columns
            ],
        )
        for name, status in statuses.items()
    ]
    return ReplicaGrid(log=log, columns=columns, rows=rows)


def _cell(
    replica: JudgedReplica, status: Json | None, view: Json | None, newest: int, marks: _Marks
) -> ReplicaCell | None:  # fmt: skip
    verdict, age_ms, scanned_ms, tone = marks.of(replica)
    if status is not None and view is None:
        return None
    if view is None:
        if age_ms is None and replica.log == DN_LOG:
            return None  # this datanode may be no member of the pipeline
        tone = tone if tone is Tone.BAD else Tone.WARN
        return ReplicaCell(
            replica=replica, role="no answer", index=None, behind=None, flagged=False, verdict=verdict, age_ms=age_ms,
            scanned_ms=scanned_ms, tone=tone,
        )  # fmt: skip
    index, flagged = int(view["applied_index"]), bool(view.get("flagged"))
    return ReplicaCell(
        replica=replica, role="leader" if is_leader(view) else "follower", index=index, behind=max(0, newest - index),
        flagged=flagged, verdict="flagged" if flagged else verdict, age_ms=age_ms, scanned_ms=scanned_ms,
        tone=Tone.BAD if flagged else tone,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDetails:
    """What is known of one replica, for its dialog. ``pid`` is its node's process, None if that does not answer."""

    replica: JudgedReplica
    pid: int | None
    view: Json
    verdicts: Sequence[JudgedVerdict]
    evidence: Mapping[str, Any]
    is_diverged: bool


def details_of(seen: Observed, replica: JudgedReplica) -> ReplicaDetails | None:
    """Return what is known of a replica; None if neither its node nor the audit knows it."""
    statuses = seen.nodes if replica.log == OM_LOG else seen.datanode_statuses
    status = statuses.get(replica.node)
    if replica.log == OM_LOG:
        view = view_of(status, replica.shard)
    else:
        views = (status or {}).get("pipelines", ())
        view = next((one for one in views if one["shard"] == replica.shard), {})
    verdicts = [
        one
        for one in judged(seen.verdicts, seen.reported_ms, seen.now_ms)
        if _is_of(one.verdict, replica)
    ]  # fmt: skip
    if not view and not verdicts:
        return None
    return ReplicaDetails(
        replica=replica, pid=(status or {}).get("pid"), view=view, verdicts=verdicts, evidence=view.get("evidence") or {},
        is_diverged=bool(view.get("flagged")) or any(_is_of(one, replica) for one in standing(seen.verdicts)),
    )  # fmt: skip


def _is_of(verdict: Verdict, replica: JudgedReplica) -> bool:
    return (verdict.log, verdict.shard, verdict.node) == replica
