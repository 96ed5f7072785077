"""What the loop remembers of what it told holders of copies: said again to who has started again, when it has changed, and now and then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.fleet.core.fleet import Fleet, Picture
from om_processors.fleet.datanode_client import MAX_UNDER_WAY
from om_processors.fleet.placement_loop import (
    MAX_SOURCES_PER_DATANODE,
    MAX_SOURCES_PER_TURN,
    REMIND_MS,
    RETRY_MS,
    SOURCES_REMIND_MS,
    PlacementLoop,
    _open,
)
from om_processors.serving.fleet_api import MAX_FAULTS, faults_of
from replicated_db.core.tables.memory import ManualClock
from schemas.datanode_states import CLOSED, OPEN
from schemas.records.datanode import FetchContainer, Heartbeat
from schemas.sharding import SYSTEM_SHARD
from tests.support.om.fleets import CLUSTER, TIMEOUT_MS, container, heartbeat, pipeline_row, report

COPIES = 50


class Case:
    """dn1 to dn3 are a pipeline's members, dn4 holds copies of its containers."""

    def __init__(self, copies: int = 1) -> None:
        self.sent: list[tuple[str, FetchContainer, Callable[[Any], None]]] = []
        self.clock = ManualClock(now_ms=1, elapsed=1)
        self.copies = copies
        self.incarnation = bytes(16)
        self.members = ["dn1", "dn2", "dn3"]
        self.holders = ["dn4"]
        self.silent: set[str] = set()
        self.other: set[Any] = set()
        anything: Any = SimpleNamespace(
            datanodes=["dn1"], send=self._send, under_way=frozenset(), give_up=lambda _: None, deleted_block_grace_ms=0
        )
        self.courier = anything
        self.loop = PlacementLoop(
            anything, anything, {}, anything, anything, self.clock, lambda *_, **__: None, lambda _: None
        )

    def _send(
        self, key: Any, address: str, request: FetchContainer, *, datanode: str, done: Callable[[Any], None]
    ) -> bool:
        assert address == f"{datanode}:1"
        if key in self.courier.under_way or len(self.courier.under_way) >= MAX_UNDER_WAY:
            return False
        self.courier.under_way |= {key}
        self.sent.append((address, request, done))
        return True

    def picture(self) -> Picture:
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
        held = [container(256 * number) for number in range(1, self.copies + 1)]
        for name in self.members:
            fleet.on_heartbeat(heartbeat(name, pipelines=[report(0)]), 1)
        for name in self.holders:
            fleet.on_heartbeat(heartbeat(name, containers=held, incarnation=self.incarnation), 1)
        return fleet.picture([pipeline_row(0, ["dn1", "dn2", "dn3"], CLOSED)], (), 1)

    def turn(self, after_ms: int = 500, *, answered: bool = True) -> list[tuple[str, int, list[str]]]:
        """Return what was sent in a turn: address, container, sources."""
        self.clock.elapsed += after_ms
        self.loop._name_sources(self.picture())
        sent, self.sent = self.sent, []
        self.courier.under_way = frozenset(key for key in self.courier.under_way if key[2] in self.silent) | self.other
        if answered:
            for address, _, done in sent:
                if address.removesuffix(":1") not in self.silent:
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
    told = [number for _ in range(COPIES // MAX_SOURCES_PER_DATANODE) for _, number, _ in case.turn()]
    assert sorted(told) == [256 * number for number in range(1, COPIES + 1)]
    assert len(case.turn()) == 0
    case.copies = 1
    case.turn()
    assert list(case.loop._named) == [(256, "dn4")]


def test_a_turn_does_not_tell_all_at_once():
    case = Case(COPIES)
    case.holders = [f"dn{number}" for number in range(4, 24)]
    assert len(case.turn()) == MAX_SOURCES_PER_TURN


def test_holders_that_do_not_answer_leave_the_courier_to_others():
    case = Case(COPIES)
    case.holders = ["dn4", "dn5", "dn6"]
    case.silent = {"dn4", "dn5"}
    told = [address for _ in range(COPIES) for address, *_ in case.turn()]
    assert sorted(set(told)) == ["dn4:1", "dn5:1", "dn6:1"]
    assert told.count("dn6:1") == COPIES
    assert len(case.courier.under_way) == 2 * MAX_SOURCES_PER_DATANODE


def test_half_of_the_courier_is_left_to_other_messages():
    case = Case(COPIES)
    case.holders = [f"dn{number}" for number in range(4, 104)]
    case.silent = set(case.holders)
    for _ in range(20):
        case.turn()
    assert len(case.courier.under_way) == MAX_UNDER_WAY // 2
    case = Case(COPIES)
    case.other = {("fetch", number, "dn9") for number in range(MAX_UNDER_WAY // 2 - 1)}
    case.courier.under_way = frozenset(case.other)
    assert len(case.turn()) == 1


def test_what_is_to_be_deleted_goes_first():
    case = Case()
    done: list[str] = []
    loop: Any = case.loop
    loop._view = SimpleNamespace(refresh=case.picture)
    loop._loops = {SYSTEM_SHARD: SimpleNamespace(leading=True)}
    loop._deletions = {SYSTEM_SHARD: SimpleNamespace(turn=lambda _: done.append("delete"))}
    loop._place = lambda _: done.append("place")
    loop._name_sources = lambda _: done.append("sources")
    loop.turn()
    assert done == ["place", "delete", "sources"]


def test_damaged_copies_are_among_a_datanodes_faults():
    def faults(beat: Heartbeat) -> list[str]:
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
        fleet.on_heartbeat(beat, 0)
        return faults_of(fleet.picture((), (), 0).member("dn4"))

    held = [container(256 * number, healthy=number % 2 == 0) for number in range(1, 5)]
    said = heartbeat("dn4", containers=[*held, container(257, partition=1, healthy=False)], pipelines=[report(1)])
    assert faults(said) == ["the copy of container 256 is damaged", "the copy of container 768 is damaged"]
    many = heartbeat("dn4", containers=[container(256 * number, healthy=False) for number in range(100)])
    assert len(faults(many)) == MAX_FAULTS


class Moving:
    """A pipeline of three whose datanodes start again elsewhere."""

    def __init__(self, state: str = OPEN, generation: int = 1) -> None:
        self.case = Case()
        self.state = state
        self.generation = generation
        self.port = 1
        self.lives = 0
        self.quiet: set[str] = set()
        self.unheard = ""
        self.now_ms = 1

    def picture(self) -> Picture:
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
        for name in self.case.members:
            if name == self.unheard:
                continue
            address, life = f"{name}:{self.port}", bytes([self.lives] * 16)
            fleet.on_heartbeat(heartbeat(name, pipelines=[report(0)], address=address, incarnation=life), self.now_ms)
        return fleet.picture([pipeline_row(0, self.case.members, self.state, self.generation)], (), self.now_ms)

    def turn(self, after_ms: int = 500) -> list[tuple[str, list[str]]]:
        """Return whom a turn has told which addresses."""
        case = self.case
        case.clock.elapsed += after_ms
        told: list[tuple[str, Any, Callable[[Any], None]]] = []

        def send(_: Any, address: str, request: Any, *, datanode: str, done: Callable[[Any], None]) -> bool:
            told.append((datanode, request, done))
            assert address == f"{datanode}:{self.port}"
            return True

        case.courier.send = send
        case.loop._tell_addresses(self.picture())
        for name, _, done in told:
            if name not in self.quiet:
                done(None)
        return [(name, [one.address for one in request.members]) for name, request, _ in told]


@pytest.mark.parametrize("state", [OPEN, CLOSED])
def test_members_are_told_where_the_others_are_when_that_changes(state: str):
    moving = Moving(state)
    everybody = ["dn1", "dn2", "dn3"]
    assert [name for name, _ in moving.turn()] == everybody
    assert moving.turn() == []
    moving.port = 77
    assert moving.turn() == [(name, ["dn1:77", "dn2:77", "dn3:77"]) for name in everybody]
    assert moving.turn(1_000_000) == []
    moving.lives = 1
    assert len(moving.turn()) == 3, "who has started again may know old ones"


def test_who_has_not_answered_where_the_others_are_is_told_again():
    moving = Moving()
    moving.quiet = {"dn2"}
    assert len(moving.turn()) == 3
    assert moving.turn(REMIND_MS - 1) == []
    assert [name for name, _ in moving.turn(1)] == ["dn2"]
    moving.case.members = ["dn1", "dn3"]
    moving.turn()
    assert len(moving.case.loop._moved) == 3, "bounded by the rows' members"


def test_nobody_is_told_an_old_address_of_one_that_may_be_heard_soon():
    moving = Moving()
    moving.unheard = "dn2"
    assert moving.turn() == []
    moving.now_ms = TIMEOUT_MS + 1
    assert moving.turn() == [(name, ["dn1:1", "dn2:1", "dn3:1"]) for name in ("dn1", "dn3")], "it is dead"


def test_what_a_later_generation_is_to_know_is_told_by_its_opening():
    assert Moving(generation=2).turn() == []


def test_messages_carry_the_addresses_of_now():
    moving = Moving()
    moving.port = 5
    picture = moving.picture()
    assert [one.address for one in _open(picture, picture.pipelines[0]).members] == ["dn1:5", "dn2:5", "dn3:5"]
