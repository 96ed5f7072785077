"""``stratolog admin prepare`` and ``finalize``: the two ends of an upgrade of all nodes. Registered by ``admin``.

An upgrade has four steps:

1. *prepare*: every shard refuses writes and answers the requests that it has, and every replica takes a checkpoint to
   go back to;
2. stop the nodes, replace their software, start them;
3. ``prepare --cancel``;
4. *finalize*, once nobody wants to go back.

Nodes may also be replaced one after the other while writes go on: until *finalize* every node writes only what the
older software reads.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.cluster.connection import client_of
from stratolog.cluster.leadership import shard_views
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json, print_table, progress
from stratolog.commands.common.waiting import waiting
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local import stack
from stratolog.local.processes import wait_until
from stratolog.nodes.answers import node_status
from transport.waiting.deadline import Deadline

if TYPE_CHECKING:
    from producers.client import Client

REPLICAS_TIMEOUT_S = 120.0
"""How long the replicas may take to reach the index of a Prepare."""


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``admin``."""
    group.command("prepare")(prepare)
    group.command("finalize")(finalize)


# -- prepare -----------------------------------------------------------------------------------------------------------


def prepare(
    context: typer.Context,
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take writes again.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="Name of the checkpoint; the time, if none is given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse writes on all shards and take a checkpoint on every replica, for an upgrade of all nodes.

    Clients get PREPARED and try again until their deadline. To be given again if it was interrupted; --cancel undoes
    it.
    """
    settings = connected_settings_of(context)
    left = "some shards may be prepared and refuse writes: give the command again, or 'prepare --cancel'"
    with (
        progress(as_json) as report,
        waiting(settings, "prepare", left, quiet=as_json),
        client_of(settings, operator=True) as client,
    ):
        done = cancel_prepare(client) if cancel else prepare_shards(settings, client, checkpoint, report)
    if as_json:
        print_json({"prepared": not cancel, "shards": done})
    elif cancel:
        console.print("the shards take writes again")
    else:
        rows = [(one["shard"], one["index"], one["checkpoint"], ", ".join(one["replicas"])) for one in done]
        print_table("Prepared: writes are refused", ("shard", "index", "checkpoint", "taken by"), rows, ("index",))


def prepare_shards(
    settings: Settings, client: Client, checkpoint: str | None, report: stack.Report
) -> list[dict[str, Any]]:
    """Prepare every shard; return (shard, index, checkpoint, replicas) of each once all its replicas have applied it.

    Raises Unavailable if a replica does not reach that index; the shards stay prepared.
    """
    from schemas.records.messages import Prepare

    name = checkpoint or _in_force(settings) or f"prepare-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"
    done: list[dict[str, Any]] = []
    for shard in range(settings.shards):
        report(f"shard {shard}: prepare")
        response = client.call(Prepare(shard=shard, checkpoint=name))
        done.append({"shard": shard, "index": response.index, "checkpoint": name, "replicas": []})
    for one in done:
        report(f"shard {one['shard']}: waiting for the replicas to apply index {one['index']}")
        one["replicas"] = _await_replicas(settings, one["shard"], one["index"])
    return done


def _in_force(settings: Settings) -> str | None:
    """Return the checkpoint's name of a Prepare that some shard is under; None if no shard is prepared."""
    for shard in range(settings.shards):
        for view in shard_views(settings, shard).values():
            if view.get("prepared"):
                return str(view["prepared"])
    return None


def _await_replicas(settings: Settings, shard: int, index: int) -> list[str]:
    behind: list[str] = []

    def is_reached() -> bool:
        views = shard_views(settings, shard)
        behind[:] = [n.name for n in settings.nodes if views.get(n.name, {}).get("applied_index", -1) < index]
        return not behind

    if not wait_until(is_reached, REPLICAS_TIMEOUT_S):
        raise Unavailable(
            f"shard {shard} is prepared at index {index}, but {', '.join(behind)} did not come to it in "
            f"{REPLICAS_TIMEOUT_S:.0f} s: start them and prepare again, or 'prepare --cancel'"
        )
    return [node.name for node in settings.nodes]


def cancel_prepare(client: Client) -> list[dict[str, Any]]:
    """Have every shard take writes again."""
    from schemas.records.messages import CancelPrepare

    return [{"shard": shard, "index": client.call(CancelPrepare(shard=shard)).index} for shard in range(client.shards)]


# -- finalize ----------------------------------------------------------------------------------------------------------


def finalize(
    context: typer.Context,
    *,
    level: Annotated[int | None, typer.Option(help="Feature level; that of this software, if none is given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """After an upgrade of all nodes: allow what the new software brought. The older software cannot be run after this.

    Refused unless every node and datanode answers and knows the level.
    """
    settings = connected_settings_of(context)
    left = "some shards may be at the new level: give the command again; there is no way back for those"
    with (
        progress(as_json) as report,
        waiting(settings, "finalize", left, quiet=as_json),
        client_of(settings, operator=True) as client,
    ):
        done = finalize_shards(settings, client, level, report)
    if as_json:
        print_json({"shards": done})
    else:
        rows = [(one["shard"], one["before"], one["level"], one["index"]) for one in done]
        print_table("Feature level", ("shard", "before", "now", "index"), rows)


def finalize_shards(
    settings: Settings, client: Client, level: int | None, report: stack.Report
) -> list[dict[str, Any]]:
    """Raise every shard's feature level; raises UserError if a node or datanode does not know it or does not answer."""
    from schemas.features import LATEST
    from schemas.records.messages import Finalize

    wanted = LATEST if level is None else level
    members = [(node.name, node.address) for node in settings.nodes]
    for name, address in [*members, *((node.name, node.http_address) for node in settings.datanodes)]:
        status: Any = node_status(address)
        if status is None:
            raise UserError(
                f"{name} does not answer: every node and datanode must run software that knows feature level {wanted}"
            )
        if (known := status.get("known_feature_level", 1)) < wanted:
            raise UserError(f"{name} runs software that knows feature level {known}, not {wanted}: upgrade it first")
    done = []
    for shard in range(settings.shards):
        report(f"shard {shard}: finalize feature level {wanted}")
        before = _level(settings, shard)
        response = client.call(Finalize(shard=shard, level=wanted))
        done.append({"shard": shard, "before": before, "level": wanted, "index": response.index})
    return done


def _level(settings: Settings, shard: int) -> int:
    """Return a shard's feature level, as its leader says."""
    deadline = Deadline.after_s(REPLICAS_TIMEOUT_S)
    while not deadline.has_passed:
        for view in shard_views(settings, shard).values():
            if view.get("role") == "leader":
                return int(view["feature_level"])
        time.sleep(0.1)
    raise Unavailable(f"shard {shard} has no leader")
