"""What the loop remembers of what it told holders of copies: said again to who has started again, when it has changed, and now and then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from om_processors import placement_loop
from om_processors.fleet import Fleet, Picture
from om_processors.fleet_api import MAX_FAULTS, faults_of
from om_processors.placement_loop import RETRY_MS, SOURCES_REMIND_MS, PlacementLoop
from replicated_db.memory import ManualClock
from schemas.datanode import FetchContainer
from schemas.datanode_states import CLOSED
from tests.support.fleets import CLUSTER, TIMEOUT_MS, container, heartbeat, pipeline_row, report

COPIES = 50


class Case:
    """dn1 to dn3 are a pipeline's members, dn4 holds copies of its containers."""

    def __init__(self, copies: int = 1) -> None:
        self.sent: list[tuple[str, FetchContainer, Callable[[Any], None]]] = []
        self.clock = ManualClock(now_ms=1, elapsed=1)
        self.copies = copies
        self.incarnation = bytes(16)
        self.members = ["dn1", "dn2", "dn3"]
        anything: Any = SimpleNamespace(datanodes=["dn1"], send=self._send)
        self.loop = PlacementLoop(
            anything, anything, {}, anything, anything, self.clock, lambda *_, **__: None, lambda _: None
        )

    def _send(self, key: Any, address: str, request: FetchContainer, *, done: Callable[[Any], None]) -> bool:
        self.sent.append((address, request, done))
        return True

    def picture(self) -> Picture:
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
        held = [container(256 * number) for number in range(1, self.copies + 1)]
        for name in self.members:
            fleet.hear(heartbeat(name, pipelines=[report(0)]), 1)
        fleet.hear(heartbeat("dn4", containers=held, incarnation=self.incarnation), 1)
        return fleet.picture([pipeline_row(0, ["dn1", "dn2", "dn3"], CLOSED)], (), 1)

    def turn(self, after_ms: int = 500, *, answered: bool = True) -> list[tuple[str, int, list[str]]]:
        """Return what was sent in a turn: address, container, sources."""
        self.clock.elapsed += after_ms
        self.loop._name_sources(self.picture())
        sent, self.sent = self.sent, []
        if answered:
            for _, _, done in sent:
                done(None)
        return [(address, request.container_id, request.sources) for address, request, _ in sent]


def test_it_is_said_once_and_again_when_it_has_changed():
    case = Case()
    assert case.turn() == [("dn4:1", 256, ["dn1:1", "dn2:1", "dn3:1"])]
    assert case.turn() == []
    case.members.remove("dn2")
    assert case.turn() == [("dn4:1", 256, ["dn1:1", "dn3:1"])]
    assert case.turn(SOURCES_REMIND_MS - 1) == []
    assert len(case.turn(1)) == 1


def test_who_has_started_again_is_told_again():
    case = Case()
    assert len(case.turn()) == 1
    case.incarnation = bytes([1] * 16)
    assert len(case.turn()) == 1
    assert case.turn() == []


def test_what_was_not_answered_is_said_again():
    case = Case()
    assert len(case.turn(answered=False)) == 1
    assert case.turn(RETRY_MS - 1, answered=False) == []
    assert len(case.turn(1)) == 1
    assert case.turn(RETRY_MS) == []


def test_many_are_told_in_turns_and_forgotten_with_their_copies():
    case = Case(COPIES)
    told = [number for _ in range(4) for _, number, _ in case.turn()]
    assert sorted(told) == [256 * number for number in range(1, COPIES + 1)]
    assert len(case.turn()) == 0
    assert placement_loop.MAX_SOURCES_PER_TURN < COPIES
    case.copies = 1
    case.turn()
    assert list(case.loop._named) == [(256, "dn4")]


def test_damaged_copies_are_among_a_datanodes_faults():
    held = [container(256 * number, healthy=number % 2 == 0) for number in range(1, 5)]
    said = heartbeat("dn4", containers=[*held, container(257, partition=1, healthy=False)], pipelines=[report(1)])
    assert faults_of(said) == ["the copy of container 256 is damaged", "the copy of container 768 is damaged"]
    many = heartbeat("dn4", containers=[container(256 * number, healthy=False) for number in range(100)])
    assert len(faults_of(many)) == MAX_FAULTS
