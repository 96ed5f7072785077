"""Where two checkpoints of one database may differ, told from their table files alone.

A table file never changes. So a key whose files are the same in both checkpoints has the same row in both. Only keys
that occur in a *differing* file, one that only one checkpoint has, need to be looked at. There are two ways to do that:

- *list* a differing file: read its keys, removals included, and look each up in both checkpoints;
- *sweep* a key range: iterate over it in both checkpoints, and compare row with row.

A file of a few changes that lie far apart is listed. After a compaction nearly all files differ, and a sweep is the
cheaper way. The plan decides by the number of entries. Its estimates cost time if they are wrong, never correctness:
each key of each differing file is swept or listed, whatever they say.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LISTED_COST = 12
"""How many rows of a sweep take as long as one entry of a listed file: it is read by Python, and looked up twice.

Measured: 0.7 us for a row of one checkpoint, 8 us for an entry (``python -m benchmarks.snapshot_diff --costs``).
"""
MAX_PIECE_ROWS = 200_000
"""About how many rows of both checkpoints one piece of a sweep has, so that progress can be told piece by piece."""
FRACTION_BYTES = 8
"""Bytes behind the common prefix by which the position of a key between two others is estimated."""


class KeyRange(NamedTuple):
    """The keys in [start, stop)."""

    start: bytes
    stop: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A table file of one column family of a checkpoint."""

    identity: Hashable
    """Equal in two checkpoints only for one and the same file (``FileIdentity``)."""
    path: str
    """Where it lies, for whoever reads it."""
    first: bytes
    last: bytes
    """Its smallest and its largest key, both inclusive."""
    entries: int
    """How many entries it has, removals included."""
    listable: bool = True
    """Whether its keys can be read from it."""


class ListedFile(NamedTuple):
    """A file whose keys are to be read and looked up, in ``ranges`` alone."""

    file: TableFile
    ranges: Sequence[KeyRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPlan:
    """What is to be read to find all rows that differ. ``swept`` is ascending and disjoint; no range of ``listed``
    touches it.
    """

    swept: Sequence[KeyRange]
    listed: Sequence[ListedFile]

    @property
    def steps(self) -> int:
        """Return how many steps the plan has: one for each piece that is swept and each range that is listed."""
        return len(self.swept) + sum(len(one.ranges) for one in self.listed)


def full_sweep(wanted: KeyRange) -> DiffPlan:
    """Return the plan that compares all rows of a range: for checkpoints whose files tell nothing."""
    return DiffPlan(swept=[wanted] if wanted.start < wanted.stop else [], listed=[])


def make_plan(older: Iterable[TableFile], newer: Iterable[TableFile], wanted: KeyRange) -> DiffPlan:
    """Return how to find the rows of ``wanted`` that differ between two checkpoints with these files."""
    old = {file.identity: file for file in older if _overlaps(file, wanted)}
    new = {file.identity: file for file in newer if _overlaps(file, wanted)}
    differing = [old[one] for one in old.keys() - new.keys()] + [new[one] for one in new.keys() - old.keys()]
    if not differing or wanted.start >= wanted.stop:
        return DiffPlan(swept=[], listed=[])
    files = [*old.values(), *new.values()]
    scale = _Scale(files, wanted)
    swept: list[KeyRange] = []
    for file in differing:
        span = _span(file, wanted)
        if not file.listable or scale.entries(file, span) * LISTED_COST > scale.rows(files, span):
            swept.append(span)
    swept = _joined(swept)
    light = [file for file in differing if not _covered(_span(file, wanted), swept)]
    # Many files that are light one by one may together take longer than a sweep of the keys between them.
    for hull in _joined([*(_span(file, wanted) for file in light), *swept]):
        inside = [file for file in light if _within(_span(file, wanted), hull)]
        outside = [part for whole in [hull] for part in _without(whole, swept)]
        listing = sum(scale.entries(file, part) for file in inside for part in outside) * LISTED_COST
        if listing > sum(scale.rows(files, part) for part in outside):
            swept = _joined([*swept, hull])
    listed = [
        ListedFile(file, ranges)
        for file in sorted(light, key=lambda one: (one.first, one.last, one.path))
        if (ranges := list(_without(_span(file, wanted), swept)))
    ]
    return DiffPlan(swept=[piece for one in swept for piece in scale.pieces(files, one)], listed=listed)


def _overlaps(file: TableFile, wanted: KeyRange) -> bool:
    return file.first < wanted.stop and file.last >= wanted.start


def _span(file: TableFile, wanted: KeyRange) -> KeyRange:
    """Return the file's keys as a range, cut to what is wanted. The smallest key after K is K and a zero byte."""
    return KeyRange(max(file.first, wanted.start), min(file.last + b"\0", wanted.stop))


def _joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return ranges that cover the same keys, ascending, none touching another."""
    joined: list[KeyRange] = []
    for one in sorted(ranges):
        if joined and one.start <= joined[-1].stop:
            joined[-1] = KeyRange(joined[-1].start, max(joined[-1].stop, one.stop))
        else:
            joined.append(one)
    return joined


def _without(whole: KeyRange, removed: Sequence[KeyRange]) -> Iterator[KeyRange]:
    """Yield what is left of a range without others, which are ascending and disjoint."""
    start = whole.start
    for one in removed:
        if one.stop <= start or one.start >= whole.stop:
            continue
        if start < one.start:
            yield KeyRange(start, one.start)
        start = one.stop
    if start < whole.stop:
        yield KeyRange(start, whole.stop)


def _covered(whole: KeyRange, ranges: Sequence[KeyRange]) -> bool:
    return next(_without(whole, ranges), None) is None


def _within(inner: KeyRange, outer: KeyRange) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


class _Scale:
    """Estimates how many entries of files lie in a range, as if keys were spread evenly between a file's ends."""

    def __init__(self, files: Sequence[TableFile], wanted: KeyRange) -> None:
        low = max(min(file.first for file in files), wanted.start)
        high = min(max(file.last for file in files), wanted.stop)
        length = 0
        while length < min(len(low), len(high)) and low[length] == high[length]:
            length += 1
        self._prefix = low[:length]

    def _at(self, key: bytes) -> int:
        prefix = self._prefix
        if not key.startswith(prefix):
            return 0 if key < prefix else 256**FRACTION_BYTES
        tail = key[len(prefix) : len(prefix) + FRACTION_BYTES]
        return int.from_bytes(tail.ljust(FRACTION_BYTES, b"\0"), "big")

    def entries(self, file: TableFile, part: KeyRange) -> float:
        """Estimate how many entries of a file lie in a range."""
        if part.start <= file.first and file.last < part.stop:
            return file.entries
        first, last = self._at(file.first), self._at(file.last)
        low, high = max(first, self._at(part.start)), min(last, self._at(part.stop))
        return file.entries * max(high - low, 0) / max(last - first, 1)

    def rows(self, files: Sequence[TableFile], part: KeyRange) -> float:
        """Estimate how many entries a sweep of a range reads."""
        return sum(self.entries(file, part) for file in files if _overlaps(file, part))

    def pieces(self, files: Sequence[TableFile], whole: KeyRange) -> Iterator[KeyRange]:
        """Cut a range at files' ends into pieces of about MAX_PIECE_ROWS, as far as there are ends to cut at."""
        ends = {file.first for file in files} | {file.last for file in files}
        start = whole.start
        for end in sorted(end for end in ends if whole.start < end < whole.stop):
            if self.rows(files, KeyRange(start, end)) >= MAX_PIECE_ROWS:
                yield KeyRange(start, end)
                start = end
        yield KeyRange(start, whole.stop)
