"""``admin rebuild``, ``stop-node`` and ``start-node``: single nodes of the local stack."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from stratolog.cluster.leadership import check_shard
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.names import NodeArgument
from stratolog.commands.common.output import console, print_json, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local import spawning, stack, state
from stratolog.local.processes import log_tail, wait_until
from stratolog.local.state import NODE, StackState, member_of
from stratolog.nodes.answers import node_status

START_TIMEOUT_S = 120.0

Node = NodeArgument
Shard = Annotated[int, typer.Argument(help="Shard, from 0.", min=0)]


def rebuild(context: typer.Context, node: Node, shard: Shard, *, as_json: JsonOption = False) -> None:
    """Move a stopped node's database of one shard aside, so that its next start replays the log from the beginning.

    Nothing is deleted: the old database stays beside the new one. Refused while the node runs.
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    address = settings.node(node).address
    with state.locked(settings.data_dir):
        member = member_of(settings, node)
        if (member is not None and member.process.is_running()) or node_status(address) is not None:
            raise UserError(f"{node} runs: stop it first, with 'stratolog admin stop-node {node}'")
        folder = settings.node_folder(node) / f"shard-{shard}"
        if not folder.is_dir():
            raise UserError(f"{node} has no database of shard {shard}: there is no {folder}")
        aside = folder.with_name(f"{folder.name}.moved-{datetime.now().strftime('%Y%m%dT%H%M%S')}")
        if aside.exists():
            raise UserError(f"{aside} exists already: try again in a second")
        folder.rename(aside)
    if as_json:
        print_json({"node": node, "shard": shard, "moved_to": str(aside)})
    else:
        console.print(
            f"moved to {aside}; 'stratolog admin start-node {node}' replays shard {shard} from the log",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def stop_node(
    context: typer.Context,
    name: Node,
    *,
    kill: Annotated[bool, typer.Option("--kill", help="End it at once, as a crash would.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop one node of the local stack; the others take over what it leads."""
    settings = connected_settings_of(context)
    settings.node(name)
    with interruptible(lambda: _as_it_is(settings, name)), state.locked(settings.data_dir):
        member = member_of(settings, name)
        running = member is not None and member.process.is_running()
        # Before it ends: what ends by itself is started again.
        state.mark_stopped(settings.data_dir, NODE, name, on_purpose=True)
        if member is not None and kill:
            member.process.kill()
        elif member is not None:
            member.process.stop(stack.STOP_NODES_TIMEOUT_S)
    if as_json:
        print_json({"node": name, "stopped": running})
    else:
        console.print(f"{name} is stopped" if running else f"{name} was not running", highlight=False)


def _as_it_is(settings: Settings, name: str) -> str:
    """Say, after an interrupt, whether a node runs."""
    member = member_of(settings, name)
    runs = member is not None and member.process.is_running()
    return f"{name} {'runs, or is just starting or stopping' if runs else 'does not run'}: 'stratolog status' tells"


def start_node(context: typer.Context, name: Node, *, as_json: JsonOption = False) -> None:
    """Start one node of the local stack that was stopped, and wait until it answers."""
    settings = connected_settings_of(context)
    address = settings.node(name).address
    with (
        interruptible(lambda: _as_it_is(settings, name)),
        state.locked(settings.data_dir),
        progress(as_json) as report,
    ):
        known = state.running_state(settings.data_dir)
        member = member_of(settings, name)
        if member is not None and member.process.is_running():
            state.mark_stopped(settings.data_dir, NODE, name, on_purpose=False)
            raise UserError(f"{name} runs already, as process {member.process.pid}")
        report(f"node {name}")
        started = spawning.spawn_node(settings, name, detached=True)
        others = tuple(other for other in known.members if (other.kind, other.name) != (NODE, name))
        state.write_state(settings.data_dir, StackState(members=(*others, started)))
        running = started.process.is_running
        begun_s = time.monotonic()
        answers = wait_until(lambda: node_status(address) is not None or not running(), START_TIMEOUT_S)
        if not answers or not running():
            what = "ended at its start" if answers else f"does not answer after {START_TIMEOUT_S:.0f} s"
            raise Unavailable(f"node {name} {what}:\n{log_tail(started.log)}")
    if as_json:
        print_json({"node": name, "pid": started.process.pid, "address": address})
    else:
        console.print(f"{name} runs at {address}, after {time.monotonic() - begun_s:.1f} s", highlight=False)
