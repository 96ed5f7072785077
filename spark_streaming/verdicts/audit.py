"""The stateful operator: :mod:`matching` run by Spark, one group for each partition of each log (design, section 9).

``transformWithStateInPandas`` hands over the rows of a partition and micro-batch unsorted, in chunks. The state lies in
Spark's RocksDB state store, and processing-time timers fire when no rows arrive. :mod:`matching` decides everything.
This module only translates: rows to records, and findings to rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - Spark's own idiom
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from schemas.codecs.codec import decode_as, encode_at
from schemas.column_families import BUCKETS
from schemas.features import INITIAL, LATEST
from schemas.records.datanode import BlockReport
from schemas.records.messages import AuditReport, Verdict
from schemas.topics import OM_LOG
from spark_streaming.records.core.reading import GENESIS, GenesisFacts, Header
from spark_streaming.records.logs import AuditedLog
from spark_streaming.records.transforms import BLOCK_REPORT, LOG_SOURCE
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.digests import Hashes
from spark_streaming.verdicts.core.inputs import LogRow, ReplicaReport
from spark_streaming.verdicts.core.matching import ShardAudit
from spark_streaming.verdicts.core.shard_state import Finding, KeptBarrier, MatchingLimits
from spark_streaming.verdicts.report_topic import KafkaReportTopic
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

VERDICT_ROW = "verdict"
BARRIER_ROW = "barrier"
SAMPLES_ROW = "samples"

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
"""A verdict, the log's digest at a barrier, or the samples of a partition and micro-batch for the windows.

