"""Whether anybody listens at the addresses that a command needs, and what is amiss while it waits.

Rules:

1. If nobody listens, nothing can answer: a command says so at once, and does not wait. It tries all addresses together.
2. What is amiss follows from what the nodes say of themselves (``/status``, ``/v1/datanodes``, ``/v1/pipelines``).
   :func:`amiss` (pure) says it in sentences.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local import state
from stratolog.local.state import AUDIT, BROKER, DATANODE, NODE, UI
from stratolog.nodes.answers import node_answer, node_statuses
from stratolog.nodes.core.leaders import is_leader, view_of
from transport.waiting.deadline import Deadline

PROBE_TIMEOUT_S = 1.0
BROKER_WAIT_S = 60.0
"""How long a starting node or datanode waits until a broker listens.

It waits as long for a broker that listens but does not answer (replicated_db/shell/process.py).
"""
TOLD_INTERVAL_S = 10.0
LISTEN_INTERVAL_S = 0.5
MAX_PROBES = 32
"""Addresses that are tried at the same time, at most."""
LITTLE_ROOM_BYTES = 64 * 1024 * 1024
"""A datanode's disk is named as a reason if it has less free space than this above its reserve."""

Json = Mapping[str, Any]


def listening(addresses: Sequence[str]) -> list[str]:
    """Return those of the addresses (``host:port``) where somebody listens; takes a second at most."""
    if not addresses:
        return []
    with ThreadPoolExecutor(max_workers=min(len(addresses), MAX_PROBES)) as pool:
        answers = list(pool.map(_listens, addresses))
    return [address for address, answers_ in zip(addresses, answers, strict=True) if answers_]


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError, OverflowError):  # no address
        return False


def broker_addresses(settings: Settings) -> list[str]:
    """Return the addresses at which this process reaches the brokers."""
    return (settings.node_bootstrap_servers or settings.bootstrap_servers).split(",")


def check_brokers(settings: Settings) -> None:
    """Raise Unavailable if nobody listens at any broker's address."""
    _check_reachable(settings, {address: address for address in broker_addresses(settings)}, BROKER)


def await_broker(addresses: Sequence[str], tell: Callable[[str], None], timeout_s: float = BROKER_WAIT_S) -> None:
    """Wait until somebody listens at a broker's address, and ``tell`` about the wait at once.

    A service may be started before its brokers. No Kafka client is made before a broker listens: it would log each of
    its attempts. Raises Unavailable after ``timeout_s``.
    """
    deadline, next_word = Deadline.after_s(timeout_s), Deadline.after_s(0)
    while not listening(addresses):
        if deadline.has_passed:
            raise Unavailable(f"nobody listens at {', '.join(addresses)}, in {timeout_s:.0f} s")
        if next_word.has_passed:
            next_word = Deadline.after_s(TOLD_INTERVAL_S)
            tell(f"nobody listens at {', '.join(addresses)}: waiting for a broker, for {deadline.left_s:.0f} s more")
        time.sleep(LISTEN_INTERVAL_S)


def check_log(settings: Settings) -> None:
    """Raise Unavailable if the local stack has brokers and none of them runs: no node then answers what needs the log.

    The brokers' addresses are not tried: a read goes over HTTP, so this machine need not reach a broker.
    """
    if "nodes" not in settings.explicit and _are_all_stopped(settings, BROKER):
        raise Unavailable(f"no broker runs at {settings.bootstrap_servers}{_why(settings, BROKER)}")


def check_leaders(settings: Settings) -> None:
    """Raise Unavailable if the local stack has nodes and none of them runs: nobody then executes requests.

    The nodes' addresses are not tried: where no node is reached a write goes through the brokers.
    """
    if "bootstrap_servers" not in settings.explicit and _are_all_stopped(settings, NODE):
        raise Unavailable(f"no node runs{_why(settings, NODE)}")


def _are_all_stopped(settings: Settings, kind: str) -> bool:
    """Say whether the local stack runs, but none of its processes of one kind does."""
    known = state.read_state(settings.data_dir)
    members = () if known is None or not known.running() else known.of(kind)
    return bool(members) and not any(member.process.is_running() for member in members)


def check_nodes(settings: Settings, names: Collection[str] | None = None) -> None:
    """Raise Unavailable if nobody listens at any node's address, or at those of the nodes named."""
    chosen = {
        node.address: f"{node.address} ({node.name})" for node in settings.nodes if names is None or node.name in names
    }
    _check_reachable(settings, chosen, NODE)


def _check_reachable(settings: Settings, places: Mapping[str, str], kind: str) -> None:
    """Raise Unavailable if nobody listens at any address of ``places``.

    ``places`` maps the addresses of processes of one kind to their names in the message.
    """
    if not listening(list(places)):
        raise Unavailable(f"nobody listens at {', '.join(places.values())}{_why(settings, kind)}")


