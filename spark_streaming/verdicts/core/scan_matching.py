"""Members' reports of their stored bytes, gathered until they can be compared with each other. Pure.

The first report at a barrier opens a scan, which waits for all members, or until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schemas.records.datanode import BlockReport
from schemas.records.messages import Verdict
from schemas.records.verdict_words import BLOCKS, UNKNOWN, alone_basis
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.scans import among_members
from spark_streaming.verdicts.core.shard_state import EARLY_SCAN_REPORTS, ENDED, Scan

BASIS = alone_basis(BLOCKS)
"""Compares members with each other only: a comparison with the log needs the log's rows."""


class ScanMatching:
    """Keeps the scans of one partition until they are judged. Make one for each micro-batch, before its records."""

    def __init__(self, audited: AuditedShard) -> None:
        self._audited = audited
        self._state = audited.state
        self._store = audited.store
        self._read_before = audited.state.position.next_offset

    def take(self, report: BlockReport, now_ms: int) -> Iterator[Verdict]:
        """Keep a report of stored bytes, or judge it if it is not of this partition.

        Logs and reports are read at rates of their own. Who the members are at a place that the log has not been read
        up to is known when it is reached.
        """
        offset = report.log_offset
        if self._state.position.is_unjudged(offset):
            return
        wrong = self._why_misplaced(report)
        if wrong is None and not (self._is_ahead(offset) and self._has_room(report)):
            wrong = self._why_foreign(report)
        if wrong is not None:
            yield self._unknown(report, wrong, now_ms)
            return
        opened = Scan(deadline_ms=now_ms + self._audited.limits.scan_timeout_ms)
        self._state.scans.setdefault(offset, opened).reported.add(report.datanode)
        self._store.put_blocks(report)

    def _is_ahead(self, offset: int) -> bool:
        """Say whether the log has not been read up to there, and will be."""
        return offset >= self._state.position.next_offset and self._state.standing not in ENDED

    def _has_room(self, report: BlockReport) -> bool:
        """Say whether a report of perhaps no member may be kept."""
        scan = self._state.scans.get(report.log_offset)
        return scan is None or len(scan.reported | {report.datanode}) <= EARLY_SCAN_REPORTS

    def _unknown(self, report: BlockReport, reason: str, now_ms: int) -> Verdict:
        return self._audited.verdict(report.datanode, report.log_offset, report.index, UNKNOWN, BASIS, reason, now_ms)

    def _why_misplaced(self, report: BlockReport) -> str | None:
        """Return why a report is of no member that this partition may ever have, or None."""
        shard, cluster = self._audited.shard, self._audited.cluster_name
        if report.partition != shard:
            return f"reports blocks of partition {report.partition} on partition {shard}"
        if self._state.position.has_begun and cluster and report.cluster != cluster:
            return f"reports cluster {report.cluster!r}, the log's is {cluster!r}"
        return None

    def _why_foreign(self, report: BlockReport) -> str | None:
        """Return why a report of stored bytes is not of this partition, as far as its log has been read, or None."""
        position = self._state.position
        if wrong := self._why_misplaced(report):
            return wrong
        if not position.has_begun:
            return "the log has no Genesis"
        if report.datanode not in position.members:
            return f"{report.datanode!r} is no member of this pipeline"
        waiting = self._state.waiting.get(report.log_offset)
        if waiting is not None and waiting.index != report.index:
            return f"names index {report.index} at a barrier of index {waiting.index}"
        return None

    def finish(self, now_ms: int) -> Iterator[Verdict]:
        """Judge the scans that all members have reported on, and the oldest ones if there are too many."""
        scans, position = self._state.scans, self._state.position
        for offset in [offset for offset in scans if self._read_before <= offset < position.next_offset]:
            yield from self._drop_foreign(offset, now_ms)
        members = set(position.members)
        for offset in [offset for offset, scan in scans.items() if position.has_begun and scan.reported >= members]:
            yield from self._judge(offset, now_ms)
        while len(scans) > self._audited.limits.kept_scans:
            yield from self._judge(min(scans), now_ms)

    def expire(self, now_ms: int) -> Iterator[Verdict]:
        """Judge the scans whose deadline has passed."""
        for offset in [offset for offset, scan in self._state.scans.items() if scan.deadline_ms <= now_ms]:
            yield from self._judge(offset, now_ms)

    def _drop_foreign(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        """Judge and drop the reports of a scan that were kept before the log said whose they may be."""
        scan, is_unjudged = self._state.scans[offset], self._state.position.is_unjudged(offset)
        for node in sorted(scan.reported):
            report = self._store.get_blocks(offset, node)
            wrong = self._why_foreign(report)
            if is_unjudged or wrong:
                scan.reported.discard(node)
                self._store.drop_blocks(offset, node)
            if wrong and not is_unjudged:
                yield self._unknown(report, wrong, now_ms)
        if not scan.reported:
            del self._state.scans[offset]

    def _judge(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        """Compare the reports of a scan with each other, and drop them."""
        if offset >= self._read_before:
            yield from self._drop_foreign(offset, now_ms)
        scan = self._state.scans.pop(offset, None)
        if scan is None:
            return
        reported = sorted(scan.reported)
        reports = [self._store.get_blocks(offset, node) for node in reported]
        members = self._state.position.members
        index = max(report.index for report in reports)
        for node, found in among_members(reports, len(members)).items():
            verdict = self._audited.verdict(node, offset, index, found.verdict, BASIS, found.reason, now_ms)
            yield replace(verdict, containers=found.containers)
        for node in sorted(set(members) - set(reported)):
            reason = "no report of its stored bytes in time"
            yield self._audited.verdict(node, offset, index, UNKNOWN, BASIS, reason, now_ms)
        for node in reported:
            self._store.drop_blocks(offset, node)
