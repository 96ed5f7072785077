"""Spanning trees: the paths by which a stream's packets reach every member of a pipeline (design, section 8).

What belongs here: the pure choice of a tree, for groups of 1 to MAX_ROUTES datanodes. The rules:

1. The tree holds each given datanode once; its root is the *primary*, to which the client connects.
2. Whatever the shape and whichever datanode is the primary, each rack other than the primary's is entered by exactly
   one hop, so two racks have one hop between them. Within a rack, hops stay there.
3. Shapes. ``star``: the primary, and the first datanode in each other rack, forward to all others of their rack.
   ``chain``: each forwards to one. ``tree``: each forwards to two at most.
4. Nothing is random here. The order in which the datanodes are given decides between equals, so the caller shuffles
   them, or sorts them by load.

A rack is a path such as ``/hall1/rack3``; the more leading parts two racks share, the nearer they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from schemas.records.datanode import Member, Route
from schemas.records.packets import MAX_ROUTES
from schemas.settings.table import SHAPES, Shape

MAX_TREE_CHILDREN = 2


def spanning_tree(members: Sequence[Member], primary: str, shape: Shape) -> list[Route]:
    """Return the routes of a stream through ``members``; the first is that of ``primary``, where the stream begins.

    Raises ValueError, naming it, for a primary that is no member, a repeated name, more than MAX_ROUTES members, or an
    unknown shape.

    Raises ValueError, naming it, for a primary that is no member, a name that is given twice, more than MAX_ROUTES
    members, or an unknown shape.

    >>> nodes = [Member(datanode=f"dn{n}", address=f"h:{n}", http_address="", rack=f"/r{n % 2}") for n in range(4)]
    >>> [(route.datanode, route.children) for route in spanning_tree(nodes, "dn1", "star")]
    [('dn1', ['dn3', 'dn0']), ('dn3', []), ('dn0', ['dn2']), ('dn2', [])]
    """
    known = {member.datanode: member for member in members}
    if primary not in known:
        raise ValueError(f"{primary!r} cannot begin a stream through {', '.join(known) or 'nobody'}")
    if len(known) != len(members):
        raise ValueError(f"a datanode is given twice: {', '.join(member.datanode for member in members)}")
    if len(members) > MAX_ROUTES:
        raise ValueError(f"{len(members)} datanodes in one stream; at most {MAX_ROUTES} are allowed")
    racks = _by_rack(members, known[primary])
    children: dict[str, list[str]] = {name: [] for rack in racks for name in rack}
    if shape == "star":
        _star(racks, children)
    elif shape == "chain":
        _chain(racks, children)
    elif shape == "tree":
        _tree(racks, children)
    else:
        raise ValueError(f"topology {shape!r} is none of {', '.join(SHAPES)}")
    return [Route(datanode=name, address=known[name].address, children=below) for name, below in children.items()]


def nearest_first(members: Sequence[Member], rack: str, load: Mapping[str, float] | None = None) -> list[Member]:
    """Return the members by nearness to a client in ``rack``; among equally near ones the less loaded comes first.

    >>> nodes = [Member(datanode=f"dn{n}", address="", http_address="", rack=f"/h/r{n}") for n in range(3)]
    >>> [member.datanode for member in nearest_first(nodes, "/h/r2", {"dn0": 0.9, "dn1": 0.1})]
    ['dn2', 'dn1', 'dn0']
    """
    known = load or {}
    return sorted(members, key=lambda member: (distance(rack, member.rack), known.get(member.datanode, 0.0)))


def distance(one: str, other: str) -> int:
    """Return the steps from one rack up to the common part of both, and down to the other; 0 is the same rack.

    >>> distance("/h1/r1", "/h1/r1"), distance("/h1/r1", "/h1/r2"), distance("/h1/r1", "/h2/r1")
    (0, 2, 4)
    """
    parts, others = _parts(one), _parts(other)
    shared = 0
    for part, other_part in zip(parts, others, strict=False):
        if part != other_part:
            break
        shared += 1
    return len(parts) + len(others) - 2 * shared


def _parts(rack: str) -> tuple[str, ...]:
    return tuple(part for part in rack.split("/") if part)


def _by_rack(members: Sequence[Member], primary: Member) -> list[list[str]]:
    """Return the names rack by rack: the primary's rack first and the primary first in it, then the nearer racks."""
    racks: dict[tuple[str, ...], list[str]] = {_parts(primary.rack): [primary.datanode]}
    for member in sorted(members, key=lambda member: distance(primary.rack, member.rack)):
        if member.datanode != primary.datanode:
            racks.setdefault(_parts(member.rack), []).append(member.datanode)
    return list(racks.values())


def _star(racks: list[list[str]], children: dict[str, list[str]]) -> None:
    primary = racks[0][0]
    for first, *others in racks:
        if first != primary:
            children[primary].append(first)
        children[first].extend(others)


def _chain(racks: list[list[str]], children: dict[str, list[str]]) -> None:
    names = [name for rack in racks for name in rack]
    for above, below in pairwise(names):
        children[above].append(below)


def _tree(racks: list[list[str]], children: dict[str, list[str]]) -> None:
    """Fill each rack breadth first; enter the next rack from the highest datanode that has room."""
    placed: list[str] = []
    for rack in racks:
        first, *others = rack
        if placed:
            _adopt(placed, first, children)
        for position, name in enumerate(others, start=1):
            _adopt(rack[:position], name, children)
        placed.extend(rack)


def _adopt(candidates: Sequence[str], child: str, children: dict[str, list[str]]) -> None:
    """Put ``child`` under the first candidate with room; a leaf always has some."""
    parent = next(name for name in candidates if len(children[name]) < MAX_TREE_CHILDREN)
    children[parent].append(child)
