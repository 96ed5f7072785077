"""What victims of an attack saw, quiet and beside it, and whether it was too slow. Pure.

p50 is judged, not p99: on a machine that does other things, too, p99 says what those were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ACTS = ("put", "look_up")
FACTOR = 3.0
"""How many times its quiet p50 a victim's p50 may be beside an attack. Seen: 0.5 to 1.8, on two cores at a load of 22."""
FACTORS = {"flood": 100.0, "slow-reader": 15.0}
"""The same beside well-formed requests, which the node executes. Seen, at such loads: 9 to 35, and 1.0 to 6.

A put waits for the batch before its own and for its own, a look-up for a turn of the leader or of the event loop. Each
of them is full beside such an attack, and longer the less of the machine the node has. Without lanes, so that a put
waits for all that the attackers have sent, it is 400 to 580 times slower beside the flood.
"""


@dataclass
class Seen:
    """Times of one victim in one kind of phase, in milliseconds."""

    times_ms: dict[str, list[float]] = field(default_factory=lambda: {act: [] for act in ACTS})
    connected_ms: list[float] = field(default_factory=list)
    """How long it took to connect, for a victim that connects in each phase."""

    def figures(self) -> dict[str, object]:
        """Return what is told of it."""
        found: dict[str, object] = {act: figures(times) for act, times in self.times_ms.items()}
        return found | ({"connected_ms": [round(one) for one in self.connected_ms]} if self.connected_ms else {})


def share(times_ms: Sequence[float], at: float) -> float:
    """Return the time within which such a share of requests was answered.

    >>> share([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(times_ms)
    return ordered[min(len(ordered) - 1, int(len(ordered) * at))]


def figures(times_ms: Sequence[float]) -> dict[str, float]:
    """Return the number of requests, and their times."""
    if not times_ms:
        return {"requests": 0}
    return {
        "requests": len(times_ms), "p50_ms": round(share(times_ms, 0.5), 2), "p99_ms": round(share(times_ms, 0.99), 2),
        "most_ms": round(max(times_ms), 1),
    }  # fmt: skip


def faults(quiet: Mapping[str, Seen], beside: Mapping[str, Seen], factor: float) -> Iterator[str]:
    """Yield who was not served beside an attack, or too slowly: by p50 against its own of the quiet phases."""
    for victim, seen in beside.items():
        for act in ACTS:
            before, during = quiet[victim].times_ms[act], seen.times_ms[act]
            if not before or not during:
                yield f"{victim}: no {act} was answered {'beside it' if before else 'before it'}"
                continue
            was_ms, is_ms = share(before, 0.5), share(during, 0.5)
            if is_ms > factor * was_ms:
                yield f"{victim}: p50 of {act} is {is_ms:.2f} ms, more than {factor:g} times {was_ms:.2f} ms"


HEADER = (
    "| attack | victim | put: quiet p50, p99 | beside | look-up: quiet p50, p99 | beside | connected |\n"
    "|---|---|---|---|---|---|---|"
)


def rows(attack: str, quiet: Mapping[str, Seen], beside: Mapping[str, Seen]) -> Iterator[str]:
    """Yield the rows of a table, below HEADER; ``connected`` is the longest time, quiet and beside."""
    for victim, seen in beside.items():
        cells = [attack, victim]
        for act in ACTS:
            cells += [_cell(quiet[victim].times_ms[act]), _cell(seen.times_ms[act])]
        connected = [max(one.connected_ms, default=0.0) / 1000 for one in (quiet[victim], seen)]
        cells.append(f"{connected[0]:.1f}, {connected[1]:.1f} s" if any(connected) else "before")
        yield f"| {' | '.join(cells)} |"


def _cell(times_ms: Sequence[float]) -> str:
    return f"{share(times_ms, 0.5):.1f}, {share(times_ms, 0.99):.0f} ms" if times_ms else "none"
