"""A deadline is one moment for all waits of a call; a back-off doubles up to its last pause."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_left_shrinks_to_nothing_and_not_below() -> None:
    clock = HandClock()
    deadline = Deadline.after_s(2.0, clock)
    assert (deadline.left_s, deadline.left_ms, deadline.has_passed) == (2.0, 2000, False)
    clock.now_s += 1.9995
    assert deadline.left_ms == 1, "less than a millisecond is not nothing"
    clock.now_s += 5
    assert (deadline.left_s, deadline.left_ms, deadline.has_passed) == (0.0, 0, True)


def test_a_deadline_has_passed_at_its_very_moment() -> None:
    clock = HandClock()
    deadline = Deadline.after_ms(500, clock)
    clock.now_s += 0.5
    assert deadline.has_passed
    assert not deadline.has_room_for(0)


def test_a_step_ends_no_later_than_its_call() -> None:
    clock = HandClock()
    whole = Deadline.after_s(3.0, clock)
    assert whole.sooner(1.0).left_s == 1.0
    assert whole.sooner(10.0).left_s == 3.0
    clock.now_s += 2.5
    assert whole.sooner(1.0).left_s == 0.5
    assert whole.has_room_for(0.4)
    assert not whole.has_room_for(0.5)


def test_never_has_room_for_everything() -> None:
    never = Deadline.never()
    assert never.left_s == math.inf
    assert not never.has_passed
    assert never.has_room_for(1e12)
    assert never.sooner(1.0).left_s <= 1.0
    with pytest.raises(OverflowError):
        _ = never.left_ms


@given(first=st.floats(1e-6, 1e3), times=st.floats(1, 1e6), failures=st.integers(-2, 10_000))
def test_pauses_double_from_the_first_to_the_last(first: float, times: float, failures: int) -> None:
    backoff = Backoff(first_s=first, last_s=first * times)
    pause = backoff.pause_s(failures)
    following = backoff.pause_s(failures + 1)
    if failures <= 0:
        assert pause == 0
    else:
        assert first <= pause <= backoff.last_s
        assert following == min(2 * pause, backoff.last_s)
    assert backoff.pause_ms(failures) == 1000 * pause


@pytest.mark.parametrize(("first_s", "last_s"), [(0, 1), (-1, 1), (2, 1), (math.nan, 1)])
def test_pauses_that_cannot_grow_are_refused(first_s: float, last_s: float) -> None:
    with pytest.raises(ValueError, match="back-off"):
        Backoff(first_s=first_s, last_s=last_s)
