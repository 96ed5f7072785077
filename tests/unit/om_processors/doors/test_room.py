"""Who makes room for a new direct connection: the decision by itself, for any state of the others."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from om_processors.doors.core.room import REST_S, DoorRoom


def unread() -> Iterator[tuple[str, float]]:
    raise AssertionError("nobody is asked")
    yield  # pragma: no cover


def test_who_has_rested_longest_makes_room():
    room = DoorRoom[str]()
    assert room.who_goes([("a", 7.0), ("b", 3.0), ("c", 5.0)], now_s=3.0 + REST_S) == "b"


def test_nobody_makes_room_who_has_not_rested_long_enough():
    room = DoorRoom[str]()
    assert room.who_goes([("a", 100.0)], now_s=99.9 + REST_S) is None
    assert room.who_goes([("a", 100.0)], now_s=100.0 + REST_S) == "a"


def test_while_all_are_at_work_nobody_makes_room_and_few_are_asked():
    room = DoorRoom[str]()
    assert room.who_goes([], now_s=50.0) is None
    assert room.who_goes(unread(), now_s=49.9 + REST_S) is None
    assert room.who_goes([("a", 50.0)], now_s=50.0 + REST_S) == "a"


def test_places_become_free_when_the_next_has_rested():
    room = DoorRoom[str]()
    assert room.who_goes([("a", 95.0), ("b", 99.0)], now_s=100.0) is None
    assert room.who_goes(unread(), now_s=94.9 + REST_S) is None
    assert room.who_goes([("a", 95.0), ("b", 99.0)], now_s=95.0 + REST_S) == "a"
    assert room.who_goes([("b", 99.0)], now_s=95.0 + REST_S) is None
    assert room.who_goes([("b", 99.0)], now_s=99.0 + REST_S) == "b"


STEP = st.tuples(st.sampled_from(["works", "rests", "comes"]), st.integers(0, 4), st.floats(0.0, 0.7 * REST_S))


@given(st.lists(STEP, max_size=60))
def test_what_is_remembered_changes_no_decision(steps: list[tuple[str, int, float]]):
    """A room that remembers decides as one that asks all connections each time."""
    room, now_s = DoorRoom[int](), 1000.0
    resting: dict[int, float] = {}
    for what, number, pause_s in steps:
        now_s += pause_s
        match what:
            case "works":
                resting.pop(number, None)
            case "rests":
                resting.setdefault(number, now_s)
            case "comes":
                gone = room.who_goes(resting.items(), now_s)
                assert gone == DoorRoom[int]().who_goes(resting.items(), now_s)
                if gone is not None:
                    assert now_s - resting[gone] >= REST_S
                    resting[gone] = now_s
