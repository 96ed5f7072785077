"""Findings on a shard with nodes of two versions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.wording import named, slots_named


class DifferingRow(NamedTuple):
    """A row in which two replicas differ: its column family, digest slot, and key in words."""

    cf: str
    slot: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """What became of a shard with nodes of two versions.

    - ``first_index``: the index at which digests first differed (None: nowhere).
    - ``odd``: the nodes that differ from the leader in the end.
    - ``slots``, ``rows``: the digest slots and the rows in which they differ.
    - ``evidence``: the nodes that found a false claim.
    - ``scanned``: whether full scans are equal to running digests.
    """

    requests: int
    refused: int
    first_index: int | None
    odd: tuple[str, ...]
    slots: tuple[int, ...]
    rows: tuple[DifferingRow, ...]
    families: tuple[str, ...]
    evidence: tuple[str, ...]
    scanned: bool


def late_diverges(where: str, odd: str, seen: Mixed) -> Finding:
    """Judge late validation with mixed versions: the odd node diverges, and digests, then rows, say where."""
    explained = {row.slot for row in seen.rows} == set(seen.slots)
    holds = seen.first_index is not None and seen.odd == (odd,) and bool(seen.rows) and explained and seen.scanned
    buckets = slots_named(seen.families, seen.slots)
    rows = named(f"{row.cf} {row.key}" for row in sorted(seen.rows, key=lambda row: row.cf == seen.families[0]))
    return Finding(
        question=f"late validation diverges with {where}, and the audit's comparison says where", holds=holds,
        seen=(
            f"{', '.join(seen.odd) or 'nobody'} differs, first at index {seen.first_index}, in "
            f"{buckets or 'no bucket'}: {rows or 'no row'}"
        ),
    )  # fmt: skip


def leader_side_holds(where: str, seen: Mixed) -> Finding:
    """Judge leader-side execution with mixed versions: nothing may differ, at any index."""
    holds = seen.first_index is None and not seen.odd and not seen.rows and not seen.evidence and seen.scanned
    return Finding(
        question=f"leader-side execution does not diverge with {where}",
        holds=holds and seen.requests > 0,
        seen=f"{seen.requests} requests, digests equal after each"
        if holds
        else f"{', '.join(seen.odd) or 'nobody'} differs, first at index {seen.first_index}; evidence of "
        f"{named(seen.evidence) or 'nobody'}",
    )
