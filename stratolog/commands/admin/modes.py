"""``stratolog admin mode``: which request types the leader executes and which are validated late.

Registered by ``admin``.

Each shard's log has its own modes (Mode records), so the command sends a request to each shard. Repeating the command
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from stratolog.cluster.connection import client_of
from stratolog.cluster.leadership import check_shard, shard_views
from stratolog.cluster.reach import check_nodes
from stratolog.cluster.request_modes import request_types, set_modes
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json, print_table
from stratolog.commands.common.waiting import waiting
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UsageError

ALL = "all"
"""In place of a request type: every one."""


def register(group: typer.Typer) -> None:
    """Add the command to the group ``admin``."""
    group.command("mode")(mode)


def mode(
    context: typer.Context,
    request_type: Annotated[str | None, typer.Argument(help="Request type, as CreateKey, or 'all'.")] = None,
    wanted: Annotated[
        str | None, typer.Argument(metavar="leader|late", help="Who executes requests of the type.")
    ] = None,
    *,
    show: Annotated[
        bool, typer.Option("--show", help="Change nothing: print the modes, and what late validation did.")
    ] = False,
    shard: Annotated[int | None, typer.Option(help="Only this shard.", min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Have requests of a type executed by the leader, or validated late by every replica.

    Late validation is there to be compared with: it is slower, its log holds invalid requests, and replicas with
    different software diverge under it. After it, only a digest base from the replicas (admin digest-base
    --from-replicas) lets the audit sum again.
    """  # fmt: skip
    settings = connected_settings_of(context)
    if shard is not None:
        check_shard(settings, shard)
    shards = range(settings.shards) if shard is None else [shard]
    if show:
        if request_type is not None:
            raise UsageError("--show takes no request type")
        _show(settings, shards, as_json)
        return
    types = _checked(request_type, wanted)
    done: list[dict[str, Any]] = []
    with (
        waiting(settings, "mode", lambda: _set_so_far(done), quiet=as_json),
        client_of(settings, operator=True) as client,
    ):
        for one in shards:
            allowed = types if request_type != ALL else _within_level(settings, one, types)
            done += set_modes(client, [one], allowed, str(wanted))
    for line in done:
        if as_json:
            print_json(line)
            continue
        text = f"shard {line['shard']}: {line['request_type']} is in {wanted} mode after index {line['index'] - 1}"
        console.print(text, highlight=False)


def _set_so_far(done: Sequence[dict[str, Any]]) -> str:
    """Say what was set when the command was interrupted."""
    names = ", ".join(f"{one['request_type']} on shard {one['shard']}" for one in done) or "nothing for certain"
    return f"set: {names}; 'stratolog admin mode --show' tells; the command may be given again"


def _checked(request_type: str | None, wanted: str | None) -> Sequence[str]:
    from schemas.records.log import REQUEST_MODES

    known = request_types()
    if request_type is None or wanted is None:
        raise UsageError("a request type and a mode are needed, or --show")
    if request_type not in (ALL, *known):
        raise UsageError(f"no request type {request_type!r}; there are: {', '.join(known)}, and {ALL!r}")
    if wanted not in REQUEST_MODES:
        raise UsageError(f"mode {wanted!r} is none of {', '.join(REQUEST_MODES)}")
    return known if request_type == ALL else [request_type]


def _within_level(settings: Settings, shard: int, types: Sequence[str]) -> Sequence[str]:
    """Return the types that a shard's feature level knows; the others have no mode yet."""
    from schemas.features import level_of_type

    level = max((view["feature_level"] for view in shard_views(settings, shard).values()), default=0)
    if not level:
        raise Unavailable(f"no node says anything of shard {shard}")
    return [name for name in types if level_of_type(name) <= level]


def _show(settings: Settings, shards: Iterable[int], as_json: bool) -> None:
    check_nodes(settings)
    lines = []
    for shard in shards:
        views = shard_views(settings, shard)
        if not views:
            raise Unavailable(f"no node says anything of shard {shard}")
        for node, view in views.items():
            counts = {"executed": view["late_requests"], "invalid": view["late_invalid"]}
            lines.append({"shard": shard, "node": node, "late": view["late_types"], **counts})
    if as_json:
        for line in lines:
            print_json(line)
        return
    columns = ("shard", "node", "late", "executed", "invalid")
    rows = [
        (line["shard"], line["node"], ", ".join(line["late"]) or None, line["executed"], line["invalid"])
        for line in lines
    ]
    title = "Request types validated late; logged requests executed by each replica since its start"
    print_table(title, columns, rows, ("invalid", "executed"))
