"""The planned repairs: which blocks, when each is due, who is at work on it, and what was found meanwhile. Pure.

Rules:

1. A block is planned once, however often it is found damaged; the list has room for ``limit`` blocks.
2. One thread at a time works on a block. The work may miss damage that is found while it goes on, so the repair is not
   finished then, but due again at once (``finish``).
3. Cells that were read and found wrong are fetched, whatever checksums are remembered for them (``cells``), until they
   have come.

For one thread at a time: the owner has a lock. Times are seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from datanode_processors.repair.core.agenda import Agenda
from transport.waiting.core.backoff import Backoff

FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0
"""First and longest pause between two attempts at one repair."""
PAUSES = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)

Place = tuple[int, bytes]
"""(partition, key of the block)"""


@dataclass(slots=True)
class _Repair:
    found: int = 1
    """How often the block was found damaged."""
    cells: set[int] = field(default_factory=set)
    failures: int = 0
    """Attempts in a row that could not be made."""
    at_work: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTask:
    """A repair that a thread works on."""

    place: Place
    found: int
    """How often the block had been found damaged when the work began."""


class Repairs:
    """The planned repairs of one datanode."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._repairs: dict[Place, _Repair] = {}
        self._due: Agenda[Place] = Agenda()

    def __len__(self) -> int:
        return len(self._repairs)

    def __contains__(self, place: Place) -> bool:
        return place in self._repairs

    def add(self, place: Place, now_s: float, cell: int | None = None) -> bool:
        """Plan a repair, or note that the block was found damaged once more; return False if there is no room."""
        repair = self._repairs.get(place)
        if repair is None:
            if len(self._repairs) >= self._limit:
                return False
            repair = self._repairs[place] = _Repair()
            self._due.put(place, now_s)
        else:
            repair.found += 1
        if cell is not None:
            repair.cells.add(cell)
        return True

    def waits_for(self, place: Place, cell: int) -> bool:
        """Whether a cell is known to be wrong and its block waits for its repair: finding the cell again is no news."""
        repair = self._repairs.get(place)
        return repair is not None and cell in repair.cells and not repair.at_work

    def hurry(self, place: Place, now_s: float) -> None:
        """Make a repair due now that is probably not needed any more.

        Except for one with cells that were read and found wrong.
        """
        repair = self._repairs[place]
        if not repair.at_work and not repair.cells:
            self._due.put_sooner(place, now_s)

    def next_due_s(self) -> float | None:
        """Return when the next repair is due; None if none waits."""
        return self._due.next_due_s()

    def take(self, now_s: float) -> RepairTask | None:
        """Return a repair to work on, which ends by ``finish`` or ``fail``; None if none is due."""
        place = self._due.take(now_s)
        if place is None:
            return None
        repair = self._repairs[place]
        repair.at_work = True
        return RepairTask(place=place, found=repair.found)

    def cells(self, place: Place) -> frozenset[int]:
        """Return the cells that must be fetched in any case."""
        return frozenset(self._repairs[place].cells)

    def on_cells(self, place: Place, cells: Iterable[int]) -> None:
        """Note that cells have come."""
        self._repairs[place].cells.difference_update(cells)

    def finish(self, taken: RepairTask, now_s: float, *, whole: bool) -> bool:
        """End the work on a repair and return whether the block is right: if not, the repair is due again.

        ``whole`` says that the block was found right, as far as it is committed now, or needs no repair any more.
        """
        repair = self._repairs[taken.place]
        if whole and repair.found == taken.found:
            del self._repairs[taken.place]
            return True
        repair.at_work = False
        repair.failures = 0
        self._due.put(taken.place, now_s)
        return False

    def fail(self, taken: RepairTask, now_s: float) -> None:
        """End the work on a repair that could not be done now: it is tried again after a pause."""
        repair = self._repairs[taken.place]
        repair.at_work = False
        repair.failures += 1
        self._due.put(taken.place, now_s + PAUSES.pause_s(repair.failures))
