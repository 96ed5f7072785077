"""An Object Manager node: one process with a replica of every shard, which leads some of them.

``run`` is the whole life of the process. It checks the topics, opens the replicas, checks each against the log, and
places the follower's group. Then Faust's worker runs the followers and the HTTP API, and one thread executes for each
shard that the node leads. A StopProcess anywhere ends the process with EXIT_FATAL, and its message is logged: the log
is the truth, and a restart begins from it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faust
import mode.loop

from om_processors.config import NodeConfig
from om_processors.doors.direct_door import DirectDoor
from om_processors.doors.door_lookups import DoorLookups
from om_processors.execution.late import OMExecutor
from om_processors.execution.service import OM_FAMILIES, OMService
from om_processors.fleet.heartbeats import FleetView, LatestAllocation
from om_processors.fleet.leader_duties import LeaderDuties
from om_processors.fleet.log_trimming import member_addresses
from om_processors.identity.identities import Identities
from om_processors.identity.readers import HOLDERS_PATHS, ReaderGuard
from om_processors.identity.token_issuer import BlockTokenIssuer
from om_processors.intake.core.backlog import Backlog
from om_processors.intake.gateway import Gateway
from om_processors.intake.intake import RequestIntake
from om_processors.intake.outbox import KafkaOutbox
from om_processors.leading.flusher import Flusher
from om_processors.leading.leadership import Leadership
from om_processors.leading.pulse import Pulse
from om_processors.leading.snapshot_preparer import SnapshotPreparer
from om_processors.namespace.context import Contexts
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX
from om_processors.serving.access_api import AccessApi
from om_processors.serving.consistency import Consistency
from om_processors.serving.fleet_api import FleetApi
from om_processors.serving.http_api import OMHttpApi
from om_processors.serving.leadership_api import LeadershipApi
from om_processors.serving.node_status import NodeStatus
from om_processors.serving.request_metrics import RequestMetrics
from om_processors.serving.snapshot_diff_api import OPEN_POSTS, SnapshotDiffApi
from om_processors.serving.snapshot_reads import SnapshotReads
from om_processors.serving.write_audit import WriteAudit
from om_processors.snapdiff.diff_jobs import DiffJobs
from om_processors.snapshots.checkpoints import CheckpointName, RocksCheckpoints
from om_processors.snapshots.open_snapshots import OpenSnapshots
from om_processors.startup import allowed_session_timeout_ms, check_topics, tell_auth
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StopProcess
from replicated_db.core.leading.leader import Effective, LeaderLimits
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import logs
from replicated_db.shell.bootstrap.opening_web import OpeningWeb
from replicated_db.shell.database.database import DatabaseService
from replicated_db.shell.database.host import DatabaseHost, HostSettings
from replicated_db.shell.kafka.kafka_log import Headers
from replicated_db.shell.process import calm_collector, end_soon, fatal, when_brokers_answer
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.system import SystemClock, SystemIds
from schemas.codecs.reference import validate_schemas
from schemas.column_families import INLINE_TABLE
from schemas.kafka.brokers_id import brokers_header
from schemas.records.log import Batch, RequestBatch, RequestPosition
from schemas.settings.table import AUTH_SIGNED
from schemas.sharding import SYSTEM_SHARD
from schemas.topics import OM_AUDIT, OM_LOG
from transport.web.http_guard import HttpGuard

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from replicated_db.shell.tracing.follower_spans import FollowerSpans
    from replicated_db.shell.tracing.leader_spans import LeaderSpans

log = logging.getLogger("stratolog.node")


class OMNode:
    """All parts of one process, wired.

    ``__init__`` makes all of them and :func:`run` starts them; nothing is added in between. With a ``tracer``, requests
    whose callers trace them leave spans.
    """

    def __init__(
        self, config: NodeConfig, topic_id: str, tracer: Tracer | None = None, *, brokers_id: str = ""
    ) -> None:
        """``topic_id`` is that of ``om.log``, ``brokers_id`` that of the brokers."""
        self.config = config
        self._tracer = tracer
        self.spans = {} if tracer is None else _leader_spans(tracer, config.shards)
        self.clock = SystemClock()
        self.outbox = KafkaOutbox(config.bootstrap_servers, self.clock, log.warning, fatal, self._applied)
        self.metrics = {shard: RequestMetrics() for shard in range(config.shards)}
        self.write_audit = WriteAudit(config.node, config.data_dir) if config.write_audit else None
        self.allocation = LatestAllocation()
        self._ending: threading.Timer | None = None
        self.contexts = {shard: self._contexts_of(shard) for shard in range(config.shards)}
        self.backlogs = {shard: Backlog(max_queued=config.max_queued_requests) for shard in range(config.shards)}
        self.host = DatabaseHost(
            host_settings(config, topic_id, brokers_id), self.outbox, clock=self.clock, fatal=fatal
        )
        self.replicas, self.loops = self.host.replicas, self.host.loops
        self.identities = self._identities()
        self.block_tokens = self._block_token_issuer()
        self.opening = self._opening_web().start()
        for shard in range(config.shards):  # each is served to others from here on, while the next ones are opened
            self._open(shard)
            self.opening.is_open(shard)
        self.fleet = self._fleet_view() if config.datanodes else None
        note = self.host.note
        self.snapshot_preparer = SnapshotPreparer(self.replicas, self.clock, note, fatal)
        self.pulse = Pulse(self.clock)
        self.leadership = Leadership(config, self.loops, self.pulse.ago_ms, note, fatal)
        databases = {shard: self._database(shard) for shard in range(config.shards)}
        self.open_snapshots = OpenSnapshots(RocksCheckpoints(databases, OM_FAMILIES.names))
        self.duties = LeaderDuties(
            config, self.loops, self.fleet, self.clock, SystemIds(), note, fatal, self._checkpoint_removed, brokers_id
        )
        self.host.trim_with(self.duties.ask_base, partial(member_addresses, config))
        self.flusher = Flusher(self.replicas.values(), config.late_flush_interval_ms, fatal)
        self.consistency = Consistency(config, self.replicas, self.loops, fatal)
        self.door = DirectDoor(
            config.node, config.cluster, self.replicas, DoorLookups(self.replicas, self.consistency, fatal),
            self.identities, brokers_id,
        )  # fmt: skip
        self.snapshot_diffs = DiffJobs(
            config.data_dir / "snapshot-diffs", OM_FAMILIES.names, lambda: SystemIds().nonce().hex(), fatal
        )

    def _headers_of(self, shard: int) -> Callable[[], Headers] | None:
        """Return what gives the headers of the records that this node appends as leader; None if there are none."""
        spans = self.spans.get(shard)
        return None if spans is None else spans.headers

    def _identities(self) -> Identities | None:
        """Return what judges signatures; None if nobody need sign."""
        if self.config.auth != AUTH_SIGNED:
            return None
        return Identities(self.config.secret, lambda: self.replicas.get(SYSTEM_SHARD), self.clock)

    def _block_token_issuer(self) -> BlockTokenIssuer | None:
        """Return what makes block tokens; None if this node gives none."""
        if not self.config.block_tokens:
            return None
        return BlockTokenIssuer(self.config.secret, lambda: self.replicas.get(SYSTEM_SHARD), self.clock)

    def _reader_guards(self) -> list[Any]:
        """Return the middlewares of the HTTP server behind the guard of the cluster's secret."""
        if self.identities is None:
            return []
        config = self.config
        guard = ReaderGuard(config.secret, self.identities, guard_of(config), secure=config.tls is not None)
        return [guard.middleware()]

    def _opening_web(self) -> OpeningWeb:
        config = self.config
        return OpeningWeb(
            config.node, config.address_host, config.address_port, self.host.transfer_pages,
            [guard_of(config).middleware(), *self._reader_guards()], replicas=config.shards,
            opened=lambda: len(self.replicas), tls=config.tls, headers=brokers_header(self.host.settings.brokers_id),
        )  # fmt: skip

    def _database(self, shard: int) -> Path:
        return self.config.data_dir / f"shard-{shard}"

    def _checkpoint_removed(self, shard: int, name: str) -> None:
        """Close the checkpoint if it is open: an open file keeps its place on the disk."""
        self.open_snapshots.drop(CheckpointName(shard, name))

    def _open(self, shard: int) -> None:
        database, peers = self._database(shard), self.config.peers
        place = self.host.place(
            shard, database, OM_FAMILIES,
            lambda: RocksStore(database, OM_FAMILIES.names, kept=CHECKPOINT_PREFIX, blobs=(INLINE_TABLE,)),
            executor=OMExecutor(self.contexts[shard]), headers=self._headers_of(shard),
        )  # fmt: skip
        policy = self.host.policy(lambda: [ServingPeer(name, address) for name, address in peers])
        self.host.open(place, policy, partial(self._opening_note, shard), self._service(shard))

    def _opening_note(self, shard: int, text: str) -> None:
        log.info(text)
        self.opening.say(shard, text)

    def _contexts_of(self, shard: int) -> Contexts:
        """Say where blocks are allocated: on the datanodes heard, or without datanodes on the settings' pipelines."""
        config = self.config
        return Contexts(
            shard=shard, shards=config.shards, pipelines=config.pipelines,
            choose=self.allocation.choose if config.datanodes else None, block_bytes=config.block_bytes,
            inline_bytes=config.inline_bytes,
        )  # fmt: skip

    def _fleet_view(self) -> FleetView:
        system = self.replicas[SYSTEM_SHARD]
        return FleetView(self.config, system, self.allocation, self.clock, self.host.note, fatal)

    def _service(self, shard: int) -> DatabaseService:
        config = self.config
        gateway = Gateway(shard=shard, node=config.node, secret=config.secret, identities=self.identities)
        return DatabaseService(
            executes=OMService(self.contexts[shard]), intake=partial(self._intake, shard, gateway), outbox=self.outbox,
            reports=self.outbox,
            limits=LeaderLimits(
                barrier_interval_ms=config.barrier_interval_ms, scrub_interval_ms=config.scrub_interval_ms
            ),
            address=config.address, replicas=config.replicas, on_settled=partial(self._on_settled, shard),
            spans=self.spans.get(shard),
        )  # fmt: skip

    def _intake(self, shard: int, gateway: Gateway, hint: RequestPosition | None) -> RequestIntake:
        intake = RequestIntake(
            bootstrap_servers=self.config.bootstrap_servers, shard=shard, gateway=gateway,
            outbox=self.outbox, clock=self.clock, hint=hint, log=partial(self.host.note, shard=shard),
            backlog=self.backlogs[shard], beat=self.loops[shard].beat,
            may_take_snapshot=partial(self.snapshot_preparer.may_take, shard),
            on_close=lambda: self.door.closed(shard), spans=self.spans.get(shard),
        )  # fmt: skip
        self.door.opened(shard, intake)
        return intake

    def _applied(self, replica: Replica, outcome: Offered) -> None:
        """Count the requests of a batch that this node wrote as leader, whichever thread applies it here."""
        shard, batch = replica.identity.shard, outcome.record
        if isinstance(batch, Batch) and self.loops[shard].has_claimed(batch.nonce):
            self.metrics[shard].count(batch, self.clock.wall_ms())

    def _on_settled(self, shard: int, effective: Effective) -> None:
        """Take a batch whose answers have been sent."""
        if isinstance(effective.record, RequestBatch):
            self.metrics[shard].count_late(effective, self.clock.wall_ms())
        if self.write_audit is not None:
            self.write_audit.write(shard, effective, self.clock.wall_ms())

    def app(self) -> faust.App:
        """Return the Faust app with the followers and the HTTP API."""
        config, host = self.config, self.host
        app = host.make_app(
            "om-follower", host=config.address_host, port=config.address_port, data_dir=config.data_dir,
            guard=guard_of(config), partitions=config.shards, placed=config.shards,
            # these alone: somebody may add partitions, which are no shards
            follows=[(topic, shard) for topic in (OM_LOG, OM_AUDIT) for shard in range(config.shards)],
            middlewares=self._reader_guards(),
        )  # fmt: skip
        host.attach(app, None if self._tracer is None else _follower_spans(self._tracer))
        transport: Any = app.transport
        self.consistency.hurry = transport.hurry
        status = NodeStatus(
            self.config, self.replicas, self.loops, self.leadership.roles, self.metrics, self.backlogs,
            host.rolling_scrub.told,
        )  # fmt: skip
        snapshots = SnapshotReads(self.config.node, self.replicas, self.open_snapshots)
        reads = OMHttpApi(self.replicas, self.consistency, status, snapshots, fatal, self.block_tokens)
        reads.attach(app)
        diffs = SnapshotDiffApi(self.config.node, self.replicas, self.consistency, self.snapshot_diffs)
        diffs.attach(app)
        LeadershipApi(self.leadership, self.replicas).attach(app)
        AccessApi(self.replicas, self.consistency).attach(app)
        FleetApi(
            self.config, self.replicas[SYSTEM_SHARD], self.consistency, self.fleet, self.block_tokens
        ).attach(app)  # fmt: skip
        server: Any = app.web
        self.door.attach(server.web_app)
        host.end_pages += [reads.close, diffs.close]
        self.pulse.attach(app)
        server.listening = self.opening.hand_over()
        # Hand over while the followers and the HTTP API still run: readers ask this node until another one leads.
        app.on_before_shutdown.connect(self._hand_over)
        return app

    async def _hand_over(self, *_: Any, **__: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.leadership.stop)
        self.door.close()
        await self.consistency.close()
        self._ending = end_soon(self.close)

    def close(self) -> None:
        """Hand over, send what is queued, and close the stores."""
        if self._ending is not None:
            self._ending.cancel()
        self.leadership.stop()
        self.host.stop()
        self.duties.close()
        self.snapshot_diffs.close()
        closed = [self.opening.close, self.snapshot_preparer.close, self.flusher.stop, self.open_snapshots.close]
        if self.write_audit is not None:
            closed.append(self.write_audit.close)
        self.host.close(*closed)


