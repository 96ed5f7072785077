"""``stratolog admin add-node`` and ``remove-node``: which nodes hold replicas. Registered by ``admin``.

The log decides who is a member (Members records, one per shard); the local stack's settings follow it. A command that
was interrupted may be given again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.settings.values import NodeAddress, host_and_port, name
from stratolog.cluster.connection import client_of
from stratolog.cluster.leadership import shard_views
from stratolog.cluster.reach import check_brokers
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.names import NodeArgument
from stratolog.commands.common.output import console, print_json, progress
from stratolog.commands.common.waiting import waiting
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UsageError, UserError
from stratolog.local import spawning, stack, state
from stratolog.local.ports import free_ports
from stratolog.local.processes import log_tail, wait_until
from stratolog.local.state import NODE, StackMember, StackState, member_of

if TYPE_CHECKING:
    from producers.client import Client

REPLAY_TIMEOUT_S = 3600.0
"""How long a new node may take to replay the log."""

Node = NodeArgument


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``admin``."""
    group.command("add-node")(add_node)
    group.command("remove-node")(remove_node)


def log_members(client: Client, node: str, *, member: bool, report: stack.Report) -> list[dict[str, Any]]:
    """Add ``node`` to the members of every shard, or remove it; return each shard's index from which on this holds."""
    from schemas.records.messages import AddNode, RemoveNode

    done = []
    for shard in range(client.shards):
        report(f"shard {shard}: {node} {'becomes a' if member else 'is no'} member")
        response = client.call(AddNode(shard=shard, node=node) if member else RemoveNode(shard=shard, node=node))
        done.append({"shard": shard, "index": response.index})
    return done


# -- adding ------------------------------------------------------------------------------------------------------------


def add_node(
    context: typer.Context,
    node: Node,
    *,
    address: Annotated[
        str | None, typer.Option(help="host:port of its HTTP server; a free port, if none is given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a node a member of every shard, and start it; it replays the log from its beginning.

    Without a local stack only the log is told: start the node yourself, with settings that name all members.
    """
    settings = connected_settings_of(context)
    _check_name(node)
    place = _place(settings, node, address)
    begun_s = time.monotonic()
    again = (
        f"how far it came is in 'stratolog status'; give the command again: {node} is then made a member of the "
        "shards that are left"
    )
    check_brokers(settings)
    with progress(as_json) as report, waiting(settings, f"add {node}", again, quiet=as_json):
        local = state.read_state(settings.data_dir) is not None
        with client_of(settings, operator=True) as client:
            done = log_members(client, node, member=True, report=report)
        if local:
            with state.locked(settings.data_dir):
                grown = _store_nodes(
                    settings, (*settings.nodes, place) if place not in settings.nodes else settings.nodes
                )
                _start(grown, node, report)
            _await_replay(grown, node, done, report)
    if as_json:
        print_json({"node": node, "address": place.address, "started": local, "shards": done})
    elif local:
        console.print(
            f"{node} at {place.address} is a member; it has replayed the log, after {time.monotonic() - begun_s:.1f} s",
            highlight=False,
        )
    else:
        console.print(f"{node} is a member; start it with settings that name it at {place.address}", highlight=False)


def _check_name(node: str) -> None:
    try:
        name(node)
    except ValueError as error:
        raise UsageError(f"the node's name {error}") from error


def _place(settings: Settings, node: str, address: str | None) -> NodeAddress:
    """Return the new node's name and address; the address is the known one if the command was given before."""
    known = next((found for found in settings.nodes if found.name == node), None)
    if known is not None:
        if address not in (None, known.address):
            raise UsageError(f"{node} is known already, at {known.address}")
        return known
    try:
        host, port = ("127.0.0.1", free_ports(1)[0]) if address is None else host_and_port(address)
    except ValueError as error:
        raise UsageError(f"the address {error}") from error
    return NodeAddress(name=node, host=host, port=port)


def _store_nodes(settings: Settings, nodes: tuple[NodeAddress, ...]) -> Settings:
    """Write these nodes into the local stack's settings; return the settings that reach the stack."""
    path = settings.data_dir / state.SETTINGS_FILE
    path.write_text(replace(load_settings(path, environment={}), nodes=nodes).to_toml())
    return replace(settings, nodes=nodes)


def _start(settings: Settings, node: str, report: stack.Report) -> None:
    member = member_of(settings, node)
    if member is not None and member.process.is_running():
        return
    report(f"node {node}")
    started = spawning.spawn_node(settings, node, detached=True)
    others = tuple(other for other in _members(settings) if (other.kind, other.name) != (NODE, node))
    state.write_state(settings.data_dir, StackState(members=(*others, started)))


def _members(settings: Settings) -> tuple[StackMember, ...]:
    known = state.read_state(settings.data_dir)
    return () if known is None else known.members


def _await_replay(settings: Settings, node: str, wanted: list[dict[str, Any]], report: stack.Report) -> None:
    """Wait until the node has applied its own membership on every shard; raises Unavailable if it ends before."""
    report(f"{node} replays the log")
    member = member_of(settings, node)
    assert member is not None  # noqa: S101 - it has just been started

    def is_replayed() -> bool:
        views = [shard_views(settings, one["shard"]).get(node, {}) for one in wanted]
        indexes = [view.get("applied_index", -1) for view in views]
        return all(found >= one["index"] for found, one in zip(indexes, wanted, strict=True))

    done = wait_until(lambda: is_replayed() or not member.process.is_running(), REPLAY_TIMEOUT_S)
    if not done or not member.process.is_running():
        what = "ended" if done else f"has not replayed the log after {REPLAY_TIMEOUT_S:.0f} s"
        raise Unavailable(f"node {node} {what}:\n{log_tail(member.log)}")


# -- removing ----------------------------------------------------------------------------------------------------------


def remove_node(context: typer.Context, node: Node, *, as_json: JsonOption = False) -> None:
    """Stop a node, which hands over what it leads, and take it from the members of every shard.

    Its databases stay where they are. Added again under this name it goes on from them.
    """
    settings = connected_settings_of(context)
    settings.node(node)
    if len(settings.nodes) == 1:
        raise UserError(f"{node} is the last node")
    again = (
        f"{node} may be stopped and still a member of some shards: give the command again, or 'stratolog admin "
        f"start-node {node}'"
    )
    check_brokers(settings)
    with progress(as_json) as report, waiting(settings, f"remove {node}", again, quiet=as_json):
        if (member := _local_member(settings, node)) is not None:
            report(f"stopping {node}")
            with state.locked(settings.data_dir):
                state.mark_stopped(settings.data_dir, NODE, node, on_purpose=True)
            member.process.stop(stack.STOP_NODES_TIMEOUT_S)
        remaining = tuple(found for found in settings.nodes if found.name != node)
        with client_of(replace(settings, nodes=remaining), operator=True) as client:
            done = log_members(client, node, member=False, report=report)
        if state.read_state(settings.data_dir) is not None:
            with state.locked(settings.data_dir):
                _store_nodes(settings, remaining)
                others = tuple(other for other in _members(settings) if (other.kind, other.name) != (NODE, node))
                state.write_state(settings.data_dir, StackState(members=others))
    if as_json:
        print_json({"node": node, "shards": done})
    else:
        console.print(
            f"{node} is no member any more; its data stays in {settings.node_folder(node)}",
            highlight=False,
            soft_wrap=True,
        )


def _local_member(settings: Settings, node: str) -> StackMember | None:
    return None if state.read_state(settings.data_dir) is None else member_of(settings, node)
