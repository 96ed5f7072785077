"""``stratolog admin transfer``: which node leads a shard. Registered by ``admin``."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import typer

from stratolog.commands.common import JsonOption, connected_settings_of, console, print_json
from stratolog.errors import Unavailable, UsageError, UserError
from stratolog.local import stack
from stratolog.local.processes import wait_until
from stratolog.settings import Settings

TRANSFER_TIMEOUT_S = 60.0
OWNER_WAIT_S = 15.0

Shard = Annotated[int, typer.Argument(help="Shard, from 0.", min=0)]
Node = Annotated[str, typer.Argument(help="Name of the node.")]


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``admin``."""
    group.command("transfer")(transfer)


def check_shard(settings: Settings, shard: int) -> None:
    """Raise UsageError for a shard that there is not."""
    if not 0 <= shard < settings.shards:
        raise UsageError(f"no shard {shard}; there are 0..{settings.shards - 1}")


# -- transfer ----------------------------------------------------------------------------------------------------------


def transfer(context: typer.Context, shard: Shard, node: Node, *, as_json: JsonOption = False) -> None:
    """Move the leadership of a shard to a node: its leader drains and steps down, the node claims.

    Nothing that was acknowledged is lost, and clients notice a pause, which is printed. The node leads until its loan ends: when
    the shard's owner stops, when this node fails, or at the next transfer.
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    settings.node(node)
    done = move(settings, shard, node)
    if as_json:
        print_json(done)
    else:
        if done["moved"]:
            text = f"shard {shard} is led by {node}, term {done['term']}; nobody led it for {done['gap_ms']:.0f} ms"
        else:
            text = f"{node} leads shard {shard} already"
        console.print(text, highlight=False)


def move(settings: Settings, shard: int, node: str) -> dict[str, Any]:
    """Move a shard; raises UserError if the nodes refuse, Unavailable if nobody owns the shard."""
    found = shard_views(settings, shard)
    if found.get(node, {}).get("role") == "leader":
        return {"shard": shard, "leader": node, "term": found[node]["term"], "gap_ms": 0.0, "moved": False}
    owner = _owner(settings, shard)
    target = settings.node(node).address
    url = f"http://{settings.node(owner).address}/v1/shards/{shard}/transfer"
    try:
        answer = httpx.post(url, params={"node": node, "address": target}, timeout=TRANSFER_TIMEOUT_S, trust_env=False)
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"{owner}, which owns shard {shard}, does not answer: {error!r}") from error
    if answer.status_code != 200:
        raise UserError(str(body.get("message")))
    return {**body, "moved": True}


def shard_views(settings: Settings, shard: int) -> dict[str, dict[str, Any]]:
    """Return what each node that answers says of a shard."""
    views: dict[str, dict[str, Any]] = {}
    for node in settings.nodes:
        status: Any = stack.node_status(node.address)
        for view in (status or {}).get("shards", []):
            if view["shard"] == shard:
                views[node.name] = view
    return views


def _owner(settings: Settings, shard: int) -> str:
    """Return the shard's owner in the leaders' group; waits while a change of ownership is under way."""
    owners: list[str] = []

    def found() -> bool:
        owners[:] = [name for name, view in shard_views(settings, shard).items() if view.get("owner")]
        return len(owners) == 1

    if not wait_until(found, OWNER_WAIT_S):
        raise Unavailable(
            f"shard {shard} has {'no owner' if not owners else 'owners ' + ', '.join(owners)} at the moment: try again"
        )
    return owners[0]
