"""``stratolog up``, ``down`` and ``status``: the local stack."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stratolog.commands.common import (
    JsonOption,
    connected_settings_of,
    console,
    print_fleet,
    print_json,
    print_table,
    progress,
    settings_of,
)
from stratolog.errors import EXIT_FAILED, Unavailable
from stratolog.local import stack, state
from stratolog.settings import Settings, default_datanodes
from stratolog.settings_values import MAX_DATANODES, DatanodeAddress

SHARD_COLUMNS = {
    "shard": "shard", "role": "role", "leader": "leader", "term": "term",
    "applied_index": "index", "applied_offset": "offset", "digest": "digest", "flagged": "flagged",
}  # fmt: skip
"""Fields of a shard in ``/status``, and the headings they get."""


DEFAULT_DATANODES = 3
"""Datanodes of a new stack."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)


def up(
    context: typer.Context,
    *,
    brokers: Annotated[int | None, typer.Option(help="Kafka brokers: 1, or 3 with replication.")] = None,
    audit: Annotated[bool | None, typer.Option(help="Run the Spark audit.")] = None,
    datanodes: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_DATANODES, help="Datanodes dn1 to dnN, at first three; 0 = none, and keys without bytes."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the local stack: brokers, topics, three Object Manager nodes, datanodes, the Spark audit. What runs already stays."""
    settings = settings_of(context)
    fresh = "datanodes" not in settings.explicit and not (settings.data_dir / state.SETTINGS_FILE).exists()
    count = DEFAULT_DATANODES if datanodes is None and fresh else datanodes
    named = None if count is None else datanodes_of(settings, count)
    settings = settings.with_values(brokers=brokers, audit=audit, datanodes=named)
    with progress(as_json) as report:
        effective = stack.up(settings, report=report)
    _show(effective, as_json)


def down(
    context: typer.Context,
    *,
    remove_data: Annotated[bool, typer.Option("--remove-data", help="Delete all that the stack stored.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop the local stack; its data stays, unless it is to be removed."""
    settings = settings_of(context)
    with progress(as_json) as report:
        stopped = stack.down(settings, remove_data=remove_data, report=report)
    names = [member.name for member in stopped]
    if as_json:
        print_json({"stopped": names, "data_removed": remove_data})
    else:
        console.print(f"stopped: {', '.join(names) or 'nothing was running'}")


def status(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show what runs, and where each replica stands. Exit status 1 if something of the stack does not run."""
    settings = connected_settings_of(context)
    if not _show(settings, as_json):
        raise typer.Exit(EXIT_FAILED)


def _show(settings: Settings, as_json: bool) -> bool:
    """Print the state of stack and nodes; return whether all of it runs."""
    found = _gather(settings)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return all(member["running"] for member in found["members"]) and all(found["nodes"].values())


def _gather(settings: Settings) -> dict[str, Any]:
    """Return what runs as plain values; raises Unavailable if nothing does."""
    known = state.read_state(settings.data_dir) or state.StackState()
    nodes = {node.name: stack.node_status(node.address) for node in settings.nodes}
    fleet = _fleet(settings) if settings.datanodes else {}
    if not known.members and not any(nodes.values()):
        raise Unavailable(f"no stack is running in {settings.data_dir}: start one with 'stratolog up'")
    return {
        "data_dir": str(settings.data_dir),
        "bootstrap_servers": settings.bootstrap_servers,
        "members": [
            {
                "kind": member.kind,
                "name": member.name,
                "address": member.address,
                "pid": member.process.pid,
                "running": member.process.is_running(),
                "log": str(member.log),
            }
            for member in known.members
        ],
        "nodes": nodes,
        **fleet,
    }


def datanodes_of(settings: Settings, count: int) -> tuple[DatanodeAddress, ...]:
    """Return ``count`` datanodes dn1 to dnN, with the addresses of the settings where they name them."""
    named = {node.name: node for node in settings.datanodes}
    return tuple(named.get(node.name, node) for node in default_datanodes(count))


def _fleet(settings: Settings) -> dict[str, Any]:
    """Return what the first node that answers says of datanodes and pipelines; empty lists if none does."""
    found: dict[str, Any] = {}
    for what in ("datanodes", "pipelines"):
        answers = (stack.node_answer(node.address, f"/v1/{what}?consistency=stale") for node in settings.nodes)
        found[what] = next((answer[what] for answer in answers if answer is not None), [])
    return found


def _print(found: dict[str, Any]) -> None:
    rows = [
        (member["name"], member["address"] or None, member["pid"], "running" if member["running"] else "stopped")
        for member in found["members"]
    ]
    if rows:
        print_table(f"Stack in {found['data_dir']}", ("process", "address", "pid", "state"), rows)
    shards = [
        (name, *(shard.get(column) for column in SHARD_COLUMNS))
        for name, node in found["nodes"].items()
        for shard in (node or {}).get("shards", [])
    ]
    silent = [name for name, node in found["nodes"].items() if not node]
    print_fleet(found)
    if shards:
        print_table("Replicas", ("node", *SHARD_COLUMNS.values()), shards)
    if silent:
        console.print(f"no answer from: {', '.join(silent)}")
    console.print(f"Kafka: {found['bootstrap_servers']}")
