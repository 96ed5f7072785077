"""An Object Manager's follower: ``replicated_db.shell.follower`` on ``om.log`` and ``om.audit``, for every shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import faust

from om_processors.config import NodeConfig
from om_processors.serving.snapshot_diff_api import OPEN_POSTS
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Log
from replicated_db.shell import follower
from replicated_db.shell.leader_loop import LeaderLoop, Publisher
from replicated_db.shell.logs import Note
from schemas.settings.table import AUTH_SIGNED
from schemas.topics import OM_AUDIT, OM_LOG
from transport.web.http_guard import HttpGuard


def make_app(
    config: NodeConfig, incarnation: str, fatal: Callable[[BaseException], None], middlewares: Sequence[Any] = ()
) -> faust.App:
    """Return the Faust app of this process. ``incarnation`` makes its group id fresh; ``fatal`` ends the process.

    ``middlewares`` stand behind the guard of its HTTP server.
    """
    return follower.make_app(
        f"om-follower-{config.node}-{incarnation}", bootstrap_servers=config.bootstrap_servers,
        host=config.address_host, port=config.address_port, data_dir=config.data_dir, fatal=fatal,
        guard=guard_of(config), middlewares=middlewares, tls=config.tls,
    )  # fmt: skip


def guard_of(config: NodeConfig) -> HttpGuard:
    """Return the guard of a node's HTTP server."""
    return HttpGuard(
        config.secret, config.http_hosts, OPEN_POSTS, secure=config.tls is not None, signed=config.auth == AUTH_SIGNED
    )


def place_group(config: NodeConfig, group: str, replicas: Mapping[int, Replica]) -> None:
    """Set the fresh group's offsets behind each replica's position; raises LogUnavailable."""
    follower.place_group(
        config.bootstrap_servers, group, log_topic=OM_LOG, audit_topic=OM_AUDIT, replicas=replicas,
        partitions=len(replicas),
    )  # fmt: skip


class OMFollower(follower.Follower):
    """Applies ``om.log`` and reads ``om.audit``."""

    def __init__(
        self, config: NodeConfig, replicas: Mapping[int, Replica], loops: Mapping[int, LeaderLoop],
        logs: Mapping[int, Log], outbox: Publisher,
        note: Note, fatal: Callable[[BaseException], None], **waits: Any,
    ) -> None:  # fmt: skip
        """``waits``: ``now_s`` and ``sleep`` of the follower."""
        feed = follower.Feed(
            node=config.node, log_topic=OM_LOG, audit_topic=OM_AUDIT, members=frozenset(config.replicas)
        )
        super().__init__(feed, replicas, loops, logs, outbox, note, fatal, **waits)