def host_settings(config: NodeConfig, topic_id: str, brokers_id: str) -> HostSettings:
    """Return what a node hosts: every shard of ``om.log``."""
    return HostSettings(
        node=config.node, cluster=config.cluster, bootstrap_servers=config.bootstrap_servers, log_topic=OM_LOG,
        audit_topic=OM_AUDIT, topic_id=topic_id, brokers_id=brokers_id, shards=config.shards, members=frozenset(config.replicas),
        secret=config.secret, tls=config.tls, bootstrap_records=config.bootstrap_records,
        bootstrap_bytes_per_s=config.bootstrap_bytes_per_s, scrub_within_ms=config.scrub_within_ms,
        trim_log_after_ms=config.trim_log_after_ms,
    )  # fmt: skip


def guard_of(config: NodeConfig) -> HttpGuard:
    """Return the guard of a node's HTTP server."""
    signed = config.auth == AUTH_SIGNED
    return HttpGuard(
        config.secret, config.http_hosts, OPEN_POSTS, secure=config.tls is not None, signed=signed,
        for_holders=None if signed else HOLDERS_PATHS, address=config.address, named=config.named_hosts,
    )  # fmt: skip


def _follower_spans(tracer: Tracer) -> FollowerSpans:
    """Return what makes the spans of records that followers apply."""
    from replicated_db.shell.tracing.follower_spans import FollowerSpans

    return FollowerSpans(tracer)


