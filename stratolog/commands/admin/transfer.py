"""``stratolog admin transfer``: which node leads a shard. Registered by ``admin``."""

from __future__ import annotations

from typing import Annotated

import typer

from stratolog.cluster.leadership import check_shard, move
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.names import NodeArgument
from stratolog.commands.common.output import console, print_json
from stratolog.commands.common.waiting import waiting

Shard = Annotated[int, typer.Argument(help="Shard, from 0.", min=0)]
Node = NodeArgument


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``admin``."""
    group.command("transfer")(transfer)


def transfer(context: typer.Context, shard: Shard, node: Node, *, as_json: JsonOption = False) -> None:
    """Move the leadership of a shard to a node: its leader drains and steps down, the node claims.

    Nothing that was acknowledged is lost, and clients notice a pause, which is printed. The node leads until its loan
    ends: when the shard's owner stops, when this node fails, or at the next transfer.
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    settings.node(node)
    what = f"transfer of shard {shard} to {node}"
    unknown = f"whether shard {shard} moves to {node} is not known: 'stratolog status' shows who leads it"
    with waiting(settings, what, unknown, quiet=as_json):
        done = move(settings, shard, node)
    if as_json:
        print_json(done)
    else:
        if done["moved"]:
            text = f"shard {shard} is led by {node}, term {done['term']}; nobody led it for {done['gap_ms']:.0f} ms"
        else:
            text = f"{node} leads shard {shard} already"
        console.print(text, highlight=False)
