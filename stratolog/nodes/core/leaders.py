"""Which node leads a shard, by what the nodes say of themselves (``/status``). Pure.

A *view* is what one node says of one shard. A node leads by its own word; a shard has a leader if exactly one node says
so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

View = Mapping[str, Any]
Status = Mapping[str, Any] | None
"""A node's answer; None = the node has not answered."""


def views_in(status: Status) -> list[View]:
    """Return what a node says of its shards; empty if it has not answered."""
    return list((status or {}).get("shards", []))


def view_of(status: Status, shard: int) -> View:
    """Return what a node says of a shard; empty if it does not say anything."""
    return next((view for view in views_in(status) if view["shard"] == shard), {})


def is_leader(view: View) -> bool:
    """Say whether the node of this view leads the shard, by its own word."""
    return view.get("role") == "leader"


def leader_of(statuses: Mapping[str, Status], shard: int) -> str | None:
    """Return the node that leads a shard, None if there is not exactly one."""
    found = [name for name, status in statuses.items() if is_leader(view_of(status, shard))]
    return found[0] if len(found) == 1 else None


def is_led(statuses: Mapping[str, Status], shard: int) -> bool:
    """Say whether a shard has exactly one leader, and every node names the same one."""
    named = {view_of(status, shard).get("leader") for status in statuses.values()}
    return leader_of(statuses, shard) is not None and len(named) == 1 and None not in named
