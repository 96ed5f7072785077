"""Which datanodes a client has found silent, and for how long it goes on without them (decision 0082). Pure.

What belongs here: the memory that all blocks of a client share. A *place* is a datanode's name and its address: one
that has moved is not remembered at its new address. The rules:

1. A place is *silent* from the moment when it was asked for a HELLO and let the time pass, until it says one or
   refuses, or nobody has found it silent for FORGET_S.
2. A silent place is asked again, by one probe at a time, FIRST_PAUSE_S after it was found silent. The pause is twice as
   long after each probe without an answer, LAST_PAUSE_S at most. It counts as silent meanwhile: nobody waits for a
   probe. A probe that does not end in PROBE_LOST_S counts as lost.
3. A place that is waited for unusually long may be *suspected*: it is probed, and counts as there meanwhile.
4. At most MAX_REMEMBERED places are remembered: those found silent last. At most MAX_PROBES probes are under way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transport.waiting.core.backoff import Backoff

Place = tuple[str, str]
"""Name and address of a datanode."""

FORGET_S = 30.0
"""After so many seconds in which nobody has found a datanode silent, it counts as there again."""
FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 8.0
"""Longest pause between two probes of a silent datanode, in seconds."""
PAUSES = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
PROBE_LOST_S = 10.0
MAX_REMEMBERED = 64
MAX_PROBES = 4


@dataclass(slots=True)
class _Memory:
    failures: int
    """Probes in a row without an answer."""
    probe_at_s: float
    until_s: float


class SilentDatanodes:
    """The silent datanodes of one client; its caller makes sure that one thread at a time calls it."""

    def __init__(self) -> None:
        self._silent: dict[Place, _Memory] = {}
        self._probes: dict[Place, float] = {}
        """Probes under way, and when each counts as lost (seconds)."""

    def __len__(self) -> int:
        """Return how many places are remembered."""
        return len(self._silent)

    def silent(self, places: Iterable[Place], now_s: float) -> set[Place]:
        """Return those of the places that are silent; rule 1."""
        return {place for place in places if (found := self._silent.get(place)) is not None and now_s < found.until_s}

    def due(self, places: Iterable[Place], now_s: float) -> list[Place]:
        """Return those of the places that are to be probed now; each counts as being probed. Rule 2."""
        silent = self.silent(places, now_s)
        return self._claim([place for place in silent if now_s >= self._silent[place].probe_at_s], now_s)

    def suspect(self, places: Iterable[Place], now_s: float) -> list[Place]:
        """Return those of the places, not known to be silent, that are to be probed now. Rule 3."""
        named = list(places)
        silent = self.silent(named, now_s)
        return self._claim([place for place in named if place not in silent], now_s)

    def _claim(self, places: Iterable[Place], now_s: float) -> list[Place]:
        self._probes = {place: lost_s for place, lost_s in self._probes.items() if now_s < lost_s}
        claimed = []
        for place in places:
            if place not in self._probes and len(self._probes) < MAX_PROBES:
                self._probes[place] = now_s + PROBE_LOST_S
                claimed.append(place)
        return claimed

    def on_silent(self, place: Place, now_s: float) -> None:
        """Note that a place was asked for a HELLO and let the time pass."""
        self._probes.pop(place, None)
        found = self._silent.pop(place, None)
        if found is None or now_s >= found.until_s:
            found = _Memory(1, now_s + PAUSES.pause_s(1), now_s)
        elif now_s >= found.probe_at_s:
            found.failures += 1
            found.probe_at_s = now_s + PAUSES.pause_s(found.failures)
        found.until_s = now_s + FORGET_S
        self._silent[place] = found  # the last of all: the first are forgotten first
        while len(self._silent) > MAX_REMEMBERED:
            del self._silent[next(iter(self._silent))]

    def on_answered(self, place: Place) -> None:
        """Note that a place said HELLO, or refused."""
        self._probes.pop(place, None)
        self._silent.pop(place, None)
