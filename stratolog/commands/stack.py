"""``stratolog up``, ``down`` and ``status``: the local stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.security.tls import scheme_of
from schemas.settings.values import MAX_DATANODES, DatanodeAddress
from stratolog.cluster.installs import installing, installs_in, installs_on_datanodes
from stratolog.cluster.rolling_scrubs import rolling_scrubs_in
from stratolog.commands.common.invocation import JsonOption, connected_settings_of, settings_of
from stratolog.commands.common.output import console, print_fleet, print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.settings import Settings, default_datanodes
from stratolog.errors import EXIT_FAILED, Unavailable
from stratolog.extras import check_extras
from stratolog.local import stack, state
from stratolog.local.contents import has_stack
from stratolog.local.ports import WANTED
from stratolog.nodes.answers import node_answer, node_status
from stratolog.supervision.telling import is_left_alone, read_restarts, restart_lines, shown

SHARD_COLUMNS = {
    "shard": "shard", "role": "role", "leader": "leader", "term": "term",
    "applied_index": "index", "applied_offset": "offset", "digest": "digest", "flagged": "flagged",
}  # fmt: skip
"""Fields of a shard in ``/status``, and their headings."""


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
    ui: Annotated[bool | None, typer.Option(help="Run the dashboard; its address is printed.")] = None,
    secure: Annotated[
        bool | None,
        typer.Option(
            help="Everybody proves who he is: TLS, certificates, passwords, ACLs, and users who sign. It stays so until "
            "changed."
        ),
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="none|signed",
            help="Whom nodes believe: anybody, or who signs ('admin user add'). It stays so until changed; '--secure' "
            "makes it signed.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the local stack: brokers, topics, three Object Manager nodes, datanodes, the Spark audit, the dashboard.
    What runs already stays.
    """
    settings = settings_of(context)
    fresh = "datanodes" not in settings.explicit and not (settings.data_dir / state.SETTINGS_FILE).exists()
    count = DEFAULT_DATANODES if datanodes is None and fresh else datanodes
    named = None if count is None else datanodes_of(settings, count)
    settings = settings.with_values(brokers=brokers, audit=audit, ui=ui, datanodes=named, secure=secure, auth=auth)
    check_installed(settings)
    with (
        progress(as_json) as report,
        interruptible(lambda: _still_runs(settings, "what this command started is stopped again")),
    ):
        effective = stack.up(settings, report=report)
    _show(effective, as_json)


def check_installed(settings: Settings) -> None:
    """Raise Unavailable, before anything is started, if a part of the stack is not installed."""
    wanted = {"datanode": settings.datanodes, "spark": settings.audit, "tracing": settings.trace_endpoint}
    check_extras(["om", *(extra for extra, needed in wanted.items() if needed)])


