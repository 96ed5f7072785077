"""How old a verdict is, and whether it still says something. Pure.

A verdict is about one barrier. A cluster that nobody writes to has no new barriers for a long while, and its last
verdicts stay true. An audit that has died says nothing new either. What tells the two apart is the replicas' reports:

1. A partition is *behind* if its replicas have reported SILENCE_MS or more after its newest verdict was decided. All
   its verdicts are stale then.
2. An ``equal`` on a replica is stale, too, if a verdict on the same partition and basis is SILENCE_MS younger: this
   replica is a member no longer, or is not heard of. Of full scans OLD_MS: each node reads its rows at its own pace.
3. Where nobody knows when the replicas have reported, verdicts of OLD_MS are stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import EQUAL, SCRUBBED

SILENCE_MS = 60_000
"""A replica reports within a second of a barrier, and is judged within ten."""

OLD_MS = 25 * 60_000
"""Without writes there is a barrier at each scrub, every ten minutes as a rule."""

STALE = "stale"


class ReportedPartition(NamedTuple):
    """A partition of a log whose replicas report."""

    log: str
    shard: int


class JudgedVerdict(NamedTuple):
    """A verdict with its age, and whether it is stale."""

    verdict: Verdict
    age_ms: int
    is_stale: bool

    @property
    def words(self) -> str:
        """What is shown of it: the verdict, its age, and that it is stale."""
        shown = f"{self.verdict.verdict}, {age_words(self.age_ms)} ago"
        return f"{shown} ({STALE})" if self.is_stale else shown


def age_words(age_ms: int) -> str:
    """Return an age for people.

    >>> age_words(-5), age_words(59_999), age_words(7_199_000), age_words(7_200_000), age_words(200_000_000)
    ('0 s', '59 s', '119 min', '2 h', '55 h')
    """
    seconds = max(0, age_ms) // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def judged(
    verdicts: Iterable[Verdict], reported_ms: Mapping[ReportedPartition, int], now_ms: int
) -> list[JudgedVerdict]:
    """Say of each of the latest verdicts how old it is; ``reported_ms``: when each partition's last report came."""
    found = list(verdicts)
    behind = behind_partitions(found, reported_ms)
    newest: dict[tuple[str, int, str], int] = {}
    for one in found:
        key = one.log, one.shard, one.basis
        newest[key] = max(newest.get(key, 0), one.decided_at_ms)

    def is_stale(one: Verdict) -> bool:
        partition = ReportedPartition(one.log, one.shard)
        patience_ms = OLD_MS if one.basis.endswith(SCRUBBED) else SILENCE_MS
        left_behind = newest[one.log, one.shard, one.basis] - one.decided_at_ms >= patience_ms
        is_old = partition not in reported_ms and now_ms - one.decided_at_ms >= OLD_MS
        return partition in behind or (one.verdict == EQUAL and left_behind) or is_old

    return [JudgedVerdict(one, max(0, now_ms - one.decided_at_ms), is_stale(one)) for one in found]


def behind_partitions(
    verdicts: Sequence[Verdict], reported_ms: Mapping[ReportedPartition, int]
) -> dict[ReportedPartition, int]:
    """Return the partitions whose replicas have reported since, and for how long without a verdict, in ms."""
    decided: dict[ReportedPartition, int] = {}
    for one in verdicts:
        partition = ReportedPartition(one.log, one.shard)
        decided[partition] = max(decided.get(partition, 0), one.decided_at_ms)
    return {
        partition: reported_ms[partition] - last_ms
        for partition, last_ms in decided.items()
        if partition in reported_ms and reported_ms[partition] - last_ms >= SILENCE_MS
    }
