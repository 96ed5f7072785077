"""The running audit: ``python -m spark_streaming.jobs.audit_stream --config FILE``.

Reads om.log and om.audit from their beginnings or from the checkpoint, writes verdicts to om.verdicts and Parquet.
On SIGTERM or SIGINT it ends after the current micro-batch, with status 0. If a query fails it ends with status 1.
After SIGKILL a new start continues from the checkpoint. If a log was trimmed past the checkpoint, it is set aside, and
the audit begins at the log's base. ``health.json`` in the work directory holds the job's state.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from schemas.records.messages import Verdict
from spark_streaming.configuration.audit_config import AuditConfig, load_config
from spark_streaming.jobs.health import JobHealth
from spark_streaming.records.checkpoints import begin_anew_if_trimmed
from spark_streaming.records.session import build_session
from spark_streaming.verdicts.core.shard_state import LogBarrier
from spark_streaming.verdicts.query import start
from spark_streaming.verdicts.sinks import FindingSink

POLL_SECONDS = 0.5
MAX_REASON_CHARACTERS = 2_000


class _Stop:
    """Set by a signal."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def run(config: AuditConfig) -> int:
    """Audit until a signal arrives; return the exit status."""
    stop = _Stop()
    health = JobHealth(config.health_file)
    try:
        _leave_trimmed_checkpoints(config)
    except KafkaException as error:
        health.update(status="failed", error=str(error))
        print(f"audit failed: {error}", file=sys.stderr)
        return 1
    session = build_session(config.spark())

    def on_written(batch_id: int, verdicts: list[Verdict], _barriers: list[LogBarrier]) -> None:
        health.on_written(batch_id, verdicts)

    sink = FindingSink(
        bootstrap_servers=config.bootstrap_servers,
        topic=config.verdicts_topic,
        output_dir=config.output_dir,
        on_written=on_written,
    )
    queries = [start(session, config, sink, once=False)]
    if config.windows:
        from spark_streaming.windows.query import start_windows

        queries.append(start_windows(session, config))
    return run_queries(session, queries, health, is_asked_to_stop=lambda: stop.asked)


def run_queries(
    session: SparkSession, queries: list[StreamingQuery], health: JobHealth, *, is_asked_to_stop: Callable[[], bool]
) -> int:
    """Wait for the signal, or for the end of a query; stop all queries and the session; return the exit status."""
    try:
        _watch(queries, health, is_asked_to_stop)
    except PySparkException as error:
        # Spark appends the whole logical plan to its message.
        reason = str(error)[:MAX_REASON_CHARACTERS]
        health.update(status="failed", error=reason)
        print(f"audit failed: {reason}", file=sys.stderr)
        return 1
    finally:
        for query in queries:
            query.stop()
        session.stop()
    health.update(status="stopped")
    return 0


def _leave_trimmed_checkpoints(config: AuditConfig) -> None:
    """Set aside what belongs to a part of the logs that has been trimmed away."""
    logs = [log.topic for log in config.logs]
    output = config.output_dir
    queries = (
        (config.checkpoint_dir, (output / "verdicts", output / "barriers")),
        (config.windows_checkpoint_dir, (output / "windows", output / "lags")),
    )
    for checkpoint, folders in queries:
        lost = begin_anew_if_trimmed(config.bootstrap_servers, checkpoint, logs, folders)
        if lost is not None:
            print(f"{lost}: {checkpoint.name} is set aside, and begins anew at the log's base", file=sys.stderr)


def _watch(queries: list[StreamingQuery], health: JobHealth, is_asked_to_stop: Callable[[], bool]) -> None:
    """Wait for the signal, or for the end of a query; raises PySparkException when one fails."""
    while not is_asked_to_stop():
        for query in queries:
            # Raises the query's own failure.
            if query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
                return
        progress = queries[0].lastProgress
        if progress is not None:
            health.update(offsets=_offsets(progress))


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
