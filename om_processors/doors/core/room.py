"""Which direct connection makes room for a new one while all places are taken. Pure.

The one makes room that has rested longest, if it has rested for REST_S. Who waits for an answer does not rest, nor who
sends a frame: so whoever opens connections in a loop ends none that is at work. A connection that was just taken has
not rested either: so each place changes hands once in REST_S at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

REST_S = 10.0
"""How long a connection must have rested before it makes room for another one."""

Connection = TypeVar("Connection")


class DoorRoom(Generic[Connection]):
    """Decides who makes room; for one thread.

    >>> room = DoorRoom[str]()
    >>> room.who_goes([("a", 7.0), ("b", 3.0), ("c", 5.0)], now_s=20.0)
    'b'
    >>> room.who_goes([("a", 17.0)], now_s=20.0) is None
    True
    """

    def __init__(self) -> None:
        self._nobody_before_s = 0.0

    def who_goes(self, resting: Iterable[tuple[Connection, float]], now_s: float) -> Connection | None:
        """Return who makes room, None if nobody has rested for long; ``resting``: those at rest, and since when.

        ``resting`` is not read while it is known that it holds nobody: refusing a flood of connections costs little.
        """
        if now_s < self._nobody_before_s:
            return None
        longest: Connection | None = None
        longest_s = now_s
        for connection, since_s in resting:
            if since_s < longest_s:
                longest, longest_s = connection, since_s
        if now_s - longest_s >= REST_S:
            return longest
        # Who works now, or comes, will rest since a later time than the one that rests longest.
        self._nobody_before_s = longest_s + REST_S
        return None
