"""The stateful operator: :mod:`matching` run by Spark, one group for each partition of each log (design, section 9).

``transformWithStateInPandas`` hands over the rows of a partition and micro-batch unsorted, in chunks. The state lies in
Spark's RocksDB state store, and processing-time timers fire when no rows arrive. :mod:`matching` decides everything.
This module only translates: bytes to records (``log_reader``, ``reports``), and findings to rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
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
from spark_streaming.records.transforms import LOG_SOURCE, TASK
from spark_streaming.verdicts.buffered_store import BufferedStore
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.inputs import LogRow, ReplicaReport
from spark_streaming.verdicts.core.matching import ShardAudit
from spark_streaming.verdicts.core.shard_state import Finding, KeptBarrier, MatchingLimits
from spark_streaming.verdicts.log_reader import LogReader
from spark_streaming.verdicts.report_topic import KafkaReportTopic
from spark_streaming.verdicts.reports import decoded_report, report_of
from spark_streaming.verdicts.state import (
    BARRIER_KEY,
    BARRIER_SCHEMA,
    BLOCKS_KEY,
    BLOCKS_SCHEMA,
    CORE_SCHEMA,
    REPORT_KEY,
    REPORT_SCHEMA,
    SparkStore,
    state_from,
    state_row,
)
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

TIMER_GRAIN_MS = 500
"""Deadlines are rounded up to multiples of this, so that one timer serves many."""

_ROW = ("source", "offset", "appended_ms", "key", "value")


def audit(
    rows: DataFrame, logs: Sequence[AuditedLog], limits: MatchingLimits, *, timers: bool = True, cluster: str = "",
    bootstrap_servers: Brokers = "", window_ms: int = 0,
) -> DataFrame:  # fmt: skip
    """Audit a stream of AUDIT_SCHEMA rows with their TASK; return findings (FINDING_SCHEMA).

    ``cluster`` is the cluster's name, for logs whose Genesis has been trimmed away. ``bootstrap_servers``: where
    reports that were held back are read again; without them they are judged ``unknown``. ``window_ms``: the length of
    the windows for which samples of the records are added up; 0 adds none up. Without ``timers`` no missing
    report is judged. Use that for a query that must end with its input: Spark runs micro-batch after micro-batch for a
    query that has processing-time timers.
    """
    return rows.groupBy("log", "shard", TASK).transformWithStateInPandas(
        AuditProcessor(
            logs, limits, timers=timers, cluster=cluster, bootstrap_servers=bootstrap_servers, window_ms=window_ms
        ),
        outputStructType=FINDING_SCHEMA,
        outputMode="Update",
        timeMode="ProcessingTime" if timers else "None",
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

    def add(self, frame: pd.DataFrame) -> None:
        """Take a piece: rows of AUDIT_SCHEMA."""
        for row in zip(*(frame[name].tolist() for name in _ROW), strict=True):
            source, offset, appended_ms, key, value = row
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
        self, logs: Sequence[AuditedLog], limits: MatchingLimits, *, timers: bool, cluster: str = "",
        bootstrap_servers: Brokers = "", window_ms: int = 0,
    ) -> None:  # fmt: skip
        self._window_ms = window_ms
        self._logs = {log.name: log for log in logs}
        self._servers = bootstrap_servers
        self._limits = limits
        self._timers = timers
        self._cluster = cluster

    def init(self, handle: Any) -> None:
        """Name the state variables."""
        self._handle = handle
        self._readers = {name: LogReader(log.column_families) for name, log in self._logs.items()}
        self._core = handle.getValueState("core", CORE_SCHEMA)
        self._barriers = handle.getMapState("barriers", BARRIER_KEY, BARRIER_SCHEMA)
        self._reports = handle.getMapState("reports", REPORT_KEY, REPORT_SCHEMA)
        self._blocks = handle.getMapState("blocks", BLOCKS_KEY, BLOCKS_SCHEMA)

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Take a micro-batch's rows of one shard."""
        # A repeated micro-batch has the same processing time, so after a crash it gives the same verdicts.
        now_ms = timerValues.getCurrentProcessingTimeInMs() if self._timers else time.time_ns() // 1_000_000
        shard = self._open(key[0], key[1])
        batch = _MicroBatch(self._readers[key[0]], key[1], Sampling(self._window_ms) if self._window_ms else None)
        for frame in rows:
            batch.add(frame)
        findings = list(shard.take(batch.log_rows, batch.reports, now_ms, batch.scans))
        deadline_ms = self._close(shard, now_ms)
        samples = encoded_samples(batch.sampling.samples(key[0], key[1])) if batch.sampling else None
        yield from self._frames(key[0], key[1], findings, batch.news, deadline_ms, samples)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Judge the reports that are missing at their deadline."""
        shard = self._open(key[0], key[1])
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        findings = list(shard.expire(now_ms))
        yield from self._frames(key[0], key[1], findings, 0, self._close(shard, now_ms))

    def _open(self, log: str, shard: int) -> ShardAudit:
        audited = self._logs[log]
        families = audited.column_families
        topic = KafkaReportTopic(self._servers, audited.reports_topic, shard) if self._servers else None
        state = state_from(self._core.get(), len(families))
        self._store = BufferedStore(SparkStore(shard, self._barriers, self._reports, self._blocks), state)
        return ShardAudit(
            log=log, shard=shard, families=families, limits=self._limits, state=state, store=self._store,
            cluster=self._cluster, topic=topic,
        )  # fmt: skip

    def _close(self, shard: ShardAudit, now_ms: int) -> int:
        """Keep the state; return when its timer is due, in ms since the epoch, or NO_DEADLINE."""
        self._store.flush()
        self._core.update(state_row(shard.state))
        deadline_ms = shard.next_deadline_ms()
        if not self._timers or deadline_ms is None:
            return NO_DEADLINE
        due_ms = -(-max(deadline_ms, now_ms + 1) // TIMER_GRAIN_MS) * TIMER_GRAIN_MS
        self._handle.registerTimer(due_ms)
        return due_ms

    def _frames(
        self,
        log: str,
        shard: int,
        findings: Iterable[Finding],
        news: int,
        deadline_ms: int,
        samples: bytes | None = None,
    ) -> Iterator[pd.DataFrame]:
        rows = [_finding_row(log, shard, finding) for finding in findings]
        if samples is not None:
            rows.append((SAMPLES_ROW, log, shard, 0, 0, samples, None))
        if self._timers:
            rows.append((PARTITION_ROW, log, shard, news, deadline_ms, None, None))
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
