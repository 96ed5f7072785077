"""A column family of a snapshot read slice by slice, its sums compared with those that the replica keeps; the pace.

A row that is changed behind the database's back is seen by a scan alone. The scan of a scrub barrier reads everything
at once; this one reads a slice, and rests. What it finds is a *difference*: by how much the sums of the rows are off
those that the replica keeps. Every batch changes both by the same, for it subtracts the row that it finds. So the
difference holds at later barriers too, until somebody changes a row behind the database's back again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from replicated_db.core.ports import StoreView
from replicated_db.core.tables.column_families import Families
from replicated_db.core.tables.digests import MASK, Digests
from schemas.column_families import BUCKETS

SLICE_ROWS = 200
"""Rows that are read in one go: a fraction of a millisecond."""

SHARE = 0.05
"""Most of the time that the scan takes: after each slice it rests for 19 times as long as the slice took.

On a busy machine a slice takes longer, and so does its rest: the scan yields.
"""

LONGEST_SHARE_S = 10.0
"""Longest rest for the sake of SHARE: a slice that took seconds waited for somebody else."""

LONGEST_REST_S = 1.0
"""Longest rest for the sake of an even pace: small databases are read within seconds, and then left alone."""

MARGIN = 0.8
"""Part of a pass's time in which its slices are read, if they can be."""


class FamilyScan:
    """The scan of one column family of a view; ``kept``: the replica's own sums of its buckets at that moment."""

    def __init__(self, families: Families, cf: str, view: StoreView, kept: Sequence[int]) -> None:
        self._cf = cf
        self._first = families.positions[cf] * BUCKETS
        self._kept = kept
        self._rows = iter(view.iterate(cf, b""))
        self._found = Digests(families)
        self._position = families.positions[cf]

    def step(self) -> int:
        """Read up to SLICE_ROWS rows; return how many there were. Fewer than SLICE_ROWS: that was the last slice."""
        read = 0
        for key, value in islice(self._rows, SLICE_ROWS):
            self._found.add(self._cf, key, value)
            read += 1
        return read

    def differences(self) -> dict[int, int]:
        """Return, after the last slice, by how much the rows are off the kept sums mod 2^64, by slot."""
        found = self._found.sums[self._position]
        return {
            self._first + bucket: (found[bucket] - self._kept[bucket]) & MASK
            for bucket in range(BUCKETS)
            if found[bucket] != self._kept[bucket]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPace:
    """How long to rest after a slice; ``pass_s``: seconds that a pass may take. ``rows``: of the last pass, if known.

    The first pass knows no number: it goes as fast as SHARE lets it. Rows may have changed while the process was down.
    """

    pass_s: float
    rows: int | None = None

    def rest_s(self, slice_s: float) -> float:
        """Return how long to rest after a slice that took ``slice_s`` seconds."""
        share = min(slice_s * (1 / SHARE - 1), LONGEST_SHARE_S)
        if not self.rows:
            return share
        even = MARGIN * self.pass_s * SLICE_ROWS / self.rows - slice_s
        return max(share, min(even, LONGEST_REST_S))
