"""Which pipeline is made next: members, racks, limits, and how partitions are saved once there are many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from om_processors.fleet.core import pipeline_making
from om_processors.fleet.core.fleet import Fleet, Picture
from om_processors.fleet.core.pipeline_making import AWAITED_MS, choose_members, new_pipeline
from schemas.datanode_states import CLOSED, DECOMMISSIONING
from schemas.records.datanode import PipelineRow
from schemas.records.rows import DatanodeRow
from tests.support.om.fleets import CLUSTER, MIN_FREE_BYTES, TIMEOUT_MS, heartbeat, pipeline_row, report

NOW_MS = 10 * AWAITED_MS


class Nodes:
    """Datanodes by name with their racks, and the pipelines that they follow."""

    def __init__(self, racks: dict[str, str], rows: Sequence[PipelineRow] = ()) -> None:
        self.racks = racks
        self.rows = list(rows)
        self.more: dict[str, dict[str, Any]] = {}
        self.ages_ms: dict[str, int] = {}
        self.states: dict[str, str] = {}

    def picture(self) -> Picture:
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=0)
        for name, rack in self.racks.items():
            follows = [
                report(row.partition, leading=row.members[0].datanode == name)
                for row in self.rows
                if name in {one.datanode for one in row.members}
            ]
            beat = heartbeat(name, rack, **({"pipelines": follows} | self.more.get(name, {})))
            fleet.on_heartbeat(beat, NOW_MS - self.ages_ms.get(name, 0))
        states = [DatanodeRow(datanode=name, state=state, changed_at_ms=0) for name, state in self.states.items()]
        return fleet.picture(self.rows, states, NOW_MS)

    def chosen(self, replicas: int = 3) -> list[str] | None:
        found = choose_members(self.picture(), replicas)
        return None if found is None else [node.name for node in found]

    def made(self, replicas: int = 3) -> tuple[int, list[str]] | None:
        found = new_pipeline(self.picture(), replicas)
        return None if found is None else (found.partition, [one.datanode for one in found.members])


def in_rack(names: Iterable[str], rack: str = "/r1") -> dict[str, str]:
    return dict.fromkeys(names, rack)


def test_those_with_least_to_do_are_chosen_and_who_leads_least_leads():
    nodes = Nodes(in_rack(["dn1", "dn2", "dn3", "dn4"]), [pipeline_row(0, ["dn1", "dn2", "dn3"])])
    nodes.more["dn3"] = {"active_streams": 0}
    nodes.more["dn1"] = {"active_streams": 5, "pipelines": [report(0)]}
    assert nodes.chosen() == ["dn4", "dn2", "dn3"]
    assert nodes.chosen(2) == ["dn4", "dn2"]
    nodes.rows.append(pipeline_row(1, ["dn4", "dn1", "dn2"]))
    assert nodes.chosen(2) == ["dn3", "dn4"], "each in one; dn1 and dn2 are in two"
    assert nodes.chosen() is None, "two are free"


def test_a_datanode_without_room_or_out_of_service_is_no_member():
    nodes = Nodes(in_rack(["dn1", "dn2", "dn3"]))
    assert nodes.chosen() == ["dn1", "dn2", "dn3"]
    nodes.more["dn2"] = {"free_bytes": MIN_FREE_BYTES - 1}
    assert nodes.chosen() is None
    nodes.more["dn2"] = {"free_bytes": MIN_FREE_BYTES}
    nodes.states["dn2"] = DECOMMISSIONING
    assert nodes.chosen() is None


def test_members_stand_in_two_racks():
    racks = in_rack(["dn1", "dn2", "dn3"]) | in_rack(["dn4"], "/r2")
    assert Nodes(racks).chosen() == ["dn1", "dn4", "dn2"]
    assert Nodes(racks).chosen(2) == ["dn1", "dn4"]
    assert Nodes(racks).chosen(1) == ["dn1"]
    three = {"dn1": "/r1", "dn2": "/r2", "dn3": "/r3", "dn4": "/r3"}
    assert Nodes(three).chosen() == ["dn1", "dn3", "dn4"], "of exactly two racks"
    each = {"dn1": "/r1", "dn2": "/r2", "dn3": "/r3"}
    assert Nodes(each).chosen() == ["dn1", "dn2", "dn3"], "each in a rack of its own: there is no other choice"


def test_there_is_no_legal_set_if_all_that_are_free_stand_in_one_rack_or_in_pairs():
    racks = in_rack(["dn1", "dn2", "dn3"]) | in_rack(["dn4"], "/r2")
    nodes = Nodes(racks, [pipeline_row(number, ["dn4", f"dnx{number}", f"dny{number}"]) for number in range(2)])
    assert nodes.chosen() is None, "dn4 is in two pipelines"
    pairs = {"dn1": "/r1", "dn2": "/r2", "dn3": "/r3", "dn4": "/r4", "dn5": "/r4"}
    nodes = Nodes(pairs)
    assert nodes.chosen() == ["dn1", "dn4", "dn5"]
    assert nodes.chosen(4) is None


def closed(numbers: Iterable[int], members: Sequence[str]) -> list[PipelineRow]:
    return [pipeline_row(number, members, CLOSED) for number in numbers]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pipelines are many."""
    monkeypatch.setattr(pipeline_making, "MANY_PIPELINES", 3)


