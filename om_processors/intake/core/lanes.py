"""Requests that wait for a shard's leader, and whose turn it is. Pure.

Each direct connection has a lane, and the brokers have one. Within a lane requests keep their order. Lanes take turns,
TURN_REQUESTS at a time: after each connection's turn the brokers have one, so each door has half of a leader that is
asked for too much. So a client that floods its connection waits behind its own requests, and others do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

TURN_REQUESTS = 16
"""Most requests that are taken from one lane while others wait."""


class OfLane(Protocol):
    """A request that waits."""

    @property
    def way(self) -> object | None:
        """The connection by which it came; None: by the brokers."""


Request = TypeVar("Request", bound=OfLane)


class Lanes(Generic[Request]):
    """A queue with a lane for each way by which requests come; for one thread."""

    def __init__(self) -> None:
        self._brokers: deque[Request] = deque()
        self._direct: dict[object, deque[Request]] = {}
        """Lanes of connections that have requests, the next one first."""
        self._lane = self._brokers
        self._left = 0
        """How many requests may be taken yet in this lane's turn."""
        self._longest = self._brokers
        """The lane from which the surplus is taken, looked for anew once in TURN_REQUESTS."""
        self._surplus_left = 0
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._waiting

    def extend(self, received: Iterable[Request]) -> None:
        """Put requests at the end of their lanes."""
        for one in received:
            self._lane_of(one.way).append(one)
            self._waiting += 1

    def _lane_of(self, way: object | None) -> deque[Request]:
        if way is None:
            return self._brokers
        if (lane := self._direct.get(way)) is None:
            lane = self._direct[way] = deque()
        return lane

    def take(self) -> Request:
        """Take the next request; raises IndexError if none waits."""
        if not self._left or not self._lane:
            self._next_turn()
        self._left -= 1
        self._waiting -= 1
        return self._lane.popleft()

    def _next_turn(self) -> None:
        """Choose a lane that has requests: the brokers' behind each connection's."""
        if not self._waiting:
            raise IndexError("no request waits")
        if self._lane is not self._brokers:
            self._end_turn()
        if self._brokers and (self._lane is not self._brokers or not self._direct):
            self._lane = self._brokers
        else:
            self._lane = next(iter(self._direct.values()))
        self._left = TURN_REQUESTS

    def _end_turn(self) -> None:
        """Put the connection's lane behind the others, or away."""
        way = next(iter(self._direct), None)
        if way is not None and self._direct[way] is self._lane:
            lane = self._direct.pop(way)
            if lane:
                self._direct[way] = lane

    def take_surplus(self) -> Request:
        """Take the oldest request of the longest lane, or of what was it just now; raises IndexError."""
        if not self._surplus_left or not self._longest:
            self._longest = max((self._brokers, *self._direct.values()), key=len)
            self._surplus_left = TURN_REQUESTS
        longest = self._longest
        self._surplus_left -= 1
        found = longest.popleft()
        self._waiting -= 1
        if not longest and longest is not self._lane:
            self._direct = {way: lane for way, lane in self._direct.items() if lane}
        return found

    def keep_direct(self) -> None:
        """Forget the brokers' requests: the next leader reads them again."""
        self._waiting -= len(self._brokers)
        self._brokers.clear()
