"""What is to be done, and when: each thing once, the earliest first. Pure: the caller says what time it is.

Putting and taking cost a logarithm of the number of things. A thing that is put again leaves its old entry behind,
which is skipped. When the entries reach twice the things (and SLACK), the old ones are thrown away, so the number of
different things bounds the size.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

SLACK = 64
"""So few entries left behind are not worth a clearing."""

Thing = TypeVar("Thing", bound=Hashable)


class Agenda(Generic[Thing]):
    """For one thread at a time. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._due: dict[Thing, float] = {}
        self._heap: list[tuple[float, int, Thing]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._due

    def put(self, thing: Thing, due_s: float) -> None:
        """Schedule a thing for a time; this replaces any time set before."""
        self._due[thing] = due_s
        self._count += 1
        heapq.heappush(self._heap, (due_s, self._count, thing))
        if len(self._heap) > 2 * len(self._due) + SLACK:
            kept = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            self._heap = list({entry[2]: entry for entry in kept}.values())
            heapq.heapify(self._heap)

    def put_sooner(self, thing: Thing, due_s: float) -> None:
        """Schedule a thing for a time, unless it is scheduled for an earlier one."""
        if due_s < self._due.get(thing, float("inf")):
            self.put(thing, due_s)

    def drop(self, thing: Thing) -> None:
        """Remove a thing."""
        self._due.pop(thing, None)

    def next_due_s(self) -> float | None:
        """Return when the next thing is due; None if there is none."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_s: float) -> Thing | None:
        """Return the thing that has been due longest and forget it; None if nothing is due."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        thing = heapq.heappop(self._heap)[2]
        del self._due[thing]
        return thing
