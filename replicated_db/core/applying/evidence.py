"""What a replica reports of itself: the evidence that it found, and its audit report."""

from __future__ import annotations

from replicated_db.core.applying.apply import FalseClaim
from replicated_db.core.applying.identity import Identity
from replicated_db.core.log.position import Position
from replicated_db.core.tables.digests import Digests
from schemas.records.messages import AuditReport, Evidence
from schemas.records.verdict_words import SCAN


def scan_evidence(position: Position, cf: str) -> Evidence:
    """Return evidence that this replica's rows of ``cf`` are not those of its digest, found at ``position``."""
    return Evidence(
        index=position.index, offset=position.offset, term=position.term, leader="", operation=0,
        cf=cf, key=b"", claim=SCAN, claimed=None, own=None,
    )  # fmt: skip


def evidence_of(claim: FalseClaim, position: Position, index: int) -> Evidence:
    """Return a false claim as evidence.

    ``position`` is the one right after the claim's record, ``index`` the first index of that record.
    """
    return Evidence(
        index=index, offset=position.offset, term=position.term, leader=position.leader, operation=claim.operation,
        cf=claim.cf, key=claim.key, claim=claim.claim, claimed=claim.claimed, own=claim.own,
    )  # fmt: skip


def audit_report(
    identity: Identity, basis: str, barrier_offset: int, position: Position, digests: Digests,
    evidence: Evidence | None,
    now_ms: int,
) -> AuditReport:  # fmt: skip
    """Return the audit report of ``digests`` at ``position``; ``now_ms`` is the wall clock."""
    slots, sums = digests.slots()
    return AuditReport(
        cluster=identity.cluster, node=identity.node, shard=identity.shard, basis=basis,
        barrier_offset=barrier_offset, index=position.index, chain=position.chain, slots=slots, sums=sums,
        flagged=evidence is not None, evidence=evidence, reported_at_ms=now_ms,
    )  # fmt: skip
