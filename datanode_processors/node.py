"""A datanode: one process with block files, a stream server, and a replica of each pipeline that it is a member of.

``run`` is the whole life. It checks the topics, takes the data folder, opens the known pipelines and checks each
against the log, places the follower's group, and serves streams. Then Faust's worker runs the follower and the HTTP
API, while threads lead pipelines, verify and fetch blocks. A StopProcess anywhere ends the process with EXIT_FATAL and
its message on the log: the log is the truth, and a restart begins from it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from typing import Any

import faust
import mode.loop

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.blocks_together import BlocksTogether
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.heartbeats import Heartbeats
from datanode_processors.http_api import DatanodeHttpApi
from datanode_processors.layout import LAYOUT_VERSION, LOCK_FILE, DataFolder, LayoutRefused, open_folder
from datanode_processors.pipelines import Pipelines
from datanode_processors.repair.block_reports import BlockReports
from datanode_processors.repair.scrubber import CURSOR_FILE, Scrubber
from datanode_processors.status import DatanodeStatus
from datanode_processors.tokens.guard import BlockTokenGuard
from datanode_processors.trimming import pipeline_trimming
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.server import StreamServer
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import logs
from replicated_db.shell.database.host import DatabaseHost, HostSettings
from replicated_db.shell.process import calm_collector, end_soon, fatal, keep_freed_memory, when_brokers_answer
from replicated_db.shell.reports import AuditReports
from replicated_db.shell.startup import Topics, WrongSetting, check_topics
from replicated_db.shell.system import SystemClock
from schemas import stream_errors as codes
from schemas.codecs.reference import validate_schemas
from schemas.records.datanode import ClosePipeline
from schemas.sharding import MAX_PIPELINES
from schemas.topics import DN_AUDIT, DN_HEARTBEATS, DN_LOG, UNCOMPRESSED
from transport.waiting.deadline import Deadline
from transport.web.http_guard import OPEN_PATHS, HttpGuard

PREPARE_TIMEOUT_S = 60.0
POLL_S = 0.1
FLOWING_WAIT_MS = 2
"""How long a broker may gather records. It is short because a client's watch waits for every member."""

log = logging.getLogger("stratolog.node")


class CannotStart(StopProcess):
    """The datanode cannot start with this configuration or folder."""


