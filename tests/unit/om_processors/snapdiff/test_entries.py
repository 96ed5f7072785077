"""From rows that differ to the entries of a diff, over a scratch in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from om_processors.namespace.tables import key_key
from om_processors.snapdiff.core.entries import (
    CREATE,
    DELETE,
    MODIFY,
    RENAME,
    DiffEntry,
    finish,
    match_rows,
    report,
)
from replicated_db.core.diffing.sweep import RowChange
from schemas.codecs.codec import encode
from schemas.records.rows import KeyInfo

PREFIX = key_key("v", "b", "")


class SortedRows:
    """A scratch."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(key, value) for key, value in sorted(self.rows.items()) if start <= key < stop])


def info(object_id: int, *, update_id: int = 1, size: int = 0) -> KeyInfo:
    return KeyInfo(
        volume="v", bucket="b", key="", owner="ann", object_id=object_id, update_id=update_id, size=size,
        replication="RATIS/THREE", blocks=[], metadata={}, creation_time_ms=1, modification_time_ms=update_id,
    )  # fmt: skip


def change(name: str, old: KeyInfo | None, new: KeyInfo | None) -> RowChange:
    def row(side: KeyInfo | None) -> bytes | None:
        return None if side is None else encode(replace(side, key=name))

    return RowChange(PREFIX + name.encode(), row(old), row(new))


def matched(*changes: RowChange, times: int = 1) -> SortedRows:
    scratch = SortedRows()
    take = match_rows(PREFIX, scratch)
    for one in changes * times:
        take(one)
    return scratch


def entries(*changes: RowChange, times: int = 1) -> list[tuple[str, str, str | None]]:
    scratch = matched(*changes, times=times)
    finish(scratch, lambda: None)
    return [(entry.kind, entry.key, entry.to_key) for _, entry in report(scratch)]


ONE, TWO, THREE = info(1), info(2), info(3)
CASES = {
    "made": ([change("a", None, ONE)], [(CREATE, "a", None)]),
    "gone": ([change("a", ONE, None)], [(DELETE, "a", None)]),
    "two gone": ([change("a", ONE, None), change("b", TWO, None)], [(DELETE, "a", None), (DELETE, "b", None)]),
    "written again": ([change("a", ONE, info(1, update_id=2))], [(MODIFY, "a", None)]),
    "the same": ([change("a", ONE, ONE)], []),
    "replaced": ([change("a", ONE, TWO)], [(MODIFY, "a", None)]),
    "two replaced": ([change("a", ONE, TWO), change("b", THREE, info(4))], [(MODIFY, "a", None), (MODIFY, "b", None)]),
    "moved": ([change("a", ONE, None), change("b", None, info(1, update_id=2))], [(RENAME, "a", "b")]),
    "moved and written": (
        [change("a", ONE, None), change("b", None, info(1, update_id=3, size=9))],
        [(RENAME, "a", "b"), (MODIFY, "a", None)],
    ),
    "exchanged": (
        [change("a", ONE, info(2, update_id=5)), change("b", TWO, info(1, update_id=5))],
        [(RENAME, "a", "b"), (RENAME, "b", "a")],
    ),
    "one gone, one made": (
        [change("a", ONE, None), change("b", None, TWO)],
        [(DELETE, "a", None), (CREATE, "b", None)],
    ),
    "moved onto a name that went": (
        [change("a", ONE, None), change("b", TWO, info(1, update_id=5))],
        [(DELETE, "b", None), (RENAME, "a", "b")],
    ),
    "moved, and its name taken": (
        [change("a", ONE, TWO), change("b", None, info(1, update_id=5))],
        [(RENAME, "a", "b"), (CREATE, "a", None)],
    ),
    "a name that begins another": (
        [change("a", ONE, None), change("ab", None, TWO)],
        [(DELETE, "a", None), (CREATE, "ab", None)],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("times", [1, 2])
def test_what_is_said_of_rows_that_differ(case: str, times: int):
    """A row that is given twice changes nothing."""
    changes, expected = CASES[case]
    assert entries(*changes, times=times) == expected
    assert entries(*reversed(changes), times=times) == expected, "the order of the rows does not matter"


def test_a_report_goes_on_behind_each_of_its_places():
    made = [change(name, None, info(number)) for number, name in enumerate(("m", "n", "é"), 7)]
    scratch = matched(change("a", ONE, None), change("b", TWO, info(2, update_id=2)), *made)
    finish(scratch, lambda: None)
    whole = list(report(scratch))
    assert whole[0][1] == DiffEntry(kind=DELETE, key="a")
    assert len({place for place, _ in whole}) == len(whole) == 5
    for number, (place, _) in enumerate(whole, 1):
        assert list(report(scratch, place)) == whole[number:]


def test_each_row_that_is_matched_is_told_and_may_end_the_matching():
    """Else a diff that was cancelled would go on until its last row."""
    changes = [change("a", ONE, None), change("b", TWO, None), change("c", None, THREE)]
    by_id = by_name = len(changes)
    told: list[bool] = []
    finish(matched(*changes), lambda: told.append(True))
    assert len(told) == by_id + by_name

    class Ended(Exception):
        pass

    def after(left: int) -> Callable[[], None]:
        steps = iter(range(left))

        def on_row() -> None:
            if next(steps, None) is None:
                raise Ended

        return on_row

    for left in range(by_id + by_name):
        with pytest.raises(Ended):
            finish(matched(*changes), after(left))
    finish(matched(*changes), after(by_id + by_name))
