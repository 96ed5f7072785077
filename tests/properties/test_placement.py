"""Placement over random topologies: what pipelines are made of, and that a cluster left alone comes to rest whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_processors.fleet.core import pipeline_making, placement
from om_processors.fleet.core.pipeline_making import MANY_PIPELINES, PIPELINES_PER_DATANODE
from schemas.datanode_states import (
    CLOSED,
    DECOMMISSIONED,
    DECOMMISSIONING,
    ENTERING_MAINTENANCE,
    IN_MAINTENANCE,
    OPEN,
)
from tests.properties.examples import examples
from tests.support.om.fleets import SmallCluster, container, pipeline_row

RACKS = st.lists(st.sampled_from(["/r1", "/r2", "/r3"]), min_size=1, max_size=9).map(
    lambda racks: {f"dn{number}": rack for number, rack in enumerate(racks, start=1)}
)


def check(cluster: SmallCluster) -> None:
    """What holds of every pipeline at every moment, as it was when it was made."""
    picture = cluster.picture()
    for name in cluster.racks:
        assert picture.pipelines_of(name) <= PIPELINES_PER_DATANODE
    for row in cluster.rows.values():
        names = [one.datanode for one in row.members]
        assert len(set(names)) == len(names) == cluster.replicas


def written(racks: dict[str, str]) -> SmallCluster:
    """A cluster whose pipelines have a container each."""
    cluster = SmallCluster(racks=racks)
    cluster.settle(20)
    for number, partition in enumerate(sorted(cluster.rows)):
        cluster.write(1000 + number, partition)
    return cluster


@settings(max_examples=examples(150), deadline=None)
@given(racks=RACKS, replicas=st.sampled_from([1, 3]))
def test_pipelines_are_rack_aware(racks: dict[str, str], replicas: int):
    cluster = SmallCluster(racks=racks, replicas=replicas)
    for _ in range(25):
        cluster.turn()
        check(cluster)
    for row in cluster.rows.values():
        found = {one.rack for one in row.members}
        if replicas == 3 and len(set(racks.values())) > 1:
            assert len(found) >= 2
            if row.partition == 0:  # later ones may find only datanodes of different racks with room for them
                each_alone = len(set(racks.values())) == len(racks)
                assert len(found) == (3 if each_alone else 2)
        assert row.state == OPEN
    if len(racks) >= replicas:
        lonely = replicas == 3 and len(set(racks.values())) == 2 and len(racks) < 3
        assert cluster.rows or lonely
        first = [row.members[0].datanode for row in cluster.rows.values()]
        if len(racks) == replicas == 3 and cluster.rows:
            assert len(set(first)) == len(first), "leaders are spread"


@settings(max_examples=examples(100), deadline=None)
@given(racks=RACKS, data=st.data())
def test_a_cluster_that_loses_datanodes_becomes_whole_again(racks: dict[str, str], data: st.DataObject):
    cluster = written(racks)
    lost = data.draw(st.sampled_from(sorted(racks)))
    how = data.draw(st.sampled_from(["killed", DECOMMISSIONING, ENTERING_MAINTENANCE]))
    affected = {row.partition for row in cluster.rows.values() if lost in [one.datanode for one in row.members]}
    if how == "killed":
        cluster.down.add(lost)
    else:
        cluster.states[lost] = how
    picture = cluster.settle(60)
    check(cluster)
    for row in cluster.rows.values():
        assert (row.state == CLOSED) == (row.partition in affected)
    assert not pipeline_making.retirements(picture)
    serving = cluster.in_service()
    for found in picture.containers.values():
        row = cluster.rows[found.partition]
        good = [node.name for node in placement.holders(picture, found)]
        if row.state == OPEN:
            continue
        assert found.closed_by >= found.held_by - cluster.down
        # As many replicas as there were, if there are so many datanodes.
        expected = min(3, len(serving)) if how != ENTERING_MAINTENANCE else 3
        assert len(good) >= expected
        assert len(good) <= 4
    if how == DECOMMISSIONING:
        whole = all(
            len(placement.holders(picture, found)) >= 3
            for found in picture.containers.values()
            if lost in found.held_by
        )
        assert (cluster.states[lost] == DECOMMISSIONED) == whole
    if how == ENTERING_MAINTENANCE:
        assert cluster.states[lost] == IN_MAINTENANCE
        for found in picture.containers.values():
            assert len(found.held_by) == 3, "nothing is copied because of maintenance"


@settings(max_examples=examples(50), deadline=None)
@given(racks=RACKS, data=st.data())
def test_a_damaged_copy_is_replaced_and_nobody_fetches_from_it(racks: dict[str, str], data: st.DataObject):
    cluster = written(racks)
    cluster.down.add(data.draw(st.sampled_from(sorted(racks))))
    picture = cluster.settle(30)
    rows = cluster.rows
    copied = [
        (name, number)
        for name, held in cluster.holds.items()
        for number, one in held.items()
        if name not in cluster.down and name not in [member.datanode for member in rows[one.partition].members]
    ]
    damaged = set(data.draw(st.lists(st.sampled_from(copied), unique=True))) if copied else set()
    for name, number in damaged:
        cluster.holds[name][number] = replace(cluster.holds[name][number], healthy=False)
    cluster.beat()
    for copy in placement.copies(cluster.picture()):
        assert not {(source.removesuffix(":1"), copy.container_id) for source in copy.sources} & damaged
    picture = cluster.settle(30)
    serving = cluster.in_service()
    for found in picture.containers.values():
        if rows[found.partition].state == OPEN:
            continue
        bad = {name for name, number in damaged if number == found.container_id}
        good = {node.name for node in placement.holders(picture, found)}
        assert not good & bad
        assert len(good) >= min(3, len(serving - bad))


@settings(max_examples=examples(50), deadline=None)
@given(racks=RACKS, data=st.data())
def test_a_container_whose_blocks_are_deleted_is_not_copied_and_keeps_no_datanode(
    racks: dict[str, str], data: st.DataObject
):
    cluster = SmallCluster(racks=racks)
    cluster.settle(20)
    held = 0
    for name in sorted(racks):
        for number, partition in enumerate(sorted(cluster.rows)):
            if data.draw(st.booleans()):
                healthy = data.draw(st.booleans())
                found = container(1000 + number, partition=partition, healthy=healthy, used=0, blocks=0)
                cluster.holds.setdefault(name, {})[1000 + number] = found
                held += 1
    leaving = data.draw(st.sampled_from(sorted(racks)))
    cluster.states[leaving] = DECOMMISSIONING
    for _ in range(10):
        assert placement.copies(cluster.turn()) == []
    assert cluster.states[leaving] == DECOMMISSIONED
    assert sum(map(len, cluster.holds.values())) == held


@settings(max_examples=examples(100), deadline=None)
@given(racks=RACKS, data=st.data())
def test_what_is_allocated_is_on_healthy_datanodes(racks: dict[str, str], data: st.DataObject):
    cluster = SmallCluster(racks=racks)
    for _ in range(data.draw(st.integers(1, 30))):
        name = data.draw(st.sampled_from(sorted(racks)))
        if data.draw(st.booleans()):
            cluster.down ^= {name}
        picture = cluster.turn()
        for number, pipeline in placement.choices(picture):
            row = next(row for row in picture.pipelines if row.partition == number)
            assert row.pipeline == pipeline
            assert row.state == OPEN
            for one in row.members:
                assert picture.member(one.datanode).takes_blocks


def restart(cluster: SmallCluster, names: list[str], turns: int) -> int:
    """Have datanodes away until they are dead, then back; return in how many turns no pipeline took blocks."""
    idle = 0
    cluster.down |= set(names)
    for _ in range(turns):
        idle += not placement.choices(cluster.turn())
    cluster.down -= set(names)
    for _ in range(4):
        cluster.turn()
    return idle


@pytest.mark.parametrize(
    "datanodes", [3, 7, *(pytest.param(datanodes, marks=pytest.mark.slow) for datanodes in (4, 5, 12, 20))]
)
def test_hundreds_of_rolling_restarts_leave_pipelines(datanodes: int):
    cluster = SmallCluster(racks={f"dn{number}": f"/r{number % 3}" for number in range(datanodes)})
    cluster.settle(20)
    first = len(cluster.rows)
    names = sorted(cluster.racks)
    cluster.write(1000, 0)
    holders = {one.datanode for one in cluster.rows[0].members}
    for number in range(300):
        idle = restart(cluster, [names[number % datanodes]], turns=13)
        assert datanodes < 6 or idle == 0, "while one is away the others go on"
        check(cluster)
    assert placement.choices(cluster.settle(5))
    assert len(cluster.rows) <= max(MANY_PIPELINES + 16, first), "partitions are saved"
    assert max(row.generation for row in cluster.rows.values()) > 3
    assert {name for name, held in cluster.holds.items() if 1000 in held} >= holders, "its blocks are where they were"
    used = len(cluster.rows)
    restart(cluster, names, turns=15)
    assert placement.choices(cluster.settle(10)), "after all of them, too"
    assert len(cluster.rows) == used


def test_a_datanode_that_is_new_gets_a_pipeline_however_many_there_are():
    cluster = SmallCluster(racks={f"dn{number}": "/r1" for number in range(7)})
    for partition in range(MANY_PIPELINES):
        cluster.rows[partition] = pipeline_row(partition, ["dn0", "dn1", "dn2"], CLOSED)
    cluster.settle(20)
    cluster.racks["new"] = "/r1"
    for row in cluster.rows.values():
        if row.state == OPEN:
            cluster.rows[row.partition] = replace(row, state=CLOSED)
    picture = cluster.settle(20)
    assert picture.pipelines_of("new")


@settings(max_examples=examples(60), deadline=None)
@given(racks=RACKS, data=st.data())
def test_pipelines_come_back_whatever_goes_and_comes(racks: dict[str, str], data: st.DataObject):
    cluster = SmallCluster(racks=racks)
    cluster.settle(20)
    for _ in range(data.draw(st.integers(1, 25))):
        names = data.draw(st.lists(st.sampled_from(sorted(racks)), min_size=1, unique=True))
        restart(cluster, names, data.draw(st.sampled_from([1, 4, 13])))
        check(cluster)
    could = bool(cluster.rows)
    assert bool(placement.choices(cluster.settle(15))) == could
    for row in cluster.rows.values():
        follows = {cluster.follows[one.datanode].get(row.partition) for one in row.members if row.state == OPEN}
        assert follows <= {row.generation}
