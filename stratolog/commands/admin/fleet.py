"""``stratolog admin datanode`` and ``admin pipeline``: show both, take datanodes out of service and back.

A change is an ordinary request to shard 0. The node that leads that shard does the rest: pipelines close, containers
are copied. ``admin datanode list`` shows how far it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.cluster.connection import client_of
from stratolog.cluster.reach import check_log, check_nodes
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.names import DatanodeArgument
from stratolog.commands.common.output import console, notes, print_fleet, print_json
from stratolog.commands.common.waiting import waiting
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.nodes.answers import node_answer

if TYPE_CHECKING:
    from schemas.records.messages import RequestBody

PIPELINE_NAME = re.compile(r"pipeline-(\d{1,3})")

Datanode = DatanodeArgument
Pipeline = Annotated[str, typer.Argument(help="Name of the pipeline, as 'pipeline-3'.")]
Force = Annotated[bool, typer.Option("--force", help="Also a datanode that nobody has heard of.")]


def register(group: typer.Typer) -> None:
    """Add the groups to ``admin``."""
    datanode = typer.Typer(no_args_is_help=True, help="Datanodes: list, take out of service and back.")
    datanode.command("list")(list_datanodes)
    datanode.command("decommission")(decommission)
    datanode.command("recommission")(recommission)
    datanode.command("maintenance")(maintenance)
    group.add_typer(datanode, name="datanode")
    pipeline = typer.Typer(no_args_is_help=True, help="Pipelines of datanodes: list, close.")
    pipeline.command("list")(list_pipelines)
    pipeline.command("close")(close)
    group.add_typer(pipeline, name="pipeline")


def list_datanodes(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the datanodes: state, health, room, what they follow."""
    _show(context, "datanodes", as_json=as_json)


def list_pipelines(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the pipelines and their members; those that are closed still hold blocks."""
    _show(context, "pipelines", as_json=as_json)


def _show(context: typer.Context, what: str, *, as_json: bool) -> None:
    found = {what: fleet_of(connected_settings_of(context), what)}
    if as_json:
        print_json(found)
    elif found[what]:
        print_fleet(found)
    else:
        console.print(f"there are no {what}")


def fleet_of(settings: Settings, what: str) -> list[dict[str, Any]]:
    """Return the datanodes or pipelines as told by the first node that answers; raises Unavailable if none answers."""
    check_nodes(settings)
    try:
        check_log(settings)
        paths = [f"/v1/{what}", f"/v1/{what}?consistency=stale"]
    except Unavailable as error:
        notes.print(f"{error}; what follows may be old", markup=False, highlight=False, soft_wrap=True)
        paths = [f"/v1/{what}?consistency=stale"]
    for path in paths:
        for node in settings.nodes:
            answer = node_answer(node.address, path)
            if answer is not None:
                found: list[dict[str, Any]] = answer[what]
                return found
        if path != paths[-1]:
            notes.print("no node answers a linearizable read: what follows may be old", highlight=False, soft_wrap=True)
    raise Unavailable(f"no node answers: {', '.join(node.address for node in settings.nodes)}")


def decommission(context: typer.Context, name: Datanode, *, force: Force = False, as_json: JsonOption = False) -> None:
    """Take a datanode away for good: its pipelines close, what it holds is copied, then it is DECOMMISSIONED."""
    _set(context, name, "DECOMMISSIONING", force=force, as_json=as_json)


def recommission(context: typer.Context, name: Datanode, *, force: Force = False, as_json: JsonOption = False) -> None:
    """Take a datanode back into service."""
    _set(context, name, "IN_SERVICE", force=force, as_json=as_json)


def maintenance(context: typer.Context, name: Datanode, *, force: Force = False, as_json: JsonOption = False) -> None:
    """Have a datanode away for a while: its pipelines close, but nothing is copied because of it."""
    _set(context, name, "ENTERING_MAINTENANCE", force=force, as_json=as_json)


def _set(context: typer.Context, name: str, state: str, *, force: bool, as_json: bool) -> None:
    from schemas.records.messages import SetDatanodeState

    settings = connected_settings_of(context)
    known = {one["datanode"]: one["state"] for one in fleet_of(settings, "datanodes")}
    if name not in known and not force:
        raise UserError(f"no datanode {name!r}; there is: {', '.join(known) or 'none'}")
    index = _call(settings, SetDatanodeState(datanode=name, state=state), as_json=as_json)
    if as_json:
        print_json({"datanode": name, "before": known.get(name), "state": state, "index": index})
    else:
        console.print(f"{name}: {state} (was {known.get(name, 'unknown')})", highlight=False)


def close(context: typer.Context, name: Pipeline, *, as_json: JsonOption = False) -> None:
    """Close a pipeline: it takes no more blocks. Another one, or its next generation, takes its place."""
    from schemas.records.messages import RetirePipeline

    found = PIPELINE_NAME.fullmatch(name)
    if found is None:
        raise UserError(f"{name!r} is no pipeline's name: 'pipeline-3' is one")
    index = _call(
        connected_settings_of(context),
        RetirePipeline(partition=int(found[1]), reason="an operator's command"),
        as_json=as_json,
    )
    if as_json:
        print_json({"pipeline": name, "state": "CLOSED", "index": index})
    else:
        console.print(f"{name}: CLOSED", highlight=False)


def _call(settings: Settings, body: RequestBody, *, as_json: bool) -> int:
    unknown = "whether it was done is not known: 'admin datanode list' and 'admin pipeline list' tell"
    with waiting(settings, type(body).__name__, unknown, quiet=as_json), client_of(settings, operator=True) as client:
        return client.call(body).index
