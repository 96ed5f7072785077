"""The sentence on top: what the audit says of all replicas together, how old that is, whether it still holds. Pure.

Rules, the first one that applies:

1. A replica has diverged: red, with its name.
2. Nobody has judged anything: the audit is missing, or has just begun.
3. No broker listens, the audit's process has ended, or replicas report and nobody judges them: grey, with the last
   thing said.
4. Some replica is ``unknown``, or its node does not answer: yellow.
5. All are equal: green.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import EQUAL, INCREMENTAL, SCRUBBED, UNKNOWN
from schemas.topics import OM_LOG
from spark_streaming.records.core.freshness import JudgedVerdict, age_words, behind_partitions, judged
from stratolog.ui.core.observed import Observed
from stratolog.ui.core.verdict_book import JudgedReplica, standing
from stratolog.ui.core.words import Tone, count_of, listed, partition_words

AUDIT_PROCESS = "audit"
"""Name of the audit's process in a local stack."""
MAX_INDEXES = 6
"""With more shards the sentence names the lowest and the highest index alone."""
MAX_REASON_CHARACTERS = 240
"""Of each thing that explains the sentence: a longer reason is in the replica's dialog."""


class Sentence(NamedTuple):
    """The sentence, what explains it, and its tone."""

    text: str
    more: str
    tone: Tone


def sentence_of(seen: Observed) -> Sentence:
    """Return the sentence for what was observed."""
    shown = judged(seen.verdicts, seen.reported_ms, seen.now_ms)
    if found := standing(seen.verdicts):
        return _of_divergence(seen, found, shown)
    replicas = [one for one in shown if one.verdict.node and one.verdict.basis == INCREMENTAL]
    if not replicas:
        return _of_nothing(seen)
    age_ms = min(one.age_ms for one in replicas)
    said = f"{_indexes(seen, replicas)}, {age_words(age_ms)} ago, {_last_scan(shown)}"
    fresh = [one for one in replicas if not one.is_stale]
    if seen.is_cut_off:
        text = f"No broker answers; the audit last said: {count_of(len(_equal(replicas)), 'replica')} equal at {said}"
        return Sentence(text, _quiet_words(seen), Tone.STALE)
    if AUDIT_PROCESS in seen.stopped:
        text = f"The audit has ended; it last said: {count_of(len(_equal(replicas)), 'replica')} equal at {said}"
        return Sentence(text, "'stratolog up' starts it again; see logs/audit.log of the stack", Tone.STALE)
    if not fresh:
        return _of_silence(seen, shown, f"{count_of(len(_equal(replicas)), 'replica')} were equal at {said}")
    equal = _equal(fresh)
    doubts = [*_unknown(fresh), *_left_out(seen, replicas)]
    if doubts or len(equal) < len(replicas):
        text = f"{len(equal)} of {count_of(len(replicas), 'replica')} equal at {said}"
        return Sentence(text, "; ".join(doubts[:3]), Tone.WARN)
    return Sentence(f"{count_of(len(equal), 'replica')} equal at {said}", _quiet_words(seen), Tone.GOOD)


def _of_divergence(seen: Observed, found: Sequence[Verdict], shown: Sequence[JudgedVerdict]) -> Sentence:
    named = {JudgedReplica(one.log, one.shard, one.node) for one in found}
    all_of = {JudgedReplica(one.verdict.log, one.verdict.shard, one.verdict.node) for one in shown if one.verdict.node}
    names = [f"{one.node or 'the log'} of {partition_words(one.log, one.shard)}" for one in sorted(named)]
    newest = max(found, key=lambda one: one.decided_at_ms)
    text = f"{len(named)} of {count_of(len(all_of | named), 'replica')} DIVERGED: {listed(names)}"
    ago = age_words(seen.now_ms - newest.decided_at_ms)
    what = newest.reason or "its cell in the grid names what differs"
    more = f"at index {newest.index:,}, by {newest.basis}, said {ago} ago: {what}"
    return Sentence(text, more, Tone.BAD)


