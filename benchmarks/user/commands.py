"""One measurement: what a user's process is told, and what it tells; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.audit.figures import percentile

VOLUME, BUCKET = "bench", "bucket"
PUT, GET, LOOKUP, LOOKUPS, CREATE = "put", "get", "lookup", "lookups", "create"
PRODUCE, RELAY = "produce", "relay"
LOOKED_UP = 100
"""Keys of one call of ``lookups``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCommand:
    """What a user does, with how many threads, for how many seconds after the warm-up.

    ``size`` is that of files, in bytes; ``consistency`` that of lookups; ``keys`` is how many files there are to be
    read. ``brokers`` and ``nodes`` are what the client is given; ``produce`` writes to ``topic``, and ``relay`` asks
    the bare relay that is the first of ``nodes``. A thread rests for ``pause_s`` between two calls, which is not
    measured.
    """

    what: str
    clients: int
    seconds: float
    warm_up_seconds: float
    brokers: str = ""
    nodes: tuple[str, ...] = ()
    size: int = 0
    consistency: str = ""
    keys: int = 0
    topic: str = ""
    pause_s: float = 0.0
    run: int = 0
    """A number of its own for each measurement, so that names of keys are new."""

    def key(self, thread: int, number: int) -> str:
        """Return the name of a file that is written."""
        return f"{self.what}-{self.size}-{self.run}-{thread}-{number}"

    def told(self) -> dict[str, Any]:
        """Return the command for JSON."""
        return asdict(self)


def read_key(size: int, number: int) -> str:
    """Return the name of a file that is there to be read."""
    return f"read-{size}-{number}"


def figures(command: UserCommand, seconds: Sequence[float], over_s: float) -> dict[str, Any]:
    """Return the figures of calls that took so many ``seconds`` each, done in ``over_s`` together.

    >>> figures(UserCommand(what="put", clients=1, seconds=1, warm_up_seconds=0), [0.002, 0.004], 1.0)
    {'operations': 2, 'per_second': 2.0, 'p50_ms': 2.0, 'p99_ms': 4.0}

    A call of ``lookups`` counts as many operations as it has keys.
    """
    each = LOOKED_UP if command.what == LOOKUPS else 1

    def at(share: float) -> float:
        return round(percentile(seconds, share) * 1000, 2) if seconds else 0.0

    operations = len(seconds) * each
    return {
        "operations": operations, "per_second": round(operations / over_s, 1), "p50_ms": at(0.5), "p99_ms": at(0.99),
    }  # fmt: skip
