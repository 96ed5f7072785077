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

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LISTED_COST = 12
"""How many rows of a sweep take as long as one entry of a listed file: it is read by Python, and looked up twice.

Measured, of the processor: 0.5 us for a row of one checkpoint; about 7 us for an entry where a file's keys lie side by
side in the checkpoints, 20 us where they lie far apart (``python -m benchmarks.snapshot_diff``, also with ``--costs``).
"""
MAX_PIECE_ROWS = 200_000
"""About how many rows of both checkpoints one piece of a sweep has, so that progress can be told piece by piece."""
MAX_FENCES = 64
"""Most keys of a file that are kept to estimate how many of its entries lie in a range."""


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
    fences: Sequence[bytes] = ()
    """Keys, ascending, that cut it into parts of about equal size: no key of part i exceeds fence i. Empty: unknown."""
    listable: bool = True
    """Whether its keys can be read from it."""


class FileRanges(NamedTuple):
    """A file whose keys are to be read and looked up, in ``ranges`` alone."""

    file: TableFile
    ranges: Sequence[KeyRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPlan:
    """What is to be read to find all rows that differ. ``swept`` is ascending and disjoint; no range of ``listed``
    touches it.
    """

    swept: Sequence[KeyRange]
    listed: Sequence[FileRanges]

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
    swept: list[KeyRange] = []
    for file in differing:
        span = _span(file, wanted)
        if not file.listable or _entries(file, span) * LISTED_COST > _rows(files, span):
            swept.append(span)
    swept = _joined(swept)
    light = [file for file in differing if not _covered(_span(file, wanted), swept)]
    # Many files that are light one by one may together take longer than a sweep of the keys between them.
    for hull in _joined([*(_span(file, wanted) for file in light), *swept]):
        inside = [file for file in light if _within(_span(file, wanted), hull)]
        outside = [part for whole in [hull] for part in _without(whole, swept)]
        listing = sum(_entries(file, part) for file in inside for part in outside) * LISTED_COST
        if listing > sum(_rows(files, part) for part in outside):
            swept = _joined([*swept, hull])
    listed = [
        FileRanges(file, ranges)
        for file in sorted(light, key=lambda one: (one.first, one.last, one.path))
        if (ranges := list(_without(_span(file, wanted), swept)))
    ]
    return DiffPlan(swept=[piece for one in swept for piece in _pieces(files, one)], listed=listed)


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


def _entries(file: TableFile, part: KeyRange) -> float:
    """Estimate how many entries of a file lie in a range: those of all parts between fences that it touches."""
    if part.start <= file.first and file.last < part.stop:
        return file.entries
    if not _overlaps(file, part):
        return 0
    if not file.fences:
        return file.entries
    # Part i holds the keys above fence i - 1, up to fence i.
    low = bisect_left(file.fences, part.start)
    high = bisect_left(file.fences, part.stop)
    return file.entries * min(high - low + 1, len(file.fences) - low) / len(file.fences)


def _rows(files: Iterable[TableFile], part: KeyRange) -> float:
    """Estimate how many entries a sweep of a range reads."""
    return sum(_entries(file, part) for file in files)


def _pieces(files: Sequence[TableFile], whole: KeyRange) -> Iterator[KeyRange]:
    """Cut a range at fences and ends of files into pieces of about MAX_PIECE_ROWS."""
    rows = _rows(files, whole)
    if rows > MAX_PIECE_ROWS:
        ends = sorted({end for file in files for end in (file.first, *file.fences) if whole.start < end < whole.stop})
        each = max(1, int(len(ends) * MAX_PIECE_ROWS / rows))
        for end in ends[each::each]:
            yield KeyRange(whole.start, end)
            whole = KeyRange(end, whole.stop)
    yield whole


def fences_of(keys: Sequence[bytes]) -> list[bytes]:
    """Return at most MAX_FENCES of some keys, evenly spread; the last one is among them.

    >>> fences_of([b"a", b"b"])
    [b'a', b'b']
    """
    step = -(-len(keys) // MAX_FENCES) or 1
    return list(keys[::-1][::step][::-1])
