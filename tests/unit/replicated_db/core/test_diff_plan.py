"""Single plans of a comparison: what is listed, what is swept, and in which pieces; plans at large are a property."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from replicated_db.core.diffing import file_plan
from replicated_db.core.diffing.file_plan import (
    LISTED_COST,
    DiffPlan,
    KeyRange,
    TableFile,
    fences_of,
    full_sweep,
    make_plan,
)

ALL = KeyRange(b"", b"\xff")


def key(number: int) -> bytes:
    return b"%04d" % number


def file(
    name: str, first: int, last: int, entries: int, fences: Sequence[int] = (), *, listable: bool = True
) -> TableFile:
    return TableFile(
        identity=name, path=name, first=key(first), last=key(last), entries=entries, fences=[key(one) for one in fences],
        listable=listable,
    )  # fmt: skip


def numbers(ranges: Sequence[KeyRange]) -> list[tuple[str, str]]:
    return [(one.start.decode(), one.stop.decode()) for one in ranges]


def listed(plan: DiffPlan) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(one.file.path, numbers(one.ranges)) for one in plan.listed]


COMMON = file("common", 0, 9999, 1_000_000, range(99, 10_000, 100))


def test_a_small_new_file_is_listed():
    plan = make_plan([COMMON], [COMMON, file("new", 100, 200, 10)], ALL)
    assert (plan.swept, listed(plan), plan.steps) == ([], [("new", [("0100", "0200\0")])], 1)
    cut = make_plan([COMMON], [COMMON, file("new", 100, 200, 10)], KeyRange(key(150), key(160)))
    assert listed(cut) == [("new", [("0150", "0160")])]


def test_a_file_that_differs_outside_of_what_is_wanted_is_not_read():
    plan = make_plan([COMMON], [COMMON, file("new", 100, 200, 10)], KeyRange(key(201), key(300)))
    assert plan.steps == 0
    assert make_plan([COMMON], [COMMON, file("new", 100, 200, 10)], KeyRange(key(100), key(100))).steps == 0
    assert make_plan([COMMON], [COMMON, file("new", 100, 200, 10)], KeyRange(key(200), key(201))).steps == 1


@pytest.mark.parametrize(("entries", "is_swept"), [(1999, False), (2000, False), (2001, True)])
def test_a_file_is_swept_if_listing_its_keys_costs_more(entries: int, is_swept: bool):
    other = file("other", 0, 9999, (LISTED_COST - 1) * 1000)  # which both sides of a sweep read
    plan = make_plan([other], [other, file("new", 0, 9999, entries)], ALL)
    assert (len(plan.swept), len(plan.listed)) == ((1, 0) if is_swept else (0, 1))


def test_a_file_that_cannot_be_listed_is_swept():
    plan = make_plan([COMMON], [COMMON, file("new", 100, 200, 10, listable=False)], ALL)
    assert (numbers(plan.swept), listed(plan)) == ([("0100", "0200\0")], [])


def test_files_that_follow_each_other_without_a_gap_are_one_sweep():
    first = file("first", 100, 110, 10, listable=False)
    second = replace(
        file("second", 110, 120, 10, listable=False), first=first.last + b"\0"
    )  # the next key there can be
    assert numbers(make_plan([COMMON], [COMMON, first, second], ALL).swept) == [("0100", "0120\0")]
    apart = replace(second, first=first.last + b"\0\0")
    assert len(make_plan([COMMON], [COMMON, first, apart], ALL).swept) == 2


def test_what_is_swept_is_not_listed_too():
    odd = file("odd", 150, 160, 10, listable=False)
    plan = make_plan([COMMON], [COMMON, odd, file("new", 100, 200, 10)], ALL)
    assert numbers(plan.swept) == [("0150", "0160\0")]
    assert listed(plan) == [("new", [("0100", "0150"), ("0160\0", "0200\0")])]
    assert plan.steps == 3


def test_many_light_files_are_swept_together():
    """Each of them is light by itself; all of them cost more than the rows between them."""
    common = file("common", 0, 9999, 1000)
    many = [file(f"new{number}", 0, 9999, 50) for number in range(5)]
    assert listed(make_plan([common], [common, many[0]], ALL)) == [("new0", [("0000", "9999\0")])]
    plan = make_plan([common], [common, *many], ALL)
    assert (numbers(plan.swept), listed(plan)) == ([("0000", "9999\0")], [])


def test_a_long_sweep_is_cut_into_pieces_at_fences(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_plan, "MAX_PIECE_ROWS", 250)
    swept = file("new", 0, 9999, 1000, (*range(1000, 10_000, 1000), 9999), listable=False)
    plan = make_plan([], [swept], ALL)
    assert numbers(plan.swept) == [
        ("0000", "3000"), ("3000", "5000"), ("5000", "7000"), ("7000", "9000"), ("9000", "9999\0"),
    ]  # fmt: skip
    assert plan.steps == 5
    monkeypatch.setattr(file_plan, "MAX_PIECE_ROWS", 1000)
    assert numbers(make_plan([], [swept], ALL).swept) == [("0000", "9999\0")], "as many as a piece may have"
    monkeypatch.setattr(file_plan, "MAX_PIECE_ROWS", 1)
    assert len(make_plan([], [swept], ALL).swept) == 10, "a fence is as fine as it gets"


def test_a_sweep_of_everything():
    assert full_sweep(KeyRange(b"a", b"b")) == DiffPlan(swept=[KeyRange(b"a", b"b")], listed=[])
    assert full_sweep(KeyRange(b"b", b"b")).steps == 0


def test_fences_are_few_and_evenly_spread():
    many = [key(number) for number in range(file_plan.MAX_FENCES * 3 + 1)]
    found = fences_of(many)
    assert len(found) <= file_plan.MAX_FENCES
    assert found[-1] == many[-1]
    assert {int(later) - int(before) for before, later in pairwise(found)} == {4}
    assert fences_of(many[: file_plan.MAX_FENCES]) == many[: file_plan.MAX_FENCES]
    assert fences_of([]) == []
