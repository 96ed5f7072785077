"""When a client connects again to a node that it is not connected with. Pure.

A node that was not reached is tried again soon, since it may be the next leader. A node that is *full* is not: each try
costs it something, and if it takes one client, another one has to make room. So a client that was told OVERLOADED waits
long, and one that has made room for others comes back only after that wait, or when it wants something of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transport.waiting.core.backoff import Backoff

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
"""How long after a failed connection the next one is tried; doubled each time. Also the longest wait for a full node
while something is wanted of it.
"""
FIRST_FULL_PAUSE_S = 1.0
LAST_FULL_PAUSE_S = 60.0
"""The same for a node that is full, and of which nothing is wanted; less up to a half, by chance."""
PAUSES = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
FULL_PAUSES = Backoff(FIRST_FULL_PAUSE_S, LAST_FULL_PAUSE_S)


@dataclass(slots=True)
class _Turn:
    """When a node's turn comes: at ``due_s``, or at ``wanted_s`` if something is wanted of it."""

    due_s: float = 0.0
    wanted_s: float = 0.0
    tries: int = 0
    refusals: int = 0
    """How often in a row the node had no room."""


class Reconnecting:
    """The turns of all nodes, by address. ``chance`` returns a number from 0 to 1; times are in seconds, on one clock.

    >>> turns = Reconnecting(chance=lambda: 0.0)
    >>> turns.tried("a:1", 10.0)
    >>> turns.is_due("a:1", 10.01, wanted=False), turns.is_due("a:1", 10.05, wanted=False)
    (False, True)
    >>> turns.made_room("a:1", 20.0)
    >>> turns.is_due("a:1", 79.0, wanted=False), turns.is_due("a:1", 20.0, wanted=True)
    (False, True)
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._turns: dict[str, _Turn] = {}

    def is_due(self, address: str, now_s: float, *, wanted: bool) -> bool:
        """Whether to connect now; ``wanted``: something waits for the node."""
        turn = self._turns.get(address)
        return turn is None or now_s >= (min(turn.wanted_s, turn.due_s) if wanted else turn.due_s)

    def tried(self, address: str, now_s: float) -> None:
        """Take note of a connection that is begun; the next one, should it fail, comes after a pause."""
        turn = self._turn(address)
        turn.tries += 1
        turn.due_s = turn.wanted_s = now_s + PAUSES.pause_s(turn.tries)

    def lost(self, address: str) -> None:
        """Take note that a connection that was open has ended: its node may be tried at once."""
        self._turns[address] = _Turn()

    def full(self, address: str, now_s: float) -> None:
        """Take note that the node has no room."""
        turn = self._turn(address)
        turn.refusals += 1
        self._put_off(turn, now_s, FULL_PAUSES.pause_s(turn.refusals))

    def made_room(self, address: str, now_s: float) -> None:
        """Take note that an open connection was ended because others need the room, or at rest."""
        self._turns[address] = turn = _Turn()
        self._put_off(turn, now_s, LAST_FULL_PAUSE_S)

    def _put_off(self, turn: _Turn, now_s: float, pause_s: float) -> None:
        turn.due_s = now_s + pause_s * (1.0 - self._chance() / 2)

    def _turn(self, address: str) -> _Turn:
        return self._turns.setdefault(address, _Turn())
