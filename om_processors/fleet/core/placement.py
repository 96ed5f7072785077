"""What datanodes and containers need, and which pipelines take blocks: functions of a
:class:`~om_processors.fleet.core.fleet.Picture`. Pure.

``pipeline_making`` decides which pipelines exist. Rules:
    - A pipeline takes blocks while it is open, and every member is healthy, in service, has room, and follows the
      pipeline's present generation without a fault.
    - A closed container is copied until as many datanodes in service hold a good replica as its pipeline has members.
      Datanodes in maintenance, or entering it, count as holders, because they come back. A container without a block on
      any holder needs no replicas, as there is nothing to fetch (only older datanodes still report it; others drop it).
    - A datanode whose report is not whole yet (``containers``) counts as a holder of every container, and gets no
      copies.
    - A datanode that holds a container without being a member of its pipeline is told whom to ask about it: to repair
      it, and to delete what was deleted while the datanode was away or was still fetching.
    - A datanode that leaves is DECOMMISSIONED when enough others hold all that it reported last. Silence proves
      nothing: one that this node has never heard stays DECOMMISSIONING until it is heard.
    - Nobody counts as dead before this node has listened for the whole time-out (``Picture.settled``).

Nothing is remembered here: each turn of the loop repeats a decision until rows and heartbeats show that it is carried
out. The limits below bound the decisions of one turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice

from om_processors.execution.requests.fleet import FIRST_GENERATION
from om_processors.fleet.core.containers import ReportedContainer
from om_processors.fleet.core.fleet import Datanode, Picture
from om_processors.namespace.context import NumberedPipeline
from schemas.datanode_states import (
    CLOSED,
    DECOMMISSIONED,
    DECOMMISSIONING,
    ENTERING_MAINTENANCE,
    IN_MAINTENANCE,
    IN_SERVICE,
    OPEN,
)
from schemas.records.datanode import ContainerReport, PipelineRow
from schemas.records.messages import SetDatanodeState
from schemas.records.record import record

MAX_COPIES_PER_TURN = 20
"""Containers that are copied in one turn of the loop."""
MAX_COPIES_PER_DATANODE = 2
"""Containers that one datanode is asked to fetch in one turn."""
MAX_SOURCES = 16
"""Addresses that a datanode is given for one container, as many as it accepts."""
MAX_CLOSES_PER_TURN = 100
LOAD_SLACK = 16
"""A pipeline gets no blocks for a while if its busiest member has more streams than this beyond those of the least busy
pipeline.
"""


@record
class Copy:
    """A closed container that ``target`` should fetch, or already holds; ``sources`` are the addresses of its other
    holders.
    """

    container_id: int
    partition: int
    target: str
    sources: tuple[str, ...]


# ---- allocation


def is_usable(picture: Picture, row: PipelineRow) -> bool:
    """Return whether a pipeline takes blocks now."""
    if row.state != OPEN:
        return False
    for one in row.members:
        datanode = picture.member(one.datanode)
        report = datanode.report(row.partition)
        if report is None or not report.healthy or not datanode.takes_blocks:
            return False
        if report.generation != row.generation:
            return False
        if not datanode.has_room(picture.min_free_bytes):
            return False
    return True


def choices(picture: Picture) -> tuple[NumberedPipeline, ...]:
    """Return the pipelines for new blocks, in the order of their numbers; the caller goes round robin.

    Pipelines without a leader, and those much busier than others, are left out while there are others.
    """
    usable = [row for row in picture.pipelines if is_usable(picture, row)]
    led = [row for row in usable if leader(picture, row) is not None] or usable
    loads = {row.partition: _load(picture, row) for row in led}
    least = min(loads.values(), default=0)
    return tuple((row.partition, row.pipeline) for row in led if loads[row.partition] <= least + LOAD_SLACK)


def generations(picture: Picture) -> dict[int, int]:
    """Return the generations of the pipelines that have been opened again, by partition."""
    return {row.partition: row.generation for row in picture.pipelines if row.generation > FIRST_GENERATION}


def leader(picture: Picture, row: PipelineRow) -> str | None:
    """Return the member that reports that it leads a pipeline, None if none does."""
    for one in row.members:
        report = picture.member(one.datanode).report(row.partition)
        if report is not None and report.leading:
            return one.datanode
    return None


def _load(picture: Picture, row: PipelineRow) -> int:
    return max((streams_of(picture.member(one.datanode)) for one in row.members), default=0)


def streams_of(datanode: Datanode) -> int:
    return 0 if datanode.heartbeat is None else datanode.heartbeat.active_streams


# ---- messages for datanodes


def to_open(picture: Picture) -> list[tuple[PipelineRow, Datanode]]:
    """Return the open pipelines, each with a living member that does not follow its present generation yet."""
    return [
        (row, datanode)
        for row in picture.open_pipelines()
        for one in row.members
        if (datanode := picture.member(one.datanode)).alive and _follows_less(datanode, row)
    ]


def _follows_less(datanode: Datanode, row: PipelineRow) -> bool:
    report = datanode.report(row.partition)
    return report is None or report.generation < row.generation


def to_close(picture: Picture) -> list[tuple[PipelineRow, Datanode]]:
    """Return the closed pipelines, each with a living member that follows it and must be told of the closing."""
    return [
        (row, datanode)
        for row in picture.pipelines
        if row.state == CLOSED
        for one in row.members
        if (datanode := picture.member(one.datanode)).alive and datanode.report(row.partition) is not None
    ]


def full_containers(picture: Picture, container_bytes: int) -> list[tuple[ReportedContainer, list[Datanode]]]:
    """Return open containers that should be closed, with the members to ask, the leader first.

    They are full, or belong to closed pipelines, or one replica has closed them.
    """
    rows = {row.partition: row for row in picture.pipelines}
    due = [
        container
        for container in picture.containers.values()
        if (row := rows.get(container.partition)) is not None
        and not container.closed_by >= container.held_by
        and (container.used_bytes >= container_bytes or container.closed_by or row.state == CLOSED)
    ]
    asked = {number: _to_ask(picture, rows[number]) for number in {container.partition for container in due}}
    answered = [container for container in due if asked[container.partition]]
    answered.sort(key=lambda container: container.container_id)
    return [(container, asked[container.partition]) for container in answered[:MAX_CLOSES_PER_TURN]]


def _to_ask(picture: Picture, row: PipelineRow) -> list[Datanode]:
    """Return the living members that follow a pipeline, the leader first."""
    leads = leader(picture, row)
    members = [picture.member(one.datanode) for one in row.members]
    living = [node for node in members if node.alive and node.report(row.partition) is not None]
    return sorted(living, key=lambda node: node.name != leads)


def spokesman(picture: Picture, row: PipelineRow) -> Datanode | None:
    """Return the member to ask for an entry in a pipeline's log, the leader if it is known; None if none lives."""
    return next(iter(_to_ask(picture, row)), None)