def down(
    context: typer.Context,
    *,
    remove_data: Annotated[bool, typer.Option("--remove-data", help="Delete all that the stack stored.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop the local stack; its data stays, unless it is to be removed. Exit status 3 if there is no stack."""
    settings = settings_of(context)
    if not has_stack(settings.data_dir):
        raise Unavailable(f"there is no stack in {settings.data_dir}{_nor_above(settings)}")
    with progress(as_json) as report, interruptible(lambda: _still_runs(settings, "the stack is stopped in part")):
        stopped = stack.down(settings, remove_data=remove_data, report=report)
    names = [member.name for member in stopped]
    if as_json:
        print_json({"data_dir": str(settings.data_dir), "stopped": names, "data_removed": remove_data})
        return
    said = f"stopped: {', '.join(names)}" if names else "nothing was running"
    if remove_data:
        stays = settings.data_dir.exists()  # something else is in it, or it is a mount point
        end = f"; its data is deleted{', the directory itself stays' if stays else ''}"
    else:
        end = ""
    console.print(
        f"{said} (stack in {settings.data_dir}){end}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _nor_above(settings: Settings) -> str:
    """Say where else a stack was looked for (stratolog.configuration.places)."""
    given = "data_dir" in settings.explicit
    return "" if given else ", nor in a directory above it (STRATOLOG_DATA_DIR names another one)"


def _still_runs(settings: Settings, otherwise: str) -> str:
    """Say which processes of an interrupted stack still run."""
    known = state.read_state(settings.data_dir) or state.StackState()
    names = ", ".join(member.name for member in known.running())
    if not names:
        return f"{otherwise}; nothing runs in {settings.data_dir}"
    return (
        f"{otherwise}; still running in {settings.data_dir}: {names}: 'stratolog up' starts the rest, 'stratolog "
        "down' stops them"
    )


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
        _print(found, scheme_of(settings.tls()))
    return all(member["running"] for member in found["members"]) and all(found["nodes"].values())


def _gather(settings: Settings) -> dict[str, Any]:
    """Return what runs, as plain values; raises Unavailable if nothing runs."""
    known = state.read_state(settings.data_dir) or state.StackState()
    nodes = {node.name: node_status(node.address) for node in settings.nodes}
    fleet = _fleet(settings) if settings.datanodes else {}
    if not known.members and not any(nodes.values()):
        raise Unavailable(
            f"no stack is running in {settings.data_dir}{_nor_above(settings)}: start one with 'stratolog up'"
        )
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
                "wanted_port": member.extra.get(WANTED),
            }
            for member in sorted(known.members, key=lambda member: (state.KINDS.index(member.kind), member.name))
        ],
        "nodes": nodes,
        "installing": {node.name: installing(settings, node.name) for node in settings.nodes if not nodes[node.name]},
        "datanode_installs": installs_on_datanodes(settings),
        "restarts": {name: shown(one) for name, one in read_restarts(settings.data_dir).items()},
        "unsupervised": is_left_alone(settings.data_dir),
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
        answers = (node_answer(node.address, f"/v1/{what}?consistency=stale") for node in settings.nodes)
        found[what] = next((answer[what] for answer in answers if answer is not None), [])
    return found


def _print(found: dict[str, Any], scheme: str) -> None:
    rows = [
        (
            member["name"], member["address"] or None, member["pid"], "running" if member["running"] else "stopped",
            _within(found["data_dir"], member["log"]),
        )
        for member in found["members"]
    ]  # fmt: skip
    if rows:
        columns = ("process", "address", "pid", "state", "log")
        print_table(f"Stack in {found['data_dir']}", columns, rows, ("pid", "log", "address"))
    else:
        console.print(
            f"no stack in {found['data_dir']}: what follows is what answers at the addresses of the settings",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    shards = [
        (name, *(shard.get(column) for column in SHARD_COLUMNS))
        for name, node in found["nodes"].items()
        for shard in (node or {}).get("shards", [])
    ]
    silent = [name for name, node in found["nodes"].items() if not node]
    print_fleet(found)
    if shards:
        less = ("term", "offset", "flagged", "digest", "leader")
        print_table("Replicas", ("node", *SHARD_COLUMNS.values()), shards, less)
    for line in (line for name, node in found["nodes"].items() for line in installs_in(name, node)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in (line for name, node in found["nodes"].items() for line in rolling_scrubs_in(name, node)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for name, lines in found["installing"].items():
        for line in lines:
            console.print(f"{name}: {line}", markup=False, highlight=False, soft_wrap=True)
    for line in found["datanode_installs"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in restart_lines(found["restarts"]):
        console.print(line, style="bold yellow", markup=False, highlight=False, soft_wrap=True)
    if found["unsupervised"]:
        console.print("what dies stays dead: the supervisor has ended; 'stratolog up' starts it", style="bold yellow")
    if silent:
        console.print(f"no answer from: {', '.join(silent)}", markup=False, highlight=False, soft_wrap=True)
    for member in found["members"]:
        if member["kind"] == state.UI and member["running"]:
            console.print(
                f"dashboard: {scheme}://{member['address']}/ ('stratolog ui' prints a link to start drills)",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    console.print(f"Kafka: {found['bootstrap_servers']}", markup=False, highlight=False, soft_wrap=True)
    _print_moved(found["members"])


def _within(data_dir: str, log: str) -> str:
    """Return a log's path, relative to the data directory if it lies there."""
    path = Path(log)
    return str(path.relative_to(data_dir)) if path.is_relative_to(data_dir) else log


def _print_moved(members: list[dict[str, Any]]) -> None:
    """Say which processes listen elsewhere than their settings say: there a program reaches somebody else."""
    moved = [member for member in members if member["running"] and member["wanted_port"]]
    for member in moved:
        console.print(
            f"{member['name']} is at {member['address']}, not at port {member['wanted_port']}: somebody else listens "
            "there",
            style="bold yellow", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    if any(member["kind"] == state.BROKER for member in moved):
        console.print(
            "Programs must be given the address of Kafka above: those that use the default one talk to somebody else",
            style="bold yellow", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
