"""The reading rule: which records of the log take effect (design, section 3, "Fencing, in the log itself").

Rules, the same for every reader. The order of the partition alone decides:
    1. A claim is *valid* iff its term = current term + 1.
    2. Any other record *counts* iff its (term, nonce) is the current claim's and its seq = last counted + 1.
    3. A record at or below the current term that neither is valid nor counts is *void*: stale leaders, twins, gaps,
       duplicates.
    4. A claim above current + 1, or another record above the current term, proves that a claim was missed: stop.
    5. A counting record whose prev_chain, first index or index contradicts what precedes it: stop.

``judge`` is total and pure; ``advance`` gives the position after a record that took effect.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from xxhash import xxh3_128_digest

from replicated_db.core.errors import AheadOfLog, BrokenLog
from replicated_db.core.log.position import Position
from replicated_db.core.tables.digests import next_chain
from schemas.records.log import (
    Barrier,
    Batch,
    ControlRecord,
    CountingRecord,
    DigestBase,
    LeaderClaim,
    LogRecord,
    RequestBatch,
)

_BATCHES = (Batch, RequestBatch)


class Reading(Enum):
    """What the rule says of one record; each void reading names its reason."""

    VALID_CLAIM = "valid claim"
    COUNTS = "counts"
    STALE_TERM = "void: of an earlier term"
    LOST_CLAIM = "void: claim of a term that is taken"
    TWIN = "void: same term, other nonce"
    DUPLICATE = "void: seq counted before"
    GAP = "void: an earlier seq is missing"

    @property
    def takes_effect(self) -> bool:
        """Whether the record is a valid claim or counts."""
        return self is Reading.COUNTS or self is Reading.VALID_CLAIM


def judge(position: Position, record: LogRecord) -> Reading:
    """Say whether ``record``, the next one after ``position``, takes effect.

    Raises AheadOfLog if a claim was missed, BrokenLog if a counting record contradicts the position.
    """
    if isinstance(record, LeaderClaim):
        if record.term == position.term + 1:
            return Reading.VALID_CLAIM
        if record.term > position.term + 1:
            raise AheadOfLog(f"a claim of term {record.term} follows term {position.term}: a claim was missed")
        return Reading.LOST_CLAIM
    if record.term > position.term:
        raise AheadOfLog(f"a record of term {record.term} in term {position.term}: a claim was missed")
    if record.term < max(position.term, 1):  # before the first claim nothing counts
        return Reading.STALE_TERM
    if record.nonce != position.nonce:
        return Reading.TWIN
    if record.seq != position.seq + 1:
        return Reading.DUPLICATE if record.seq <= position.seq else Reading.GAP
    _check_continuity(position, record)
    return Reading.COUNTS


def _check_continuity(position: Position, record: CountingRecord) -> None:
    fault = None
    if record.prev_chain != position.chain:
        fault = f"prev_chain {record.prev_chain.hex()} but the chain is {position.chain.hex()}"
    elif isinstance(record, _BATCHES):
        if record.first_index != position.index + 1 or record.last_index < position.index:
            fault = f"indexes {record.first_index}..{record.last_index} after {position.index}"
        elif record.timestamp_ms < position.timestamp_ms:
            fault = f"batch time {record.timestamp_ms} ms after {position.timestamp_ms} ms"
    elif isinstance(record, Barrier | DigestBase | ControlRecord) and record.index != position.index:
        fault = f"index {record.index} where {position.index} is the last"
    if fault is not None:
        raise BrokenLog(f"{type(record).__name__} of term {record.term}, seq {record.seq}: {fault}")


def position_before(base: DigestBase) -> Position:
    """Return the position from which a trimmed log can be read, whose first record is this base.

    It holds what the base says of what lies before; the names of the topic and of the leader are not in it.
    """
    return Position(term=base.term, nonce=base.nonce, seq=base.seq - 1, chain=base.prev_chain, index=base.index)


def advance(position: Position, record: LogRecord, offset: int, value: bytes, chain: bytes | None = None) -> Position:
    """Return the position after ``record`` (value bytes ``value``, at ``offset``) took effect.

    ``chain`` is the chain after the record, if the caller has already computed it from these very bytes.
    """
    if chain is None:
        chain = next_chain(position.chain, value)
    record_hash = xxh3_128_digest(value)
    if isinstance(record, LeaderClaim):
        return replace(
            position, offset=offset, record_hash=record_hash, chain=chain,
            term=record.term, nonce=record.nonce, seq=0, leader=record.node, address=record.address,
        )  # fmt: skip
    if isinstance(record, _BATCHES):
        # As ``replace`` would, in half the time.
        return Position(
            topic_id=position.topic_id, offset=offset, record_hash=record_hash, term=position.term,
            nonce=position.nonce, seq=record.seq, chain=chain, index=record.last_index,
            timestamp_ms=record.timestamp_ms, leader=position.leader, address=position.address,
        )  # fmt: skip
    return replace(position, offset=offset, record_hash=record_hash, chain=chain, seq=record.seq)