# ---- containers


def holders(picture: Picture, container: ReportedContainer, *, closed: bool = True) -> list[Datanode]:
    """Return the datanodes that count as holders of a good replica; with ``closed``, of one that is closed."""
    good = container.healthy_on & container.closed_by if closed else container.healthy_on
    return [node for name in sorted(good) if _counts(node := picture.member(name))]


def _counts(node: Datanode) -> bool:
    return node.alive and node.state in (IN_SERVICE, ENTERING_MAINTENANCE, IN_MAINTENANCE)


def copies(picture: Picture, fetching: Collection[tuple[int, str]] = ()) -> list[Copy]:
    """Return which containers to copy where; ``fetching`` are the copies under way, as (container, datanode).

    Containers with the fewest replicas come first.
    """
    if not picture.settled:
        return []
    short: list[tuple[int, ReportedContainer, PipelineRow]] = []
    rows = {row.partition: row for row in picture.pipelines}
    under_way = Counter(number for number, _ in fetching)
    counted = {node.name for node in picture.datanodes.values() if _counts(node)}
    unsure = {name for name in counted if not picture.member(name).whole}
    away = _in_maintenance(picture)
    # By pipeline: those of whom it is unknown whether they hold a container that they do not report.
    perhaps = {number: unsure | away & {one.datanode for one in row.members} for number, row in rows.items()}
    for container in picture.containers.values():
        row = rows.get(container.partition)
        if row is None or not container.closed_by or container.emptied:
            continue
        # A replica that is not closed yet will be closed, so it needs no replacement.
        have = len(container.healthy_on & counted) + len(perhaps[row.partition] - container.held_by)
        if have + under_way[container.container_id] < len(row.members):
            short.append((have, container, row))
    short.sort(key=lambda one: (one[0], one[1].container_id))
    return _targets(picture, ((container, row) for _, container, row in short), fetching)


def _in_maintenance(picture: Picture) -> set[str]:
    states = (ENTERING_MAINTENANCE, IN_MAINTENANCE)
    return {node.name for node in picture.datanodes.values() if node.state in states}


def _targets(
    picture: Picture, short: Iterable[tuple[ReportedContainer, PipelineRow]], fetching: Collection[tuple[int, str]]
) -> list[Copy]:
    busy: dict[str, int] = {}
    for _, name in fetching:
        busy[name] = busy.get(name, 0) + 1
    found: list[Copy] = []
    for container, _ in short:
        if len(found) == MAX_COPIES_PER_TURN:
            break
        sources = [picture.member(name) for name in sorted(container.healthy_on & container.closed_by)]
        addresses = tuple(node.heartbeat.address for node in sources if node.alive and node.heartbeat is not None)
        addresses = addresses[:MAX_SOURCES]
        target = _target(picture, container, busy)
        if not addresses or target is None:
            continue
        busy[target.name] = busy.get(target.name, 0) + 1
        found.append(
            Copy(
                container_id=container.container_id,
                partition=container.partition,
                target=target.name,
                sources=addresses,
            )
        )
    return found


