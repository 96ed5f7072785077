"""The follower's Faust app: what a process fetches of a log topic, from where on (design, section 5).

Rules:
    - A replica's position lives in RocksDB with the data, never in the consumer group. The group id is fresh for each
      process start. The group's offsets are set before the worker starts and never committed, and a rebalance goes back
      to the replica's position. There is no offset reset. Groups of former starts are removed.
    - Records of a claim that leads in this process are not even fetched (:func:`rest_while_leading`).
    - A process with replicas of only some partitions fetches those alone (``FollowerTransport.follow``).

``database/follower`` feeds this process's databases with what the app fetches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import faust
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.kafka.credentials import faust_credentials
from replicated_db.shell.kafka.faust_transport import FLOWING_WAIT_MS, FollowerTransport
from replicated_db.shell.kafka.quiet_monitor import QuietMonitor
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.startup import ADMIN_TIMEOUT_S
from replicated_db.shell.web.node_web import NodeWeb
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers, connection
from schemas.security.tls import ProcessTls
from schemas.topics import MAX_MESSAGE_BYTES, SILENT_BROKER_MS
from transport.web.http_guard import HttpGuard

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

GROUP_DIGITS = 8
"""Hexadecimal digits at the end of a group's name, fresh for each start."""

IDLE_FOR_GOOD_S = 10 * 365 * 86_400.0
"""How long a follower may have nothing to fetch."""


def make_app(
    name: str, *, bootstrap_servers: Brokers, host: str, port: int, data_dir: Path, fatal: Callable[[BaseException], None],
    follows: Iterable[tuple[str, int]] | None = None, placed: int | None = None, flowing_wait_ms: int = FLOWING_WAIT_MS,
    guard: HttpGuard | None = None, middlewares: Sequence[Any] = (), tls: ProcessTls | None = None,
    headers: Mapping[str, str] | None = None,
) -> faust.App:  # fmt: skip
    """Return the Faust app of this process. ``name`` is its group id, fresh for each start; ``fatal`` ends the process.

    The app's web server listens on ``host``:``port`` and serves what ``guard`` lets through. Without a guard it serves
    nothing that changes anything. ``middlewares`` of aiohttp stand behind the guard; ``headers`` are in each answer.
    With ``tls`` the server speaks TLS alone. With ``follows``, only these (topic, partition) pairs are fetched, until
    ``FollowerTransport.follow`` names more. With ``placed``, the topics may grow: the group has offsets for this many
    partitions of each topic, and partitions added later are read from their beginning. ``flowing_wait_ms`` is how long
    a broker may gather records while they flow.
    """
    app = faust.App(
        name,
        broker=";".join(f"kafka://{server}" for server in connection(bootstrap_servers).servers.split(",")),
        broker_credentials=faust_credentials(bootstrap_servers),
        store="memory://",
        value_serializer="raw",
        key_serializer="raw",
        datadir=str(data_dir / "faust"),
        web_bind=host,
        web_host=host,
        web_port=port,
        web_application_options={"middlewares": [(guard or HttpGuard(None)).middleware(), *middlewares]},
        topic_disable_leader=True,
        topic_allow_declare=False,
        consumer_auto_offset_reset="none",
        # A leader broker that is cut off from the others answers each fetch with nothing. Only another broker can name
        # the present leader.
        consumer_metadata_max_age_ms=SILENT_BROKER_MS,
        consumer_max_fetch_size=MAX_MESSAGE_BYTES,
        stream_wait_empty=False,
        broker_commit_interval=60.0,
        # A follower without partitions fetches nothing. At the poll interval's end it would leave the group for good.
        broker_max_poll_interval=IDLE_FOR_GOOD_S,
        monitor=QuietMonitor(),
    )
    app.web = NodeWeb(app, None if tls is None else tls.server(needs_certificate=False), headers)
    app.transport = FollowerTransport(
        app.conf.broker_consumer, app, fatal=fatal, follows=follows, placed=placed, flowing_wait_ms=flowing_wait_ms
    )
    return app


def place_group(
    bootstrap_servers: Brokers, group: str, *, log_topic: str, audit_topic: str, replicas: Mapping[int, Replica],
    partitions: int,
) -> None:  # fmt: skip
    """Set the fresh group's offsets: the log directly after each replica's position, reports at their end.

    Partitions of the log without a replica are placed at their beginning. Raises LogUnavailable if the brokers do not
    accept the offsets.
    """
    admin = AdminClient(client_settings(bootstrap_servers))
    others = [TopicPartition(log_topic, shard) for shard in range(partitions) if shard not in replicas]
    try:
        ends = admin.list_offsets(
            {
                **{TopicPartition(audit_topic, shard): LATEST for shard in range(partitions)},
                **dict.fromkeys(others, EARLIEST),
            },
            request_timeout=ADMIN_TIMEOUT_S,
        )
        places = [TopicPartition(p.topic, p.partition, future.result().offset) for p, future in ends.items()]
        places += [TopicPartition(log_topic, shard, replica.read_offset + 1) for shard, replica in replicas.items()]
        # For a partition without a leader the brokers return neither an error nor an offset.
        if lost := [place for place in places if place.offset < 0]:
            raise LogUnavailable(
                f"group {group}: the brokers do not know the end of {lost[0].topic}/{lost[0].partition}"
            )
        wanted = [ConsumerGroupTopicPartitions(group, places)]
        answer = admin.alter_consumer_group_offsets(wanted, request_timeout=ADMIN_TIMEOUT_S)[group].result()
    except KafkaException as error:
        raise LogUnavailable(f"group {group}: {error}") from error
    # A refused partition is in the answer; nothing is raised for it.
    if refused := [p for p in answer.topic_partitions if p.error is not None]:
        raise LogUnavailable(f"group {group}: {refused[0].topic}/{refused[0].partition}: {refused[0].error.str()}")


def remove_former_groups(bootstrap_servers: Brokers, group: str, note: Callable[[str], None]) -> None:
    """Remove the groups of former starts of a process, of which nobody is a member any more.

    ``group`` is the present start's; only its last eight digits differ from theirs. Brokers would keep them for a week.
    That they do not answer, or refuse, is noted.
    """
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
    name = re.compile(re.escape(group[:-GROUP_DIGITS]) + f"[0-9a-f]{{{GROUP_DIGITS}}}")
    try:
        listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}, request_timeout=ADMIN_TIMEOUT_S).result()
        former = [one.group_id for one in listed.valid if one.group_id != group and name.fullmatch(one.group_id)]
        removed = admin.delete_consumer_groups(former, request_timeout=ADMIN_TIMEOUT_S) if former else {}
        for future in removed.values():
            future.result()
        if listed.errors:  # of single brokers: the others have answered
            raise KafkaException(listed.errors[0])
    except KafkaException as error:
        note(f"the groups of former starts are not removed: {error.args[0].str()}")


def rest_while_leading(app: faust.App, topic: str, loop: LeaderLoop) -> None:
    """Let the app's follower not fetch a log while ``loop`` appends to it: the loop's thread applies every record."""
    transport: Any = app.transport
    shard = loop.replica.identity.shard

    def turn(rests: bool) -> None:
        if rests:
            transport.rest(topic, shard)
        else:
            transport.wake(topic, shard)

    loop.on_rest = turn
