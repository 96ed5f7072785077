"""Spanning trees seen by their racks."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.records.datanode import Member, Route


def cross_rack_hops(routes: Sequence[Route], members: Sequence[Member]) -> int:
    """Return how many hops of a tree go from one rack into another."""
    racks = {member.datanode: member.rack for member in members}
    return sum(racks[route.datanode] != racks[child] for route in routes for child in route.children)