def _why(settings: Settings, kind: str) -> str:
    """Say what is known of the local stack's processes of a kind, and what to do."""
    known = state.read_state(settings.data_dir)
    if known is None or not known.running():
        return f", and no stack is running in {settings.data_dir}: start one with 'stratolog up'"
    stopped = [member.name for member in known.of(kind) if not member.process.is_running()]
    if not stopped:
        return ""
    verb = "does" if len(stopped) == 1 else "do"
    # 'up' starts all brokers of a cluster or none (local/stack.py).
    remedy = "'stratolog down', then 'stratolog up'" if kind == BROKER and len(known.of(kind)) > 1 else "'stratolog up'"
    return f": {', '.join(stopped)} of the stack in {settings.data_dir} {verb} not run; {remedy} starts what is missing"


# -- what is amiss -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a cluster at a moment; None = no answer."""

    brokers: Sequence[str]
    listening_brokers: Collection[str]
    statuses: Mapping[str, Json | None]
    shards: int
    datanodes: Sequence[Json] = field(default=())
    pipelines: Sequence[Json] = field(default=())
    silent_datanodes: Collection[str] = ()
    stopped: Sequence[str] = ()
    """Processes of the local stack that have ended."""


def look(settings: Settings, *, bytes_too: bool) -> Seen:
    """Ask brokers and nodes, and datanodes ``bytes_too``; takes a few seconds at most."""
    statuses = node_statuses(settings)
    found: dict[str, list[Json]] = {"datanodes": [], "pipelines": []}
    silent: list[str] = []
    if bytes_too:
        for what in found:
            answers = (node_answer(node.address, f"/v1/{what}?consistency=stale") for node in settings.nodes)
            found[what] = next((answer[what] for answer in answers if answer is not None), [])
        places = {str(one["address"]): str(one["datanode"]) for one in found["datanodes"] if one["address"]}
        heard = listening(list(places))
        silent = [name for address, name in places.items() if address not in heard]
    brokers = broker_addresses(settings)
    return Seen(
        brokers=brokers, listening_brokers=listening(brokers), statuses=statuses, shards=settings.shards,
        datanodes=found["datanodes"], pipelines=found["pipelines"], silent_datanodes=silent, stopped=_stopped(settings),
    )  # fmt: skip


def _stopped(settings: Settings) -> list[str]:
    try:
        known = state.read_state(settings.data_dir)
    except UserError:
        return []
    members = () if known is None or not known.running() else known.members
    return [member.name for member in members if member.kind not in (AUDIT, UI) and not member.process.is_running()]


def amiss(seen: Seen) -> list[str]:
    """Return, in words, what keeps requests from being answered. Pure."""
    words = _amiss(seen)
    if seen.stopped and words:
        words.append(f"not running: {', '.join(seen.stopped)}: 'stratolog up' starts what is missing")
    return words


def _amiss(seen: Seen) -> list[str]:
    if not seen.listening_brokers:
        return [f"no broker listens at {', '.join(seen.brokers)}"]
    words = []
    if away := [address for address in seen.brokers if address not in seen.listening_brokers]:
        words.append(f"no broker listens at {', '.join(away)}")
    silent = [name for name, status in seen.statuses.items() if status is None]
    if silent and len(silent) == len(seen.statuses):
        return [*words, f"no node answers: {', '.join(silent)}"]
    if silent:
        words.append(f"no answer from {', '.join(silent)}")
    for shard in range(seen.shards):
        words += _amiss_of_shard(shard, list(_views(seen, shard)))
    return words + _amiss_of_bytes(seen)


def _views(seen: Seen, shard: int) -> list[Json]:
    views = (view_of(status, shard) for status in seen.statuses.values())
    return [view for view in views if view]


def _amiss_of_shard(shard: int, views: Sequence[Json]) -> list[str]:
    words = []
    if not any(map(is_leader, views)):
        words.append(f"shard {shard} has no leader")
    if any(view.get("prepared") for view in views):
        words.append(
            f"shard {shard} is prepared for an upgrade and refuses writes until 'stratolog admin prepare --cancel'"
        )
    if flagged := sum(bool(view.get("flagged")) for view in views):
        words.append(f"{flagged} of {len(views)} replicas of shard {shard} are flagged: see 'stratolog audit --once'")
    return words


def _amiss_of_bytes(seen: Seen) -> list[str]:
    words = [
        f"datanode {one['datanode']} is {one['health']}, last heard of {one['silent_ms'] / 1000:.0f} s ago"
        for one in seen.datanodes
        if one["health"] != "HEALTHY"
    ]
    unwell = {one["datanode"] for one in seen.datanodes if one["health"] != "HEALTHY"}
    words += [f"{DATANODE} {name} does not answer" for name in seen.silent_datanodes if name not in unwell]
    words += [
        f"the disk of datanode {one['datanode']} has {one['free_bytes']} bytes left above its reserve "
        "(setting 'datanode_reserve_bytes')"
        for one in seen.datanodes
        if one["datanode"] not in unwell and one["free_bytes"] < LITTLE_ROOM_BYTES
    ]
    if seen.datanodes and not any(one["usable"] for one in seen.pipelines):
        words.append("no pipeline takes blocks")
    return words
