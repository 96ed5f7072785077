"""One shard under audit: what the parts of its audit share, and the making of its verdicts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, EVIDENCE, INCREMENTAL, SCRUBBED, UNKNOWN
from spark_streaming.verdicts.core.inputs import ReplicaReport
from spark_streaming.verdicts.core.shard_state import AuditState, BaseChange, LogStanding, MatchingLimits, MatchingStore

REPORTED = (INCREMENTAL, SCRUBBED, EVIDENCE)
"""Bases of replicas' reports."""

BASIS_CHARACTERS = 60
"""Of a DigestBase's basis, which its command may choose freely, so much is repeated."""


def why_base(base: BaseChange) -> str:
    """Say what a DigestBase has changed, and who asked for it."""
    asked = f"client {base.asked_by}" if base.asked_by else "a client that the log does not name"
    return (
        f"base changed: that of index {base.index} (offset {base.offset}, basis {base.basis[:BASIS_CHARACTERS]!r}, "
        f"logged by {base.leader or 'an unknown leader'}, asked for by {asked}) replaced {base.slots} slots of the "
        "log's sums"
    )


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
        return self.why_misplaced(report) or self._why_no_member(report)

    def why_misplaced(self, report: ReplicaReport) -> str | None:
        """Return why a report is of no replica that this shard may ever have, or None."""
        has_begun, cluster = self.state.position.has_begun, self.cluster_name
        if report.basis not in REPORTED:
            return f"unknown basis {report.basis!r}"
        if report.shard != self.shard:
            return f"reports shard {report.shard} on partition {self.shard}"
        if has_begun and cluster and report.cluster != cluster:
            return f"reports cluster {report.cluster!r}, the log's is {cluster!r}"
        return None

    def _why_no_member(self, report: ReplicaReport) -> str | None:
        position = self.state.position
        if position.has_begun and report.node not in position.members:
            return f"{report.node!r} is no replica of this shard"
        return None

    def broken_reason(self) -> str:
        """Say where and why the log is broken, or cannot be read."""
        state = self.state
        if state.standing is LogStanding.UNREADABLE:
            return f"newer software wrote the log from offset {state.broken_at} on: {state.broken_reason}"
        return f"the log breaks its contract at offset {state.broken_at}: {state.broken_reason}"

    @property
    def ended_verdict(self) -> str:
        """The verdict on all replicas where the reading of the log has ended."""
        return UNKNOWN if self.state.standing is LogStanding.UNREADABLE else DIVERGED

    # Verdicts.

    def unknown(self, report: ReplicaReport, reason: str, now_ms: int) -> Verdict:
        """Return the verdict on a report that cannot be judged.

        Its basis is never one that only the auditor gives: anybody may write reports, on any basis.
        """
        basis = report.basis if report.basis in REPORTED else INCREMENTAL
        return self.verdict_on(report, UNKNOWN, basis, reason, now_ms)

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
        if self.state.base is not None and verdict == EQUAL:
            reason = f"{reason}; {why_base(self.state.base)}" if reason else why_base(self.state.base)
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
