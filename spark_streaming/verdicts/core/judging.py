"""A replica's report compared with a kept barrier or with other replicas; a DigestBase with the sums before it. Pure.

Replicas are compared with each other where the log does not say what its rows are (design, sections 6 and 9): after a
RequestBatch every replica has derived its rows itself. What a majority of the members reports at one barrier then
counts as right. That is weaker than the log's own sums: a majority with the same fault agrees, too. So the verdict
names its basis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from schemas.records.messages import Difference, Verdict
from schemas.records.verdict_words import BASE, DIVERGED, EQUAL, EVIDENCE, UNKNOWN, alone_basis
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.audited_shard import AuditedShard, why_base
from spark_streaming.verdicts.core.digests import MAX_DIFFERENCES, Hashes, Sums
from spark_streaming.verdicts.core.inputs import ReplicaReport
from spark_streaming.verdicts.core.shard_state import BaseChange, KeptBarrier


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
    differences = [
        difference(audited.families, int(slot), digests.signed(own[slot]), digests.signed(found[slot]))
        for slot in differing[:MAX_DIFFERENCES]
    ]
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


def judge_base(audited: AuditedShard, base: BaseChange, now_ms: int) -> Verdict:
    """Say that a DigestBase has replaced the log's sums: ``unknown``, for nothing proves that it was right to."""
    plain = audited.verdict("", base.offset, base.index, UNKNOWN, BASE, why_base(base), now_ms)
    differences = [difference(audited.families, *changed) for changed in base.named]
    return replace(plain, differences=differences, differing_slots=base.slots)


def difference(families: tuple[str, ...], slot: int, log_sum: int, replica_sum: int) -> Difference:
    """Name a slot in which two digests differ; of a DigestBase ``replica_sum`` is the base's."""
    family, bucket = digests.slot_name(slot, families)
    return Difference(cf=family, bucket=bucket, log_sum=log_sum, replica_sum=replica_sum)


class Vote(Protocol):
    """The fields of a report that the comparison needs."""

    @property
    def node(self) -> str:
        """Node that reports."""

    @property
    def basis(self) -> str:
        """Basis of the report."""

    @property
    def slots(self) -> Sequence[int] | Hashes:
        """Slots with a sum other than 0."""

    @property
    def sums(self) -> Sequence[int] | Hashes:
        """Their sums."""

    @property
    def flagged(self) -> bool:
        """Whether the replica has found a divergence."""


def agreed(reports: Iterable[Vote], families: int, members: int) -> Sums | None:
    """Return the sums that a majority of ``members`` reports on one basis, None if there is no such majority.

    Flagged replicas and malformed reports do not count.
    """
    votes: defaultdict[tuple[str, bytes], set[str]] = defaultdict(set)
    sums: dict[tuple[str, bytes], Sums] = {}
    for report in reports:
        if report.flagged:
            continue
        try:
            found = digests.from_sparse(families, report.slots, report.sums)
        except ValueError:
            continue
        key = report.basis, found.tobytes()
        votes[key].add(report.node)
        sums[key] = found
    majority = members // 2 + 1
    return next((sums[key] for key, nodes in votes.items() if len(nodes) >= majority), None)
