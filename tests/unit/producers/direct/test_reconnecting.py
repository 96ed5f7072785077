"""When a client connects again: soon to a node that was not reached, late to one that is full."""

from __future__ import annotations

from functools import partial

import pytest

from producers.direct.core.reconnecting import (
    FIRST_FULL_PAUSE_S,
    FIRST_PAUSE_S,
    LAST_FULL_PAUSE_S,
    LAST_PAUSE_S,
    Reconnecting,
)

NODE, OTHER = "om1:1", "om2:1"


def due_after(turns: Reconnecting, since_s: float, *, wanted: bool, address: str = NODE) -> float:
    """Return how long after ``since_s`` the node's turn comes, to a hundredth of a second."""
    waits = (step / 100 for step in range(10_000))
    return next(wait for wait in waits if turns.is_due(address, since_s + wait + 1e-9, wanted=wanted))


@pytest.fixture
def turns() -> Reconnecting:
    return Reconnecting(chance=lambda: 0.0)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_node_that_nobody_has_tried_is_due(turns: Reconnecting, wanted: bool):
    assert turns.is_due(NODE, 0.0, wanted=wanted)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_node_that_is_not_reached_is_tried_again_soon_and_each_second_at_last(turns: Reconnecting, wanted: bool):
    now_s, pauses = 0.0, []
    for _ in range(7):
        turns.tried(NODE, now_s)
        pauses.append(due_after(turns, now_s, wanted=wanted))
        now_s += pauses[-1]
    assert pauses == [min(FIRST_PAUSE_S * 2**number, LAST_PAUSE_S) for number in range(7)]
    assert turns.is_due(OTHER, 0.0, wanted=wanted), "each node has turns of its own"


def test_a_full_node_is_left_alone_for_longer_and_longer(turns: Reconnecting):
    now_s, pauses = 0.0, []
    for _ in range(8):
        turns.tried(NODE, now_s)
        turns.full(NODE, now_s)
        pauses.append(due_after(turns, now_s, wanted=False))
        now_s += pauses[-1]
    assert pauses == [min(FIRST_FULL_PAUSE_S * 2**number, LAST_FULL_PAUSE_S) for number in range(8)]


def test_a_full_node_of_which_something_is_wanted_is_asked_each_second(turns: Reconnecting):
    now_s = 0.0
    for _ in range(10):
        turns.tried(NODE, now_s)
        turns.full(NODE, now_s)
        pause_s = due_after(turns, now_s, wanted=True)
        assert pause_s <= LAST_PAUSE_S
        now_s += pause_s
    assert pause_s == LAST_PAUSE_S


def test_who_made_room_stays_away_until_it_wants_something(turns: Reconnecting):
    turns.tried(NODE, 0.0)
    turns.made_room(NODE, 100.0)
    assert due_after(turns, 100.0, wanted=False) == LAST_FULL_PAUSE_S
    assert turns.is_due(NODE, 100.0, wanted=True)


def test_who_made_room_and_finds_none_is_refused_as_others_are(turns: Reconnecting):
    turns.made_room(NODE, 100.0)
    turns.tried(NODE, 101.0)
    turns.full(NODE, 101.0)
    assert due_after(turns, 101.0, wanted=False) == FIRST_FULL_PAUSE_S
    assert due_after(turns, 101.0, wanted=True) == FIRST_PAUSE_S


def test_a_connection_that_broke_is_made_anew_at_once_also_to_a_node_that_was_full(turns: Reconnecting):
    for _ in range(5):
        turns.tried(NODE, 0.0)
        turns.full(NODE, 0.0)
    turns.lost(NODE)
    assert turns.is_due(NODE, 0.0, wanted=False)
    turns.tried(NODE, 0.0)
    assert due_after(turns, 0.0, wanted=False) == FIRST_PAUSE_S


def test_clients_that_were_refused_together_do_not_come_back_together():
    waits = []
    for chance in (0.0, 0.5, 1.0):
        turns = Reconnecting(chance=partial(float, chance))
        turns.made_room(NODE, 0.0)
        waits.append(due_after(turns, 0.0, wanted=False))
    assert waits == [LAST_FULL_PAUSE_S, 0.75 * LAST_FULL_PAUSE_S, 0.5 * LAST_FULL_PAUSE_S]
