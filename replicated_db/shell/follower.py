"""The follower: a Faust app that offers every record of a log topic to this process's replicas (design, section 5).

Rules:
    - A replica's position lives in RocksDB with the data, never in the consumer group. The group id is fresh for each
      process start. The group's offsets are set before the worker starts and never committed, and a rebalance goes back
      to the replica's position. There is no offset reset.
    - Applying is idempotent by offset. Records of a claim that leads in this process are left to the leader's thread,
      which has them decoded already. The follower does not even fetch them (:func:`rest_while_leading`). When that
      leader stops leading, the follower reads from the log the records that the leader left unapplied.
    - Faust acknowledges on exception. So a failure to apply ends the process before Faust hears of it.
    - A process with replicas of only some partitions fetches those alone (``FollowerTransport.follow``).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faust
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.log.log_reads import EndPatience, read_log
from replicated_db.core.log.quorum import Judgement, Quorum
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import Log, LogUnavailable
from replicated_db.shell.kafka.credentials import faust_credentials
from replicated_db.shell.kafka.faust_transport import FLOWING_WAIT_MS, FollowerTransport
from replicated_db.shell.kafka.quiet_monitor import QuietMonitor
from replicated_db.shell.leader_loop import LeaderLoop, Publisher
from replicated_db.shell.logs import Note
from replicated_db.shell.startup import ADMIN_TIMEOUT_S
from replicated_db.shell.web.node_web import NodeWeb
from schemas.codecs.codec import Undecodable, decode_as
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers, connection
from schemas.records.messages import AuditReport
from schemas.security.tls import ProcessTls
from schemas.topics import MAX_MESSAGE_BYTES, SILENT_BROKER_MS
from transport.web.http_guard import HttpGuard

if TYPE_CHECKING:
    from replicated_db.shell.tracing.follower_spans import FollowerSpans

FILL_WAIT_S = 1.0
FILL_PAUSE_S = 0.5
"""Pause between two attempts to fill a gap while the brokers do not serve its records."""
PARTITION = re.compile(r"[0-9]{1,9}")
"""A partition's number in a report's key."""

NO_REPLICA_REPORT = b"blocks"
"""Kind (a header) of those reports on the same topic that say nothing about rows."""
EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a follower listens to, the log and the members' reports, and its own name."""

    node: str
    log_topic: str
    audit_topic: str
    members: frozenset[str] = frozenset()
    """Members of a shard whose log does not name them yet."""


IDLE_FOR_GOOD_S = 10 * 365 * 86_400.0
"""How long a follower may have nothing to fetch."""


