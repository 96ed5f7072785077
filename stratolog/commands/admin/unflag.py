"""``stratolog admin unflag``: take the flag from a stopped node's replica, without a leader. Registered by ``admin``.

A replica that finds a contradiction flags itself durably, serves no reads and leads nothing. If a wrong digest base
flags all replicas of a shard, the shard has no leader, so nobody can log the right base that would take the flags away.
This command is the way out. Rules:

1. The node is stopped: its database is opened here, and nowhere else.
2. The replica's full scan must equal its own running digest. A replica with a wrong row is rebuilt, never unflagged.
3. A majority of the members must hold the same at the same index. Running members are asked over HTTP. Stopped members
   on this machine are read from their databases. ``--force`` does without the majority.
4. The database keeps a record of it (row UNFLAGGED_KEY): evidence, position, digest, who agreed, when, by whom.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.cluster.leadership import check_shard
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.extras import libraries_of
from stratolog.local import state
from stratolog.nodes.answers import node_answer, node_status

if TYPE_CHECKING:
    from replicated_db.core.applying.replica import Replica

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MemberDigest:
    """A replica's digest at an index: the slots that have a sum, and their signed sums."""

    index: int
    slots: list[int]
    sums: list[int]


def register(group: typer.Typer) -> None:
    """Add the command to the group ``admin``."""
    group.command("unflag")(unflag)


def unflag(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Name of the node.")],
    shard: Annotated[int, typer.Argument(help="Shard, from 0.", min=0)],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also where no majority of the members holds the same.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take the flag from a stopped node's replica that a majority of the members agrees with.

    For a shard without a leader, all of whose replicas were flagged by a wrong digest base: stop the nodes one by one,
    give this command for each, start them, and log a right one ('admin digest-base'). A replica that is wrong is
    rebuilt instead ('admin rebuild').
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    with state.locked(settings.data_dir), libraries_of("om"):
        done = unflag_replica(settings, node, shard, force=force)
    if as_json:
        print_json(done)
    elif not done["evidence"]:
        console.print(f"{node} is not flagged on shard {shard}", highlight=False)
    else:
        agreeing = ", ".join(done["agreeing"]) or "nobody else"
        console.print(
            f"{node} is not flagged on shard {shard} any more: index {done['index']}, digest {done['digest']}, held "
            f"by {agreeing} too. It was: {done['evidence']}", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def unflag_replica(settings: Settings, node: str, shard: int, *, force: bool = False) -> Json:
    """Take the flag from a replica, and return what was found.

    ``evidence`` is empty if the replica was not flagged. Raises UserError if a rule refuses it.
    """
    from replicated_db.core.errors import StopProcess
    from replicated_db.shell.rocks import RocksStore

    if node_status(settings.node(node).address) is not None:
        raise UserError(f"{node} runs: stop it first, with 'stratolog admin stop-node {node}'")
    folder = _folder(settings, node, shard)
    if not folder.is_dir():
        raise UserError(f"{node} has no database of shard {shard}: there is no {folder}")
    try:
        store = RocksStore(folder, _families().names)
        try:
            return _unflag(settings, _replica(settings, node, shard, store), force=force)
        finally:
            store.close()
    except StopProcess as error:
        raise UserError(f"{node}'s database of shard {shard} cannot be used: {error}") from error


def _unflag(settings: Settings, replica: Replica, *, force: bool) -> Json:
    node, shard = replica.identity.node, replica.identity.shard
    evidence, index, digests = replica.evidence, replica.position.index, replica.digests
    found: Json = {"node": node, "shard": shard, "index": index, "digest": f"{digests.total():016x}", "evidence": None}
    if evidence is None:
        return found | {"agreeing": []}
    if replica.scan(replica.store) != digests:
        raise UserError(
            f"{node}'s rows of shard {shard} are not what its digest says: it is damaged. 'stratolog admin rebuild "
            f"{node} {shard}'"
        )
    members = replica.state.replicas or tuple(one.name for one in settings.nodes)
    said = {other: _digest_of(settings, other, shard) for other in members if other != node}
    own = MemberDigest(index, *digests.slots())
    agreeing = [other for other, theirs in said.items() if theirs == own]
    if len(agreeing) + 1 < len(members) // 2 + 1 and not force:
        others = ", ".join(f"{other}: {_in_words(theirs, index)}" for other, theirs in said.items())
        raise UserError(
            f"no majority of the {len(members)} members holds what {node} does at index {index} ({others}). If "
            f"{node} is wrong, rebuild it: 'stratolog admin rebuild {node} {shard}'; --force takes the flag away all "
            "the same"
        )
    found |= {"evidence": str(evidence), "agreeing": agreeing}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    replica.settle(json.dumps({**found, "forced": force, "by": settings.caller, "at": when}).encode())
    return found


def _digest_of(settings: Settings, node: str, shard: int) -> MemberDigest | None:
    """Return the digest of another member's replica; None if it cannot be known."""
    from replicated_db.core.errors import StopProcess
    from replicated_db.shell.rocks import RocksReader

    known = next((one for one in settings.nodes if one.name == node), None)
    if known is not None and (answer := node_answer(known.address, f"/v1/shards/{shard}/digest")) is not None:
        return MemberDigest(answer["index"], answer["slots"], answer["sums"])
    folder = _folder(settings, node, shard)
    if not folder.is_dir():
        return None
    try:
        reader = RocksReader(folder, _families().names)
        try:
            replica: Any = _replica(settings, node, shard, reader)
            return MemberDigest(replica.position.index, *replica.digests.slots())
        finally:
            reader.close()
    except StopProcess:
        return None


def _in_words(theirs: MemberDigest | None, index: int) -> str:
    if theirs is None:
        return "unknown"
    return "other rows" if theirs.index == index else f"at index {theirs.index}"


def _folder(settings: Settings, node: str, shard: int) -> Path:
    return settings.data_dir / "nodes" / node / f"shard-{shard}"


def _families() -> Any:
    from om_processors.execution.service import OM_FAMILIES

    return OM_FAMILIES


def _replica(settings: Settings, node: str, shard: int, store: Any) -> Replica:
    from replicated_db.core.applying.replica import Identity, Replica

    identity = Identity(cluster=settings.cluster, shard=shard, shards=settings.shards, node=node)
    return Replica(identity, _families(), store)