class DatanodeProcess:
    """Everything of one process, wired together in two phases.

    ``__init__`` makes all parts: the known pipelines are open, and streams are served. :meth:`start` begins what a
    datanode does unasked: elections, heartbeats, verification.
    """

    def __init__(self, config: DatanodeConfig, topics: Topics, folder: DataFolder) -> None:
        self.config = config
        self.partitions = topics.partitions[DN_LOG]
        self.folder = folder
        self.clock = SystemClock()
        self.blocks = BlockStore(
            config.data_dir, fsync=config.datanode_fsync, reserve_bytes=config.datanode_reserve_bytes
        )
        wire_tls = None if config.tls is None else WireTls(config.tls)
        self.blocks_together = BlocksTogether(self.blocks)
        self.outbox = AuditReports(config.bootstrap_servers, DN_AUDIT, self.clock, log.warning, fatal)
        self.host = DatabaseHost(host_settings(config, topics), self.outbox, clock=self.clock, fatal=fatal)
        self.host.folders.hold(folder.path / LOCK_FILE)
        self.pipelines = Pipelines(config, self.blocks, self.host, opened=self._take_blocks_again, tls=wire_tls)
        self.outbox.observe = self.pipelines.on_record
        pipeline_trimming(self.host, self.pipelines.table)
        self.pipelines.open_known()
        self.app = self.host.make_app(
            "dn-follower", host=config.host, port=config.http_port, data_dir=config.data_dir,
            guard=guard_of(config),
            partitions=self.partitions, follows=(), placed=self.partitions, flowing_wait_ms=FLOWING_WAIT_MS,
        )  # fmt: skip
        self.block_tokens = BlockTokenGuard(self.clock.wall_ms, self.host.note) if config.block_tokens else None
        try:
            self.server = StreamServer(
                name=config.node, cluster=config.cluster, host=config.host, port=config.port, blocks=self.blocks,
                small_blocks=self.blocks_together, pipelines=self.pipelines, note=self.host.note,
                limits=WireLimits(max_streams=config.datanode_max_streams), tls=wire_tls, block_tokens=self.block_tokens,
                brokers_id=topics.brokers_id,
            )  # fmt: skip
        except OSError as error:
            raise CannotStart(f"the stream server cannot listen on {config.address}: {error.strerror}") from error
        self.heartbeats = Heartbeats(
            config, self.blocks, self.pipelines, streams=lambda: self.server.snapshot().streams,
            layout_version=LAYOUT_VERSION, prepared=self._is_prepared, clock=self.clock,
            send=self.outbox.send, fatal=fatal,
        )  # fmt: skip
        self.reports = BlockReports(
            self.blocks, node=config.node, cluster=config.cluster, clock=self.clock,
            send=self.outbox.send, note=self.host.note, fatal=fatal,
        )  # fmt: skip
        self.scrubber = Scrubber(
            self.blocks, self.pipelines.committed_blocks, self.pipelines.repair,
            cursor_file=config.data_dir / CURSOR_FILE, round_s=config.block_scrub_interval_ms / 1000,
        )  # fmt: skip
        self._scrubbing = threading.Thread(target=self._scrub, name="block-scrub", daemon=True)
        self._ending: threading.Timer | None = None
        self._attach()

    def _is_prepared(self) -> bool:
        return self.folder.layout.upgrade_prepared

    def _attach(self) -> None:
        """Give the app its follower and its pages."""
        config, host, app = self.config, self.host, self.app
        host.attach(app)
        status = DatanodeStatus(
            config, self.blocks, self.pipelines, self.server.snapshot, lambda: self.heartbeats.sent, self._is_prepared,
            host.transfers, lambda: self.scrubber.counts, self.block_tokens, host.rolling_scrub.told,
        )  # fmt: skip
        figures = DatanodeHttpApi(host.replicas, status, self.prepare_upgrade, fatal)
        figures.attach(app)
        host.end_pages.append(figures.close)
        # Hand over while the follower still runs: requests in flight become effective and are answered.
        app.on_before_shutdown.connect(self._hand_over)

    async def _hand_over(self, *_: Any, **__: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._stop_serving)
        self._ending = end_soon(self.close)

    def start(self) -> None:
        """Begin elections, verification and heartbeats."""
        self.pipelines.start(
            self.host.follow, self.heartbeats.changed, self.reports.barrier, self.scrubber.pace.took
        )  # fmt: skip
        self.heartbeats.start()
        self.host.start()
        if self.config.block_scrub_interval_ms:
            self._scrubbing.start()

    def _scrub(self) -> None:
        try:
            self.scrubber.run()
        except BaseException as error:
            fatal(error)

    def _stop_serving(self) -> None:
        self.host.stop()
        self.scrubber.stop()
        self.reports.close()
        self.server.stop()
        self.pipelines.stop()
        self.heartbeats.stop()

    def close(self) -> None:
        """Hand over, send what is queued, close the stores."""
        if self._ending is not None:
            self._ending.cancel()
        self._stop_serving()
        self.host.close(self.blocks_together.close, self.pipelines.close)
        self.folder.close()

    # -- upgrades --------------------------------------------------------------------------------------------------

    def prepare_upgrade(self) -> dict[str, Any]:
        """Close every pipeline and its containers through the log, and mark the folder as ready for a newer layout.

        Raises BlockError if a pipeline could not be closed here in time; nothing is marked then.
        """
        if waiting := self.pipelines.installs.status():
            names = ", ".join(one["pipeline"] for one in waiting)
            raise BlockError(codes.FAILED, f"replicas are being installed here, and cannot be closed yet: {names}")
        for pipeline in self.pipelines.all():
            # A datanode that was away may have read of a later generation in the log before it was asked to open it.
            generation = max(pipeline.opened.generation, pipeline.generation)
            self.pipelines.close_pipeline(
                ClosePipeline(partition=pipeline.partition, generation=generation), PREPARE_TIMEOUT_S
            )
        deadline = Deadline.after_s(PREPARE_TIMEOUT_S)
        while still_open := [one.container_id for one in self.blocks.containers() if not one.closed]:
            if deadline.has_passed:
                raise BlockError(codes.TIMED_OUT, f"containers are still open here: {still_open[:10]}")
            for container_id in still_open:
                self.pipelines.close_container(container_id)
            time.sleep(POLL_S)
        self.folder.mark_prepared(True)
        self.heartbeats.changed()
        return {"prepared": True, "pipelines": [pipeline.opened.pipeline for pipeline in self.pipelines.all()]}

    def _take_blocks_again(self) -> None:
        """Remove the mark for an upgrade: a new pipeline is about to be opened."""
        if self._is_prepared():
            self.folder.mark_prepared(False)


