"""From events and samples to figures; pure. Times are seconds of the wall clock, which all processes share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

GIB = 1024**3
MIB = 1024**2
LEAST_THROTTLE = MIB
"""The smallest value of the setting ``bootstrap_bytes_per_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the databases are."""

    database_bytes: int
    snapshots: int
    snapshot_keys: int
    replay_keys: int
    restart_keys: int
    throttle_bytes_per_s: int


FULL = Sizes(
    database_bytes=2 * GIB, snapshots=5, snapshot_keys=1_000_000, replay_keys=5_000_000, restart_keys=10_000_000,
    throttle_bytes_per_s=64 * MIB,
)  # fmt: skip


def scaled(scale: float) -> Sizes:
    """Return the sizes at a scale; 1 is the size that the goals are about.

    >>> scaled(0.01).replay_keys, scaled(0.01).throttle_bytes_per_s
    (50000, 1048576)
    """
    if not 0 < scale <= 100:
        raise ValueError(f"the scale must be more than 0 and at most 100, not {scale}")
    return Sizes(
        database_bytes=ceil(FULL.database_bytes * scale),
        snapshots=FULL.snapshots,
        snapshot_keys=ceil(FULL.snapshot_keys * scale),
        replay_keys=ceil(FULL.replay_keys * scale),
        restart_keys=ceil(FULL.restart_keys * scale),
        throttle_bytes_per_s=max(LEAST_THROTTLE, ceil(FULL.throttle_bytes_per_s * scale)),
    )


# -- rounds ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: what was listed and fetched in bytes, and when it was asked for, listed, and over."""

    number: int
    offset: int
    listed_bytes: int
    fetched_bytes: int
    asked_s: float
    listed_s: float
    ended_s: float


def rounds_of(events: Iterable[Mapping[str, Any]]) -> list[Round]:
    """Return the rounds that were fetched whole, from the events of ``recorded_node``."""
    found: list[Round] = []
    asked_s = 0.0
    listed: Mapping[str, Any] = {}
    for event in events:
        if event["event"] == "asked":
            asked_s = event["time_s"]
        elif event["event"] == "listed":
            listed = event
        elif event["event"] == "round" and listed:
            found.append(
                Round(
                    number=event["round"], offset=listed["offset"], listed_bytes=listed["listed_bytes"],
                    fetched_bytes=event["fetched_bytes"] - listed["fetched_bytes"], asked_s=asked_s,
                    listed_s=listed["time_s"], ended_s=event["time_s"],
                )
            )  # fmt: skip
    return found


def time_of(events: Iterable[Mapping[str, Any]], name: str) -> float:
    """Return when an event was seen last; raises ValueError if it was not."""
    times = [float(event["time_s"]) for event in events if event["event"] == name]
    if not times:
        raise ValueError(f"there was no event {name!r}")
    return times[-1]


# -- samples -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Samples:
    """Values of counters at times, in order."""

    times_s: list[float] = field(default_factory=list)
    values: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, time_s: float, values: Mapping[str, float]) -> None:
        """Take a sample."""
        self.times_s.append(time_s)
        self.values.append(values)

    def at(self, time_s: float, name: str) -> float:
        """Return a counter's value at a time, as if it grew evenly between two samples.

        >>> samples = Samples([10.0, 20.0], [{"n": 0}, {"n": 100}])
        >>> samples.at(15.0, "n"), samples.at(5.0, "n"), samples.at(99.0, "n")
        (50.0, 0, 100)
        """
        if not self.times_s:
            raise ValueError("there are no samples")
        after = bisect_right(self.times_s, time_s)
        if after == 0:
            return self.values[0][name]
        if after == len(self.times_s):
            return self.values[-1][name]
        begun_s, ended_s = self.times_s[after - 1 : after + 1]
        share = (time_s - begun_s) / (ended_s - begun_s)
        begun, ended = self.values[after - 1][name], self.values[after][name]
        return begun + share * (ended - begun)

    def rate(self, name: str, begun_s: float, ended_s: float) -> float:
        """Return how much a counter grew in a second between two times."""
        return (self.at(ended_s, name) - self.at(begun_s, name)) / max(ended_s - begun_s, 1e-9)


# -- latencies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Latencies of the requests that were under way at some time within a window, in ms."""

    requests: int
    p99_ms: float
    max_ms: float


def pause(calls: Sequence[tuple[float, float]], begun_s: float, ended_s: float) -> Pause:
    """Return the latencies of those ``calls`` (begun, ended) that were under way between two times.

    >>> pause([(0.0, 0.1), (1.0, 1.5), (1.2, 1.3)], 1.25, 1.4)
    Pause(requests=2, p99_ms=500.0, max_ms=500.0)
    """
    found = [(ended - begun) * 1000 for begun, ended in calls if begun <= ended_s and ended >= begun_s]
    return Pause(requests=len(found), p99_ms=percentile(found, 99), max_ms=percentile(found, 100))


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that ``percent`` of the values do not exceed; 0.0 if there are none.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50), percentile(range(1, 101), 99), percentile([], 50)
    (2.0, 99.0, 0.0)
    """
    ordered = sorted(values)
    return round(float(ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]), 3) if ordered else 0.0
