"""Loans: an owner lends its shard to a named node, which leads it.

Kafka's coordinator says who *owns* a shard, and its client offers no way to choose the owner (decision 0013). So the
owner may *lend* a shard: it drains, steps down, and asks a named node to lead instead. Rules:

1. Only the owner lends, and it lends to one node at a time. A shard that is not lent is led by its owner.
2. The borrower leads as long as the owner renews the loan; RENEW_INTERVAL_S and the session time-out say how often.
3. The owner takes the shard back at once if the borrower says that it does not lead, or if no connection to the
   borrower can be made. It takes the shard back after a session time-out if the borrower does not answer. The borrower
   stops leading if the loan is not renewed for that long.
4. A loan ends with its owner's ownership: the next owner leads by itself.

Safety never depends on a loan: the log's order alone says whose claim counts, and both sides may be wrong about the
loan. This module is pure; ``leadership_machine`` keeps the loans.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RENEW_INTERVAL_S = 0.5
"""How often an owner renews a loan."""

LEND_TIMEOUT_S = 15.0
"""How long the borrower may take until it leads; after that the owner leads again."""


@dataclass(slots=True, kw_only=True)
class Loan:
    """A shard that this node owns and another one leads; ``heard_s`` is when the borrower last confirmed it."""

    shard: int
    node: str
    address: str
    heard_s: float


@dataclass(slots=True, kw_only=True)
class Borrowed:
    """A shard that this node leads for its owner; ``renewed_s`` is when the owner last renewed the loan."""

    shard: int
    owner: str
    renewed_s: float


class Answer(Enum):
    """The borrower's answer to a renewal."""

    LEADS = "leads"
    DOES_NOT_LEAD = "does not lead"
    GONE = "gone"
    SILENT = "silent"


def takes_back(loan: Loan, answer: Answer, now_s: float, session_s: float) -> str | None:
    """Return why the owner takes the shard back, None if the loan goes on."""
    if answer is Answer.DOES_NOT_LEAD:
        return f"{loan.node} does not lead it any more"
    if answer is Answer.GONE:
        return f"{loan.node} is gone"
    if answer is Answer.SILENT and now_s - loan.heard_s > session_s:
        return f"{loan.node} has been silent for {now_s - loan.heard_s:.1f} s"
    return None


def gives_up(borrowed: Borrowed, now_s: float, session_s: float) -> str | None:
    """Return why the borrower stops leading, None if it goes on."""
    silent_s = now_s - borrowed.renewed_s
    return f"{borrowed.owner} has not renewed the loan for {silent_s:.1f} s" if silent_s > session_s else None
