"""The containers of the fleet: reports in turns, what is forgotten, and that increments give what a whole join gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from om_processors.fleet.core import containers as module
from om_processors.fleet.core import placement
from om_processors.fleet.core.containers import FORGOTTEN_ROUNDS, WHOLE_ROUNDS, ReportedByOne
from om_processors.fleet.core.fleet import Fleet, Picture
from om_processors.fleet.core.persistent_map import PersistentMap
from schemas.datanode_states import CLOSED
from schemas.records.datanode import MAX_REPORTED_CONTAINERS, ContainerReport
from tests.support.om.fleets import CLUSTER, MIN_FREE_BYTES, TIMEOUT_MS, container, heartbeat, pipeline_row

AT_ONCE = 10
NAMES = ("dn1", "dn2", "dn3")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have datanodes report AT_ONCE containers at once."""
    monkeypatch.setattr(module, "MAX_REPORTED_CONTAINERS", AT_ONCE)


class Cluster:
    """Datanodes that hold ``holds``; each ``beat`` is one turn of their reports, AT_ONCE containers long."""

    def __init__(self, holds: dict[str, Sequence[int]], starts: Iterable[int] = ()) -> None:
        self.holds = holds
        self.next = dict(zip(holds, [*starts, *[0] * len(holds)], strict=False))
        self.fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=0)
        self.now_ms = TIMEOUT_MS

    def beat(self, times: int = 1) -> Picture:
        for _ in range(times):
            self.now_ms += 1000
            for name, held in self.holds.items():
                start = self.next[name]
                turn = [*held[start:], *held[:start]][:AT_ONCE]
                self.next[name] = (start + AT_ONCE) % max(1, len(held))
                self.fleet.on_heartbeat(heartbeat(name, containers=[container(one) for one in turn]), self.now_ms)
        return self.picture()

    def picture(self) -> Picture:
        return self.fleet.picture([pipeline_row(0, NAMES, CLOSED)], (), self.now_ms)


def test_containers_that_come_in_turns_are_gathered() -> None:
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    first = [container(number) for number in range(MAX_REPORTED_CONTAINERS)]
    second = [container(number + 500, used=11) for number in range(MAX_REPORTED_CONTAINERS)]
    for part in (first, second):
        fleet.on_heartbeat(heartbeat("dn1", containers=part), 0)
    known = fleet.picture((), (), 0).containers
    assert (len(known), known[0].used_bytes, known[500].used_bytes) == (MAX_REPORTED_CONTAINERS + 500, 10, 11)
    fleet.on_heartbeat(heartbeat("dn1", containers=[container(7)]), 0)
    assert list(fleet.picture((), (), 0).containers) == [7], "all there are fit again"


@pytest.mark.usefixtures("few")
def test_whole_containers_that_come_in_turns_are_not_taken_for_missing() -> None:
    """Each datanode begins its round elsewhere, as one that this node hears from the middle on."""
    ids = range(45 * AT_ONCE)
    cluster = Cluster({**dict.fromkeys(NAMES, ids), "dn4": []}, starts=(0, 130, 290))
    for _ in range(200):
        assert placement.copies(cluster.beat()) == []
    assert all(node.whole for node in cluster.picture().datanodes.values())


@pytest.mark.usefixtures("few")
def test_a_container_that_is_named_no_more_is_missing() -> None:
    ids = list(range(3 * AT_ONCE))
    cluster = Cluster({**dict.fromkeys(NAMES, ids), "dn4": []})
    assert placement.copies(cluster.beat(50)) == []
    cluster.holds["dn1"] = [number for number in ids if number != 5]
    cluster.beat(FORGOTTEN_ROUNDS * 3 + 2)
    picture = cluster.picture()
    assert picture.containers[5].held_by == {"dn2", "dn3"}
    assert [(copy.container_id, copy.target) for copy in placement.copies(picture)] == [(5, "dn1")]
    assert len(picture.containers) == len(ids)


@pytest.mark.usefixtures("few")
def test_nothing_is_forgotten_while_only_changes_are_named() -> None:
    """Datanodes before this release named changed containers alone if they filled a heartbeat."""
    reported = ReportedByOne()
    ids = range(3 * AT_ONCE)
    for turn in range(30):
        part = [container(ids[(turn * AT_ONCE + one) % len(ids)]) for one in range(AT_ONCE)]
        reported.on_reports(part)
    for used in range(100, 200):
        part = [container(number, used=used) for number in ids[:AT_ONCE]]
        reported.on_reports(part)
    assert len(reported.reports) == len(ids)
    reported.on_reports(part[1:])
    assert sorted(reported.reports) == list(ids[1:AT_ONCE]), "this one names all that there are"


