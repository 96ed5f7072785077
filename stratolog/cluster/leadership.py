"""Who leads a shard, as the nodes say, and how a command moves the leadership to another node."""

from __future__ import annotations

from typing import Any

import httpx

from stratolog.cluster.reach import check_nodes
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UsageError, UserError
from stratolog.local.processes import wait_until
from stratolog.nodes.answers import node_statuses
from stratolog.nodes.core import leaders
from stratolog.nodes.node_http import http_to, operator_auth, url_of

TRANSFER_TIMEOUT_S = 60.0
OWNER_WAIT_S = 15.0


def check_shard(settings: Settings, shard: int) -> None:
    """Raise UsageError if the cluster has no such shard."""
    if not 0 <= shard < settings.shards:
        raise UsageError(f"no shard {shard}; there are 0..{settings.shards - 1}")


def shard_views(settings: Settings, shard: int) -> dict[str, leaders.View]:
    """Return what each node that answers says of a shard."""
    views = {name: leaders.view_of(status, shard) for name, status in node_statuses(settings).items()}
    return {name: view for name, view in views.items() if view}


def move(settings: Settings, shard: int, node: str) -> dict[str, Any]:
    """Move a shard's leadership to ``node``.

    Raises UserError if the nodes refuse, Unavailable if nobody owns the shard.
    """
    check_nodes(settings, {node})
    found = shard_views(settings, shard)
    if leaders.is_leader(found.get(node, {})):
        return {"shard": shard, "leader": node, "term": found[node]["term"], "gap_ms": 0.0, "moved": False}
    owner = _owner(settings, shard)
    target = settings.node(node).address
    address = settings.node(owner).address
    url = url_of(address, f"/v1/shards/{shard}/transfer")
    try:
        answer = http_to(address).post(
            url,
            params={"node": node, "address": target},
            timeout=TRANSFER_TIMEOUT_S,
            auth=operator_auth(settings),
        )
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"{owner}, which owns shard {shard}, does not answer: {error!r}") from error
    if answer.status_code != 200:
        raise UserError(str(body.get("message")))
    return {**body, "moved": True}


def _owner(settings: Settings, shard: int) -> str:
    """Return the shard's owner in the leaders' group; waits while a change of ownership is under way."""
    owners: list[str] = []

    def has_one_owner() -> bool:
        owners[:] = [name for name, view in shard_views(settings, shard).items() if view.get("owner")]
        return len(owners) == 1

    if not wait_until(has_one_owner, OWNER_WAIT_S):
        raise Unavailable(
            f"shard {shard} has {'no owner' if not owners else 'owners ' + ', '.join(owners)} at the moment: try again"
        )
    return owners[0]
