"""The picture of the datanodes: their heartbeats, joined with the rows of shard 0. Pure.

Rules:
    - The last heartbeat of a name counts. A datanode is *stale* after a third of the time-out, and *dead* after all of
      it. For a datanode that was never heard, silence counts from when this node began to listen, so a node that has
      just started declares nobody dead.
    - What an operator wants of a datanode, and which pipelines exist, are rows (``tables``): every node has the same.
    - A :class:`Picture` is a value of one moment. Every decision about datanodes is a function of it (``placement``).

Memory is bounded: MAX_DATANODES names, MAX_CONTAINERS containers of each (``containers``). When a further name is
heard, the dead datanode that has been silent longest is forgotten; it is dead all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from om_processors.fleet.core.containers import ContainersThat, FleetContainers, ReportedContainer
from schemas.datanode_states import DECOMMISSIONED, IN_SERVICE, OPEN
from schemas.records.datanode import ContainerReport, Heartbeat, Member, PipelineReport, PipelineRow
from schemas.records.rows import DatanodeRow

MAX_DATANODES = 256
"""Datanodes that are kept; heartbeats of further names are ignored while none of these is dead."""

STALE_PART = 3
"""A datanode is stale after this part of the time-out."""

ROOM_PART = 3 / 4
"""A container that holds this part of its size gets no further blocks, if another may take its place."""


class DatanodeHealth(Enum):
    """How long ago a datanode was last heard, in three steps."""

    HEALTHY = "HEALTHY"
    STALE = "STALE"
    DEAD = "DEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Datanode:
    """One datanode as this node sees it now. ``heartbeat`` is its last one, None if it was never heard.

    ``containers`` has all that its heartbeats have named; its last heartbeat may name only some of them.
    """

    name: str
    state: str
    health: DatanodeHealth
    silent_ms: int
    heartbeat: Heartbeat | None
    containers: Mapping[int, ContainerReport]
    whole: bool
    """Whether it holds no others, as far as is known (``containers``). False if it was never heard."""
    changed_at_ms: int = 0
    """When its row of state was written; 0 if it has none."""

    @property
    def alive(self) -> bool:
        """Whether it may be asked for anything."""
        return self.health is not DatanodeHealth.DEAD and self.heartbeat is not None

    @property
    def takes_blocks(self) -> bool:
        """Whether it is healthy and in service."""
        return self.health is DatanodeHealth.HEALTHY and self.state == IN_SERVICE and self.heartbeat is not None

    @property
    def rack(self) -> str:
        """The rack that its heartbeat names."""
        return "" if self.heartbeat is None else self.heartbeat.rack

    @property
    def member(self) -> Member:
        """The datanode as a member of a pipeline; raises ValueError if it was never heard."""
        if self.heartbeat is None:
            raise ValueError(f"datanode {self.name} was never heard")
        said = self.heartbeat
        return Member(datanode=self.name, address=said.address, http_address=said.http_address, rack=said.rack)

    def report(self, partition: int) -> PipelineReport | None:
        """Return its report about a pipeline, None if it does not follow the pipeline."""
        if self.heartbeat is None:
            return None
        return next((report for report in self.heartbeat.pipelines if report.partition == partition), None)

    def has_room(self, min_free_bytes: int) -> bool:
        """Whether it has ``min_free_bytes`` free, above its own reserve."""
        return self.heartbeat is not None and self.heartbeat.free_bytes >= min_free_bytes


@dataclass(frozen=True, kw_only=True)
class Picture:
    """All datanodes and pipelines at one moment. ``listened_ms`` is how long this node has listened to heartbeats."""

    datanodes: Mapping[str, Datanode]
    pipelines: tuple[PipelineRow, ...]
    containers: Mapping[int, ReportedContainer]
    """The containers on living datanodes, by container id, in no order."""
    listened_ms: int
    timeout_ms: int
    min_free_bytes: int
    reopens: bool
    """Whether closed pipelines may be opened again, which the cluster's feature level decides."""
    names_rows: bool
    """Whether requests name the rows that they were decided on, which the cluster's feature level decides."""
    switched_off: Mapping[str, Datanode]
    """The decommissioned datanodes that are dead, as they should be. They are not among ``datanodes``."""

    @property
    def settled(self) -> bool:
        """Whether this node has listened long enough to take silence for death."""
        return self.listened_ms >= self.timeout_ms

    @property
    def closed_containers(self) -> AbstractSet[int]:
        """Containers that take no blocks: some replica is closed already, and the others will be closed."""
        return ContainersThat(self.containers, lambda one: bool(one.closed_by))

    def containers_with_room(self, container_bytes: int) -> AbstractSet[int]:
        """Return the containers that are open everywhere and hold less than ROOM_PART of ``container_bytes``.

        The rest of a container is for blocks that are being written: when it is full it is closed, and they fail.
        """
        room = container_bytes * ROOM_PART
        return ContainersThat(self.containers, lambda one: not one.closed_by and one.used_bytes < room)

    def open_pipelines(self) -> tuple[PipelineRow, ...]:
        """Return the pipelines that should take blocks."""
        return tuple(row for row in self.pipelines if row.state == OPEN)

    def pipelines_of(self, datanode: str) -> int:
        """Return how many open pipelines a datanode is a member of."""
        return self._memberships[datanode]

    @cached_property
    def _memberships(self) -> Counter[str]:
        return Counter(one.datanode for row in self.open_pipelines() for one in row.members)

    def member(self, name: str) -> Datanode:
        """Return a datanode by name; it may never have been heard."""
        return self.datanodes.get(name) or self.switched_off.get(name) or self._unheard(name)

    def named(self, value: int) -> int:
        """Return how a request names a row by one of its numbers: 0, which is any row, until nodes know such names."""
        return value if self.names_rows else 0

    def found_at(self, member: Member) -> Member:
        """Return a pipeline's member with its present addresses if it was heard; those in its row may be old."""
        node = self.member(member.datanode)
        return member if node.heartbeat is None else node.member

    def _unheard(self, name: str) -> Datanode:
        health = DatanodeHealth.DEAD if self.settled else DatanodeHealth.STALE
        return Datanode(
            name=name, state=IN_SERVICE, health=health, silent_ms=self.listened_ms, heartbeat=None, containers={},
            whole=False,
        )  # fmt: skip


