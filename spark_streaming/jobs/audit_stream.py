"""The running audit: ``python -m spark_streaming.jobs.audit_stream --config FILE``, or by ``spark-submit``.

Reads om.log and om.audit from their beginnings or from the checkpoint, writes verdicts to om.verdicts and Parquet.

- On SIGTERM or SIGINT the micro-batch that is being written ends, no further one begins, and the status is 0.
- After SIGKILL a new start continues from the checkpoint.
- If a log is trimmed past the checkpoint, or a file of the checkpoint is torn or lost after a crash of the machine, the
  checkpoint is set aside, and the audit begins at the log's base.
- If newer software has written the log, the replicas are ``unknown`` and the status is 1. The micro-batch is not
  committed: the upgraded audit goes on there.
- If a query fails otherwise, the status is 1.
- If nothing is written for a while, the queries are stopped, and started again when there are records.

``health.json`` in the work directory holds the job's state.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from schemas.records.messages import Verdict
from schemas.records.verdict_words import LOG, UNKNOWN
from spark_streaming.configuration.audit_config import AuditConfig, load_config
from spark_streaming.jobs.audit_metrics import AuditMetrics
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.metrics_server import MetricsServer
from spark_streaming.jobs.outages import OUTAGES, await_brokers
from spark_streaming.jobs.priority import lower_priority
from spark_streaming.jobs.running_query import POLL_SECONDS, QueryEnd, RunningQuery
from spark_streaming.jobs.wake_ups import WakeUps
from spark_streaming.naming.key_naming import KeyNaming
from spark_streaming.naming.replica_rows import ReplicaRows
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.checkpoints import begin_anew_if_damaged, begin_anew_if_trimmed, committed_offsets
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.logs import topic_partitions
from spark_streaming.records.news import News
from spark_streaming.records.sender import Sender
from spark_streaming.records.session import build_session, give_memory_back, is_submitted
from spark_streaming.verdicts.core.written import WrittenBatch
from spark_streaming.verdicts.query import QUERY_NAME, SLOW_STARTS, SLOW_WORKER, start
from spark_streaming.verdicts.sinks import FindingSink, verdict_record
from spark_streaming.windows.recording import WindowRecorder

NOTE_SECONDS = 10.0
"""How often a sleeping audit says in its health file that it is there."""


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

    def on_written(self, batch: WrittenBatch) -> None:
        """Note a micro-batch; raises AuditTooOld, so that Spark does not commit it, if the log cannot be read on."""
        self.health.on_written(batch.batch_id, batch.verdicts)
        self.metrics.on_verdicts(batch.verdicts)
        self.wake_ups.note(batch.deadlines, time.time_ns() // 1_000_000, time.monotonic())
        for verdict in batch.verdicts:
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
    lower_priority(config.audit_nice)
    health, metrics = JobHealth(config.health_file), AuditMetrics()
    try:
        server = MetricsServer(config.metrics_host, config.metrics_port, metrics.shown(), config.tls())
    except (OSError, ValueError) as error:
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
        leave_damaged_checkpoint(config)
        leave_trimmed_checkpoints(config)
        if not topic_partitions(config.bootstrap_servers, config.stats_topic):
            return _fail(health, f"there is no topic {config.stats_topic}: `stratolog topics ensure` makes it")
    except KafkaException as error:
        return _fail(health, str(error))
    # A sink's exception fails its query, and is told then; Py4J would print its stack as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    session = build_session(config.spark(submitted=is_submitted()))
    stats = Sender(config.bootstrap_servers, config.stats_topic)
    rows = ReplicaRows(config.addresses, config.tls(), config.credentials())
    naming = KeyNaming(rows, NamedVerdicts(config, health).send)
    naming.start()
    wakes = WakeUps((config.audit_report_timeout_ms, config.audit_scan_timeout_ms), time.monotonic())
    slow_starts = outages = 0
    try:
        while not stop.asked:
            reporter, gate = Reporter(health, wakes, metrics=metrics), BatchGate()
            # The open windows belong to the checkpoint, which may be another one after a failure.
            windows = _recorder(config, stats)
            query = _start(session, config, reporter, gate, naming, windows)
            job = RunningQuery(
                session, query, health, gate, wakes, metrics, stats, partial(partitions_of, config), windows
            )
            match job.run(lambda: stop.asked):
                case QueryEnd.ENDED:
                    break
                case QueryEnd.QUIET:
                    give_memory_back(session)
                    await_news(config, wakes, health, metrics, lambda: stop.asked)
                case QueryEnd.FAILED if job.are_brokers_away and outages < OUTAGES:
                    outages = 1 if gate.passed else outages + 1
                    await_brokers(config, health, lambda: stop.asked)
                case QueryEnd.FAILED if SLOW_WORKER in (job.failure or "") and slow_starts < SLOW_STARTS:
                    slow_starts = 1 if gate.passed else slow_starts + 1
                    print("the machine is busy: Spark's Python did not start in time; again", file=sys.stderr)
                case QueryEnd.FAILED if reporter.too_old is not None or not leave_trimmed_checkpoints(config):
                    return _fail(health, reporter.too_old or job.failure or "a query has failed")
    except KafkaException as error:
        return _fail(health, str(error))
    finally:
        naming.stop()
        session.stop()
    health.update(status="stopped")
    return 0


def _start(
    session: SparkSession, config: AuditConfig, reporter: Reporter, gate: BatchGate, naming: KeyNaming,
    windows: WindowRecorder | None,
) -> StreamingQuery:  # fmt: skip
    sink = FindingSink(
        bootstrap_servers=config.bootstrap_servers,
        topic=config.verdicts_topic,
        output_dir=config.output_dir,
        on_written=reporter.on_written,
        gate=gate,
        complete=naming.take,
        on_samples=None if windows is None else windows.take,
    )
    return start(session, config, sink, once=False, windows=windows is not None)


def partitions_of(config: AuditConfig) -> list[ReportedPartition]:
    """Return all partitions of the audited logs; raises KafkaException if the brokers do not answer."""
    return [
        ReportedPartition(log.name, number)
        for log in config.logs
        for number in range(topic_partitions(config.bootstrap_servers, log.topic))
    ]


def _recorder(config: AuditConfig, stats: Sender) -> WindowRecorder | None:
    """Return where windows go, None if none are counted."""
    if not config.audit_windows:
        return None
    return WindowRecorder(
        sender=stats, state=config.window_state, seconds=config.audit_window_s, cluster=config.cluster,
        send_every_s=config.audit_windows_trigger_ms / 1000,
    )  # fmt: skip


def _fail(health: JobHealth, reason: str) -> int:
    health.update(status="failed", error=reason)
    print(f"audit failed: {reason}", file=sys.stderr)
    return 1


def await_news(
    config: AuditConfig, wakes: WakeUps, health: JobHealth, metrics: AuditMetrics, is_asked_to_stop: Callable[[], bool]
) -> None:
    """Sleep, without a query, until there are records that the queries have not read, a wake-up is due, or a stop."""
    topics = {topic for log in config.logs for topic in (log.topic, log.reports_topic)}
    noted_at_s = float("-inf")
    with News(config.bootstrap_servers, topics, committed_offsets(config.checkpoint_dir)) as news:
        while not (is_asked_to_stop() or wakes.due(time.monotonic()) or news.has_come(POLL_SECONDS)):
            if time.monotonic() - noted_at_s >= NOTE_SECONDS:
                noted_at_s = time.monotonic()
                health.update()
                metrics.on_idle(QUERY_NAME)


def leave_trimmed_checkpoints(config: AuditConfig) -> bool:
    """Set aside what belongs to a part of the logs that has been trimmed away; say whether there was such a thing."""
    logs = [log.topic for log in config.logs]
    lost = begin_anew_if_trimmed(config.bootstrap_servers, config.checkpoint_dir, logs, _of_checkpoint(config))
    return _tell_set_aside(config, lost)


def leave_damaged_checkpoint(config: AuditConfig) -> bool:
    """Set the checkpoint aside if a crash of the machine has torn it, or lost a part; say whether it has."""
    what = begin_anew_if_damaged(config.checkpoint_dir, _of_checkpoint(config))
    return _tell_set_aside(config, None if what is None else f"{config.checkpoint_dir}: {what}")


def _of_checkpoint(config: AuditConfig) -> tuple[Path, ...]:
    """Return what is of no use without the checkpoint: output that is numbered by its micro-batches, open windows."""
    return config.output_dir / "verdicts", config.output_dir / "barriers", config.window_state


def _tell_set_aside(config: AuditConfig, why: str | None) -> bool:
    if why is not None:
        print(f"{why}: {config.checkpoint_dir.name} is set aside, and begins anew at the log's base", file=sys.stderr)
    return why is not None


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
    os.umask(0o077)  # verdicts and Spark's own files are for the audit's account alone (decision 0107)
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