def run(config: DatanodeConfig) -> None:
    """Run a datanode until SIGTERM or SIGINT; returns after handing over."""
    keep_freed_memory()
    logs.configure(config.node, config.log_level, config.log_format)
    validate_schemas()
    mode.loop.use("uvloop")
    try:
        folder = _folder(config)
        topics = when_brokers_answer(
            partial(check_topics, config.bootstrap_servers, DN_LOG, [DN_HEARTBEATS, DN_AUDIT], {DN_AUDIT: UNCOMPRESSED})
        )
        _check_partitions(topics)
        folder.check_brokers(topics.brokers_id)
        node = DatanodeProcess(config, topics, folder)
    except (StopProcess, LogUnavailable) as error:
        fatal(error)
        return
    except (BlockError, LayoutRefused, OSError, ValueError) as error:
        fatal(CannotStart(str(error)))
        return
    calm_collector()
    worker = faust.Worker(node.app, loglevel=config.log_level, redirect_stdouts=False, override_logging=False)
    node.start()
    log.info("datanode %s serves streams on %s", config.node, config.address)
    try:
        worker.execute_from_commandline()
    finally:
        node.close()
        _end_of_threads()


def host_settings(config: DatanodeConfig, topics: Topics) -> HostSettings:
    """Return what a datanode hosts: pipelines, each a shard of ``dn.log``."""
    return HostSettings(
        node=config.node, cluster=config.cluster, bootstrap_servers=config.bootstrap_servers, log_topic=DN_LOG,
        audit_topic=DN_AUDIT, topic_id=topics.log_topic_id, brokers_id=topics.brokers_id, shards=MAX_PIPELINES, what="pipeline",
        secret=config.secret, tls=config.tls, bootstrap_records=config.bootstrap_records,
        bootstrap_bytes_per_s=config.bootstrap_bytes_per_s, scrub_within_ms=config.scrub_within_ms,
        trim_log_after_ms=config.trim_log_after_ms,
    )  # fmt: skip


def guard_of(config: DatanodeConfig) -> HttpGuard:
    """Return the guard of a datanode's HTTP server: rows of replicas hold users' bytes, so they are not for users."""
    return HttpGuard(
        config.secret, config.http_hosts, secure=config.tls is not None, for_holders=OPEN_PATHS,
        address=config.http_address, named=config.named_hosts,
    )  # fmt: skip


def _folder(config: DatanodeConfig) -> DataFolder:
    try:
        return open_folder(config.data_dir, datanode=config.node, cluster=config.cluster)
    except LayoutRefused as error:
        raise CannotStart(str(error)) from error


def _check_partitions(topics: Topics) -> None:
    number = topics.partitions[DN_LOG]
    if number > MAX_PIPELINES:
        raise WrongSetting(f"topic {DN_LOG}: {number} partitions; container ids can name {MAX_PIPELINES}")
    # More partitions of dn.audit are no fault: when both topics grow, dn.audit grows first.
    if topics.partitions[DN_AUDIT] < number:
        raise WrongSetting(f"topic {DN_AUDIT}: {topics.partitions[DN_AUDIT]} partitions, but {DN_LOG} has {number}")


def _end_of_threads() -> None:
    """Log which threads are still busy: usually connections whose clients wait. They end with the process."""
    busy = [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    if busy:
        log.info("ending with threads still busy: %s", ", ".join(busy))
