"""The step through a table of transitions: what may happen in a state, and what follows. Pure.

The state machines of all packages share it. A machine has named states and a table. The table has one of two shapes:

- By state and event, the next state: :func:`next_state`.
- By state and class of event, the function that takes the event: :func:`handler_of`.

An event that the table does not name is a defect of the program: :class:`NoSuchTransition` is raised, and the machine's
state stays as it was. Tables in which a missing event means something else have a step of their own: a peer's fault
(``schemas/conversation``), a leader that is deposed (``replicated_db/core/leading/phases.py``), no change (the audit's
``LogStanding``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Handler = TypeVar("Handler")


class NoSuchTransition(RuntimeError):
    """An event was reported that cannot happen in this state: a defect of the program."""

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
    schemas.transitions.NoSuchTransition: PUSH cannot happen in Door.SHUT
    """
    found = table.get(state, {}).get(event)
    if found is None:
        raise NoSuchTransition(state, event.name)
    return found


def handler_of(table: Mapping[tuple[State, type], Handler], state: State, event: object) -> Handler:
    """Return what takes an event of this very class in this state; raises NoSuchTransition if the table has nothing.

    >>> class Bell(Enum):
    ...     SILENT = 1
    >>> handler_of({(Bell.SILENT, str): "rings"}, Bell.SILENT, "a knock")
    'rings'
    >>> handler_of({(Bell.SILENT, str): "rings"}, Bell.SILENT, 7)
    Traceback (most recent call last):
        ...
    schemas.transitions.NoSuchTransition: int cannot happen in Bell.SILENT
    """
    found = table.get((state, type(event)))
    if found is None:
        raise NoSuchTransition(state, type(event).__name__)
    return found
