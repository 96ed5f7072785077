"""The stateful operator: :mod:`matching` run by Spark, one group for each partition of each log (design, section 9).

``transformWithStateInPandas`` hands over the rows of a partition and micro-batch unsorted, in chunks. The state lies in
Spark's RocksDB state store. Deadlines are looked at whenever a partition has rows. One that has none is given a
wake-up, a row without a record (``jobs/wake_ups.py``). Spark's timers would do the same; each micro-batch would pay for
their encoders, also where nothing is due. :mod:`matching` decides everything. This module only translates: bytes to
records (``log_reader``, ``reports``), and findings to rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - Spark's own idiom
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from schemas.codecs.codec import encode_at
from schemas.features import INITIAL, LATEST
from schemas.kafka.connection import Brokers
from schemas.records.datanode import BlockReport
from schemas.records.messages import Verdict
from schemas.topics import OM_LOG
from spark_streaming.records.logs import AuditedLog
from spark_streaming.records.transforms import LOG_SOURCE, TASK, WAKE_UP_SOURCE
from spark_streaming.verdicts.buffered_store import BufferedStore
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.inputs import LogRow, ReplicaReport
from spark_streaming.verdicts.core.matching import ShardAudit
from spark_streaming.verdicts.core.shard_state import Finding, KeptBarrier, MatchingLimits
from spark_streaming.verdicts.log_reader import LogReader
from spark_streaming.verdicts.report_topic import KafkaReportTopic
from spark_streaming.verdicts.reports import decoded_report, report_of
from spark_streaming.verdicts.state import KEPT_KEY, KEPT_SCHEMA, SparkStore
from spark_streaming.windows.core.sampling import LOG, REPORTS, Sampling
from spark_streaming.windows.sample_text import encoded_samples
from spark_streaming.windows.samples import report_samples

VERDICT_ROW = "verdict"
BARRIER_ROW = "barrier"
SAMPLES_ROW = "samples"
PARTITION_ROW = "partition"

NO_DEADLINE = -1

FINDING_SCHEMA = T.StructType(
    [
        T.StructField("finding", T.StringType()),
        T.StructField("log", T.StringType()),
        T.StructField("shard", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("index", T.LongType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("chain", T.BinaryType()),
    ]
)
"""A verdict, the log's digest at a barrier, or a partition in a micro-batch: its samples, its news.

