"""The agenda against a plain dict of times: each thing once, the earliest first."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.repair.core.agenda import SLACK, Agenda

THINGS = st.integers(0, 5)
TIMES = st.integers(0, 20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), THINGS, TIMES),
        st.tuples(st.just("sooner"), THINGS, TIMES),
        st.tuples(st.just("drop"), THINGS, TIMES),
        st.tuples(st.just("take"), THINGS, TIMES),
    ),
    max_size=300,
)


@given(STEPS)
def test_it_is_a_dict_of_times(steps: list[tuple[str, int, int]]):
    agenda: Agenda[int] = Agenda()
    due: dict[int, float] = {}
    for what, thing, at in steps:
        if what == "put":
            agenda.put(thing, at)
            due[thing] = at
        elif what == "sooner":
            agenda.put_sooner(thing, at)
            due[thing] = min(at, due.get(thing, at))
        elif what == "drop":
            agenda.drop(thing)
            due.pop(thing, None)
        else:
            found = agenda.take(at)
            ready = [one for one, time in due.items() if time <= at]
            assert (found is None) == (not ready)
            if found is not None:
                assert due[found] == min(due.values())
                del due[found]
        assert len(agenda) == len(due)
        assert agenda.next_due_s() == min(due.values(), default=None)
        assert all((one in agenda) == (one in due) for one in range(6))


def test_what_is_taken_first_has_been_due_longest():
    agenda: Agenda[str] = Agenda()
    for thing, at in (("b", 2), ("a", 1), ("c", 3), ("a", 4)):
        agenda.put(thing, at)
    assert [agenda.take(10) for _ in range(4)] == ["b", "c", "a", None]


def test_what_is_put_again_and_again_takes_no_more_room():
    agenda: Agenda[int] = Agenda()
    for number in range(10_000):
        agenda.put(number % 3, number)
    assert len(agenda._heap) <= 2 * 3 + SLACK
    assert [agenda.take(10_000) for _ in range(4)] == [1, 2, 0, None]


def test_old_entries_are_thrown_away_only_when_they_are_many(monkeypatch: pytest.MonkeyPatch):
    clearings: list[int] = []
    monkeypatch.setattr(heapq, "heapify", lambda heap: clearings.append(len(heap)))
    agenda: Agenda[int] = Agenda()
    for number in range(1_000):
        agenda.put(number, number)
    assert clearings == [], "nothing is old"
    for _ in range(1_000 + SLACK):
        agenda.put(999, 999)
    assert clearings == [], "twice as many entries as things, and the slack"
    agenda.put(999, 999)
    assert clearings == [1_000]


def test_what_is_due_already_then_is_not_scheduled_anew():
    agenda: Agenda[str] = Agenda()
    for thing in ("a", "b"):
        agenda.put(thing, 5)
    agenda.put_sooner("a", 5)
    agenda.put_sooner("b", 6)
    assert [agenda.take(5), agenda.take(5)] == ["a", "b"]
    agenda.put("a", 5)
    assert agenda.take(4.9) is None
    assert agenda.take(5) == "a", "at that very time"
