"""The running audit: ``python -m spark_streaming.jobs.audit_stream --config FILE``.

Reads om.log and om.audit from their beginnings or from the checkpoint, writes verdicts to om.verdicts and Parquet.

- On SIGTERM or SIGINT the micro-batch that is being written ends, no further one begins, and the status is 0.
- After SIGKILL a new start continues from the checkpoint.
- If a log is trimmed past the checkpoint, the checkpoint is set aside, and the audit begins at the log's base.
- If newer software has written the log, the replicas are ``unknown`` and the status is 1. The micro-batch is not
  committed: the upgraded audit goes on there.
- If a query fails otherwise, the status is 1.

``health.json`` in the work directory holds the job's state.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from schemas.records.messages import Verdict
from spark_streaming.configuration.audit_config import AuditConfig, load_config
from spark_streaming.jobs.audit_metrics import AuditMetrics, listen
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.metrics_server import MetricsServer
from spark_streaming.jobs.wake_ups import WAKE_UP, WakeUps
from spark_streaming.naming.key_naming import KeyNaming
from spark_streaming.naming.replica_rows import ReplicaRows
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.checkpoints import begin_anew_if_trimmed
from spark_streaming.records.logs import topic_partitions
from spark_streaming.records.sender import Sender
from spark_streaming.records.session import LOG_LEVEL, build_session
from spark_streaming.verdicts.core.shard_state import LogBarrier
from spark_streaming.verdicts.core.words import LOG, UNKNOWN
from spark_streaming.verdicts.query import SLOW_STARTS, SLOW_WORKER, start
from spark_streaming.verdicts.sinks import FindingSink, verdict_record
from spark_streaming.windows.query import start_windows

POLL_SECONDS = 0.5
MAX_REASON_CHARACTERS = 2_000
STOP_SECONDS = 60.0
"""How long a stop waits for the micro-batch that is being written."""

SETTLE_SECONDS = 5.0
"""How long it waits then for Spark to note that micro-batch as done."""


class AuditTooOld(Exception):
    """Newer software has written the log: this audit must be upgraded."""


class _Stop:
    """Set by a signal."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


@dataclass(slots=True)
class Reporter:
    """Notes what the audit has written; ``too_old``: why it cannot read on."""

    health: JobHealth
    wake_ups: WakeUps
    too_old: str | None = None
    metrics: AuditMetrics = field(default_factory=AuditMetrics)

    def on_written(self, batch_id: int, verdicts: list[Verdict], barriers: list[LogBarrier]) -> None:
        """Note a micro-batch; raises AuditTooOld, so that Spark does not commit it, if the log cannot be read on."""
        self.health.on_written(batch_id, verdicts)
        self.metrics.on_verdicts(verdicts)
        if verdicts or barriers:
            self.wake_ups.note(time.monotonic())
        for verdict in verdicts:
            if (verdict.verdict, verdict.basis) == (UNKNOWN, LOG):
                self.too_old = verdict.reason
                raise AuditTooOld(verdict.reason)


class NamedVerdicts:
    """Sends verdicts once more, with their keys; for the thread that names them."""

    def __init__(self, config: AuditConfig, health: JobHealth) -> None:
        self._sender = Sender(config.bootstrap_servers, config.verdicts_topic)
        self._health = health

    def send(self, verdict: Verdict) -> None:
        """Send a verdict; brokers that do not take it are no reason to end: it has been given without keys."""
        try:
            self._sender.send([verdict_record(verdict)])
        except KafkaException as error:
            print(f"keys that differ could not be told: {error}", file=sys.stderr)
        self._health.on_named(verdict)


def run(config: AuditConfig) -> int:
    """Audit until a signal arrives, and serve metrics meanwhile; return the exit status."""
    health, metrics = JobHealth(config.health_file), AuditMetrics()
    try:
        server = MetricsServer(config.metrics_host, config.metrics_port, metrics.registry())
    except OSError as error:
        return _fail(health, str(error))
    health.update(metrics=server.address)
    try:
        return _run(config, health, metrics)
    finally:
        server.close()


def _run(config: AuditConfig, health: JobHealth, metrics: AuditMetrics) -> int:
    stop = _Stop()
    try:
        if not topic_partitions(config.bootstrap_servers, config.logs[0].topic):
            return _fail(health, f"there is no topic {config.logs[0].topic}")
        leave_trimmed_checkpoints(config)
        has_stats = topic_partitions(config.bootstrap_servers, config.stats_topic) > 0
    except KafkaException as error:
        return _fail(health, str(error))
    # A sink's exception fails its query, and is told then; Py4J would print its stack as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    session = build_session(replace(config.spark(), empty_batches=not has_stats))
    listen(session, metrics)
    stats = Sender(config.bootstrap_servers, config.stats_topic) if has_stats else None
    naming = KeyNaming(ReplicaRows(config.addresses), NamedVerdicts(config, health).send)
    naming.start()
    slow_starts = 0
    try:
        while True:
            wakes = WakeUps((config.report_timeout_ms, config.scan_timeout_ms))
            reporter, gate = Reporter(health, wakes, metrics=metrics), BatchGate()
            queries = _start(session, config, reporter, gate, naming, has_stats=has_stats)
            job = RunningQueries(session, queries, health, gate, wakes, stats)
            failure = job.run(lambda: stop.asked)
            if failure is None:
                health.update(status="stopped")
                return 0
            if SLOW_WORKER in failure and slow_starts < SLOW_STARTS:
                slow_starts = 1 if gate.passed else slow_starts + 1
                print("the machine is busy: Spark's Python did not start in time; again", file=sys.stderr)
                continue
            if reporter.too_old is not None or not leave_trimmed_checkpoints(config):
                return _fail(health, reporter.too_old or failure)
    except KafkaException as error:
        return _fail(health, str(error))
    finally:
        naming.stop()
        session.stop()


