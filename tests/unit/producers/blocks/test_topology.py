"""Spanning trees: all shapes, all groups of 1 to 7, all racks, all starting datanodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.blocks.core.topology import MAX_TREE_CHILDREN, distance, nearest_first, spanning_tree
from schemas.records.datanode import Member
from schemas.records.packets import MAX_ROUTES
from schemas.settings.table import SHAPES
from tests.support.datanodes.racks import cross_rack_hops

RACKS = ("/r1", "/r2", "/hall/r1", "/hall/r2", "", "/hall")


def group(racks):
    return [Member(datanode=f"dn{n}", address=f"host{n}:1", http_address="", rack=rack) for n, rack in enumerate(racks)]


groups = st.lists(st.sampled_from(RACKS), min_size=1, max_size=MAX_ROUTES).flatmap(
    lambda racks: st.permutations(group(racks))
)


def parents(routes):
    return {child: route.datanode for route in routes for child in route.children}


@pytest.mark.parametrize("shape", SHAPES)
@given(members=groups, data=st.data())
def test_every_tree_spans_all_and_enters_each_other_rack_once(shape, members, data):
    for start in members:
        routes = spanning_tree(members, start.datanode, shape)
        names = [route.datanode for route in routes]
        assert names[0] == start.datanode
        assert sorted(names) == sorted(member.datanode for member in members)
        above = parents(routes)
        assert sorted(above) == sorted(set(names) - {start.datanode})
        assert sum(len(route.children) for route in routes) == len(members) - 1
        for name in names:  # every way up ends at the primary
            steps = 0
            while name != start.datanode:
                name, steps = above[name], steps + 1
                assert steps < len(members)
        assert cross_rack_hops(routes, members) == len({member.rack for member in members}) - 1
        assert {route.datanode: route.address for route in routes} == {m.datanode: m.address for m in members}


@given(members=groups)
def test_the_shapes_bound_the_children(members):
    for start in members:
        chain = spanning_tree(members, start.datanode, "chain")
        assert all(len(route.children) <= 1 for route in chain)
        tree = spanning_tree(members, start.datanode, "tree")
        assert all(len(route.children) <= MAX_TREE_CHILDREN for route in tree)


@pytest.mark.parametrize("size", range(1, MAX_ROUTES + 1))
def test_in_one_rack_a_star_is_two_levels_and_a_tree_is_as_flat_as_two_children_allow(size):
    members = group(["/r"] * size)
    star = spanning_tree(members, "dn0", "star")
    assert star[0].children == [f"dn{n}" for n in range(1, size)]
    tree = {route.datanode: route.children for route in spanning_tree(members, "dn0", "tree")}

    def depth(name):
        return 1 + max((depth(child) for child in tree[name]), default=0)

    assert 2 ** (depth("dn0") - 1) <= size < 2 ** depth("dn0")


@given(members=groups, rack=st.sampled_from(RACKS))
def test_the_nearest_is_never_farther_than_another_and_load_breaks_ties(members, rack):
    load = {member.datanode: float(position) for position, member in enumerate(reversed(members))}
    found = nearest_first(members, rack, load)
    keys = [(distance(rack, member.rack), load[member.datanode]) for member in found]
    assert keys == sorted(keys)
    assert {member.datanode for member in found} == {member.datanode for member in members}


def test_what_is_wrong_is_named():
    members = group(["/r1", "/r2"])
    with pytest.raises(ValueError, match="'dn9' cannot begin a stream through dn0, dn1"):
        spanning_tree(members, "dn9", "star")
    with pytest.raises(ValueError, match="through nobody"):
        spanning_tree([], "dn0", "star")
    with pytest.raises(ValueError, match="given twice: dn0, dn0"):
        spanning_tree([members[0], members[0]], "dn0", "star")
    with pytest.raises(ValueError, match="8 datanodes in one stream; at most 7"):
        spanning_tree(group(["/r"] * 8), "dn0", "star")
    with pytest.raises(ValueError, match="'ring' is none of star, chain, tree"):
        spanning_tree(members, "dn0", "ring")  # type: ignore[arg-type]
