"""Tables of transitions: what may happen in a state, and which state comes next. Pure.

An event that the table does not allow is a defect of the program: :class:`NoSuchTransition` is raised, and the state
stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class NoSuchTransition(RuntimeError):
    """An event was reported that cannot happen in this state."""

    def __init__(self, state: Enum, event: str) -> None:
        super().__init__(f"{event} cannot happen in {type(state).__name__}.{state.name}")


def next_state(table: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    """Return the state after an event; raises NoSuchTransition if the table has none.

    >>> class Door(Enum):
    ...     OPEN = 1
    ...     SHUT = 2
    >>> class Hand(Enum):
    ...     PUSH = 1
    >>> next_state({Door.OPEN: {Hand.PUSH: Door.SHUT}}, Door.OPEN, Hand.PUSH)
    <Door.SHUT: 2>
    >>> next_state({Door.OPEN: {Hand.PUSH: Door.SHUT}}, Door.SHUT, Hand.PUSH)
    Traceback (most recent call last):
        ...
    datanode_processors.core.transitions.NoSuchTransition: PUSH cannot happen in Door.SHUT
    """
    found = table.get(state, {}).get(event)
    if found is None:
        raise NoSuchTransition(state, event.name)
    return found