GONE = ("dnx", "dny", "dnz")
OPEN = ("dn1", "dn2", "dn3")


@pytest.mark.usefixtures("few")
def test_once_there_are_many_a_partition_is_only_used_for_who_is_new_or_idle():
    nodes = Nodes(in_rack(OPEN), [*closed((0, 1), GONE), pipeline_row(2, OPEN)])
    assert nodes.made() is None, "all three are in a pipeline that takes blocks"
    nodes.rows = nodes.rows[1:]
    assert nodes.made() == (0, ["dn2", "dn1", "dn3"]), "two are not many; dn2 leads nothing yet"
    nodes.rows = [*closed((0, 1), GONE), pipeline_row(2, OPEN)]
    nodes.racks |= in_rack(["dn4"])
    assert nodes.made() == (3, ["dn4", "dn1", "dn2"]), "dn4 is new"
    nodes.rows = [*closed((0,), GONE), *closed((1,), ("dn4", "dny", "dnz")), pipeline_row(2, OPEN)]
    assert nodes.made() == (3, ["dn4", "dn1", "dn2"]), "dn4 is idle, and nobody is awaited"
    nodes.rows = [*closed((0, 1), GONE), pipeline_row(2, OPEN), pipeline_row(3, ("dn4", *GONE[:2]))]
    assert nodes.made() is None


@pytest.mark.usefixtures("few")
def test_while_somebody_may_soon_be_back_an_idle_datanode_waits_for_its_old_pipeline():
    nodes = Nodes(in_rack([*OPEN, "dn4", "dn5", "dn6"]))
    nodes.rows = [*closed((0,), GONE), *closed((1,), ("dn4", "dn5", "dn6")), pipeline_row(2, OPEN)]
    nodes.ages_ms["dn6"] = TIMEOUT_MS + 1
    assert nodes.made() is None, "dn4 and dn5 are idle, and dn6 may be restarting"
    nodes.states["dn6"] = DECOMMISSIONING
    assert nodes.made() == (3, ["dn4", "dn5", "dn1"]), "it leaves, so nobody waits for it"
    del nodes.states["dn6"]
    nodes.ages_ms["dn6"] = AWAITED_MS - 1
    assert nodes.made() is None
    nodes.ages_ms["dn6"] = AWAITED_MS
    assert nodes.made() == (3, ["dn4", "dn5", "dn1"]), "it has been away for too long"
    nodes.ages_ms["dn6"] = 0
    assert nodes.made() == (1, ["dn4", "dn5", "dn6"]), "it is back"


@pytest.mark.usefixtures("few")
def test_only_a_datanodes_latest_pipelines_are_opened_again_while_somebody_is_awaited():
    """Otherwise pipelines would change members each time that somebody restarts."""
    four = ("dn4", "dn5", "dn6")
    old = [replace(row, opened_at_ms=number) for number, row in enumerate(closed(range(3), four))]
    nodes = Nodes(in_rack([*OPEN, *four, "dn7"]), [*old, pipeline_row(3, OPEN), *closed((4,), ("dn7", *GONE[:2]))])
    nodes.ages_ms["dn7"] = TIMEOUT_MS + 1
    assert nodes.made() == (1, list(four)), "0 is the oldest of three, and two are the latest"
    nodes.ages_ms["dn7"] = 0
    assert nodes.made() is not None


def test_while_there_are_few_pipelines_any_is_opened_again_whoever_is_awaited():
    old = [replace(row, opened_at_ms=number) for number, row in enumerate(closed(range(3), OPEN))]
    nodes = Nodes(in_rack([*OPEN, "dn4"]), [*old, *closed((3,), ("dn4", *GONE[:2]))])
    nodes.ages_ms["dn4"] = TIMEOUT_MS + 1
    assert nodes.made() == (0, list(OPEN)), "the first, though its members have joined two later ones"


def test_a_closed_pipeline_of_another_size_or_in_one_rack_of_two_is_not_opened_again():
    two_racks = in_rack(["dn1", "dn2", "dn3"]) | in_rack(["dn4"], "/r2")
    nodes = Nodes(two_racks, closed((5,), OPEN))
    assert nodes.made() == (0, ["dn1", "dn4", "dn2"])
    nodes.rows = closed((5,), ("dn1", "dn4", "dn3"))
    assert nodes.made() == (5, ["dn1", "dn4", "dn3"])
    assert nodes.made(2) == (0, ["dn1", "dn4"])
    nodes.rows = closed((5,), ("dn1",))
    assert nodes.made(1) == (5, ["dn1"])


def test_of_closed_pipelines_the_one_with_least_to_do_returns_and_a_fresh_one_only_for_less():
    names = ["dn1", "dn2", "dn3", "dn4", "dn5", "dn6"]
    nodes = Nodes(in_rack(names), [*closed((7,), OPEN), *closed((8,), names[3:]), pipeline_row(1, OPEN)])
    assert nodes.made() == (8, names[3:])
    nodes.rows = [*closed((7,), OPEN), pipeline_row(1, OPEN)]
    assert nodes.made() == (0, names[3:]), "three that have nothing to do"
    nodes.rows = [*closed((7,), OPEN), *closed((6,), OPEN), pipeline_row(1, names[3:])]
    assert nodes.made() == (6, list(OPEN)), "the first of two"
