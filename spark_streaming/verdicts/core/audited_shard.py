"""One shard under audit: what the parts of its audit share, and the making of its verdicts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemas.records.messages import Verdict
from spark_streaming.verdicts.core.inputs import ReplicaReport
from spark_streaming.verdicts.core.shard_state import AuditState, MatchingLimits, MatchingStore
from spark_streaming.verdicts.core.words import EVIDENCE, INCREMENTAL, SCRUBBED, UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedShard:
    """A partition of a log: its state, where kept barriers and reports lie, and the auditor's column families.

    ``cluster`` is the cluster's name for a trimmed log, which has no Genesis any more; empty if nobody has said it.
    """

    log: str
    shard: int
    families: tuple[str, ...]
    limits: MatchingLimits
    state: AuditState
    store: MatchingStore
    cluster: str = ""

    @property
    def cluster_name(self) -> str:
        """Name of the cluster; empty while nothing is known of it."""
        genesis = self.state.position.genesis
        return genesis.cluster if genesis is not None else self.cluster

    def why_foreign(self, report: ReplicaReport) -> str | None:
        """Return why a report is not of this shard, or None."""
        has_begun, cluster = self.state.position.has_begun, self.cluster_name
        if report.basis not in (INCREMENTAL, SCRUBBED, EVIDENCE):
            return f"unknown basis {report.basis!r}"
        if report.shard != self.shard:
            return f"reports shard {report.shard} on partition {self.shard}"
        if has_begun and cluster and report.cluster != cluster:
            return f"reports cluster {report.cluster!r}, the log's is {cluster!r}"
        if has_begun and report.node not in self.state.position.members:
            return f"{report.node!r} is no replica of this shard"
        return None

    def broken_reason(self) -> str:
        """Say where and why the log is broken."""
        return f"the log breaks its contract at offset {self.state.broken_at}: {self.state.broken_reason}"

    # Verdicts.

    def unknown(self, report: ReplicaReport, reason: str, now_ms: int) -> Verdict:
        """Return the verdict on a report that cannot be judged."""
        return self.verdict_on(report, UNKNOWN, report.basis, reason, now_ms)

    def verdict_on(self, report: ReplicaReport, verdict: str, basis: str, reason: str, now_ms: int) -> Verdict:
        """Return a verdict on a report, with the report's evidence."""
        plain = self.verdict(report.node, report.barrier_offset, report.index, verdict, basis, reason, now_ms)
        return replace(plain, evidence=report.evidence)

    def verdict(
        self, node: str, offset: int, index: int, verdict: str, basis: str, reason: str, now_ms: int
    ) -> Verdict:
        """Return a verdict on a replica at a barrier."""
        position = self.state.position
        if not reason and position.base_offset >= 0:
            reason = f"judged from the base of index {position.base_index} on (offset {position.base_offset})"
        return Verdict(
            cluster=self.cluster_name,
            shard=self.shard,
            node=node,
            barrier_offset=offset,
            index=index,
            verdict=verdict,
            basis=basis,
            differences=[],
            differing_slots=0,
            evidence=None,
            reason=reason,
            decided_at_ms=now_ms,
            log=self.log,
        )
