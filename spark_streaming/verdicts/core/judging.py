"""A replica's report compared with a kept barrier. Pure."""

from __future__ import annotations

from dataclasses import replace

from schemas.records.messages import Difference, Verdict
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.digests import Sums
from spark_streaming.verdicts.core.inputs import ReplicaReport
from spark_streaming.verdicts.core.shard_state import KeptBarrier
from spark_streaming.verdicts.core.words import DIVERGED, EQUAL, EVIDENCE, alone_basis

MAX_DIFFERENCES = 64
"""Most differing slots that a verdict names; it counts them all."""


def judge(audited: AuditedShard, barrier: KeptBarrier, report: ReplicaReport, now_ms: int) -> Verdict:
    """Compare a report with its barrier: slots, chain and index; a replica that is flagged is never ``equal``."""
    if wrong := audited.why_foreign(report):
        return audited.unknown(report, wrong, now_ms)
    try:
        found = digests.from_sparse(len(audited.families), report.slots, report.sums)
    except ValueError as error:
        return audited.verdict_on(report, DIVERGED, report.basis, f"malformed digest: {error}", now_ms)
    own = barrier.sums
    differing = (own != found).nonzero()[0]
    differences = [_difference(int(slot), audited.families, own, found) for slot in differing[:MAX_DIFFERENCES]]
    is_flagged = report.flagged or report.evidence is not None
    reasons = []
    if is_flagged:
        reasons.append("the replica is flagged")
    if len(differing):
        others = "what a majority of the replicas holds" if barrier.blind else "the log's sums"
        reasons.append(f"{len(differing)} slots differ from {others}")
    if report.chain != barrier.chain:
        reasons.append(f"chain {report.chain.hex()[:16]}, the log's is {barrier.chain.hex()[:16]}")
    if report.index != barrier.index:
        reasons.append(f"index {report.index}, the log's is {barrier.index}")
    basis = alone_basis(report.basis) if barrier.blind else report.basis
    basis = EVIDENCE if is_flagged else basis
    verdict = audited.verdict_on(report, DIVERGED if reasons else EQUAL, basis, "; ".join(reasons), now_ms)
    return replace(verdict, index=barrier.index, differences=differences, differing_slots=len(differing))


def _difference(slot: int, families: tuple[str, ...], log: Sums, replica: Sums) -> Difference:
    family, bucket = digests.slot_name(slot, families)
    log_sum, replica_sum = digests.signed(log[slot]), digests.signed(replica[slot])
    return Difference(cf=family, bucket=bucket, log_sum=log_sum, replica_sum=replica_sum)
