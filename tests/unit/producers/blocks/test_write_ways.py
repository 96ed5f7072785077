"""The table of the ways on which bytes are written: total, as the code chose before there was a table, and as shown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from producers.blocks.core import write_ways
from producers.blocks.core.write_ways import (
    BLOCK_ROWS,
    COMMIT_PATHS,
    KEY_ROWS,
    LEAVES,
    PATHS_AFTER,
    REFUSALS,
    BlockWay,
    CommitPath,
    CommitWay,
    KeyBytes,
    KeyMoment,
    KeyWay,
    WayLeft,
    WayLimits,
    block_way,
    key_way,
    left_by,
)
from producers.blocks.stream_options import StreamOptions
from schemas.result_codes import QUOTA_EXCEEDED
from schemas.small_objects import SMALL_FILE_BYTES

DOCS = Path(__file__).parents[4] / "docs"
BOTH = (True, False)
SIZES = (0, 1, 99, 100, 101, 999, 1000, 1001)
LIMITS = [WayLimits(row_bytes=row, block_bytes=block) for row, block in product((0, 100, 1000), (0, 100, 1000))]


def chosen_before(
    when: KeyMoment, size: int, limits: WayLimits, *, stock: bool, put_refused: bool, block_failed: bool
) -> KeyWay:  # fmt: skip
    """Return what the conditions chose that were in ``create_file`` and in ``InlineWriter``."""
    limit, largest = limits.row_bytes, limits.block_bytes
    if when is KeyMoment.OPENED:
        return KeyWay.HELD if 0 < limit >= size or (size <= largest and stock) else KeyWay.OPENED
    if when is KeyMoment.WRITTEN:
        return KeyWay.HELD if size <= limit or (size <= largest and stock) else KeyWay.OPENED
    if when is KeyMoment.FLUSHED:
        return KeyWay.OPENED if size else KeyWay.HELD
    if 0 < limit >= size and not put_refused:
        return KeyWay.PUT
    return KeyWay.RESERVED if 0 < size <= largest and not block_failed else KeyWay.OPENED


@pytest.mark.parametrize("when", KeyMoment)
def test_a_key_goes_the_way_that_it_went_before_there_was_a_table(when: KeyMoment) -> None:
    for size, limits, stock in product(SIZES, LIMITS, BOTH):
        before = chosen_before(when, size, limits, stock=stock, put_refused=False, block_failed=False)
        assert key_way(when, limits.fit(size), stock=stock) is before, (size, limits, stock)


@pytest.mark.parametrize("left", [one for one in WayLeft if isinstance(LEAVES[one], KeyWay)])
def test_a_key_whose_way_was_left_goes_the_way_that_it_went_before(left: WayLeft) -> None:
    put_refused = LEAVES[left] is KeyWay.PUT
    for size, limits, stock in product(SIZES, LIMITS, BOTH):
        way = key_way(KeyMoment.CLOSED, limits.fit(size), stock=stock)
        if way is LEAVES[left]:
            # A reserved block is tried once the row is out of the question.
            before = chosen_before(
                KeyMoment.CLOSED, size, limits, stock=stock,
                put_refused=put_refused or way is KeyWay.RESERVED, block_failed=not put_refused,
            )  # fmt: skip
            assert key_way(KeyMoment.CLOSED, limits.after(left).fit(size), stock=stock) is before, (size, limits)


def test_each_key_is_committed_after_two_ways_at_most_were_left() -> None:
    lefts = {way: [left for left in WayLeft if LEAVES[left] is way] for way in KeyWay}
    for size, limits, stock in product(SIZES, LIMITS, BOTH):
        for row, block in product(lefts[KeyWay.PUT], lefts[KeyWay.RESERVED]):
            now, ways = limits, []
            while (way := key_way(KeyMoment.CLOSED, now.fit(size), stock=stock)) is not KeyWay.OPENED:
                ways.append(way)
                now = now.after(row if way is KeyWay.PUT else block)
            assert max(Counter(ways).values(), default=1) == 1
            assert ways in ([], [KeyWay.PUT], [KeyWay.RESERVED], [KeyWay.PUT, KeyWay.RESERVED])


def test_a_block_goes_the_way_that_it_went_before_there_was_a_table() -> None:
    for when, small, begun, together in product(KeyMoment, BOTH, BOTH, BOTH):
        if when is KeyMoment.OPENED:
            continue
        may_stay_small = together and not begun and small
        before = {
            KeyMoment.WRITTEN: BlockWay.KEPT, KeyMoment.CLOSED: BlockWay.TOGETHER, KeyMoment.FLUSHED: BlockWay.STREAM
        }  # fmt: skip
        expected = before[when] if may_stay_small else BlockWay.STREAM
        assert block_way(when, small=small, begun=begun, together=together) is expected


def test_each_combination_has_one_row() -> None:
    keys = Counter(
        (row.when, size, stock)
        for row in KEY_ROWS
        for size, stock in product(row.bytes, BOTH if row.stock is None else [row.stock])
    )
    assert keys == Counter(product(KeyMoment, KeyBytes, BOTH))
    facts = [[BOTH if fact is None else (fact,) for fact in (row.small, row.begun, row.together)] for row in BLOCK_ROWS]
    blocks = Counter(one for row, fact in zip(BLOCK_ROWS, facts, strict=True) for one in product(row.when, *fact))
    assert blocks == Counter(product((KeyMoment.WRITTEN, KeyMoment.FLUSHED, KeyMoment.CLOSED), BOTH, BOTH, BOTH))
    assert set(COMMIT_PATHS) == set(CommitWay)
    assert set(LEAVES) == set(WayLeft)


@pytest.mark.parametrize("way", CommitWay)
def test_commit_ways_mean_what_they_meant_before_there_was_a_table(way: CommitWay) -> None:
    found = StreamOptions(commit_way=way).path
    assert found == CommitPath(
        chunks=way == CommitWay.THROUGH_LOG,
        rides_end=way == CommitWay.ON_STREAM,
        waits_effective=way != CommitWay.EARLY_CLOSE,
        together=way != CommitWay.THROUGH_LOG,
    )


def test_a_commit_way_that_is_left_is_that_of_a_put_block_by_itself() -> None:
    assert set(PATHS_AFTER) == {left for left in WayLeft if isinstance(LEAVES[left], CommitWay)}
    assert set(PATHS_AFTER.values()) == {COMMIT_PATHS[CommitWay.SEPARATE]}
    assert {LEAVES[left] for left in PATHS_AFTER} == {CommitWay.ON_STREAM, CommitWay.EARLY_CLOSE}


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, SMALL_FILE_BYTES),
        ({"commit_way": CommitWay.THROUGH_LOG}, 0),
        ({"small_block_bytes": 0}, 0),
        ({"small_block_bytes": 5000}, 5000),
        ({"block_bytes": 4000}, 4000),
    ],
)
def test_what_a_reserved_block_takes(options: dict[str, int], most: int) -> None:
    given = StreamOptions(**options)  # type: ignore[arg-type]
    assert given.way_limits(7) == WayLimits(row_bytes=7, block_bytes=most)


def test_other_refusals_are_of_the_key_whichever_way_it_goes() -> None:
    for way, known in REFUSALS.items():
        assert left_by(way, QUOTA_EXCEEDED) is None
        assert {LEAVES[left] for left in known.values()} <= {way}
    assert REFUSALS[KeyWay.OPENED] == {}, "there is no other way behind it"


# -- the tables as they are shown --------------------------------------------------------------------------------------


def _word(fact: bool | None) -> str:
    return "any" if fact is None else "yes" if fact else "no"


def _tables() -> list[list[list[str]]]:
    """Return the rows of all tables, as text."""
    keys = [
        [row.when.value, ", ".join(one.value for one in row.bytes), _word(row.stock), row.way.name] for row in KEY_ROWS
    ]
    blocks = [
        [", ".join(one.value for one in row.when), *map(_word, (row.small, row.begun, row.together)), row.way.name]
        for row in BLOCK_ROWS
    ]
    paths = [
        [
            str(int(way)), way.name, "chunks" if path.chunks else "packets",
            "with the stream's end" if path.rides_end else "by itself, at the stream's end",
            "it is effective" if path.waits_effective else "the leader has appended it", _word(path.together),
        ]
        for way, path in zip(CommitWay, map(COMMIT_PATHS.__getitem__, CommitWay), strict=True)
    ]  # fmt: skip
    after: dict[type, str] = {BlockWay: "the block goes alone", CommitWay: "SEPARATE"}
    limits = {KeyWay.PUT: "no row", KeyWay.RESERVED: "no reserved block"}
    lefts = [
        [left.name, way.name, left.value, limits[way] if isinstance(way, KeyWay) else after[type(way)]]
        for left, way in LEAVES.items()
    ]
    return [keys, blocks, paths, lefts]


def _cells(line: str) -> list[str]:
    parts = line.strip("| ").split("|") if line.startswith("|") else re.split(r" {2,}", line)
    return [part.strip() for part in parts]


def _shows(text: str, rows: Sequence[Sequence[str]]) -> bool:
    shown = [_cells(line) for line in text.splitlines()]
    at = shown.index(list(rows[0])) if list(rows[0]) in shown else 0
    return shown[at : at + len(rows)] == [list(row) for row in rows]


@pytest.mark.parametrize("number", range(4))
def test_the_module_and_the_page_show_the_tables(number: int) -> None:
    rows = _tables()[number]
    assert _shows(write_ways.__doc__ or "", rows)
    assert _shows((DOCS / "datanodes.md").read_text(), rows)