def make_app(
    name: str, *, bootstrap_servers: Brokers, host: str, port: int, data_dir: Path, fatal: Callable[[BaseException], None],
    follows: Iterable[tuple[str, int]] | None = None, placed: int | None = None, flowing_wait_ms: int = FLOWING_WAIT_MS,
    guard: HttpGuard | None = None, middlewares: Sequence[Any] = (), tls: ProcessTls | None = None,
) -> faust.App:  # fmt: skip
    """Return the Faust app of this process. ``name`` is its group id, fresh for each start; ``fatal`` ends the process.

    The app's web server listens on ``host``:``port`` and serves what ``guard`` lets through. Without a guard it serves
    nothing that changes anything. ``middlewares`` of aiohttp stand behind the guard. With ``tls`` the server speaks TLS
    alone. With ``follows``, only these (topic, partition) pairs are fetched, until
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
    app.web = NodeWeb(app, None if tls is None else tls.server(needs_certificate=False))
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


class Follower:
    """Applies the log, and listens to the other members' reports. The mappings may grow during its life."""

    def __init__(
        self, feed: Feed, replicas: Mapping[int, Replica], loops: Mapping[int, LeaderLoop], logs: Mapping[int, Log],
        outbox: Publisher, note: Note, fatal: Callable[[BaseException], None], *,
        now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._now_s = now_s
        self._sleep = sleep
        self._feed = feed
        self._replicas = replicas
        self._loops = loops
        self._logs = logs
        self._outbox = outbox
        self._note = note
        self._fatal = fatal
        self._quorums: dict[int, Quorum] = {}
        self.unreadable_reports = 0
        self.spans: FollowerSpans | None = None
        """Where the spans of traced requests go; None leaves none."""

    def attach(self, app: faust.App) -> None:
        """Subscribe the app to the log and to the reports."""
        # The log is not acknowledged: the position is the replica's. Faust would see gaps, because records are left out
        # while a leader is at work.
        log = app.topic(self._feed.log_topic, value_serializer="raw", key_serializer="raw", acks=False)
        audit = app.topic(self._feed.audit_topic, value_serializer="raw", key_serializer="raw")
        transport: Any = app.transport
        transport.next_offset = self._next_offset

        @app.agent(log, name="apply")
        async def apply(stream: Any) -> None:
            async for event in stream.events():
                message = event.message
                if self.spans is not None and message.headers:
                    await self._take_traced(self.spans, message)
                else:
                    await self.take(message.partition, message.offset, message.value or b"")

        @app.agent(audit, name="hear")
        async def hear(stream: Any) -> None:
            async for event in stream.events():
                message = event.message
                self._guard(self.on_report, message.key, dict(message.headers or ()), message.value)

    def _next_offset(self, tp: Any) -> int | None:
        """Return the offset from which a partition is wanted: after the last one its replica read; None for reports."""
        replica = self._replicas.get(tp.partition) if tp.topic == self._feed.log_topic else None
        return None if replica is None else replica.read_offset + 1

    def _guard(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except BaseException as error:
            self._fatal(error)

    async def take(self, shard: int, offset: int, value: bytes) -> None:
        """Leave a record to this node's leader, or apply it after any records that this leader left unapplied."""
        # Ask only once. The leader may resign at any moment; then what it left must be read before this record is
        # applied.
        if self.leaves_to_leader(shard, value):
            return
        if self.has_gap(shard, offset):
            await asyncio.to_thread(self._guard, self.fill, shard, offset)
        self._guard(self.apply, shard, offset, value)

    async def _take_traced(self, spans: FollowerSpans, message: Any) -> None:
        """Do what ``take`` does, and leave spans if the record is applied here."""
        shard, offset, begun_ns = message.partition, message.offset, spans.now_ns()
        before = self._replicas[shard].read_offset
        await self.take(shard, offset, message.value or b"")
        if before < offset <= self._replicas[shard].read_offset:
            spans.applied(message.headers, shard, offset, round(message.timestamp * 1000), begun_ns)

    def leaves_to_leader(self, shard: int, value: bytes) -> bool:
        """Whether this node's leader applies a record. If not, :meth:`fill` the gap before it and :meth:`apply` it."""
        return self._loops[shard].leaves_to_leader(value)

    def apply(self, shard: int, offset: int, value: bytes) -> None:
        """Offer a record of the log. Everything before it must have been offered."""
        self._publish(shard, offset, self._replicas[shard].offer(offset, value))

    def has_gap(self, shard: int, offset: int) -> bool:
        """Whether records before ``offset`` have not been offered, because this node's leader left them unapplied."""
        return offset > self._replicas[shard].read_offset + 1

    def fill(self, shard: int, end: int) -> None:
        """Offer the records before ``end`` that were left to this node's leader.

        It runs beside the event loop, because brokers may be slow.
        """
        with self._replicas[shard].reading_again():
            try:
                self._fill(shard, end)
            finally:
                self._logs[shard].rest()

    def _fill(self, shard: int, end: int) -> None:
        replica = self._replicas[shard]
        patience = EndPatience()
        while (following := replica.read_offset + 1) < end:
            try:
                entries = read_log(self._logs[shard], following, end - following, FILL_WAIT_S)
            except LogUnavailable as error:
                self._note(f"shard {shard}: {error}; trying again", shard=shard)
                patience.on_failure(error, self._now_s())
                self._sleep(FILL_PAUSE_S)
                continue
            patience.on_answer()
            for entry in entries:
                self._publish(shard, entry.offset, replica.offer(entry.offset, entry.value))

    def _publish(self, shard: int, offset: int, outcome: Offered) -> None:
        replica = self._replicas[shard]
        if outcome.reading is Reading.COUNTS:
            self._outbox.publish(replica, outcome)
            if outcome.evidence is not None:
                self._note(f"shard {shard}: false claim found: {outcome.evidence}", shard=shard)
        elif outcome.reading is not None and outcome.reading is not Reading.VALID_CLAIM:
            self._note(f"shard {shard}, offset {offset}: {outcome.reading.value}", shard=shard, offset=offset)

    def on_report(self, key: bytes | None, headers: Mapping[str, bytes], value: bytes | None) -> None:
        """Take a member's report and act on what it settles.

        A healthy member's report says so in its headers and is not decoded. Any other record on the topic is skipped:
        no record there may end a node.
        """
        if headers.get("kind") == NO_REPLICA_REPORT:
            return
        if headers.get("flagged") == b"0":
            shard, _, node = (key or b"").decode(errors="replace").partition("/")
            if PARTITION.fullmatch(shard) and int(shard) in self._quorums:
                self._quorums[int(shard)].forget(node)
            return
        try:
            report = decode_as(AuditReport, value or b"")
        except Undecodable as error:
            self.unreadable_reports += 1
            if (count := self.unreadable_reports).bit_count() == 1:  # the first, second, fourth … one
                self._note(f"a report on {self._feed.audit_topic} is unreadable, the {count}. one: {error}")
            return
        replica = self._replicas.get(report.shard)
        if replica is None:
            return
        quorum = self._quorums.setdefault(report.shard, Quorum(me=self._feed.node, members=self._feed.members))
        quorum.members = frozenset(replica.state.replicas) or self._feed.members
        quorum.on_report(report)
        judgement, evidence = quorum.judge(replica.evidence)
        if judgement is Judgement.SETTLE:
            self._note(
                f"shard {report.shard}: a majority has the same row: the leader was wrong; flag taken away",
                shard=report.shard,
            )
            replica.settle()
        elif judgement is Judgement.FLAG and evidence is not None:
            self._note(
                f"shard {report.shard}: a majority contradicts this node's batch: {evidence}", shard=report.shard
            )
            replica.flag(evidence)
