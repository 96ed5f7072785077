"""Two views of a table, compared row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_db.core.diffing import sweep as module
from replicated_db.core.diffing.sweep import RowChange, look_up, sweep
from replicated_db.core.tables.memory import MemoryStore

Rows = dict[bytes, bytes]
ROWS = st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), st.sampled_from([b"1", b"2"]))


def view(rows: Rows) -> MemoryStore:
    store = MemoryStore(["things"])
    store.write([("things", key, value) for key, value in rows.items()])
    return store


def found(old: Rows, new: Rows, start: bytes = b"", stop: bytes = b"\xff") -> tuple[list[RowChange], list[int]]:
    told: list[int] = []
    return list(sweep(view(old), view(new), "things", start, stop, told.append)), told


def test_rows_that_came_went_and_changed_are_found_in_the_order_of_their_keys() -> None:
    changes, _ = found({b"a": b"1", b"b": b"1", b"d": b"1"}, {b"b": b"2", b"c": b"1", b"d": b"1", b"e": b"1"})
    assert changes == [
        RowChange(b"a", b"1", None), RowChange(b"b", b"1", b"2"), RowChange(b"c", None, b"1"), RowChange(b"e", None, b"1"),
    ]  # fmt: skip


@given(ROWS, ROWS)
def test_it_finds_what_a_comparison_of_all_keys_finds(old: Rows, new: Rows) -> None:
    expected = [
        RowChange(key, old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    ]
    assert found(old, new)[0] == expected
    for key in (b"a", b"e"):
        change = look_up(view(old), view(new), "things", key)
        assert change == next((one for one in expected if one.key == key), None)


def test_only_rows_of_the_range_are_looked_at() -> None:
    rows = dict.fromkeys((b"a", b"b", b"c", b"d"), b"1")
    changes, told = found({}, rows, b"b", b"d")
    assert [change.key for change in changes] == [b"b", b"c"]
    assert told == [2]


def test_how_much_was_read_is_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.CHECKED_ROWS == 1_000
    monkeypatch.setattr(module, "CHECKED_ROWS", 3)
    rows = {b"%d" % number: b"1" for number in range(7)}
    assert found(rows, rows) == ([], [3, 3, 1])
    assert found({}, {}) == ([], [0])
    assert found(dict(list(rows.items())[:6]), {})[1] == [3, 3, 0]


def test_what_is_raised_when_it_is_told_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKED_ROWS", 2)
    rows = {b"%d" % number: b"1" for number in range(9)}
    seen: list[RowChange] = []

    def cancelled(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        seen.extend(sweep(view({}), view(rows), "things", b"", b"\xff", cancelled))
    assert [change.key for change in seen] == [b"0"]
