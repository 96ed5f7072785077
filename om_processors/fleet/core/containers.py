"""The containers that datanodes report, kept by increments: a heartbeat costs what it changes. Pure.

Rules:
    - A heartbeat with fewer than MAX_REPORTED_CONTAINERS containers names all that its datanode has. Otherwise the
      datanode reports them in turns, and a *round* is as many turns as name all that are known.
    - Of a datanode that reports in turns a container is forgotten when FORGOTTEN_ROUNDS rounds have not named it.
    - Its report is *whole* when WHOLE_ROUNDS rounds have been heard. Until then it may hold any container: what it has
      not named is not missing.
    - Turns may be lost, and a datanode names changed containers in place of others. So one round is not enough, and a
      turn of which more than three quarters have changed does not count: older datanodes name nothing else while much
      changes.

Memory is bounded: MAX_CONTAINERS containers of each datanode. With more its report is never whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from om_processors.fleet.core.persistent_map import PersistentMap
from schemas.records.datanode import MAX_REPORTED_CONTAINERS, ContainerReport

MAX_CONTAINERS = 200_000
"""Containers that are kept of one datanode."""
WHOLE_ROUNDS = 2
FORGOTTEN_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedContainer:
    """A container as its holders report it.

    By datanode: whether the replica is good and closed. Bytes and blocks are the highest that any replica has.
    """

    container_id: int
    partition: int
    used_bytes: int
    blocks: int
    closed_by: frozenset[str]
    healthy_on: frozenset[str]
    held_by: frozenset[str]

    @property
    def emptied(self) -> bool:
        """Whether it is closed on all its holders, and has no block left."""
        return self.closed_by == self.held_by and not self.blocks


class ContainersThat(AbstractSet[int]):
    """The reported containers of which something is true, asked when it is needed: there are very many."""

    __slots__ = ("_containers", "_is_in")

    def __init__(self, containers: Mapping[int, ReportedContainer], is_in: Callable[[ReportedContainer], bool]) -> None:
        self._containers = containers
        self._is_in = is_in

    def __contains__(self, number: object) -> bool:
        found = self._containers.get(number) if isinstance(number, int) else None
        return found is not None and self._is_in(found)

    def __iter__(self) -> Iterator[int]:
        return (number for number, container in self._containers.items() if self._is_in(container))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ReportedByOne:
    """What one datanode has reported. ``reports`` is a value: it may be read while the next heartbeat is taken."""

    __slots__ = ("_begun", "_named", "_turn", "in_turns", "reports")

    def __init__(self) -> None:
        self.reports: PersistentMap[ContainerReport] = PersistentMap()
        self.in_turns = False
        self._named: OrderedDict[int, int] = OrderedDict()
        """By container: the turn that named it last, the oldest first."""
        self._turn = 0
        self._begun = 0
        """The turn before those that count for a whole report."""

    @property
    def whole(self) -> bool:
        """Whether it holds no container that is not among ``reports``."""
        return not self.in_turns or self._turn - self._begun >= WHOLE_ROUNDS * self._round

    @property
    def _round(self) -> int:
        return -(-len(self._named) // MAX_REPORTED_CONTAINERS)

    def on_reports(self, reports: Collection[ContainerReport]) -> dict[int, ContainerReport | None]:
        """Take the containers of a heartbeat; return what has changed, None for what is gone."""
        in_turns = len(reports) >= MAX_REPORTED_CONTAINERS
        if not in_turns:
            self._turn += 1
        elif not self.in_turns:
            self._begun = self._turn
        self.in_turns = in_turns
        changes: dict[int, ContainerReport | None] = {}
        for report in reports:
            number = report.container_id
            if number not in self._named and len(self._named) >= MAX_CONTAINERS:
                self._begun = self._turn
                continue
            self._named[number] = self._turn
            self._named.move_to_end(number)
            if self.reports.get(number) != report:
                changes[number] = report
        if in_turns and 4 * len(changes) <= 3 * len(reports):
            self._turn += 1
        patience = FORGOTTEN_ROUNDS * self._round if in_turns else 0
        while self._named and (oldest := next(iter(self._named.items())))[1] < self._turn - patience:
            del self._named[oldest[0]]
            changes[oldest[0]] = None
        self.reports = self.reports.changed(changes)
        return changes


class FleetContainers:
    """What all datanodes have reported; :meth:`of` is the picture of the containers. For one thread at a time."""

    def __init__(self) -> None:
        self._by_datanode: dict[str, ReportedByOne] = {}
        self._holders: dict[int, tuple[str, ...]] = {}
        """By container: who has reported it, the silent ones too."""
        self._living: AbstractSet[str] = frozenset()
        self._stale: set[int] = set()
        """Containers that ``_seen`` shows as they were."""
        self._seen: PersistentMap[ReportedContainer] = PersistentMap()

    def reported_by(self, datanode: str) -> ReportedByOne:
        """Return what a datanode has reported; it must have been heard."""
        return self._by_datanode[datanode]

    def on_reports(self, datanode: str, reports: list[ContainerReport]) -> None:
        """Take the containers of a heartbeat."""
        known = self._by_datanode.setdefault(datanode, ReportedByOne())
        self._change(datanode, known.on_reports(reports))

    def forget(self, datanode: str) -> None:
        """Forget a datanode and what it has reported."""
        self._change(datanode, dict.fromkeys(self._by_datanode[datanode].reports))
        del self._by_datanode[datanode]

    def _change(self, datanode: str, changes: Mapping[int, ContainerReport | None]) -> None:
        for number, report in changes.items():
            others = tuple(name for name in self._holders.get(number, ()) if name != datanode)
            if report is not None:
                self._holders[number] = (*others, datanode)
            elif others:
                self._holders[number] = others
            else:
                self._holders.pop(number, None)
        if datanode in self._living:
            self._stale.update(changes)

    def of(self, living: AbstractSet[str]) -> PersistentMap[ReportedContainer]:
        """Return the containers on living datanodes, by container id."""
        for datanode in self._living ^ living:
            known = self._by_datanode.get(datanode)
            self._stale.update(known.reports if known is not None else ())
        self._living = living
        self._seen = self._seen.changed({number: self._joined(number) for number in self._stale})
        self._stale.clear()
        return self._seen

    def _joined(self, number: int) -> ReportedContainer | None:
        said = [
            (name, self._by_datanode[name].reports[number])
            for name in self._holders.get(number, ())
            if name in self._living
        ]
        if not said:
            return None
        held_by = frozenset(name for name, _ in said)
        return ReportedContainer(
            container_id=number,
            partition=said[0][1].partition,
            used_bytes=max(report.used_bytes for _, report in said),
            blocks=max(report.blocks for _, report in said),
            closed_by=_those((name for name, report in said if report.closed), held_by),
            healthy_on=_those((name for name, report in said if report.healthy), held_by),
            held_by=held_by,
        )


def _those(names: Iterable[str], all_of_them: frozenset[str]) -> frozenset[str]:
    """Return a set of names; the one that is there already, if it is equal: there are very many of them."""
    found = frozenset(names)
    return all_of_them if found == all_of_them else found
