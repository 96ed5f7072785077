"""``stratolog admin datanode`` and ``admin pipeline``: show both, take datanodes out of service and back, remove them.

A change is an ordinary request to shard 0. The node that leads that shard does the rest: pipelines close, containers
are copied. ``admin datanode list`` shows how far it is.
"""

from __future__ import annotations

import re
from dataclasses import replace
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

Json = dict[str, Any]

PIPELINE_NAME = re.compile(r"pipeline-(\d{1,3})")

Datanode = DatanodeArgument
Pipeline = Annotated[str, typer.Argument(help="Name of the pipeline, as 'pipeline-3'.")]
Force = Annotated[bool, typer.Option("--force", help="Also a datanode that nobody has heard of.")]


def register(group: typer.Typer) -> None:
    """Add the groups to ``admin``."""
    datanode = typer.Typer(no_args_is_help=True, help="Datanodes: list, take out of service and back, remove.")
    datanode.command("list")(list_datanodes)
    datanode.command("decommission")(decommission)
    datanode.command("recommission")(recommission)
    datanode.command("maintenance")(maintenance)
    datanode.command("remove")(remove)
    group.add_typer(datanode, name="datanode")
    pipeline = typer.Typer(no_args_is_help=True, help="Pipelines of datanodes: list, close.")
    pipeline.command("list")(list_pipelines)
    pipeline.command("close")(close)
    group.add_typer(pipeline, name="pipeline")


def list_datanodes(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the datanodes: state, health, room, what they follow; and those that are decommissioned and switched off."""
    found = fleet_of(connected_settings_of(context), "datanodes")
    off = switched_off(found)
    if as_json:
        print_json({"datanodes": found["datanodes"], "switched_off": off})
        return
    _print(found, "datanodes")
    if off:
        console.print(f"decommissioned and switched off: {', '.join(off)}", markup=False, highlight=False)


def list_pipelines(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the pipelines and their members; those that are closed still hold blocks."""
    found = fleet_of(connected_settings_of(context), "pipelines")
    if as_json:
        print_json({"pipelines": found["pipelines"]})
    else:
        _print(found, "pipelines")


def _print(found: Json, what: str) -> None:
    if found[what]:
        print_fleet({what: found[what]})
    else:
        console.print(f"there are no {what}")


def fleet_of(settings: Settings, what: str) -> Json:
    """Return the page of datanodes or pipelines of the first node that answers; raises Unavailable if none answers."""
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
                return answer
        if path != paths[-1]:
            notes.print("no node answers a linearizable read: what follows may be old", highlight=False, soft_wrap=True)
    raise Unavailable(f"no node answers: {', '.join(node.address for node in settings.nodes)}")


def switched_off(found: Json) -> list[str]:
    """Return the decommissioned datanodes that are switched off; nodes of older software do not tell them."""
    return list(found.get("switched_off", ()))


def states_of(settings: Settings) -> dict[str, str]:
    """Return the state of each datanode by its name."""
    found = fleet_of(settings, "datanodes")
    off = dict.fromkeys(switched_off(found), "DECOMMISSIONED")
    return {**{one["datanode"]: one["state"] for one in found["datanodes"]}, **off}


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
    known = states_of(settings)
    if name not in known and not force:
        raise UserError(f"no datanode {name!r}; there is: {', '.join(known) or 'none'}")
    index = _call(settings, SetDatanodeState(datanode=name, state=state), as_json=as_json)
    if as_json:
        print_json({"datanode": name, "before": known.get(name), "state": state, "index": index})
    else:
        console.print(f"{name}: {state} (was {known.get(name, 'unknown')})", highlight=False)


def remove(context: typer.Context, name: Datanode, *, as_json: JsonOption = False) -> None:
    """Forget a datanode that is DECOMMISSIONED and switched off. If it comes back, it is in service."""
    from schemas.records.messages import RemoveDatanode

    index = _call(connected_settings_of(context), RemoveDatanode(datanode=name), as_json=as_json)
    if as_json:
        print_json({"datanode": name, "removed": True, "index": index})
    else:
        console.print(f"{name}: removed", highlight=False)


def close(context: typer.Context, name: Pipeline, *, as_json: JsonOption = False) -> None:
    """Close a pipeline: it takes no more blocks. Another one, or its next generation, takes its place."""
    found = PIPELINE_NAME.fullmatch(name)
    if found is None:
        raise UserError(f"{name!r} is no pipeline's name: 'pipeline-3' is one")
    index = _retire(connected_settings_of(context), int(found[1]), as_json=as_json)
    if as_json:
        print_json({"pipeline": name, "state": "CLOSED", "index": index})
    else:
        console.print(f"{name}: CLOSED", highlight=False)


def _retire(settings: Settings, partition: int, *, as_json: bool) -> int:
    from producers.errors import RequestFailed
    from schemas.records.messages import RetirePipeline
    from schemas.result_codes import NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION

    rows = fleet_of(settings, "pipelines")["pipelines"]
    generation = next((int(one["generation"]) for one in rows if one["partition"] == partition), 0)
    body = RetirePipeline(partition=partition, reason="an operator's command", generation=generation)
    try:
        return _call(settings, body, as_json=as_json)
    except RequestFailed as error:
        if error.status != NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION or not generation:
            raise
        return _call(settings, replace(body, generation=0), as_json=as_json)  # until finalize, none is named


def _call(settings: Settings, body: RequestBody, *, as_json: bool) -> int:
    unknown = "whether it was done is not known: 'admin datanode list' and 'admin pipeline list' tell"
    with waiting(settings, type(body).__name__, unknown, quiet=as_json), client_of(settings, operator=True) as client:
        return client.call(body).index