def shortened(reason: str) -> str:
    """Return a reason as it stands below the sentence.

    >>> shortened("x" * 300) == "x" * MAX_REASON_CHARACTERS + "…", shortened("short")
    (True, 'short')
    """
    return reason if len(reason) <= MAX_REASON_CHARACTERS else f"{reason[:MAX_REASON_CHARACTERS]}…"


def _of_nothing(seen: Observed) -> Sentence:
    if seen.is_cut_off:
        return Sentence("No broker answers, and nothing is judged", _quiet_words(seen), Tone.STALE)
    if AUDIT_PROCESS in seen.stopped:
        return Sentence("The audit has ended, and nothing is judged", "'stratolog up' starts it again", Tone.STALE)
    if seen.reported_ms:
        more = "replicas report, and there is no verdict: does the audit run?"
        return Sentence("No replica has been judged yet", more, Tone.STALE)
    return Sentence("No replica has been judged yet", "no reports and no verdicts so far", Tone.STALE)


def _of_silence(seen: Observed, shown: Sequence[JudgedVerdict], said: str) -> Sentence:
    behind = behind_partitions([one.verdict for one in shown], seen.reported_ms)
    if not behind:
        return Sentence(f"Nothing new is judged; {said}", "nobody knows when the replicas have reported", Tone.STALE)
    more = f"{count_of(len(behind), 'partition')} with reports of {age_words(max(behind.values()))} without a verdict"
    return Sentence(f"The audit is silent; {said}", f"{more}: does the audit run?", Tone.STALE)


def _equal(replicas: Iterable[JudgedVerdict]) -> list[JudgedVerdict]:
    return [one for one in replicas if one.verdict.verdict == EQUAL]


def _indexes(seen: Observed, replicas: Sequence[JudgedVerdict]) -> str:
    """Say at which index the shards were judged last; pipelines are not named."""
    reached: dict[int, int] = {}
    for one in replicas:
        if one.verdict.log == OM_LOG:
            reached[one.verdict.shard] = max(one.verdict.index, reached.get(one.verdict.shard, 0))
    if len(reached) == 1 and seen.shards == 1:
        return f"index {next(iter(reached.values())):,}"
    if len(reached) > MAX_INDEXES:
        return f"indexes {min(reached.values()):,} to {max(reached.values()):,}"
    words = [f"{index:,}" for _, index in sorted(reached.items())]
    return f"index {' · '.join(words)}" if words else "their last index"


def _last_scan(shown: Sequence[JudgedVerdict]) -> str:
    """Say how long ago the replica was scanned that has waited longest for it."""
    scans = [one for one in shown if one.verdict.basis == SCRUBBED and one.verdict.node]
    if not scans:
        return "no full scan yet"
    return f"last full scan {age_words(max(one.age_ms for one in scans))} ago"


def _unknown(fresh: Iterable[JudgedVerdict]) -> list[str]:
    return [
        f"{one.verdict.node} of {partition_words(one.verdict.log, one.verdict.shard)} is unknown: {one.verdict.reason}"
        for one in fresh
        if one.verdict.verdict == UNKNOWN
    ]


def _left_out(seen: Observed, replicas: Sequence[JudgedVerdict]) -> list[str]:
    """Name nodes that do not answer, and replicas that are not heard of any more."""
    words = [f"{name} does not answer" for name, status in seen.nodes.items() if status is None]
    silent = {name for name, status in seen.nodes.items() if status is None}
    words += [
        f"{one.verdict.node} of {partition_words(one.verdict.log, one.verdict.shard)} was last judged "
        f"{age_words(one.age_ms)} ago"
        for one in replicas
        if one.is_stale and one.verdict.node not in silent
    ]
    return words


def _quiet_words(seen: Observed) -> str:
    others = [name for name in seen.stopped if name != AUDIT_PROCESS]
    return f"not running: {listed(others)}" if others else ""