``value`` is a single-object encoded Verdict; or all sums as little-endian unsigned 64-bit integers (null where late
validation keeps the log from giving them); or samples added up (``windows/sample_text.py``). ``chain`` belongs to a
barrier.
"""

TIMER_GRAIN_MS = 500
"""Deadlines are rounded up to multiples of this, so that one timer serves many."""

MAX_SLOTS = 64 * BUCKETS
"""Slots of a report; a log has fewer column families."""

_NO_HASHES: Hashes = np.zeros(0, dtype=np.int64)


def audit(
    rows: DataFrame, logs: Sequence[AuditedLog], limits: MatchingLimits, *, timers: bool = True, cluster: str = "",
    bootstrap_servers: str = "", window_ms: int = 0,
) -> DataFrame:  # fmt: skip
    """Audit a stream of AUDIT_SCHEMA rows; return findings (FINDING_SCHEMA).

    ``cluster`` is the cluster's name, for logs whose Genesis has been trimmed away. ``bootstrap_servers``: where
    reports that were held back are read again; without them they are judged ``unknown``. ``window_ms``: the length of
    the windows for which the rows' samples are added up; 0 adds none up. Without ``timers`` no missing
    report is judged. Use that for a query that must end with its input: Spark runs micro-batch after micro-batch for a
    query that has processing-time timers.
    """
    return rows.groupBy("log", "shard").transformWithStateInPandas(
        AuditProcessor(
            logs, limits, timers=timers, cluster=cluster, bootstrap_servers=bootstrap_servers, window_ms=window_ms
        ),
        outputStructType=FINDING_SCHEMA,
        outputMode="Update",
        timeMode="ProcessingTime" if timers else "None",
    )


class AuditProcessor(StatefulProcessor):
    """Runs a :class:`ShardAudit` for each partition of each log; Spark pickles it to its Python workers."""

    def __init__(
        self, logs: Sequence[AuditedLog], limits: MatchingLimits, *, timers: bool, cluster: str = "",
        bootstrap_servers: str = "", window_ms: int = 0,
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
        log_rows: list[LogRow] = []
        reports: list[ReplicaReport] = []
        scans: list[BlockReport] = []
        sampling = Sampling(self._window_ms)
        for frame in rows:
            for row in frame.itertuples(index=False):
                if self._window_ms and row.sample_names is not None:
                    source = LOG if row.source == LOG_SOURCE else REPORTS
                    sampling.add(source, row.appended_ms, row.sample_names, _hashes(row.sample_amounts))
                if row.source == LOG_SOURCE:
                    log_rows.append(log_row(row))
                elif row.kind == BLOCK_REPORT:
                    scans.append(decode_as(BlockReport, bytes(row.value)))
                else:
                    reports.append(report(row))
        findings = list(shard.take(log_rows, reports, now_ms, scans))
        self._close(shard, now_ms)
        samples = encoded_samples(sampling.samples(key[0], key[1]))
        yield from _frames(key[0], key[1], findings, samples)

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
        self._close(shard, now_ms)
        yield from _frames(key[0], key[1], findings)

    def _open(self, log: str, shard: int) -> ShardAudit:
        audited = self._logs[log]
        families = audited.column_families
        topic = KafkaReportTopic(self._servers, audited.reports_topic, shard) if self._servers else None
        state = state_from(self._core.get(), len(families))
        store = SparkStore(shard, self._barriers, self._reports, self._blocks)
        return ShardAudit(
            log=log, shard=shard, families=families, limits=self._limits, state=state, store=store,
            cluster=self._cluster, topic=topic,
        )  # fmt: skip

    def _close(self, shard: ShardAudit, now_ms: int) -> None:
        self._core.update(state_row(shard.state))
        deadline_ms = shard.next_deadline_ms()
        if self._timers and deadline_ms is not None:
            self._handle.registerTimer(-(-max(deadline_ms, now_ms + 1) // TIMER_GRAIN_MS) * TIMER_GRAIN_MS)


def log_row(row: Any) -> LogRow:
    """Translate a pandas row of a log record."""
    genesis = None
    if row.kind == GENESIS:
        genesis = GenesisFacts(
            cluster=row.cluster,
            shard=row.named_shard,
            shards=row.shards,
            replicas=tuple(row.replicas),
            column_families=tuple(row.column_families),
        )
    header = Header(
        offset=row.offset,
        kind=row.kind,
        error=row.error,
        term=row.term,
        nonce=bytes(row.nonce or b""),
        seq=row.seq,
        prev_chain=bytes(row.prev_chain or b""),
        chain_after=bytes(row.chain_after or b""),
        value=bytes(row.value or b""),
        node=row.node or "",
        first_index=row.first_index,
        last_index=row.last_index,
        timestamp_ms=row.timestamp_ms,
        index=row.index,
        scrub=bool(row.scrub),
        genesis=genesis,
        replicas=tuple(row.replicas) if row.replicas is not None else (),
        feature_level=row.feature_level,
    )
    slot, after, prev = digests.condensed(_hashes(row.slot), _hashes(row.next), _hashes(row.prev))
    return LogRow(
        header=header,
        slot=slot,
        next=after,
        prev=prev,
        unknown_families=tuple(row.unknown_families) if row.unknown_families is not None else (),
        base_slots=_hashes(row.slots),
        base_sums=_hashes(row.sums),
        base_basis=row.basis or "",
        base_asked_by=row.base_asked_by or "",
    )


def report(row: Any) -> ReplicaReport:
    """Translate a pandas row of a report; one with more slots than any log has keeps none of them."""
    evidence = decode_as(AuditReport, bytes(row.value)).evidence if row.value else None
    slots, sums = _hashes(row.slots), _hashes(row.sums)
    error = row.error
    if max(len(slots), len(sums)) > MAX_SLOTS:
        error, slots, sums = f"{len(slots)} slots with {len(sums)} sums are no digest", _NO_HASHES, _NO_HASHES
    return ReplicaReport(
        partition=row.shard,
        offset=row.offset,
        cluster=row.cluster or "",
        node=row.node or "",
        shard=row.named_shard,
        basis=row.basis or "",
        barrier_offset=row.barrier_offset,
        index=row.index,
        chain=bytes(row.chain or b""),
        slots=slots,
        sums=sums,
        flagged=bool(row.flagged),
        evidence=evidence,
        error=error,
    )


def _hashes(values: Any) -> Hashes:
    return _NO_HASHES if values is None else np.asarray(values, dtype=np.int64)


def _frames(log: str, shard: int, findings: Iterable[Finding], samples: bytes | None = None) -> Iterator[pd.DataFrame]:
    rows = [_finding_row(log, shard, finding) for finding in findings]
    if samples is not None:
        rows.append((SAMPLES_ROW, log, shard, 0, 0, samples, None))
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
