"""Who is wrong: settling contradictions between replicas (design, section 3). Pure.

A replica that finds a false claim flags itself and publishes the evidence. Then one of three cases holds:
    - A majority has the *same* own hash at the same operation: the leader that wrote the batch is wrong. That leader
      flags itself and steps down; the others take their flags away.
    - A majority is past that index without evidence: the flagged replica is wrong. It stays flagged until it is
      repaired or rebuilt.
    - Otherwise nobody moves until an operator has the oracle decide (a DigestBase).

Who replays the log meets a false batch again, long after the others have settled it. They report no evidence, but their
digests. A replica subtracts the row that it finds, so one whose row was wrong there has other sums ever after. So a
majority with the same digest at a later barrier has found what this replica has found: the matter is settled.

What a replica finds by a scan of its own rows (claim ``scan``) says nothing about a leader, and no majority settles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from schemas.records.messages import AuditReport, Evidence

BATCH_CLAIMS = frozenset({"prev", "next"})
"""Claims of a batch: those that its leader answers for."""


class Judgement(Enum):
    """What a node does with its own replica."""

    NOTHING = "nothing"
    SETTLE = "settle"
    """A majority shares my evidence: the leader was wrong, and I take my flag away."""
    FLAG = "flag"
    """A majority contradicts a batch that I wrote: I am wrong."""


class QuorumDecision(NamedTuple):
    """What follows from the members' reports; with FLAG, the evidence against this node."""

    judgement: Judgement
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class BarrierDigest:
    """A replica's digest at a barrier: the index there, and the sum over all slots in hex."""

    index: int
    total: str


@dataclass(slots=True, kw_only=True)
class Quorum:
    """What each member of one shard reported last, as seen by the node ``me``."""

    me: str
    members: frozenset[str]
    latest: dict[str, AuditReport] = field(default_factory=dict)
    at_barrier: dict[str, BarrierDigest] = field(default_factory=dict)
    """What members without evidence reported last of a barrier."""

    def on_report(self, report: AuditReport) -> None:
        """Take a member's report; ignore a stranger's."""
        if report.node in self.members:
            self.latest[report.node] = report

    def forget(self, node: str) -> None:
        """A member has reported without evidence: its earlier evidence no longer stands."""
        self.latest.pop(node, None)

    def on_barrier(self, node: str, digest: BarrierDigest) -> None:
        """Take the digest that a member without evidence reports of a barrier; ignore a stranger's."""
        if node in self.members:
            self.at_barrier[node] = digest

    def agreeing(self, own: Evidence, digests: Mapping[int, str]) -> list[str]:
        """Return who makes a majority with this node at a barrier behind its evidence; nobody if it is none.

        ``digests``: this node's own, by the barrier's index. One alone agrees with nobody.
        """
        if own.claim not in BATCH_CLAIMS:
            return []
        found = [
            node for node, one in sorted(self.at_barrier.items())
            if node in self.members - {self.me} and one.index >= own.index and digests.get(one.index) == one.total
        ]  # fmt: skip
        return found if len(found) + 1 >= len(self.members) // 2 + 1 else []

    def judge(self, own: Evidence | None) -> QuorumDecision:
        """Say what to do, given this node's standing evidence. With FLAG, return the evidence against this node.

        A node that is no longer a member has no say.
        """
        majority = len(self.members) // 2 + 1
        others = self.members - {self.me}
        standing = {node: r.evidence for node, r in self.latest.items() if r.evidence is not None and node in others}
        if own is not None:
            agreeing = 1 + sum(_same(own, evidence) for evidence in standing.values())
            if agreeing >= majority and own.leader != self.me and own.claim in BATCH_CLAIMS:
                return QuorumDecision(Judgement.SETTLE)
            return QuorumDecision(Judgement.NOTHING)
        for evidence in standing.values():
            against = sum(_same(evidence, other) for other in standing.values())
            if evidence.leader == self.me and evidence.claim in BATCH_CLAIMS and against >= majority:
                return QuorumDecision(Judgement.FLAG, evidence)
        return QuorumDecision(Judgement.NOTHING)


def _same(one: Evidence, other: Evidence) -> bool:
    return (one.offset, one.operation, one.cf, one.key, one.own) == (
        other.offset, other.operation, other.cf, other.key, other.own,
    )  # fmt: skip