class Fleet:
    """The heartbeats heard so far; :meth:`picture` joins them with the rows. For one thread at a time.

    Times are in milliseconds of one clock.
    """

    def __init__(self, *, cluster: str, timeout_ms: int, min_free_bytes: int, since_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._min_free_bytes = min_free_bytes
        self._since_ms = since_ms
        self._heard: dict[str, tuple[Heartbeat, int]] = {}
        self._containers = FleetContainers()
        self._switched_off: AbstractSet[str] = frozenset()
        self.ignored = 0
        """Ignored heartbeats: of other clusters, or of names beyond MAX_DATANODES living ones."""

    def on_heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> None:
        """Take a heartbeat that was sent at ``now_ms`` of the local clock."""
        name = heartbeat.datanode
        if heartbeat.cluster != self._cluster or not self._has_place(name, now_ms):
            self.ignored += 1
            return
        self._containers.on_reports(name, heartbeat.containers)
        self._heard[name] = replace(heartbeat, containers=[]), now_ms

    def _has_place(self, name: str, now_ms: int) -> bool:
        if name in self._heard or len(self._heard) < MAX_DATANODES:
            return True
        longest = min(self._heard, key=lambda one: self._heard[one][1])
        if now_ms - self._heard[longest][1] <= self._timeout_ms:
            return False
        self._forget(longest)
        return True

    def _forget(self, name: str) -> None:
        del self._heard[name]
        self._containers.forget(name)

    def picture(
        self, pipelines: Iterable[PipelineRow], rows: Iterable[DatanodeRow], now_ms: int, *, reopens: bool = True,
        names_rows: bool = True,
    ) -> Picture:  # fmt: skip
        """Return the picture of this moment."""
        states = {row.datanode: row for row in rows}
        for name in self._switched_off - states.keys():  # its row was removed
            if name in self._heard and now_ms - self._heard[name][1] > self._timeout_ms:
                self._forget(name)
        seen = [self._seen(name, states.get(name), now_ms) for name in sorted({*self._heard, *states})]
        off = {one.name: one for one in seen if one.state == DECOMMISSIONED and one.health is DatanodeHealth.DEAD}
        self._switched_off = off.keys()
        datanodes = {one.name: one for one in seen if one.name not in off}
        return Picture(
            datanodes=datanodes,
            pipelines=tuple(pipelines),
            containers=self._containers.of({name for name, node in datanodes.items() if node.alive}),
            listened_ms=now_ms - self._since_ms,
            timeout_ms=self._timeout_ms,
            min_free_bytes=self._min_free_bytes,
            reopens=reopens,
            names_rows=names_rows,
            switched_off=off,
        )

    def _seen(self, name: str, row: DatanodeRow | None, now_ms: int) -> Datanode:
        heartbeat, heard_ms = self._heard.get(name, (None, self._since_ms))
        silent_ms = max(0, now_ms - heard_ms)
        if silent_ms > self._timeout_ms:
            health = DatanodeHealth.DEAD
        elif silent_ms > self._timeout_ms // STALE_PART or heartbeat is None:
            health = DatanodeHealth.STALE
        else:
            health = DatanodeHealth.HEALTHY
        known = None if heartbeat is None else self._containers.reported_by(name)
        return Datanode(
            name=name, state=IN_SERVICE if row is None else row.state, health=health, silent_ms=silent_ms,
            heartbeat=heartbeat, containers={} if known is None else known.reports,
            whole=known is not None and known.whole, changed_at_ms=0 if row is None else row.changed_at_ms,
        )  # fmt: skip
