"""The databases of one process, and what serves, feeds, scrubs and trims all of them: the shards of one log topic.

A process makes one host and goes through its life in this order:

1. ``DatabaseHost(...)``: checkpoints can be served from here on (``transfer_pages``), so that two processes that each
   need what the other has open do not wait for each other.
2. For each shard a :meth:`place`, which is opened and checked against its log (``bootstrap/opening``): at once
   (:meth:`open`), or later by who installs it. :meth:`add` makes a database of the open replica.
3. :meth:`make_app` makes the follower's app; :meth:`attach` gives it the follower and the members' pages.
4. :meth:`start` begins to scrub, to trim, and to watch the folders.
5. :meth:`stop` ends all three, while the leaders still answer.
6. :meth:`close`, once nothing leads or follows: pages, then transfers, then what the service closes, then the reports
   that are queued, last the stores. Errors from here on are consequences of closing.

Shards may be added at any time. The KafkaLogs end with the process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faust

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.late import Executor
from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.ports import Clock, Log, Store
from replicated_db.core.tables.column_families import Families
from replicated_db.shell.bootstrap.candidate_check import MakeReader
from replicated_db.shell.bootstrap.opening import BootstrapPolicy, ReplicaToOpen, lock_of, open_replica
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from replicated_db.shell.bootstrap.transfer_pages import TransferPages
from replicated_db.shell.database.database import DatabaseService, ReplicatedDatabase, replica_of
from replicated_db.shell.database.follower import Follower
from replicated_db.shell.follower import GROUP_DIGITS, make_app, place_group, remove_former_groups, rest_while_leading
from replicated_db.shell.kafka.faust_transport import FLOWING_WAIT_MS
from replicated_db.shell.kafka.kafka_log import Headers, KafkaLog
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note, Notes
from replicated_db.shell.process import FolderWatch, closing, when_brokers_answer
from replicated_db.shell.reports import AuditReports
from replicated_db.shell.rocks import RocksReader
from replicated_db.shell.rolling_scrub import RollingScrub
from replicated_db.shell.startup import rows_off
from replicated_db.shell.system import SystemIds
from replicated_db.shell.trimming.log_trimmer import Addresses, LogTrimmer
from replicated_db.shell.trimming.log_trimming import LogTrimLoop, LogTrimming
from replicated_db.shell.trimming.trim_pages import TrimPages
from schemas.kafka.brokers_id import brokers_header
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls
from transport.web.http_guard import HttpGuard

if TYPE_CHECKING:
    from replicated_db.shell.tracing.follower_spans import FollowerSpans


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Whose process it is, and what it hosts."""

    node: str
    cluster: str
    bootstrap_servers: Brokers
    log_topic: str
    audit_topic: str
    topic_id: str
    """The id of the log topic's incarnation."""
    brokers_id: str = ""
    """The id of the brokers' Kafka cluster, which every answer of HTTP names; empty: it is not known."""
    shards: int
    """How many shards a log of this kind has, or can have; it is in every replica's identity."""
    members: frozenset[str] = frozenset()
    """Members of a shard whose log does not name them yet."""
    what: str = "shard"
    """The word for a shard, in messages."""
    secret: ClusterSecret | None
    tls: ProcessTls | None
    bootstrap_records: int
    """How long a log an empty replica reads by itself, in records."""
    bootstrap_bytes_per_s: int
    """How much all transfers to other members may send (0: no bound)."""
    scrub_within_ms: int
    """Within what time a row that changes at rest is found (0: never)."""
    trim_log_after_ms: int
    """How long records are kept (0: for ever)."""