def _leader_spans(tracer: Tracer, shards: int) -> dict[int, LeaderSpans]:
    """Return what makes the spans of each shard's leader."""
    from replicated_db.shell.tracing.leader_spans import LeaderSpans

    return {shard: LeaderSpans(tracer, shard) for shard in range(shards)}


def run(config: NodeConfig, tracer: Tracer | None = None) -> None:
    """Run a node until SIGTERM or SIGINT; returns after handing over. ``tracer`` takes the spans of traced requests."""
    logs.configure(config.node, config.log_level, config.log_format)
    tell_auth(config, log.info)
    validate_schemas()
    # Faust's event loops take half of a follower's time; uvloop's take less. Choose it before the app makes a loop.
    mode.loop.use("uvloop")
    try:
        topics = when_brokers_answer(partial(check_topics, config.bootstrap_servers, config.shards))
        config = replace(config, session_timeout_ms=allowed_session_timeout_ms(config, topics, log.warning))
        node = OMNode(config, topics.log_topic_id, tracer, brokers_id=topics.brokers_id)
        app = node.app()
    except (StopProcess, LogUnavailable) as error:
        fatal(error)
        return
    calm_collector()
    worker = faust.Worker(app, loglevel=config.log_level, redirect_stdouts=False, override_logging=False)
    node.flusher.start()
    node.leadership.start()
    node.duties.start()
    node.host.start()
    try:
        worker.execute_from_commandline()
    finally:
        node.close()
