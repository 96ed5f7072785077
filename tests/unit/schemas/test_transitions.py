"""The step through a table of transitions: what the tables of all machines rely on."""

from __future__ import annotations

from enum import Enum

import pytest

from schemas.transitions import NoSuchTransition, handler_of, next_state


class Lamp(Enum):
    DARK = 0
    LIT = 1


class Touch(Enum):
    PRESS = 0
    WAIT = 1


class Pressed:
    pass


class PressedHard(Pressed):
    pass


TABLE = {Lamp.DARK: {Touch.PRESS: Lamp.LIT, Touch.WAIT: Lamp.DARK}}
"""DARK has the value 0, and LIT no row: neither a false value nor a missing row is taken for the other."""


def test_the_table_gives_the_next_state() -> None:
    assert next_state(TABLE, Lamp.DARK, Touch.PRESS) is Lamp.LIT
    assert next_state(TABLE, Lamp.DARK, Touch.WAIT) is Lamp.DARK


@pytest.mark.parametrize("touch", Touch)
def test_a_state_without_a_row_takes_no_event(touch: Touch) -> None:
    with pytest.raises(NoSuchTransition, match=rf"^{touch.name} cannot happen in Lamp\.LIT$"):
        next_state(TABLE, Lamp.LIT, touch)


def test_a_handler_takes_events_of_its_very_class_in_its_state() -> None:
    table: dict[tuple[Lamp, type], str] = {(Lamp.DARK, Pressed): "light it"}
    assert handler_of(table, Lamp.DARK, Pressed()) == "light it"
    with pytest.raises(NoSuchTransition, match=r"^PressedHard cannot happen in Lamp\.DARK$"):
        handler_of(table, Lamp.DARK, PressedHard())
    with pytest.raises(NoSuchTransition, match=r"^Pressed cannot happen in Lamp\.LIT$"):
        handler_of(table, Lamp.LIT, Pressed())