class DatabaseHost:
    """Hosts the databases of one process. For any thread; its life is the process's (see above)."""

    def __init__(
        self, settings: HostSettings, reports: AuditReports, *, clock: Clock, fatal: Callable[[BaseException], None],
        note: Note | None = None,
    ) -> None:  # fmt: skip
        """All databases publish to ``reports``, which :meth:`close` closes. ``note``: other than the process's log."""
        self.settings = settings
        self.reports = reports
        self.clock = clock
        self.fatal = fatal
        self.databases: dict[int, ReplicatedDatabase] = {}
        self.replicas: dict[int, Replica] = {}
        self.loops: dict[int, LeaderLoop] = {}
        self.note = Notes(self.replicas).info if note is None else note
        self.transfers = TransferDesk(
            settings.node, self.replicas, self.leads, bytes_per_s=settings.bootstrap_bytes_per_s, note=self.note
        )
        self.transfer_pages = TransferPages(self.transfers)
        self.rolling_scrub = RollingScrub(
            self.replicas.values, reports, settings.scrub_within_ms, self.note, fatal, what=settings.what
        )
        self.folders = FolderWatch(fatal)
        self._places: dict[int, Path] = {}
        self._trim_loop: LogTrimLoop | None = None
        self._trimming: LogTrimming | None = None
        self._app: faust.App | None = None
        self.end_pages: list[Callable[[], None]] = [self.transfer_pages.close]
        """What ends the process's pages; a service adds its own."""

    # -- opening ---------------------------------------------------------------------------------------------------

    def log(self, shard: int, headers: Callable[[], Headers] | None = None) -> Log:
        """Return a shard's log, for one thread. ``headers`` gives those of each record that is appended."""
        settings = self.settings
        return KafkaLog(settings.bootstrap_servers, settings.log_topic, shard, settings.topic_id, headers)

    def place(
        self, shard: int, database: Path, families: Families, store: Callable[[], Store], *,
        executor: Executor | None = None, reader: MakeReader = RocksReader, headers: Callable[[], Headers] | None = None,
    ) -> ReplicaToOpen:  # fmt: skip
        """Return a shard's replica in the folder ``database``, to be opened; ``store`` opens the folder."""
        settings = self.settings
        self._places[shard] = database
        identity = Identity(cluster=settings.cluster, shard=shard, shards=settings.shards, node=settings.node)
        return ReplicaToOpen(
            database=database, make=lambda: replica_of(identity, families, store, executor),
            log=self.log(shard, headers), reader=reader,
        )  # fmt: skip

    def policy(self, peers: Callable[[], Sequence[ServingPeer]], **more: Any) -> BootstrapPolicy:
        """Return from whom a replica may take a checkpoint. ``more``: other fields of the policy."""
        settings = self.settings
        return BootstrapPolicy(
            peers=peers, secret=settings.secret, tls=settings.tls, records=settings.bootstrap_records, **more
        )

    def open(
        self, place: ReplicaToOpen, policy: BootstrapPolicy, note: Callable[[str], None], service: DatabaseService
    ) -> ReplicatedDatabase:
        """Open a replica, install a peer's checkpoint if it needs one, and add its database.

        Raises NoPeerServes, and what ``open_replica`` raises.
        """
        return self.add(open_replica(place, policy, note), place.log, service, note)

    def add(
        self, replica: Replica, log: Log, service: DatabaseService, note: Callable[[str], None] | None = None
    ) -> ReplicatedDatabase:
        """Add the database of a replica that is open and checked against ``log``.

        One that has lost rows is flagged first: it never serves or leads. If some may be missing, all are scanned
        first; ``note`` says how far that is.
        """
        shard = replica.identity.shard
        standing = replica.evidence if replica.store.doubt else None
        self.reports.judge_rows(replica, rows_off(replica, self.note if note is None else note), standing)
        replica.store.trust()
        database = ReplicatedDatabase(
            replica, log, service, clock=self.clock, ids=SystemIds(), follower_log=self.log(shard),
            members=self.settings.members, note=self.note,
        )  # fmt: skip
        self.databases[shard] = database
        self.loops[shard] = database.loop
        self.replicas[shard] = replica
        if shard in self._places and (lock := lock_of(self._places[shard])) is not None:
            self.folders.hold(lock)
        return database

    # -- serving ---------------------------------------------------------------------------------------------------

    def leads(self, shard: int) -> bool:
        """Whether this process leads a shard now."""
        loop = self.loops.get(shard)
        return loop is not None and loop.leading

    def holds(self, shard: int) -> tuple[int, ...]:
        """Return the offsets from which transfers of this process still need a shard's log."""
        held = self.transfers.holds(shard)
        return () if held is None else (held,)

    @property
    def trimming(self) -> LogTrimming:
        """What trims the shards that this process leads (:meth:`trim_with`)."""
        if self._trimming is None:
            raise RuntimeError("trim_with comes first")
        return self._trimming

    def trim_with(self, ask_base: Callable[[int, int], str], addresses: Callable[[int], Addresses]) -> LogTrimming:
        """Say how a base is logged, and where members are (``LogTrimming``). Call it once."""
        settings = self.settings
        trimmer = LogTrimmer(
            settings.bootstrap_servers, settings.log_topic, settings.log_topic, cluster=settings.cluster,
            topic_id=settings.topic_id, secret=settings.secret, tls=settings.tls,
        )  # fmt: skip
        self._trimming = LogTrimming(trimmer, self.loops, ask_base, addresses, self.holds)
        self._trim_loop = LogTrimLoop(self._trimming, settings.trim_log_after_ms, self.note, self.fatal)
        return self._trimming

    def make_app(
        self, name: str, *, host: str, port: int, data_dir: Path, guard: HttpGuard, partitions: int,
        follows: Iterable[tuple[str, int]] | None = None, placed: int | None = None,
        flowing_wait_ms: int = FLOWING_WAIT_MS, middlewares: Sequence[Any] = (),
    ) -> faust.App:  # fmt: skip
        """Return the Faust app of this process, in a fresh group that begins behind what the replicas have read.

        ``partitions`` is how many the log topic has; the rest is ``shell.follower.make_app``'s. Raises LogUnavailable.
        """
        settings = self.settings
        self._app = app = make_app(
            f"{name}-{settings.node}-{secrets.token_hex(GROUP_DIGITS // 2)}", bootstrap_servers=settings.bootstrap_servers, host=host,
            port=port, data_dir=data_dir, fatal=self.fatal, follows=follows, placed=placed,
            flowing_wait_ms=flowing_wait_ms, guard=guard, middlewares=middlewares, tls=settings.tls,
            headers=brokers_header(settings.brokers_id),
        )  # fmt: skip
        place = partial(
            place_group, settings.bootstrap_servers, app.conf.id, log_topic=settings.log_topic,
            audit_topic=settings.audit_topic, replicas=dict(self.replicas), partitions=partitions,
        )  # fmt: skip
        when_brokers_answer(place)
        remove_former_groups(settings.bootstrap_servers, app.conf.id, self.note)
        return app

    def attach(self, app: faust.App, spans: FollowerSpans | None = None) -> None:
        """Give the app the follower of all databases, and the members' pages of transfers and trimming."""
        settings = self.settings
        Follower(settings.log_topic, settings.audit_topic, self.databases, self.note, self.fatal, spans).attach(app)
        for loop in self.loops.values():
            rest_while_leading(app, settings.log_topic, loop)
        server: Any = app.web
        self.transfer_pages.attach(server.web_app)
        trims = TrimPages(self.trimming, self.fatal)
        trims.attach(server.web_app)
        self.end_pages.append(trims.close)

    def follow(self, shard: int) -> None:
        """Fetch a shard's log, and its members' reports. Its database must have been added, and the app made."""
        if self._app is None:
            raise RuntimeError("make_app comes first")
        rest_while_leading(self._app, self.settings.log_topic, self.loops[shard])
        transport: Any = self._app.transport
        transport.follow(self.settings.log_topic, shard)
        transport.follow(self.settings.audit_topic, shard)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to scrub, to trim, and to watch the folders."""
        self.folders.start()
        if self._trim_loop is not None:
            self._trim_loop.start()
        self.rolling_scrub.start()

    def stop(self) -> None:
        """End what :meth:`start` has begun."""
        self.folders.close()
        if self._trim_loop is not None:
            self._trim_loop.close()
        self.rolling_scrub.close()

    def close(self, *parts: Callable[[], None]) -> None:
        """Stop, end the pages, close the service's ``parts`` in their order, send what is queued, close the stores."""
        self.stop()
        closing()
        for end in self.end_pages:
            end()
        self.transfers.close()
        if self._trimming is not None:
            self._trimming.close()
        for close in parts:
            close()
        self.reports.close()
        for database in self.databases.values():
            database.close()