``value`` is a single-object encoded Verdict; or all sums as little-endian unsigned 64-bit integers (null where late
validation keeps the log from giving them); or samples added up (``windows/sample_text.py``). ``chain`` belongs to a
barrier. A partition's ``offset`` counts its reports and its records other than Ticks; its ``index`` is when a missing
report is judged, in ms since the epoch, or NO_DEADLINE.
"""

_ROW = ("source", "offset", "appended_ms", "key", "value")


def clock_ms() -> int:
    """Return the time in ms since the epoch: deadlines are in processing time."""
    return time.time_ns() // 1_000_000


def audit(
    rows: DataFrame, logs: Sequence[AuditedLog], limits: MatchingLimits, *, deadlines: bool = True, cluster: str = "",
    bootstrap_servers: Brokers = "", window_ms: int = 0,
) -> DataFrame:  # fmt: skip
    """Audit a stream of AUDIT_SCHEMA rows with their TASK; return findings (FINDING_SCHEMA).

    ``cluster`` is the cluster's name, for logs whose Genesis has been trimmed away. ``bootstrap_servers``: where
    reports that were held back are read again; without them they are judged ``unknown``. ``window_ms``: the length of
    the windows for which samples of the records are added up; 0 adds none up. Without ``deadlines`` no missing report
    is judged.
    """
    return rows.groupBy("log", "shard", TASK).transformWithStateInPandas(
        AuditProcessor(
            logs, limits, deadlines=deadlines, cluster=cluster, bootstrap_servers=bootstrap_servers, window_ms=window_ms
        ),
        outputStructType=FINDING_SCHEMA,
        outputMode="Update",
        timeMode="None",
    )


class _MicroBatch:
    """Takes the rows of a partition apart, piece by piece: of a record only its hashes and samples are kept."""

    def __init__(self, reader: LogReader, shard: int, sampling: Sampling | None) -> None:
        self._reader = reader
        self._shard = shard
        self.sampling = sampling
        self.log_rows: list[LogRow] = []
        self.reports: list[ReplicaReport] = []
        self.scans: list[BlockReport] = []
        self.news = 0
        """Reports, and records other than Ticks."""
        self.is_empty = True
        """Whether there were wake-ups alone."""

    def add(self, frame: pd.DataFrame) -> None:
        """Take a piece: rows of AUDIT_SCHEMA."""
        for row in zip(*(frame[name].tolist() for name in _ROW), strict=True):
            source, offset, appended_ms, key, value = row
            if source == WAKE_UP_SOURCE:
                continue
            self.is_empty = False
            raw = None if value is None else bytes(value)
            if source == LOG_SOURCE:
                self._add_log_record(offset, appended_ms, raw)
            else:
                self._add_report(offset, appended_ms, None if key is None else bytes(key), raw)

    def _add_log_record(self, offset: int, appended_ms: int, value: bytes | None) -> None:
        found = self._reader.read(offset, appended_ms, value)
        self.log_rows.append(found.row)
        self.news += found.is_news
        if self.sampling is not None:
            self.sampling.add(LOG, appended_ms, found.samples)

    def _add_report(self, offset: int, appended_ms: int, key: bytes | None, value: bytes | None) -> None:
        found = decoded_report(value)
        self.news += 1
        report = report_of(self._shard, offset, key, found)
        if isinstance(report, BlockReport):
            self.scans.append(report)
            return
        self.reports.append(report)
        if self.sampling is not None and found.record is not None:
            self.sampling.add(REPORTS, appended_ms, report_samples(found.record))


class AuditProcessor(StatefulProcessor):
    """Runs a :class:`ShardAudit` for each partition of each log; Spark pickles it to its Python workers."""

    def __init__(
        self, logs: Sequence[AuditedLog], limits: MatchingLimits, *, deadlines: bool, cluster: str = "",
        bootstrap_servers: Brokers = "", window_ms: int = 0, clock: Callable[[], int] = clock_ms,
    ) -> None:  # fmt: skip
        self._window_ms = window_ms
        self._logs = {log.name: log for log in logs}
        self._servers = bootstrap_servers
        self._limits = limits
        self._deadlines = deadlines
        self._cluster = cluster
        self._clock = clock

    def init(self, handle: Any) -> None:
        """Name the state variable."""
        self._readers = {name: LogReader(log.column_families) for name, log in self._logs.items()}
        self._kept = handle.getMapState("kept", KEPT_KEY, KEPT_SCHEMA)

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Take a micro-batch's rows of one shard; then judge what is missing, if it was due before them."""
        log, number = key[0], key[1]
        batch = _MicroBatch(self._readers[log], number, Sampling(self._window_ms) if self._window_ms else None)
        for frame in rows:
            batch.add(frame)
        # The clock is read behind the rows: Spark hands them over while they are still being read.
        now_ms = self._clock()
        store = SparkStore(number, self._kept)
        shard, buffer = self._open(log, number, store)
        due_ms = shard.next_deadline_ms()
        if batch.is_empty and due_ms is None:
            # Whoever can write a wake-up could otherwise make state for partitions that do not exist.
            return
        findings = list(shard.take(batch.log_rows, batch.reports, now_ms, batch.scans))
        if self._deadlines and due_ms is not None and due_ms <= now_ms:
            findings += shard.expire(now_ms)
        buffer.flush()
        store.save(shard.state)
        samples = (
            encoded_samples(batch.sampling.samples(log, number)) if batch.sampling and not batch.is_empty else None
        )
        yield from self._frames(log, number, findings, batch.news, self._due_ms(shard, now_ms), samples)

    def _open(self, log: str, number: int, store: SparkStore) -> tuple[ShardAudit, BufferedStore]:
        audited = self._logs[log]
        families = audited.column_families
        topic = KafkaReportTopic(self._servers, audited.reports_topic, number) if self._servers else None
        state = store.load(len(families))
        buffer = BufferedStore(store, state)
        shard = ShardAudit(
            log=log, shard=number, families=families, limits=self._limits, state=state, store=buffer,
            cluster=self._cluster, topic=topic,
        )  # fmt: skip
        return shard, buffer

    def _due_ms(self, shard: ShardAudit, now_ms: int) -> int:
        """Return when the partition wants rows at the latest, in ms since the epoch, or NO_DEADLINE."""
        deadline_ms = shard.next_deadline_ms()
        return NO_DEADLINE if deadline_ms is None or not self._deadlines else max(deadline_ms, now_ms + 1)

    def _frames(
        self,
        log: str,
        shard: int,
        findings: Iterable[Finding],
        news: int,
        due_ms: int,
        samples: bytes | None,
    ) -> Iterator[pd.DataFrame]:
        rows = [_finding_row(log, shard, finding) for finding in findings]
        if samples is not None:
            rows.append((SAMPLES_ROW, log, shard, 0, 0, samples, None))
        if self._deadlines:
            rows.append((PARTITION_ROW, log, shard, news, due_ms, None, None))
        if rows:
            yield pd.DataFrame(rows, columns=FINDING_SCHEMA.fieldNames())


def _finding_row(log: str, shard: int, finding: Finding) -> tuple[str, str, int, int, int, bytes | None, bytes | None]:
    if isinstance(finding, KeptBarrier):
        sums = None if finding.blind else digests.to_bytes(finding.sums)
        return BARRIER_ROW, log, shard, finding.offset, finding.index, sums, finding.chain
    return VERDICT_ROW, log, shard, finding.barrier_offset, finding.index, verdict_value(finding), None


def verdict_value(verdict: Verdict) -> bytes:
    """Encode a verdict in the oldest version that can express it; om.log's need only the first level."""
    return encode_at(verdict, INITIAL if verdict.log == OM_LOG else LATEST)
