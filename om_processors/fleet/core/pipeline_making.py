"""Which pipelines to make, retire and open again: functions of a :class:`~om_processors.fleet.core.fleet.Picture`.
Pure.

Rules:
    - A new pipeline has ``replicas`` datanodes that take blocks and have fewer than PIPELINES_PER_DATANODE open
      pipelines. They stand in two racks if healthy datanodes stand in two or more: then data crosses from rack to rack
      once, wherever a stream begins. They stand in three racks only if no two free datanodes share one. The datanode
      that leads fewest pipelines comes first.
    - A pipeline is retired when a member is dead or not in service. Its data stays readable, and its containers are
      closed.
    - A retired pipeline is opened again, as its next generation, when its members are back: a cluster has few
      partitions of ``dn.log`` in its life (``MAX_PIPELINES``), and many restarts. Opening one again is preferred to
      making a new one, unless a new one would take datanodes with less to do.
    - Once MANY_PIPELINES exist, partitions are saved. While some pipeline takes blocks, a new one is made only for a
      datanode that never was in any, or that is in no open one. While a datanode is away that may soon be back (silent
      for less than AWAITED_MS), its partners wait for it: no new pipeline is made, and the only ones opened again are
      those to which all their members belonged last.

As in ``placement``, nothing is remembered here: each turn decides anew, until rows and heartbeats show that the
decision is carried out.
"""

from __future__ import annotations

from om_processors.execution.requests.fleet import FIRST_GENERATION, first_free
from om_processors.fleet.core.fleet import Datanode, DatanodeHealth, Picture
from om_processors.fleet.core.placement import choices, streams_of
from schemas.datanode_states import CLOSED, IN_SERVICE
from schemas.records.datanode import PipelineRow
from schemas.records.messages import CreatePipeline, RetirePipeline
from schemas.sharding import MAX_PIPELINES

PIPELINE_REPLICAS = 3
"""Datanodes of a pipeline, if the cluster has so many."""
PIPELINES_PER_DATANODE = 2
"""Open pipelines that a datanode may be a member of (Ozone's ``ozone.scm.datanode.pipeline.limit``)."""
MANY_PIPELINES = MAX_PIPELINES // 4
"""From this number of pipelines on, closed ones included, partitions are saved."""
AWAITED_MS = 600_000
"""A datanode in service that has been silent for less than this is waited for: it may be restarting."""


def retirements(picture: Picture) -> list[RetirePipeline]:
    """Return the open pipelines that should take no more blocks, each with the reason."""
    found = []
    for row in picture.open_pipelines():
        reasons = [reason for one in row.members if (reason := _reason_to_retire(picture.member(one.datanode)))]
        if reasons:
            generation = picture.named(row.generation)
            found.append(RetirePipeline(partition=row.partition, reason="; ".join(reasons), generation=generation))
    return found


def _reason_to_retire(datanode: Datanode) -> str:
    if datanode.health is DatanodeHealth.DEAD:
        return f"{datanode.name} is dead"
    return "" if datanode.state == IN_SERVICE else f"{datanode.name} is {datanode.state}"


def new_pipeline(picture: Picture, replicas: int) -> CreatePipeline | None:
    """Return the next pipeline to create or to open again, None if there is none.

    It is one at a time, as each changes what the next one should be.

    ``replicas`` is PIPELINE_REPLICAS, or fewer where the cluster has fewer datanodes.
    """
    saving = len(picture.pipelines) >= MANY_PIPELINES and bool(choices(picture))
    awaiting = saving and _someone_is_awaited(picture)
    again = _to_reopen(picture, replicas, _latest(picture) if awaiting else None)
    fresh = _fresh(picture, replicas, saving=saving, awaiting=awaiting)
    if again is None or fresh is None:
        return again or fresh
    if not saving and _duties(picture, fresh) < _duties(picture, again):
        return fresh
    return again


def _fresh(picture: Picture, replicas: int, *, saving: bool, awaiting: bool) -> CreatePipeline | None:
    """Return a pipeline on an unused partition; None if none should be made, or an existing one should return."""
    partition = first_free(picture.pipelines)
    members = choose_members(picture, replicas) if partition < MAX_PIPELINES else None
    if members is None:
        return None
    if saving:
        known = {one.datanode for row in picture.pipelines for one in row.members}
        newcomer = any(node.name not in known for node in members)
        idle = not awaiting and any(not picture.pipelines_of(node.name) for node in members)
        if not newcomer and not idle:
            return None
    return CreatePipeline(
        partition=partition, members=[datanode.member for datanode in members],
        generation=picture.named(FIRST_GENERATION),
    )  # fmt: skip


