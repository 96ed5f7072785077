"""The picture of the fleet and single decisions about it; topologies at large are in tests/properties/test_placement.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from om_processors.fleet.core import pipeline_making, placement
from om_processors.fleet.core.fleet import MAX_DATANODES, DatanodeHealth, Fleet, Picture
from om_processors.serving.fleet_api import pipeline_json
from schemas.datanode_states import (
    CLOSED,
    DATANODE_STATES,
    DECOMMISSIONED,
    DECOMMISSIONING,
    ENTERING_MAINTENANCE,
    IN_MAINTENANCE,
    IN_SERVICE,
)
from schemas.records.datanode import MAX_REPORTED_CONTAINERS, ContainerReport, Heartbeat, PipelineRow
from schemas.records.rows import DatanodeRow
from tests.support.om.fleets import CLUSTER, MIN_FREE_BYTES, TIMEOUT_MS, container, heartbeat, pipeline_row, report

NOW_MS = 100_000
NAMES = ("dn1", "dn2", "dn3")


def picture_of(
    beats: list[Heartbeat], rows: Sequence[PipelineRow] = (), states: dict[str, str] | None = None, since_ms: int = 0,
    ages_ms: dict[str, int] | None = None,
) -> Picture:  # fmt: skip
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=since_ms)
    for beat in beats:
        fleet.on_heartbeat(beat, NOW_MS - (ages_ms or {}).get(beat.datanode, 0))
    wanted = [DatanodeRow(datanode=name, state=state, changed_at_ms=0) for name, state in (states or {}).items()]
    return fleet.picture(rows, wanted, NOW_MS)


def following(**more: Any) -> list[Heartbeat]:
    """Three datanodes that follow pipeline-0; ``more`` is of dn2."""
    return [
        heartbeat(name, **({"pipelines": [report(0, leading=name == "dn1")]} | (more if name == "dn2" else {})))
        for name in NAMES
    ]


def test_silence():
    ages_ms = {"dn1": TIMEOUT_MS // 3, "dn2": TIMEOUT_MS // 3 + 1, "dn3": TIMEOUT_MS + 1}
    picture = picture_of([heartbeat(name) for name in NAMES], ages_ms=ages_ms)
    assert [node.health for node in picture.datanodes.values()] == [
        DatanodeHealth.HEALTHY,
        DatanodeHealth.STALE,
        DatanodeHealth.DEAD,
    ]
    assert [node.takes_blocks for node in picture.datanodes.values()] == [True, False, False]


def test_nobody_is_dead_to_one_who_has_just_begun_to_listen():
    rows = [pipeline_row(0, NAMES)]
    young = picture_of([], rows, since_ms=NOW_MS - TIMEOUT_MS + 1)
    assert young.member("dn1").health is DatanodeHealth.STALE
    assert pipeline_making.retirements(young) == []
    old = picture_of([], rows)
    assert "dn1 is dead; dn2 is dead; dn3 is dead" in pipeline_making.retirements(old)[0].reason


def test_strangers_are_ignored():
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    fleet.on_heartbeat(heartbeat("dn1", cluster="other"), 0)
    assert (fleet.ignored, fleet.picture((), (), 0).datanodes) == (1, {})
    for number in range(MAX_DATANODES + 5):
        fleet.on_heartbeat(heartbeat(f"d{number}"), 0)
    assert (fleet.ignored, len(fleet.picture((), (), 0).datanodes)) == (6, MAX_DATANODES)
    fleet.on_heartbeat(heartbeat("d0", containers=[container(256)]), 1)
    fleet.on_heartbeat(heartbeat("late", containers=[container(512)]), TIMEOUT_MS)
    assert fleet.ignored == 7, "nobody is dead yet"
    fleet.on_heartbeat(heartbeat("late", containers=[container(512)]), TIMEOUT_MS + 1)
    picture = fleet.picture((), (), TIMEOUT_MS + 1)
    assert (fleet.ignored, "d1" in picture.datanodes, sorted(picture.containers)) == (7, False, [256, 512])
    assert picture.member("d1").health is DatanodeHealth.DEAD, "the one that was silent longest is forgotten"


def test_a_decommissioned_datanode_that_is_switched_off_is_forgotten():
    beats = [heartbeat("dn1"), heartbeat("dn2")]
    away = {"dn1": TIMEOUT_MS + 1, "dn2": TIMEOUT_MS + 1}
    picture = picture_of(beats, states={"dn1": "DECOMMISSIONED"}, ages_ms=away)
    assert list(picture.datanodes) == ["dn2"]
    away["dn1"] = TIMEOUT_MS
    picture = picture_of(beats, states={"dn1": "DECOMMISSIONED"}, ages_ms=away)
    assert list(picture.datanodes) == ["dn1", "dn2"], "it is not silent for longer than any may be"


def test_a_datanode_that_was_removed_is_no_dead_one():
    """Its row is gone, so it would be in service; and it was heard once, so it would be dead."""
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=0)
    fleet.on_heartbeat(heartbeat("dn1"), 0)
    later_ms = TIMEOUT_MS + 1
    row = DatanodeRow(datanode="dn1", state=DECOMMISSIONED, changed_at_ms=7)
    picture = fleet.picture((), [row], later_ms)
    assert (list(picture.datanodes), list(picture.switched_off)) == ([], ["dn1"])
    assert (picture.member("dn1").state, picture.member("dn1").changed_at_ms) == (DECOMMISSIONED, 7)
    removed = fleet.picture((), (), later_ms)
    assert (list(removed.datanodes), list(removed.switched_off)) == ([], [])
    fleet.on_heartbeat(heartbeat("dn1"), later_ms)
    assert fleet.picture((), (), later_ms).datanodes["dn1"].state == IN_SERVICE, "it is back"


def test_who_comes_back_before_it_is_removed_is_kept():
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=0)
    fleet.on_heartbeat(heartbeat("dn1"), 0)
    fleet.picture((), [DatanodeRow(datanode="dn1", state=DECOMMISSIONED, changed_at_ms=7)], TIMEOUT_MS + 1)
    fleet.on_heartbeat(heartbeat("dn1"), TIMEOUT_MS + 1)
    assert list(fleet.picture((), (), TIMEOUT_MS + 1).datanodes) == ["dn1"]


def test_gone_is_who_is_decommissioned_and_silent_and_holds_nothing_that_others_lack():
    row = pipeline_row(0, NAMES, CLOSED)
    held = container(256)

    def gone(state: str = DECOMMISSIONED, silent_ms: int = TIMEOUT_MS + 1, since_ms: int = 0, **others: Any) -> bool:
        beats = [heartbeat("dn1", containers=[held])]
        beats += [heartbeat(name, containers=others.get(name, [held])) for name in ("dn2", "dn3", "dn4")]
        picture = picture_of(beats, [row], {"dn1": state}, since_ms=since_ms, ages_ms={"dn1": silent_ms})
        found = placement.GoneDatanodes(picture)
        assert list(found) == (["dn1"] if "dn1" in found else [])
        assert len(found) == len(list(found))
        assert not {"dn2", "dn9", 7} & {one for one in ("dn2", "dn9", 7) if one in found}
        return "dn1" in found

    assert gone()
    assert not gone(silent_ms=TIMEOUT_MS), "it may be there"
    assert not gone(dn4=[]), "two others have its container, and three should"
    assert not gone(since_ms=NOW_MS - TIMEOUT_MS + 1), "too short a time has been listened"
    for state in set(DATANODE_STATES) - {DECOMMISSIONED}:
        assert not gone(state)


def test_decisions_name_the_rows_that_they_are_made_on():
    leaving = [
        DatanodeRow(datanode="dn1", state=DECOMMISSIONING, changed_at_ms=7),
        DatanodeRow(datanode="dn4", state=ENTERING_MAINTENANCE, changed_at_ms=8),
    ]
    for named in (True, False):
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=0)
        for name in (*NAMES, "dn4"):
            fleet.on_heartbeat(heartbeat(name), NOW_MS)
        is_open = pipeline_row(0, NAMES, generation=3)
        (retired,) = pipeline_making.retirements(fleet.picture([is_open], leaving, NOW_MS, names_rows=named))
        assert retired.generation == 3 * named
        reached = placement.reached(fleet.picture([pipeline_row(0, NAMES, CLOSED)], leaving, NOW_MS, names_rows=named))
        assert [one.changed_at_ms for one in reached] == [7 * named, 8 * named]
        row = pipeline_row(0, NAMES, CLOSED, generation=3)
        again = pipeline_making.new_pipeline(fleet.picture([row], (), NOW_MS, names_rows=named), 3)
        assert again is not None
        assert (again.partition, again.generation) == (0, 4 * named)
        first = pipeline_making.new_pipeline(fleet.picture((), (), NOW_MS, names_rows=named), 3)
        assert first is not None
        assert (first.partition, first.generation) == (0, int(named))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"pipelines": []}, "does not follow it yet"),
        ({"pipelines": [report(0, healthy=False)]}, "has a fault"),
        ({"free_bytes": MIN_FREE_BYTES - 1}, "is full"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pipeline_takes_no_blocks_if_a_member(more: dict[str, Any], why: str):
    rows = [pipeline_row(0, NAMES)]
    assert placement.choices(picture_of(following(), rows)) == ((0, "pipeline-0"),)
    assert placement.choices(picture_of(following(**more), rows)) == (), why


def test_a_pipeline_takes_no_blocks_if_it_is_closed_or_a_member_is_away():
    assert placement.choices(picture_of(following(), [pipeline_row(0, NAMES, CLOSED)])) == ()
    rows = [pipeline_row(0, NAMES)]
    assert placement.choices(picture_of(following(), rows, ages_ms={"dn3": TIMEOUT_MS // 2})) == ()
    for state in DATANODE_STATES:
        assert bool(placement.choices(picture_of(following(), rows, {"dn2": state}))) == (state == IN_SERVICE)


def test_led_pipelines_come_first_and_busy_ones_wait():
    def beat(name: str, streams: int, *reports: int, leads: int) -> Heartbeat:
        said = [report(number, leading=number == leads) for number in reports]
        return heartbeat(name, pipelines=said, active_streams=streams)

    rows = [pipeline_row(0, ["dn1"]), pipeline_row(1, ["dn2"])]
    even = picture_of([beat("dn1", 0, 0, leads=0), beat("dn2", 9, 1, leads=1)], rows)
    assert [number for number, _ in placement.choices(even)] == [0, 1]
    busy = picture_of([beat("dn1", 0, 0, leads=0), beat("dn2", 99, 1, leads=1)], rows)
    assert [number for number, _ in placement.choices(busy)] == [0]
    unled = picture_of([beat("dn1", 0, 0, leads=-1), beat("dn2", 0, 1, leads=1)], rows)
    assert [number for number, _ in placement.choices(unled)] == [1]
    nobody = picture_of([beat("dn1", 0, 0, leads=-1), beat("dn2", 0, 1, leads=-1)], rows)
    assert [number for number, _ in placement.choices(nobody)] == [0, 1]


def test_pipelines_end_with_the_partitions():
    rows = [pipeline_row(number, ["dnx", "dny", "dnz"], CLOSED) for number in range(256)]
    assert pipeline_making.new_pipeline(picture_of(following(), rows), 3) is None
    made = pipeline_making.new_pipeline(picture_of([heartbeat(name) for name in NAMES], rows[:-1]), 3)
    assert made is not None
    assert made.partition == 255
    made = pipeline_making.new_pipeline(picture_of(following(), [*rows[:7], *rows[9:]]), 3)
    assert made is not None
    assert made.partition == 7, "the first that none has"


def again(picture: Picture) -> tuple[int, list[str]] | None:
    made = pipeline_making.new_pipeline(picture, 3)
    return None if made is None else (made.partition, [one.datanode for one in made.members])


def test_a_closed_pipeline_whose_members_are_back_is_opened_again():
    row = pipeline_row(5, NAMES, CLOSED)
    back = [heartbeat(name, pipelines=[report(5)]) for name in NAMES]
    assert again(picture_of(back, [row])) == (5, list(NAMES))
    away = picture_of(back, [row], ages_ms={"dn2": TIMEOUT_MS + 1})
    assert again(away) is None
    assert again(picture_of(back, [row], {"dn2": DECOMMISSIONING})) is None
    sick = [*back[:2], heartbeat("dn3", pipelines=[report(5, healthy=False)])]
    assert again(picture_of(sick, [row])) == (0, list(NAMES)), "one of them has a fault there: on another partition"
    old = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    for beat in back:
        old.on_heartbeat(beat, NOW_MS)
    assert again(old.picture([row], (), NOW_MS, reopens=False)) == (0, list(NAMES)), "before finalize"


def test_a_member_that_has_lost_its_disk_does_not_hold_up_writes_while_there_are_partitions():
    row = pipeline_row(5, NAMES, CLOSED)
    lost = [
        heartbeat("dn1", pipelines=[report(5)], containers=[container(5 + 256, partition=5)]),
        heartbeat("dn2", pipelines=[report(5)]), heartbeat("dn3"),
    ]  # fmt: skip
    assert again(picture_of(lost, [row])) == (0, list(NAMES))
    others = [pipeline_row(number, ["dnx", "dny", "dnz"], CLOSED) for number in range(256) if number != 5]
    assert again(picture_of(lost, [row, *others])) == (5, list(NAMES)), "then it fetches its blocks first"
    empty = [*lost[1:], heartbeat("dn1", pipelines=[report(5)])]
    assert again(picture_of(empty, [row])) == (5, list(NAMES)), "there is nothing to fetch"


def test_a_pipeline_takes_no_blocks_before_all_members_follow_its_generation():
    rows = [pipeline_row(0, NAMES, generation=3)]

    def beats(*generations: int) -> list[Heartbeat]:
        return [
            heartbeat(name, pipelines=[report(0, leading=name == "dn1", generation=generation)])
            for name, generation in zip(NAMES, generations, strict=True)
        ]

    behind = picture_of(beats(3, 2, 3), rows)
    assert placement.choices(behind) == ()
    assert [(row.generation, node.name) for row, node in placement.to_open(behind)] == [(3, "dn2")]
    even = picture_of(beats(3, 3, 3), rows)
    assert placement.choices(even) == ((0, "pipeline-0"),)
    assert placement.generations(even) == {0: 3}
    assert placement.to_open(even) == []


def test_members_are_found_where_they_are_now():
    picture = picture_of([heartbeat("dn1", address="new:1", http_address="new:2", rack="/r9")])
    row = pipeline_row(0, NAMES)
    shown = pipeline_json(row, picture)["members"]
    assert [one["address"] for one in shown] == ["new:1", "dn2:1", "dn3:1"], "who was not heard: as it was"
    assert (shown[0]["http_address"], shown[0]["rack"]) == ("new:2", "/r9")
    assert pipeline_json(row, None)["members"][0]["address"] == "dn1:1"


def test_members_are_told():
    beats = [heartbeat("dn1", pipelines=[report(0), report(1)]), heartbeat("dn2"), heartbeat("dn3")]
    rows = [pipeline_row(0, NAMES), pipeline_row(1, NAMES, CLOSED)]
    picture = picture_of(beats, rows, ages_ms={"dn3": TIMEOUT_MS + 1})
    assert [(row.partition, node.name) for row, node in placement.to_open(picture)] == [(0, "dn2")]
    assert [(row.partition, node.name) for row, node in placement.to_close(picture)] == [(1, "dn1")]


def test_containers_are_closed_when_full_or_with_their_pipeline():
    held = [container(5, closed=False, used=100), container(6, closed=False, used=99)]
    beats = [heartbeat(name, pipelines=[report(0, leading=name == "dn2")], containers=held) for name in NAMES]
    found = placement.full_containers(picture_of(beats, [pipeline_row(0, NAMES)]), 100)
    assert [(one.container_id, [node.name for node in members]) for one, members in found] == [
        (5, ["dn2", "dn1", "dn3"])
    ]
    closed = placement.full_containers(picture_of(beats, [pipeline_row(0, NAMES, CLOSED)]), 100)
    assert [one.container_id for one, _ in closed] == [5, 6]


def test_one_closed_replica_keeps_blocks_out_of_a_container():
    beats = [heartbeat("dn1", containers=[container(5)]), heartbeat("dn2", containers=[container(5, closed=False)])]
    assert picture_of(beats).closed_containers == {5}


def test_copies():
    row = pipeline_row(0, NAMES, CLOSED)
    beats = [
        heartbeat("dn1", containers=[container(5), container(6)]),
        heartbeat("dn2", containers=[container(5), container(6, healthy=False)]),
        heartbeat("dn4", "/r2"),
        heartbeat("dn5", "/r1", free_bytes=1 << 39 | 1),
    ]
    picture = picture_of(beats, [row])
    found = placement.copies(picture)
    # The one with a single good replica first; to the other rack, for theirs all stand in one.
    assert [(copy.container_id, copy.target, copy.sources) for copy in found] == [
        (6, "dn4", ("dn1:1",)), (5, "dn4", ("dn1:1", "dn2:1")),
    ]  # fmt: skip
    under_way = [(6, "dn4"), (5, "dn4")]
    assert [(copy.container_id, copy.target) for copy in placement.copies(picture, under_way)] == [(6, "dn5")]
    assert placement.copies(picture_of(beats, [row], since_ms=NOW_MS - 1)) == []


def test_a_container_without_a_good_replica_waits():
    beats = [heartbeat("dn1", containers=[container(5, healthy=False)]), heartbeat("dn2")]
    assert placement.copies(picture_of(beats, [pipeline_row(0, NAMES, CLOSED)])) == []


def test_a_container_is_copied_as_long_as_one_replica_has_a_block_or_is_open():
    row = pipeline_row(0, NAMES, CLOSED)
    for last in (container(5, blocks=1), container(5, blocks=0, closed=False)):
        beats = [heartbeat("dn1", containers=[container(5, blocks=0)]), heartbeat("dn2", containers=[last])]
        picture = picture_of([*beats, heartbeat("dn4")], [row], {"dn2": DECOMMISSIONING})
        assert [copy.target for copy in placement.copies(picture)] == ["dn4"]
        assert placement.reached(picture) == []


def test_a_replica_that_is_not_closed_yet_is_no_reason_to_copy():
    beats = [
        heartbeat("dn1", containers=[container(5)]), heartbeat("dn2", containers=[container(5, closed=False)]),
        heartbeat("dn3", containers=[container(5, closed=False)]), heartbeat("dn4"),
    ]  # fmt: skip
    assert placement.copies(picture_of(beats, [pipeline_row(0, NAMES)])) == []


def test_a_damaged_copy_counts_for_nothing():
    row = pipeline_row(0, NAMES, CLOSED)
    beats = [
        heartbeat("dn1", containers=[container(5)], pipelines=[report(0)]),
        heartbeat("dn2", containers=[container(5)], pipelines=[report(0)]),
        heartbeat("dn4", containers=[container(5, healthy=False)]), heartbeat("dn5"),
    ]  # fmt: skip
    picture = picture_of(beats, [row])
    assert [node.name for node in placement.holders(picture, picture.containers[5])] == ["dn1", "dn2"]
    (copy,) = placement.copies(picture)
    assert (copy.target, copy.sources) == ("dn5", ("dn1:1", "dn2:1")), "neither is it a source, nor fetched anew"
    leaving = {"dn1": DECOMMISSIONING}
    assert placement.reached(picture_of(beats, [row], leaving)) == []
    whole = [*beats[:2], heartbeat("dn4", containers=[container(5)]), heartbeat("dn5", containers=[container(5)])]
    assert placement.copies(picture_of(whole, [row])) == []
    assert len(placement.reached(picture_of(whole, [row], leaving))) == 1


def test_holders_of_copies_are_told_whom_to_ask():
    row = pipeline_row(0, NAMES, CLOSED)
    beats = [
        heartbeat("dn1", containers=[container(5)], pipelines=[report(0)]),
        heartbeat("dn2", pipelines=[report(0)]),  # it has deleted all of it, and knows that
        heartbeat("dn3"),
        heartbeat("dn4", containers=[container(5, healthy=False)]), heartbeat("dn5", containers=[container(5)]),
        heartbeat("dn6", containers=[container(5, closed=False)]),
    ]  # fmt: skip
    found = placement.copy_sources(picture_of(beats, [row]))
    assert [(copy.container_id, copy.partition, copy.target, copy.sources) for copy in found] == [
        (5, 0, "dn4", ("dn1:1", "dn2:1", "dn5:1")), (5, 0, "dn5", ("dn1:1", "dn2:1", "dn4:1")),
    ]  # fmt: skip
    assert placement.copy_sources(picture_of(beats[3:4], [row])) == []
    assert placement.copy_sources(picture_of(beats, [])) == []


def test_a_container_of_no_known_pipeline_or_closed_everywhere_hides_no_other():
    closed = [container(256), container(512, partition=7, closed=False, used=1000)]
    full = [*closed, container(768, closed=False, used=1000)]
    picture = picture_of(following(containers=full), [pipeline_row(0, NAMES)])
    assert [found.container_id for found, _ in placement.full_containers(picture, 1000)] == [768]


def test_one_datanode_gets_few_copies_in_a_turn(monkeypatch: pytest.MonkeyPatch):
    """Those that it fetches already count."""
    held = [container(256 * number) for number in range(1, 9)]
    beats = [
        heartbeat("dn1", pipelines=[report(0)], containers=held),
        heartbeat("dn2", pipelines=[report(0)], containers=held),
        heartbeat("dn4"),
        heartbeat("dn5"),
    ]
    picture = picture_of(beats, [pipeline_row(0, NAMES, CLOSED)])
    targets = [copy.target for copy in placement.copies(picture)]
    assert sorted(targets) == sorted(["dn4", "dn5"] * placement.MAX_COPIES_PER_DATANODE)
    fetching = [(10**6, "dn4")]
    targets = [copy.target for copy in placement.copies(picture, fetching)]
    assert targets.count("dn4") == placement.MAX_COPIES_PER_DATANODE - 1
    monkeypatch.setattr(placement, "MAX_COPIES_PER_TURN", 3)
    assert len(placement.copies(picture)) == 3


def test_of_datanodes_with_as_much_to_do_the_one_with_most_room_fetches():
    held = [container(256)]
    beats = [
        heartbeat("dn1", containers=held), heartbeat("dn2", containers=held), heartbeat("dn4", free_bytes=1000),
        heartbeat("dn5", free_bytes=1002), heartbeat("dn6", free_bytes=1001),
    ]  # fmt: skip
    rows = [pipeline_row(0, NAMES, CLOSED)]
    assert [copy.target for copy in placement.copies(picture_of(beats, rows))] == ["dn5"]
    assert [copy.target for copy in placement.copies(picture_of(beats, rows), [(512, "dn5")])] == ["dn6"]
    large = [container(256, used=1002)]
    beats[:2] = [heartbeat("dn1", containers=large), heartbeat("dn2", containers=large)]
    assert [copy.target for copy in placement.copies(picture_of(beats, rows))] == ["dn5"]
    beats[:2] = [heartbeat(name, containers=[container(256, used=1003)]) for name in NAMES[:2]]
    assert placement.copies(picture_of(beats, rows)) == [], "nobody has room for it"


def test_a_source_has_few_addresses_and_a_turn_few_closings(monkeypatch: pytest.MonkeyPatch):
    names = [f"dn{number}" for number in range(1, 8)]
    beats = [heartbeat(name, containers=[container(256)]) for name in names]
    rows = [pipeline_row(0, [*names, "dn8"], CLOSED)]
    monkeypatch.setattr(placement, "MAX_SOURCES", 3)
    (copy,) = placement.copies(picture_of([*beats, heartbeat("dn9")], rows))
    assert copy.sources == ("dn1:1", "dn2:1", "dn3:1")
    monkeypatch.setattr(placement, "MAX_CLOSES_PER_TURN", 2)
    full = [container(256 * number, closed=False, used=10) for number in range(1, 5)]
    picture = picture_of(following(containers=full), [pipeline_row(0, NAMES)])
    assert [found.container_id for found, _ in placement.full_containers(picture, 10)] == [256, 512]


def test_a_silent_datanode_that_alone_holds_a_container_is_still_needed():
    row = pipeline_row(0, NAMES, CLOSED)
    silent = {"dn1": TIMEOUT_MS + 1}

    def reached(alone: ContainerReport, **others: list[ContainerReport]) -> list[str]:
        beats = [heartbeat("dn1", containers=[alone])]
        beats += [heartbeat(name, containers=others.get(name, [])) for name in ("dn2", "dn3", "dn4")]
        picture = picture_of(beats, [row], {"dn1": DECOMMISSIONING}, ages_ms=silent)
        return [one.state for one in placement.reached(picture)]

    held = container(256)
    assert reached(held) == [], "no other has it"
    assert reached(held, dn2=[held], dn3=[held]) == [], "two others have it, and three should"
    assert reached(held, dn2=[held], dn3=[held], dn4=[held]) == [DECOMMISSIONED]
    assert reached(container(256, blocks=0)) == [DECOMMISSIONED], "nothing is in it"


def test_who_leaves_is_told_of_when_nobody_needs_it():
    row = pipeline_row(0, NAMES, CLOSED)
    leaving = {"dn1": DECOMMISSIONING}
    held = {name: [container(256)] for name in ("dn1", "dn2", "dn3", "dn4")}

    def reached(**changed: Any) -> list[str]:
        beats = [heartbeat(name, containers=found) for name, found in (held | changed).items()]
        return [one.state for one in placement.reached(picture_of(beats, [row], leaving))]

    assert reached() == [DECOMMISSIONED]
    assert reached(dn4=[]) == [], "two others have its container, and three should"
    assert reached(dn4=[], dn1=[]) == [DECOMMISSIONED], "it holds nothing"
    assert reached(dn4=[], dn1=[container(256, partition=7)], dn2=[], dn3=[]) == [DECOMMISSIONED], "of no pipeline"
    many = [container(256 * number) for number in range(MAX_REPORTED_CONTAINERS)]
    assert reached(dn1=many, dn2=many, dn3=many, dn4=many) == [], "it may hold more than it says"
    unheard = picture_of([heartbeat("dn2")], [row], leaving)
    assert placement.reached(unheard) == [], "nobody knows what it holds"
    maintained = {"dn1": ENTERING_MAINTENANCE}
    beats = [heartbeat(name) for name in NAMES]
    assert [one.state for one in placement.reached(picture_of(beats, [row], maintained))] == [IN_MAINTENANCE]
    assert placement.reached(picture_of(beats, [pipeline_row(0, NAMES)], maintained)) == [], "a pipeline needs it"
