"""The latest verdict on each replica and basis, folded from ``om.verdicts`` in the order of the topic. Pure.

This judges nothing: it says which of the audit's verdicts counts. Rules:

1. The latest verdict on a subject is the one at the highest barrier; of those at one barrier the one written last
   (``unknown``, then another, when the report comes late).
2. What is not the latest is remembered in part: how far ``equal`` was said, the last word that was not ``unknown``, and
   the last ``diverged``.
3. At most ``most`` subjects are kept. Beyond it the one goes that was judged least recently, and ``dropped`` counts it:
   whoever decides something by the verdicts then knows that some are missing.

Example::

    latest = LatestVerdicts()
    for change in latest.take(verdicts):
        print(change.before, "->", change.now)
    latest.of("om.log", 0, "om1", "incremental")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, UNKNOWN
from schemas.topics import OM_LOG

MAX_SUBJECTS = 4_096
"""Replicas times bases that are kept: far more than those of one cluster that people look at."""


class VerdictSubject(NamedTuple):
    """What a verdict is about: a replica of a partition of a log (no node: the log itself), and the basis."""

    log: str
    shard: int
    node: str
    basis: str


class VerdictChange(NamedTuple):
    """A verdict that became the latest on its subject, and the one before it."""

    before: Verdict | None
    now: Verdict


@dataclass(slots=True, kw_only=True)
class JudgedSubject:
    """What was said of one subject."""

    #: The latest verdict: the one at the highest barrier.
    latest: Verdict
    #: The highest barrier at which it was ``equal``; -1: none. Only ``equal`` proves that the audit has read a barrier.
    equal_offset: int = -1
    #: The verdict that was written last and is not ``unknown``.
    word: Verdict | None = None
    #: How many verdicts had been taken with that one: of two subjects the larger number spoke last.
    word_number: int = 0
    #: The verdict that was written last of those that are ``diverged``.
    diverged: Verdict | None = None


class LatestVerdicts:
    """The latest verdict on each subject; of one log, or of all (``log`` is None)."""

    def __init__(self, log: str | None = None, *, most: int = MAX_SUBJECTS) -> None:
        self.seen = 0
        self.dropped = 0
        self._log = log
        self._most = most
        self._found: dict[VerdictSubject, JudgedSubject] = {}

    def take(self, verdicts: Iterable[Verdict]) -> list[VerdictChange]:
        """Take verdicts in the order in which they were written; return those that became the latest, in that order."""
        changes = (self._take(one) for one in verdicts if self._log in (None, one.log))
        return [change for change in changes if change is not None]

    def _take(self, verdict: Verdict) -> VerdictChange | None:
        self.seen += 1
        subject = subject_of(verdict)
        known = self._found.pop(subject, None)
        entry = self._found[subject] = known or JudgedSubject(latest=verdict)
        before = None if known is None else known.latest
        if verdict.verdict != UNKNOWN:
            entry.word, entry.word_number = verdict, self.seen
        if verdict.verdict == EQUAL:
            entry.equal_offset = max(entry.equal_offset, verdict.barrier_offset)
        if verdict.verdict == DIVERGED:
            entry.diverged = verdict
        while len(self._found) > self._most:
            del self._found[next(iter(self._found))]
            self.dropped += 1
        if before is not None and verdict.barrier_offset < before.barrier_offset:
            return None
        entry.latest = verdict
        return VerdictChange(before, verdict)

    def forget(self, subject: VerdictSubject) -> None:
        """Forget what was said of a subject."""
        self._found.pop(subject, None)

    def of(self, log: str, shard: int, node: str, basis: str) -> Verdict | None:
        """Return the latest verdict on a subject, None if there is none."""
        found = self._found.get(VerdictSubject(log, shard, node, basis))
        return None if found is None else found.latest

    def subjects(self) -> Iterator[tuple[VerdictSubject, JudgedSubject]]:
        """Iterate over everything that is kept; the subject judged last comes last."""
        return iter(self._found.items())

    def __iter__(self) -> Iterator[Verdict]:
        """Iterate over the latest verdicts by log, shard, node, basis; the Object Manager's log comes first."""
        order = sorted(self._found, key=lambda subject: (subject.log != OM_LOG, subject))
        return iter([self._found[subject].latest for subject in order])

    def __len__(self) -> int:
        """Return how many subjects are kept."""
        return len(self._found)


def subject_of(verdict: Verdict) -> VerdictSubject:
    """Return what a verdict is about."""
    return VerdictSubject(verdict.log, verdict.shard, verdict.node, verdict.basis)
