"""Events of the timeline from records of the log: claims, members, modes, levels, digest bases. Pure.

Only control records are decoded; batches are told by the first bytes of their values, which costs nothing. A claim is
valid if its term is one more than the current one (the reading rule, ``replicated_db/core/log/reading.py``). The first
record that is read of a partition tells the current term: exact marks are in the page's log, which judges each record.
"""

from __future__ import annotations

from schemas.codecs.codec import Undecodable, decode, header_of
from schemas.records.log import (
    Barrier,
    Batch,
    DigestBase,
    FeatureLevel,
    Genesis,
    LeaderClaim,
    LogRecord,
    Members,
    Mode,
    Prepared,
    RequestBatch,
    Tick,
)
from schemas.topics import OM_LOG
from stratolog.ui.core.observed import TimelineEvent
from stratolog.ui.core.words import Tone, partition_words

SKIPPED = tuple(header_of(kind) for kind in (Batch, RequestBatch, Barrier, Tick))
"""First bytes of the values of records that are no events."""


class LogEvents:
    """Follows the current term of one partition of the Object Manager's log."""

    def __init__(self, shard: int) -> None:
        self._where = partition_words(OM_LOG, shard)
        self._term: int | None = None

    def take(self, value: bytes, at_ms: int) -> TimelineEvent | None:
        """Take the next record, appended at ``at_ms``; return the event that it is, None for most."""
        if self._term is not None and value.startswith(SKIPPED):
            return None
        try:
            record: LogRecord = decode(value)
        except Undecodable as error:
            return TimelineEvent(at_ms, self._where, f"undecodable record: {error}", Tone.BAD)
        if isinstance(record, LeaderClaim):
            return self._claim(record, at_ms)
        if self._term is None or record.term > self._term:
            self._term = record.term
        if record.term < self._term:
            return None  # void: of an earlier term
        words = words_of(record)
        return None if words is None else TimelineEvent(at_ms, self._where, words[0], words[1])

    def _claim(self, record: LeaderClaim, at_ms: int) -> TimelineEvent:
        if self._term is not None and record.term <= self._term:
            text = f"{record.node}'s claim of term {record.term} is void: the term is taken"
            return TimelineEvent(at_ms, self._where, text, Tone.STALE)
        self._term = record.term
        return TimelineEvent(at_ms, self._where, f"{record.node} leads from here on, term {record.term}", Tone.PLAIN)


def words_of(record: LogRecord) -> tuple[str, Tone] | None:
    """Return what a control record says; None for records that are no events."""
    if isinstance(record, Genesis):
        return f"created, with the replicas {', '.join(record.replicas)}", Tone.PLAIN
    if isinstance(record, Members):
        return f"members are now {', '.join(record.replicas)}", Tone.PLAIN
    if isinstance(record, FeatureLevel):
        return f"feature level {record.level} is finalized", Tone.PLAIN
    if isinstance(record, Prepared):
        return ("prepared for an upgrade: refuses writes" if record.prepared else "takes writes again"), Tone.WARN
    if isinstance(record, Mode):
        return f"{record.request_type} is executed in mode '{record.mode}'", Tone.PLAIN
    if isinstance(record, DigestBase):
        return f"digest base at index {record.index:,}: {record.basis}", Tone.WARN
    return None