def _start(
    session: SparkSession, config: AuditConfig, reporter: Reporter, gate: BatchGate, naming: KeyNaming, *,
    has_stats: bool,
) -> list[StreamingQuery]:  # fmt: skip
    sink = FindingSink(
        bootstrap_servers=config.bootstrap_servers,
        topic=config.verdicts_topic,
        output_dir=config.output_dir,
        on_written=reporter.on_written,
        gate=gate,
        complete=naming.take,
    )
    queries = [start(session, config, sink, once=False)]
    if config.windows and has_stats:
        queries.append(start_windows(session, config, gate))
    elif config.windows:
        print(f"there is no topic {config.stats_topic}: no windows are counted; make it, and restart", file=sys.stderr)
    return queries


def _fail(health: JobHealth, reason: str) -> int:
    health.update(status="failed", error=reason)
    print(f"audit failed: {reason}", file=sys.stderr)
    return 1


@dataclass
class RunningQueries:
    """The queries of one start: watched until one ends or a stop is asked for, and stopped between micro-batches."""

    session: SparkSession
    queries: Sequence[StreamingQuery]
    health: JobHealth
    gate: BatchGate
    wake_ups: WakeUps
    stats: Sender | None = None
    """To the topic of windows; None if there is none, and Spark runs micro-batches by itself."""

    def run(self, is_asked_to_stop: Callable[[], bool]) -> str | None:
        """Wait for the signal, or for the end of a query; return why one has failed, None if none has."""
        try:
            self._watch(is_asked_to_stop)
        except PySparkException as error:
            # Spark appends the whole logical plan to its message.
            return str(error)[:MAX_REASON_CHARACTERS]
        finally:
            self._stop()
        return None

    def _watch(self, is_asked_to_stop: Callable[[], bool]) -> None:
        """Raises PySparkException when a query fails."""
        self.wake_ups.note(time.monotonic())  # a report may be missing since before this start
        while not is_asked_to_stop():
            for query in self.queries:
                # Raises the query's own failure.
                if query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
                    return
            progress = self.queries[0].lastProgress
            if progress is not None:
                self.health.update(offsets=_offsets(progress))
            if self.stats is not None and self.wake_ups.is_due(time.monotonic()):
                self.stats.send([WAKE_UP])

    def _stop(self) -> None:
        # A micro-batch that comes to the closed gate fails its query, and Spark would log that as an error.
        self.session.sparkContext.setLogLevel("OFF")
        self.gate.close(STOP_SECONDS)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and any(map(_is_busy, self.queries)):
            time.sleep(0.05)
        for query in self.queries:
            query.stop()
        self.session.sparkContext.setLogLevel(LOG_LEVEL)


def _is_busy(query: StreamingQuery) -> bool:
    """Say whether a micro-batch is in progress: the one that has been written is still to be noted as done."""
    return query.isActive and bool(query.status["isTriggerActive"])


def leave_trimmed_checkpoints(config: AuditConfig) -> bool:
    """Set aside what belongs to a part of the logs that has been trimmed away; say whether there was such a thing."""
    logs = [log.topic for log in config.logs]
    output = config.output_dir
    queries = (
        (config.checkpoint_dir, (output / "verdicts", output / "barriers")),
        (config.windows_checkpoint_dir, (config.window_state,)),
    )
    found = False
    for checkpoint, folders in queries:
        lost = begin_anew_if_trimmed(config.bootstrap_servers, checkpoint, logs, folders)
        if lost is not None:
            found = True
            print(f"{lost}: {checkpoint.name} is set aside, and begins anew at the log's base", file=sys.stderr)
    return found


def _offsets(progress: object) -> dict[str, dict[str, int]]:
    """Return the end offsets of a progress: topic -> partition -> next offset."""
    merged: dict[str, dict[str, int]] = {}
    for source in progress["sources"]:  # type: ignore[index]
        end = source["endOffset"]
        merged |= json.loads(end) if isinstance(end, str) else end or {}
    return merged


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Audit the logs continuously; verdicts go to Kafka and Parquet.")
    parser.add_argument("--config", type=Path, required=True, help=f"JSON file (see {AuditConfig.__module__})")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
