"""The audit of one shard (a partition of a log): log records and reports in, verdicts out (design, section 9).

A pure state machine without Spark, clock or I/O: :mod:`audit` runs it inside Spark's stateful operator, tests run it
alone. Rules:

1. Reports of a micro-batch are taken first, then its log records in offset order. A report that arrives before its
   barrier is read is matched when it is read; a later report is matched against the barrier's kept sums.
2. A barrier expects an incremental report of each member (those of Genesis, or of the last Members record), and a
   scrubbed one too if it says ``scrub``. A report that is missing at the deadline (processing time) is ``unknown``. If
   it arrives later it is judged all the same, as long as its barrier is kept.
3. ``equal`` needs the same slots, chain and index, and a replica that is not flagged. Evidence makes ``diverged``.
4. Once the log is BROKEN nothing can be derived: every replica is ``diverged`` on basis ``log``, there and at every
   later barrier. A log that newer software has written is UNREADABLE from there on: the replicas are ``unknown``, and
   the running audit ends without having passed that record. Once it is upgraded it goes on there.
5. After a RequestBatch, and until a DigestBase, the log is BLIND: it does not say what the rows are. At a barrier there
   the replicas are compared with each other (:mod:`peers`): the sums that a majority of the members reports replace the
   log's, and the verdict's basis says so.
6. State is bounded: KEPT_BARRIERS sums, EARLY_REPORTS reports (EARLY_BYTES) and KEPT_SCANS scans a shard. Beyond its
   limit the oldest barrier or scan is dropped, and its missing reports are judged ``unknown``. Of the early reports
   those of the farthest barriers are *held back*: they are read again from their topic when there is room.
7. The first report of stored bytes at a barrier opens a *scan*, which waits for all members. When all have reported, or
   at its deadline, they are compared with each other (:mod:`scans`); a member without a report is ``unknown``. Only the
   batch job compares stored bytes with the log, because that needs the log's rows.
8. Of a trimmed log nothing is judged before its base (``records/core/reading.py``, rule 6), no report on it either.
   Verdicts say from which index on they judge.
9. The column families of a log that older software began are the first of those that the auditor knows.
10. A DigestBase that gives other sums than the log's operations is told (``unknown``, on basis ``base``, of no node),
    and so is every ``equal`` that rests on it.

The parts: ``shard_state`` (what is remembered), ``log_following`` (the log), ``report_matching`` and ``judging``
(digests), ``scan_matching`` (stored bytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schemas.records.datanode import BlockReport
from schemas.records.messages import Verdict
from schemas.records.verdict_words import LOG
from schemas.topics import OM_LOG
from spark_streaming.records.core.reading import BARRIER, LogBroken, Ruling
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.inputs import LogRow, ReplicaReport
from spark_streaming.verdicts.core.judging import judge_base
from spark_streaming.verdicts.core.log_following import base_to_tell, follow
from spark_streaming.verdicts.core.report_matching import ReportMatching
from spark_streaming.verdicts.core.scan_matching import ScanMatching
from spark_streaming.verdicts.core.shard_state import (
    ENDED,
    AuditState,
    Finding,
    MatchingLimits,
    MatchingStore,
    ReportTopic,
)


class ShardAudit:
    """One shard's audit. Not thread-safe; call :meth:`take` for each micro-batch, :meth:`expire` at a deadline."""

    def __init__(
        self,
        *,
        shard: int,
        families: Sequence[str],
        limits: MatchingLimits,
        state: AuditState,
        store: MatchingStore,
        log: str = OM_LOG,
        cluster: str = "",
        topic: ReportTopic | None = None,
    ) -> None:
        """``cluster``: the cluster's name, for a log whose Genesis has been trimmed away.

        ``topic``: where reports that were held back are read again; without it they are judged ``unknown``.
        """
        self.state = state
        self._audited = AuditedShard(
            log=log, shard=shard, families=tuple(families), limits=limits, state=state, store=store,
            cluster=cluster,
        )  # fmt: skip
        self._reports = ReportMatching(self._audited, topic)
        self._scans = ScanMatching(self._audited)

    def take(
        self,
        log_rows: Sequence[LogRow],
        reports: Sequence[ReplicaReport],
        now_ms: int,
        block_reports: Sequence[BlockReport] = (),
    ) -> Iterator[Finding]:
        """Read a micro-batch, its rows in any order, at processing time ``now_ms``; yield verdicts and barriers."""
        for report in sorted(reports, key=lambda report: report.offset):
            yield from self._reports.take(report, now_ms)
        for row in sorted(log_rows, key=lambda row: row.header.offset):
            yield from self._take_log_row(row, now_ms)
        yield from self._reports.keep_early(now_ms, is_read_on=bool(log_rows))
        for blocks in block_reports:
            yield from self._scans.take(blocks, now_ms)
        yield from self._scans.finish(now_ms)

    def expire(self, now_ms: int) -> Iterator[Verdict]:
        """Judge ``unknown`` the reports that are missing at their deadline."""
        yield from self._reports.take_back(now_ms)
        yield from self._reports.expire(now_ms)
        yield from self._scans.expire(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when :meth:`expire` must be called next, None if never; 0 is at once."""
        return 0 if self._reports.has_room_for_held_back() else self.state.next_deadline_ms()

    def _take_log_row(self, row: LogRow, now_ms: int) -> Iterator[Finding]:
        if self.state.standing in ENDED:
            return
        try:
            ruling = follow(self._audited, row)
        except LogBroken as broken:
            yield from self._break(broken, now_ms)
            return
        if ruling is not Ruling.COUNTS:
            return
        if (base := base_to_tell(self._audited, row)) is not None:
            yield judge_base(self._audited, base, now_ms)
        if row.header.kind == BARRIER:
            yield from self._reports.reach_barrier(row.header, now_ms)

    def _break(self, broken: LogBroken, now_ms: int) -> Iterator[Verdict]:
        state, audited = self.state, self._audited
        state.break_log(broken)
        for node in state.position.members or ("",):
            yield audited.verdict(
                node, broken.offset, state.position.last_index, audited.ended_verdict, LOG, audited.broken_reason(),
                now_ms,
            )  # fmt: skip
        yield from self._reports.drop_behind_break(broken.offset, now_ms)
