"""Members' reports of their stored bytes, gathered until they can be compared with each other. Pure.

The first report at a barrier opens a scan, which waits for all members, or until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schemas.records.datanode import BlockReport
from schemas.records.messages import Verdict
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.scans import among_members
from spark_streaming.verdicts.core.shard_state import Scan
from spark_streaming.verdicts.core.words import BLOCKS, UNKNOWN, alone_basis

BASIS = alone_basis(BLOCKS)
"""Compares members with each other only: a comparison with the log needs the log's rows."""


class ScanMatching:
    """Keeps the scans of one partition until they are judged."""

    def __init__(self, audited: AuditedShard) -> None:
        self._audited = audited
        self._state = audited.state
        self._store = audited.store

    def take(self, report: BlockReport, now_ms: int) -> Iterator[Verdict]:
        """Keep a report of stored bytes, or judge it if it is not of this partition."""
        if self._state.position.is_unjudged(report.log_offset):
            return
        if wrong := self._why_foreign(report):
            yield self._audited.verdict(report.datanode, report.log_offset, report.index, UNKNOWN, BASIS, wrong, now_ms)
            return
        opened = Scan(deadline_ms=now_ms + self._audited.limits.scan_timeout_ms)
        self._state.scans.setdefault(report.log_offset, opened).reported.add(report.datanode)
        self._store.put_blocks(report)

    def _why_foreign(self, report: BlockReport) -> str | None:
        """Return why a report of stored bytes is not of this partition, or None."""
        position, shard = self._state.position, self._audited.shard
        if report.partition != shard:
            return f"reports blocks of partition {report.partition} on partition {shard}"
        cluster = self._audited.cluster_name
        if not position.has_begun:
            return "the log has no Genesis"
        if cluster and report.cluster != cluster:
            return f"reports cluster {report.cluster!r}, the log's is {cluster!r}"
        if report.datanode not in position.members:
            return f"{report.datanode!r} is no member of this pipeline"
        waiting = self._state.waiting.get(report.log_offset)
        if waiting is not None and waiting.index != report.index:
            return f"names index {report.index} at a barrier of index {waiting.index}"
        return None

    def finish(self, now_ms: int) -> Iterator[Verdict]:
        """Judge the scans that all members have reported on, and the oldest ones if there are too many."""
        scans, members = self._state.scans, set(self._state.position.members)
        for offset in [offset for offset, scan in scans.items() if scan.reported >= members]:
            yield from self._judge(offset, now_ms)
        while len(scans) > self._audited.limits.kept_scans:
            yield from self._judge(min(scans), now_ms)

    def expire(self, now_ms: int) -> Iterator[Verdict]:
        """Judge the scans whose deadline has passed."""
        for offset in [offset for offset, scan in self._state.scans.items() if scan.deadline_ms <= now_ms]:
            yield from self._judge(offset, now_ms)

    def _judge(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        """Compare the reports of a scan with each other, and drop them."""
        reported = sorted(self._state.scans.pop(offset).reported)
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