@pytest.mark.usefixtures("few")
def test_a_report_is_whole_after_its_rounds() -> None:
    reported = ReportedByOne()
    ids = [container(number) for number in range(3 * AT_ONCE)]
    assert reported.whole, "as far as it goes"
    for turn in range(1, 12):
        part = [ids[(turn * AT_ONCE + one) % len(ids)] for one in range(AT_ONCE)]
        reported.on_reports(part)
        assert reported.whole == (turn >= 3 + WHOLE_ROUNDS * 3), turn
    reported.on_reports(ids[:2])
    assert (reported.whole, sorted(reported.reports)) == (True, [0, 1])
    reported.on_reports(ids[:AT_ONCE])
    assert not reported.whole, "it reports in turns again"


@pytest.mark.usefixtures("few")
def test_beyond_the_limit_a_report_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known stays known, and what is not known is not missing."""
    monkeypatch.setattr(module, "MAX_CONTAINERS", 2 * AT_ONCE)
    ids = range(3 * AT_ONCE)
    cluster = Cluster({**dict.fromkeys(NAMES, ids), "dn4": []}, starts=(0, 10, 20))
    for _ in range(100):
        picture = cluster.beat()
        assert placement.copies(picture) == []
    assert not picture.member("dn1").whole
    assert len(picture.member("dn1").containers) == 2 * AT_ONCE


def test_a_container_closed_on_one_replica_is_closed() -> None:
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    fleet.on_heartbeat(heartbeat("dn1", containers=[container(1, closed=False), container(2)]), 0)
    fleet.on_heartbeat(heartbeat("dn2", containers=[container(2, closed=False), container(3, closed=False)]), 0)
    closed = fleet.picture((), (), 0).closed_containers
    assert (closed, len(closed), 2 in closed, 3 in closed, 4 in closed) == ({2}, 1, True, False, False)


def test_a_container_has_room_until_three_quarters_of_it_are_used() -> None:
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    open_ones = {
        number: replace(container(1, closed=False), container_id=number, used_bytes=748 + number) for number in (1, 2)
    }
    held = [*open_ones.values(), container(3)]
    fleet.on_heartbeat(heartbeat("dn1", containers=held), 0)
    fleet.on_heartbeat(heartbeat("dn2", containers=[open_ones[1]]), 0)
    assert set(fleet.picture((), (), 0).containers_with_room(1000)) == {1}
    fleet.on_heartbeat(heartbeat("dn2", containers=[container(1)]), 0)
    assert set(fleet.picture((), (), 0).containers_with_room(1000)) == set(), "one replica is closed"


def test_increments_give_what_a_whole_join_gives() -> None:
    random = Random(9)
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    last: dict[str, tuple[int, list[ContainerReport]]] = {}
    now_ms = 0
    for _ in range(400):
        now_ms += random.randrange(TIMEOUT_MS // 2)
        name = f"dn{random.randrange(6)}"
        held = [
            container(number, closed=random.random() < 0.5, healthy=random.random() < 0.7, used=random.randrange(3))
            for number in random.sample(range(30), random.randrange(12))
        ]
        fleet.on_heartbeat(heartbeat(name, containers=held), now_ms)
        last[name] = now_ms, held
        if random.random() < 0.6:
            continue
        before = fleet.picture((), (), now_ms)
        copied = dict(before.containers)
        fleet.on_heartbeat(heartbeat(name, containers=held[:1]), now_ms)
        assert dict(before.containers) == copied, "a picture is a value"
        fleet.on_heartbeat(heartbeat(name, containers=held), now_ms)
        found = fleet.picture((), (), now_ms).containers
        expected: dict[int, dict[str, ContainerReport]] = {}
        for one, (heard_ms, reports) in last.items():
            if now_ms - heard_ms <= TIMEOUT_MS:
                for report in reports:
                    expected.setdefault(report.container_id, {})[one] = report
        assert set(found) == set(expected)
        for number, said in expected.items():
            seen = found[number]
            assert seen.held_by == set(said)
            assert seen.closed_by == {one for one, report in said.items() if report.closed}
            assert seen.healthy_on == {one for one, report in said.items() if report.healthy}
            assert seen.used_bytes == max(report.used_bytes for report in said.values())


def test_a_map_is_a_value() -> None:
    random = Random(9)
    kept: PersistentMap[int] = PersistentMap()
    twin: dict[int, int] = {}
    for _ in range(500):
        changes = {random.randrange(40) << random.randrange(60): random.choice([None, 1, 2]) for _ in range(5)}
        before, copied = kept, dict(twin)
        kept = kept.changed(changes)
        for number, value in changes.items():
            if value is None:
                twin.pop(number, None)
            else:
                twin[number] = value
        assert (dict(kept), len(kept), dict(kept.items())) == (twin, len(twin), twin)
        assert sorted(kept.values()) == sorted(twin.values())
        assert (dict(before), len(before)) == (copied, len(copied))
        assert all(number in kept for number in twin)
    assert kept.changed({}) is kept
    with pytest.raises(KeyError):
        kept[-1]
