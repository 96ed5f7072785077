"""The query of one start: watched until it fails, a stop is asked for, or the logs have been quiet for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streaming.jobs.audit_metrics import AuditMetrics
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.outages import are_away
from spark_streaming.jobs.progress import Progress, ProgressReader
from spark_streaming.jobs.wake_ups import WakeUps, wake_up
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.sender import Sender
from spark_streaming.records.session import LOG_LEVEL
from spark_streaming.verdicts.query import QUERY_NAME
from spark_streaming.windows.recording import WindowRecorder
from transport.waiting.deadline import Deadline

POLL_SECONDS = 0.5
MAX_REASON_CHARACTERS = 2_000
STOP_SECONDS = 60.0
"""How long a stop waits for the micro-batch that is being written."""

SETTLE_SECONDS = 5.0
"""How long it waits then for Spark to note that micro-batch as done."""

PROGRESS_SECONDS = 5.0
"""How often the progress is noted."""

QUIET_SECONDS = 10.0
"""How long there must have been no verdict and no barrier before the query is put to sleep.

Waking it takes about as much processor time as so many seconds of micro-batches.
"""


class QueryEnd(Enum):
    """Why the query of a start runs no more."""

    FAILED = "failed"
    """It has failed."""
    ENDED = "ended"
    """A stop was asked for, or it has come to its end."""
    QUIET = "quiet"
    """There has been nothing to audit for QUIET_SECONDS."""


@dataclass
class RunningQuery:
    """The query of one start. It is stopped between micro-batches, whatever ends it."""

    session: SparkSession
    query: StreamingQuery
    health: JobHealth
    gate: BatchGate
    wake_ups: WakeUps
    metrics: AuditMetrics
    stats: Sender
    """To the topic of windows, which takes wake-ups too."""
    partitions: Callable[[], Iterable[ReportedPartition]]
    """Returns all partitions of the audited logs; raises KafkaException."""
    windows: WindowRecorder | None = None
    """Where windows wait until they are sent."""
    failure: str | None = None
    """Why the query has failed."""
    are_brokers_away: bool = False
    """Whether it failed because brokers did not answer."""
    _noted_at_s: float = field(default=float("-inf"), init=False)
    _progress: ProgressReader = field(init=False)

    def __post_init__(self) -> None:
        self._progress = ProgressReader(self.query)

    def run(self, is_asked_to_stop: Callable[[], bool]) -> QueryEnd:
        """Wait for the signal, for the end of the query, or for quiet."""
        self.metrics.on_active(QUERY_NAME, active=True)
        try:
            end = self._watched(is_asked_to_stop)
            # Whoever sleeps sends nothing; another start after a stop sends the open windows again.
            if end is QueryEnd.QUIET and self.windows is not None:
                self.windows.send_now()
        except (PySparkException, KafkaException) as error:
            # Spark appends the query's state and its whole plan to its message.
            reason, _, _ = str(error).partition("\n=== Streaming Query ===")
            self.failure, self.are_brokers_away = reason[:MAX_REASON_CHARACTERS], are_away(str(error))
            return QueryEnd.FAILED
        return end

    def _watched(self, is_asked_to_stop: Callable[[], bool]) -> QueryEnd:
        """Watch the query, and stop it whatever ends it; raises PySparkException and KafkaException."""
        try:
            return self._watch(is_asked_to_stop)
        finally:
            self._stop()
            self.metrics.on_active(QUERY_NAME, active=False)

    def _watch(self, is_asked_to_stop: Callable[[], bool]) -> QueryEnd:
        """Raises PySparkException when the query fails, KafkaException if the brokers take nothing."""
        while not is_asked_to_stop():
            # Raises the query's own failure.
            if self.query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
                return QueryEnd.ENDED
            self._note_progress()
            if self.windows is not None:
                self.windows.send_if_due()
            self._wake_up()
            if self.gate.quiet_s() >= QUIET_SECONDS and self._waits():
                return QueryEnd.QUIET
        return QueryEnd.ENDED

    def _wake_up(self) -> None:
        """Give rows to the partitions that are due; raises KafkaException."""
        now_s = time.monotonic()
        if due := self.wake_ups.due(now_s):
            others = self.partitions() if due.everywhere else ()
            self.stats.send([wake_up(partition) for partition in sorted(due.partitions.union(others))])
            # Not before they are sent: brokers that take nothing end this query, and the next one sends them.
            self.wake_ups.woken(now_s)
            self.gate.note()

    def _note_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._noted_at_s < PROGRESS_SECONDS:
            return
        self._noted_at_s = now_s
        for progress in self._progress.new():
            self.metrics.on_progress(QUERY_NAME, progress)
            self.health.update(offsets=offsets_of(progress))

    def _waits(self) -> bool:
        """Say whether it has looked for records, and found none: on a busy machine the first look may take long."""
        return self._progress.is_there and not _is_busy(self.query)

    def _stop(self) -> None:
        # A micro-batch that comes to the closed gate fails its query, and Spark would log that as an error.
        self.session.sparkContext.setLogLevel("OFF")
        self.gate.close(STOP_SECONDS)
        deadline = Deadline.after_s(SETTLE_SECONDS)
        while not deadline.has_passed and _is_busy(self.query):
            time.sleep(0.05)
        self.query.stop()
        self.session.sparkContext.setLogLevel(LOG_LEVEL)


def _is_busy(query: StreamingQuery) -> bool:
    """Say whether a micro-batch is in progress: the one that has been written is still to be noted as done."""
    return query.isActive and bool(query.status["isTriggerActive"])


def offsets_of(progress: Progress) -> dict[str, dict[str, int]]:
    """Return the end offsets of a progress: topic -> partition -> next offset."""
    merged: dict[str, dict[str, int]] = {}
    for source in progress["sources"]:
        end = source["endOffset"]
        merged |= json.loads(end) if isinstance(end, str) else end or {}
    return merged
