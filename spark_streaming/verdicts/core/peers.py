"""Replicas compared with each other, where the log does not say what its rows are (design, sections 6 and 9).

After a RequestBatch every replica has derived its rows itself. What a majority of the members reports at one barrier
then counts as right. That is weaker than the log's own sums: a majority with the same fault agrees, too. So the
verdict names its basis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.digests import Hashes, Sums


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
