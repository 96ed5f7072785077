"""``stratolog admin``: what an operator does after a divergence, and to single nodes of the local stack.

A repair goes: find the wrong replica (``stratolog audit --once``, ``debug digest``), stop its node, ``admin rebuild`` it, start
it again. If the *log's* claims were wrong, its digest sums stay wrong after the replicas are right: ``admin digest-base`` logs
new ones, from the batch oracle (design, section 3).
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer

from stratolog.cluster.connection import client_of
from stratolog.cluster.leadership import check_shard
from stratolog.cluster.spark_oracle import open_oracle
from stratolog.commands.admin import fleet, members, modes, replica_base, transfer, unflag, upgrades
from stratolog.commands.common.common import (
    JsonOption,
    connected_settings_of,
    console,
    print_json,
    progress,
    settings_of,
)
from stratolog.commands.common.names import NodeArgument
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.cluster_secret import make_secret, read_secret
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.extras import check_spark
from stratolog.local import spawning, stack, state
from stratolog.local.processes import log_tail, wait_until
from stratolog.local.state import NODE, StackState, member_of
from stratolog.nodes.answers import node_status

START_TIMEOUT_S = 120.0
BASIS = "oracle"
_BASE_UNKNOWN = "whether a digest base was logged is not known: 'stratolog debug log' tells; another one does no harm"

Node = NodeArgument
Shard = Annotated[int, typer.Argument(help="Shard, from 0.", min=0)]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="Leaders, members, datanodes, upgrades, repairs; single nodes of the local stack."
    )
    group.command("digest-base")(digest_base)
    group.command("rebuild")(rebuild)
    group.command("stop-node")(stop_node)
    group.command("start-node")(start_node)
    group.command("make-secret")(make_cluster_secret)
    unflag.register(group)
    transfer.register(group)
    members.register(group)
    upgrades.register(group)
    modes.register(group)
    fleet.register(group)
    app.add_typer(group, name="admin")


# -- digest base -------------------------------------------------------------------------------------------------------


def digest_base(
    context: typer.Context,
    shard: Shard,
    *,
    attempts: Annotated[int, typer.Option(min=1, max=100, help="Tries while the shard is being written.")] = 5,
    from_replicas: Annotated[
        bool,
        typer.Option(
            "--from-replicas", help="From equal full scans of a majority, instead of the log: after late validation."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Although the shard's leader holds something else: every replica that differs is flagged."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Restart a shard's digest sums from its live rows, recomputed by Spark with no claim of the log's used.

    To be done after a repair, when the log itself claimed wrong rows. The sums are valid at one index: if the shard is
    written meanwhile, the command tries again; stop the writers if it does not succeed. After late validation the log does not
    say what the rows are: then --from-replicas.
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    if from_replicas:
        _digest_base_from_replicas(settings, shard, attempts, force=force, as_json=as_json)
        return
    check_spark()
    with progress(as_json) as report, interruptible(_BASE_UNKNOWN):
        done = _log_digest_base(settings, shard, attempts, report, force=force)
    if as_json:
        print_json(done)
    else:
        console.print(
            f"shard {shard}: a digest base of {done['rows']:,} rows at index {done['index']}, digest {done['digest']}, "
            f"is in the log (attempt {done['attempts']} of {attempts})", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _digest_base_from_replicas(settings: Settings, shard: int, attempts: int, *, force: bool, as_json: bool) -> None:
    with progress(as_json) as report, interruptible(_BASE_UNKNOWN):
        done = replica_base.log_base(settings, shard, attempts, report, force=force)
    if as_json:
        print_json(done)
    else:
        console.print(
            f"shard {shard}: a digest base at index {done['index']}, digest {done['digest']}, held by {', '.join(done['agreeing'])}, "
            f"is in the log (attempt {done['attempts']} of {attempts})", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _log_digest_base(
    settings: Settings, shard: int, attempts: int, report: stack.Report, *, force: bool = False
) -> dict[str, Any]:
    """Compute and log a digest base; raises UserError if the shard moved in every attempt."""
    from producers.errors import RequestFailed
    from schemas.result_codes import INDEX_MOVED

    moved = ""
    with client_of(settings, operator=True) as client, open_oracle(settings, report) as oracle:
        for attempt in range(1, attempts + 1):
            report(f"attempt {attempt}: Spark recomputes the rows of shard {shard}")
            found = oracle(shard)
            slots, sums = found.base()
            try:
                client.log_digest_base(shard, found.index, slots=slots, sums=sums, basis=BASIS, force=force)
            except RequestFailed as error:
                if error.status != INDEX_MOVED:
                    raise
                moved = error.message
                report(f"attempt {attempt}: {moved}")
                continue
            return {
                "shard": shard, "index": found.index, "offset": found.offset, "digest": found.digest, "rows": found.rows,
                "slots": len(slots), "attempts": attempt,
            }  # fmt: skip
    raise UserError(f"shard {shard} was written in each of {attempts} attempts ({moved}): stop the writers")


# -- the cluster's secret ----------------------------------------------------------------------------------------------


def make_cluster_secret(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Make the file with the cluster's secret, where the setting 'cluster_secret_file' says, unless it is there.

    All nodes, datanodes and operators of a cluster need the same: copy the file, readable by its owner alone. To change it, stop the nodes,
    replace it everywhere, and start them; nothing that is stored depends on it.
    """
    path = settings_of(context).secret_file
    made = make_secret(path)
    if not made:
        read_secret(path)
    if as_json:
        print_json({"path": str(path), "made": made})
    else:
        console.print(
            f"{path} {'is made' if made else 'is there already'}", markup=False, highlight=False, soft_wrap=True
        )


# -- nodes of the local stack ------------------------------------------------------------------------------------------


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
        if member is not None and kill:
            member.process.kill()
        elif member is not None:
            member.process.stop(stack.STOP_NODES_TIMEOUT_S)
    if as_json:
        print_json({"node": name, "stopped": running})
    else:
        console.print(f"{name} is stopped" if running else f"{name} was not running", highlight=False)


def _as_it_is(settings: Settings, name: str) -> str:
    """Say how a node is when the command was interrupted."""
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
