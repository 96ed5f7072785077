"""A small stack of a drill's own, for faults that cannot be taken back: a broker, three nodes, one shard.

It lies in a directory below the running stack's, uses free ports, and is stopped and deleted however the drill ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from schemas.kafka.client_settings import client_settings
from schemas.settings.values import NodeAddress
from schemas.topics import OM_LOG
from stratolog.configuration.settings import Settings
from stratolog.drills.core.report import StepFailed
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.rebuild import scratch
from stratolog.drills.kit.session import Session
from stratolog.local import stack
from stratolog.local.ports import free_ports

SHARD = 0
NODES = 3
ANSWER_S = 30.0


@contextmanager
def own_stack(
    session: Session, settings: Settings, drill: str, *, detached: bool, bytes_per_s: int = 0
) -> Iterator[Cluster]:
    """Start a stack whose empty replicas install instead of reading the log; stop and delete it at the end.

    ``bytes_per_s`` is the setting ``bootstrap_bytes_per_s`` there.
    """
    with scratch(session, settings, drill) as folder:
        wanted = replace(_settings(settings, folder), bootstrap_bytes_per_s=bytes_per_s)
        with started(session, wanted, f"start a stack in {folder}", detached=detached) as own:
            yield Cluster(settings=own, detached=detached)


@contextmanager
def started(session: Session, wanted: Settings, text: str, *, detached: bool) -> Iterator[Settings]:
    """Start a stack in a step of that text, and yield its settings; stop and delete it at the end."""
    stopped = to_be_deleted(session, wanted)
    with session.step(text) as found:
        own = stack.up(wanted, detached=detached, supervised=False)
        names = [node.name for node in own.nodes] + [datanode.name for datanode in own.datanodes]
        found(f"{', '.join(names)} on {own.bootstrap_servers}")
    yield own
    with session.step("stop and delete the drill's stack"):
        stopped()


def to_be_deleted(
    session: Session, wanted: Settings, which: str = "a stack of this drill's own", name: str = "the drill's own stack"
) -> Callable[[], None]:  # fmt: skip
    """Say that a stack is touched that is deleted in the end; return what stops and deletes it now."""

    def remove() -> str:
        stack.down(wanted, remove_data=True)
        return f"{name} is stopped and deleted"

    return session.touching(which, remove)


def _settings(settings: Settings, folder: Path) -> Settings:
    kafka, *nodes = free_ports(1 + NODES)
    return replace(
        settings, data_dir=folder / "stack", bootstrap_servers=f"127.0.0.1:{kafka}", brokers=1, shards=1, audit=False,
        ui=False,
        nodes=tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=port) for n, port in enumerate(nodes, start=1)),
        datanodes=(), racks=(), cluster_secret_file=None, bootstrap_records=1, bootstrap_peers=(),
        explicit=frozenset(),
    )  # fmt: skip


def lose_disk(cluster: Cluster, name: str) -> None:
    """Delete all that a stopped node of the drill's own stack has stored."""
    shutil.rmtree(cluster.settings.node_folder(name))


def trim_log(cluster: Cluster, readers: Sequence[str] | None = None) -> int:
    """Delete the log's records before the leader's position, as an operator may; return the log's first offset.

    An operator leaves the records that a running node still needs: a follower reads up to 50 ms behind its leader, and
    one that finds the log trimmed below it ends. ``readers`` are the nodes that must have read that far first (None:
    all that run). Raises StepFailed.
    """
    first = int(cluster.view(cluster.wait_leader(SHARD), SHARD)["applied_offset"])
    for name in cluster.running() if readers is None else readers:
        cluster.wait_applied(name, SHARD, first)
    place = TopicPartition(OM_LOG, SHARD, first)
    admin = AdminClient(client_settings(cluster.settings.connection, {"log_level": 0}))
    try:
        deleted = admin.delete_records([place], request_timeout=ANSWER_S)[place].result()
    except KafkaException as error:
        raise StepFailed(f"the log could not be trimmed: {error}") from error
    return int(deleted.low_watermark)
