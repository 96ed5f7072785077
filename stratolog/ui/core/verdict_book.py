"""Verdicts in the order of ``om.verdicts``: the latest on each replica, what stands, and what changed when. Pure.

Rules:

1. The latest verdict on a replica and basis is the one at the highest barrier
   (``transport/topics/core/latest_verdicts.py``).
2. A divergence *stands* until the same basis says ``equal`` at a barrier that is no older, or a full scan does.
3. A change to ``diverged`` and back, and a DigestBase, are events of the timeline. All are bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import BASE, DIVERGED, EQUAL, SCRUBBED
from stratolog.ui.core.observed import TimelineEvent
from stratolog.ui.core.words import Tone, partition_words
from transport.topics.core.latest_verdicts import LatestVerdicts

MAX_EVENTS = 200


class JudgedReplica(NamedTuple):
    """A replica of a partition of a log; ``node`` is empty for a verdict on the log itself."""

    log: str
    shard: int
    node: str


@dataclass(slots=True)
class VerdictBook:
    """What verdicts say so far."""

    latest: LatestVerdicts = field(default_factory=LatestVerdicts)
    events: deque[TimelineEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in the order in which they were written."""
        for change in self.latest.take(verdicts):
            self._note(change.before, change.now)

    def _note(self, before: Verdict | None, verdict: Verdict) -> None:
        where = partition_words(verdict.log, verdict.shard)
        was = None if before is None else before.verdict
        if verdict.basis == BASE:
            words = verdict.reason or "the log's sums begin anew"
            self._add(verdict, where, f"digest base at index {verdict.index:,}: {words}", Tone.WARN)
        elif verdict.verdict == DIVERGED and was != DIVERGED:
            text = f"{verdict.node or 'the log'} DIVERGED at index {verdict.index:,} ({verdict.basis})"
            self._add(verdict, where, text, Tone.BAD)
        elif verdict.verdict == EQUAL and was == DIVERGED:
            text = f"{verdict.node or 'the log'} equal again at index {verdict.index:,} ({verdict.basis})"
            self._add(verdict, where, text, Tone.GOOD)

    def _add(self, verdict: Verdict, where: str, text: str, tone: Tone) -> None:
        self.events.append(TimelineEvent(verdict.decided_at_ms, where, text, tone))


def standing(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the divergences that stand, of the latest verdicts on each replica and basis (rule 2)."""
    found = list(verdicts)
    scanned = {
        JudgedReplica(one.log, one.shard, one.node): one.barrier_offset
        for one in found
        if one.basis == SCRUBBED and one.verdict == EQUAL
    }
    return [
        one
        for one in found
        if one.verdict == DIVERGED
        and scanned.get(JudgedReplica(one.log, one.shard, one.node), -1) < max(one.barrier_offset, 0)
    ]
