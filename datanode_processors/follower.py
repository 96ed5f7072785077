"""The follower of a datanode: ``replicated_db.shell.follower`` on ``dn.log`` and ``dn.audit``.

It follows the pipelines that this node is a member of; every other partition stays paused. A pipeline that is opened
later begins at the beginning of its partition, because partitions are never used again. The partition may have been
added since this process started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import faust

from datanode_processors.config import DatanodeConfig
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Log
from replicated_db.shell import follower
from replicated_db.shell.leader_loop import LeaderLoop, Publisher
from replicated_db.shell.logs import Note
from schemas.topics import DN_AUDIT, DN_LOG
from transport.web.http_guard import HttpGuard

FLOWING_WAIT_MS = 2
"""How long a broker may gather records. It is short because a client's watch waits for every member."""


def make_app(
    config: DatanodeConfig, incarnation: str, fatal: Callable[[BaseException], None], *, partitions: int
) -> faust.App:
    """Return the Faust app of this process; it follows no pipeline yet (:func:`follow`).

    ``partitions`` are those of :func:`place_group`.
    """
    return follower.make_app(
        f"dn-follower-{config.node}-{incarnation}", bootstrap_servers=config.bootstrap_servers, host=config.host,
        port=config.http_port, data_dir=config.data_dir, fatal=fatal,
        follows=(), placed=partitions, flowing_wait_ms=FLOWING_WAIT_MS,
        guard=HttpGuard(config.secret, config.http_hosts, secure=config.tls is not None), tls=config.tls,
    )  # fmt: skip


def place_group(config: DatanodeConfig, group: str, replicas: Mapping[int, Replica], partitions: int) -> None:
    """Set the fresh group's offsets: behind each replica's position, and at the beginning of all other partitions.

    Raises LogUnavailable.
    """
    follower.place_group(
        config.bootstrap_servers, group, log_topic=DN_LOG, audit_topic=DN_AUDIT, replicas=replicas,
        partitions=partitions,
    )  # fmt: skip


def follow(app: faust.App, loops: Mapping[int, LeaderLoop], partition: int) -> None:
    """Fetch a pipeline's log, and its members' reports; its replica and its loop must exist already. On any thread."""
    follower.rest_while_leading(app, DN_LOG, loops[partition])
    transport: Any = app.transport
    transport.follow(DN_LOG, partition)
    transport.follow(DN_AUDIT, partition)


class PipelineFollower(follower.Follower):
    """Applies ``dn.log``, and listens to ``dn.audit``. The mappings grow as pipelines are opened."""

    def __init__(
        self, config: DatanodeConfig, replicas: Mapping[int, Replica], loops: Mapping[int, LeaderLoop],
        logs: Mapping[int, Log], outbox: Publisher, note: Note, fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        feed = follower.Feed(node=config.node, log_topic=DN_LOG, audit_topic=DN_AUDIT)
        super().__init__(feed, replicas, loops, logs, outbox, note, fatal)