def copy_sources(picture: Picture) -> list[Copy]:
    """Return, for every copy on a living datanode outside the pipeline, whom to ask about it.

    First come the living members that follow the pipeline, even those that deleted all of the container: they know the
    deletions. Then come the other holders, damaged ones too: each may have good bytes that another lacks.
    """
    rows = {row.partition: row for row in picture.pipelines}
    members = {number: frozenset(one.datanode for one in row.members) for number, row in rows.items()}
    following = {
        number: [one.datanode for one in row.members if picture.member(one.datanode).report(number) is not None]
        for number, row in rows.items()
    }
    copied = [
        (container, sorted(outside))
        for container in picture.containers.values()
        if (outside := container.closed_by - members.get(container.partition, container.closed_by))
    ]
    found = []
    for container, copies in sorted(copied, key=lambda one: one[0].container_id):
        living = {
            node.name: node.heartbeat.address
            for node in map(picture.member, (*following[container.partition], *copies))
            if node.alive and node.heartbeat is not None
        }
        for name in copies:
            others = (address for holder, address in living.items() if holder != name)
            sources = tuple(islice(others, MAX_SOURCES))
            if sources and picture.member(name).alive:
                found.append(
                    Copy(
                        container_id=container.container_id,
                        partition=container.partition,
                        target=name,
                        sources=sources,
                    )
                )
    return found


def _target(picture: Picture, container: ReportedContainer, busy: dict[str, int]) -> Datanode | None:
    """Return which datanode should fetch a container: the one with least to do, then with most room.

    It stands in a rack that has no replica if all replicas stand in one rack.
    """
    racks = {node.rack for node in holders(picture, container)}
    fit = [
        node
        for node in picture.datanodes.values()
        if node.takes_blocks
        and node.whole
        # a datanode with a damaged replica repairs it itself, from its peers
        and node.name not in container.held_by
        and busy.get(node.name, 0) < MAX_COPIES_PER_DATANODE
        and node.has_room(max(picture.min_free_bytes, container.used_bytes))
    ]
    return min(
        fit,
        key=lambda node: (
            len(racks) == 1 and node.rack in racks, busy.get(node.name, 0), -_free(node), node.name,
        ),
        default=None,
    )  # fmt: skip


def _free(node: Datanode) -> int:
    return 0 if node.heartbeat is None else node.heartbeat.free_bytes


# ---- datanodes that leave


def reached(picture: Picture) -> list[SetDatanodeState]:
    """Return the datanodes that have reached the state that their operator wants."""
    found = []
    for node in picture.datanodes.values():
        if picture.pipelines_of(node.name):
            continue
        if node.state == DECOMMISSIONING and picture.settled and not _still_needed(picture, node):
            found.append(_is_reached(picture, node, DECOMMISSIONED))
        elif node.state == ENTERING_MAINTENANCE:
            found.append(_is_reached(picture, node, IN_MAINTENANCE))
    return found


def _is_reached(picture: Picture, node: Datanode, state: str) -> SetDatanodeState:
    return SetDatanodeState(datanode=node.name, state=state, changed_at_ms=picture.named(node.changed_at_ms))


def _still_needed(picture: Picture, node: Datanode) -> bool:
    """Return whether a datanode holds data that too few others hold, or may hold more than it has reported."""
    return not node.whole or _holds_needed(picture, node)


def _holds_needed(picture: Picture, node: Datanode) -> bool:
    rows = {row.partition: row for row in picture.pipelines}
    return any(
        _is_needed(picture, report, rows[report.partition])
        for report in node.containers.values()
        if report.partition in rows
    )


def _is_needed(picture: Picture, report: ContainerReport, row: PipelineRow) -> bool:
    container = picture.containers.get(report.container_id)
    if container is None:  # it is silent, and no living datanode holds the container
        return report.blocks > 0
    return not container.emptied and len(holders(picture, container)) < len(row.members)


class GoneDatanodes(AbstractSet[str]):
    """Decommissioned datanodes that are silent and, as far as is known, hold nothing that too few others hold.

    What one of them has reported is looked at when it is asked for.
    """

    __slots__ = ("_picture",)

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def __contains__(self, name: object) -> bool:
        node = self._picture.switched_off.get(name) if isinstance(name, str) else None
        return node is not None and self._picture.settled and not _holds_needed(self._picture, node)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._picture.switched_off if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