def _latest(picture: Picture) -> dict[str, set[int]]:
    """Return the partitions of the pipelines that each datanode joined last, as many as it may be in."""
    found: dict[str, set[int]] = {}
    for row in sorted(picture.pipelines, key=lambda row: -row.opened_at_ms):
        for one in row.members:
            mine = found.setdefault(one.datanode, set())
            if len(mine) < PIPELINES_PER_DATANODE:
                mine.add(row.partition)
    return found


def _someone_is_awaited(picture: Picture) -> bool:
    """Return whether some pipeline's member is away and may soon be back."""
    members = {one.datanode for row in picture.pipelines for one in row.members}
    away = [node for name in members if not (node := picture.member(name)).takes_blocks]
    return any(node.state == IN_SERVICE and node.silent_ms < AWAITED_MS for node in away)


def _to_reopen(picture: Picture, replicas: int, latest: dict[str, set[int]] | None) -> CreatePipeline | None:
    """Return the closed pipeline to open again, the one whose members have least to do; None if there is none.

    With ``latest``, its partition must be in ``latest`` for each of its members.
    """
    if not picture.reopens:
        return None
    racks = {node.rack for node in _fit(picture)}
    closed = [row for row in picture.pipelines if row.state == CLOSED and len(row.members) == replicas]
    held = {container.partition for container in picture.containers.values()}
    # While partitions are left, do not open a pipeline whose members would first have to fetch all its blocks.
    forced = first_free(picture.pipelines) >= MAX_PIPELINES
    found = []
    for row in closed:
        members = [picture.member(one.datanode) for one in row.members]
        if latest is not None and any(row.partition not in latest[node.name] for node in members):
            continue
        spread = replicas == 1 or len(racks) == 1 or len({node.rack for node in members}) > 1
        if spread and all(_may_return(picture, row, node, forced or row.partition not in held) for node in members):
            generation = picture.named(row.generation + 1)
            found.append(
                CreatePipeline(
                    partition=row.partition, members=[node.member for node in members], generation=generation
                )
            )
    return min(found, key=lambda one: (_duties(picture, one), one.partition), default=None)


def _may_return(picture: Picture, row: PipelineRow, node: Datanode, may_be_empty: bool) -> bool:
    report = node.report(row.partition)
    whole = may_be_empty if report is None else report.healthy
    return whole and _is_fit(picture, node) and picture.pipelines_of(node.name) < PIPELINES_PER_DATANODE


def _duties(picture: Picture, create: CreatePipeline) -> int:
    """Return in how many open pipelines the members of a pipeline are, all together."""
    return sum(picture.pipelines_of(one.datanode) for one in create.members)


def _is_fit(picture: Picture, node: Datanode) -> bool:
    return node.takes_blocks and node.has_room(picture.min_free_bytes)


def _fit(picture: Picture) -> list[Datanode]:
    """Return the datanodes that may be members of a pipeline."""
    return [node for node in picture.datanodes.values() if _is_fit(picture, node)]


def choose_members(picture: Picture, replicas: int) -> list[Datanode] | None:
    """Return the datanodes of a new pipeline, the one that should lead first; None if no legal set is left."""
    fit = _fit(picture)
    spread = replicas > 1 and len({node.rack for node in fit}) > 1
    free = [node for node in fit if picture.pipelines_of(node.name) < PIPELINES_PER_DATANODE]
    free.sort(key=lambda node: (picture.pipelines_of(node.name), streams_of(node), node.name))
    if len(free) < replicas:
        return None
    chosen = _in_two_racks(free, replicas) if spread else free[:replicas]
    if chosen is None:
        return None
    first = min(chosen, key=lambda node: (_led_first(picture, node.name), chosen.index(node)))
    return [first, *(node for node in chosen if node is not first)]


def _in_two_racks(free: list[Datanode], replicas: int) -> list[Datanode] | None:
    """Return ``replicas`` datanodes of exactly two racks, those with least to do first; None if there are none."""
    for first in free:
        for second in free:
            if second.rack == first.rack:
                continue
            rest = [node for node in free if node.rack in (first.rack, second.rack) and node not in (first, second)]
            if len(rest) >= replicas - 2:
                return [first, second, *rest[: replicas - 2]]
    # If each free datanode stands in a rack of its own, three racks are the only choice.
    if len({node.rack for node in free}) == len(free):
        return free[:replicas]
    return None


def _led_first(picture: Picture, datanode: str) -> int:
    return sum(row.members[0].datanode == datanode for row in picture.open_pipelines())
