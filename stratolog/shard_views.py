"""What nodes say of a shard (``/status``), and who leads it by their own word: told here, and nowhere else. Pure.

A *view* is one node's entry about one shard; the empty one is that of a node that does not answer, or does not have the
shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

View = Mapping[str, Any]


def views_in(status: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a node's views of all its shards; ``status`` is None if it does not answer."""
    return list((status or {}).get("shards", ()))


def view_in(status: Mapping[str, Any] | None, shard: int) -> dict[str, Any]:
    """Return a node's view of a shard."""
    return next((view for view in views_in(status) if view["shard"] == shard), {})


def leads(view: View) -> bool:
    """Whether the node says that it leads the shard."""
    return view.get("role") == "leader"


def leader_of(views: Mapping[str, View]) -> str | None:
    """Return the node that says that it leads, by the nodes' views of one shard; None if there is not exactly one."""
    found = [name for name, view in views.items() if leads(view)]
    return found[0] if len(found) == 1 else None


def is_agreed(views: Mapping[str, View]) -> bool:
    """Whether exactly one node leads the shard, and all know the same leader."""
    return (
        leader_of(views) is not None
        and len(known := {view.get("leader") for view in views.values()}) == 1
        and None not in known
    )
