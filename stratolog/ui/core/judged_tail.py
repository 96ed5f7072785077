"""The end of a log, judged without its beginning. Pure.

What is void follows from what came before (the reading rule), and a long log takes long to read. The chain of hashes
helps: every record names the chain before it, and a node says where the chain stands. So:

1. A record of the page is taken as one that counts, and everything behind it is judged by the rule.
2. If that leads to the very chain that the node names (or the next page's first record), the guess was right: a wrong
   one has another chain, or breaks the log's contract on the way.
3. Else the next record is tried. What lies before the one that was right stays unjudged (None).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replicated_db.core.errors import StopProcess
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import advance, judge
from replicated_db.core.ports import Entry
from replicated_db.core.tables.digests import FIRST_CHAIN
from schemas.codecs.codec import Undecodable, decode
from schemas.records.log import Batch, LeaderClaim, LogRecord, RequestBatch, Tick

MAX_GUESSES = 64
"""Records that are tried as the one to begin at."""


class ChainMark(NamedTuple):
    """The chain (in hexadecimal) once everything up to and with an offset was read."""

    offset: int
    chain: str


class TailRecord(NamedTuple):
    """A record: decoded (None: undecodable), and what the rule says of it, in words (None: not judged)."""

    entry: Entry
    record: LogRecord | None
    reading: str | None
    is_void: bool
    chain_before: str


def judged_tail(entries: Sequence[Entry], mark: ChainMark | None, *, from_first: bool = False) -> list[TailRecord]:
    """Judge entries of one partition, in order.

    ``mark`` is the chain at an offset among them. ``from_first`` says that the first entry is the log's first record;
    then no mark is needed.
    """
    records = [_decoded(entry) for entry in entries]
    if from_first:
        return _judged(entries, records, 0, Position())[0]
    guesses = 0
    for number, record in enumerate(records):
        if mark is None or guesses == MAX_GUESSES or entries[number].offset > mark.offset:
            break
        if record is None or isinstance(record, LeaderClaim | Tick):
            continue
        guesses += 1
        found, chains = _judged(entries, records, number, _before(record))
        # Not every offset has a record: markers of a stranger's transactions take some.
        reached = max((offset for offset in chains if offset <= mark.offset), default=None)
        if reached is not None and chains[reached] == mark.chain:
            # Of two records with the same bytes the first counts: this one may be the second.
            return [*_unjudged(entries, records, number + 1), *found[1:]]
    return _unjudged(entries, records, len(entries))


def _decoded(entry: Entry) -> LogRecord | None:
    try:
        record: LogRecord = decode(entry.value)
    except Undecodable:
        return None
    return record


def _before(record: LogRecord) -> Position:
    """Return the position at which this record is the next one that counts."""
    if isinstance(record, LeaderClaim):
        raise TypeError("a claim names no chain")
    if isinstance(record, Batch | RequestBatch):
        index = record.first_index - 1
    else:
        index = getattr(record, "index", 0)
    return Position(term=record.term, nonce=record.nonce, seq=record.seq - 1, chain=record.prev_chain, index=index)


def _judged(
    entries: Sequence[Entry], records: Sequence[LogRecord | None], start: int, position: Position
) -> tuple[list[TailRecord], dict[int, str]]:
    """Judge from ``start`` on; return the records, and the chain after each offset, as far as the rule goes."""
    found: list[TailRecord] = []
    chains: dict[int, str] = {}
    for number in range(start, len(entries)):
        entry, record = entries[number], records[number]
        before = position.chain.hex()
        if record is None:
            # Replicas stop there: what comes behind is judged by nobody.
            found.append(TailRecord(entry, None, "STOP: undecodable", is_void=True, chain_before=before))
            break
        try:
            reading = judge(position, record)
        except StopProcess as error:
            found.append(TailRecord(entry, record, f"STOP: {error}", is_void=True, chain_before=before))
            break
        found.append(TailRecord(entry, record, reading.value, not reading.takes_effect, before))
        if reading.takes_effect:
            position = advance(position, record, entry.offset, entry.value)
        chains[entry.offset] = position.chain.hex()
    return [*found, *_unjudged(entries, records, len(entries))[start + len(found) :]], chains


def _unjudged(entries: Sequence[Entry], records: Sequence[LogRecord | None], count: int) -> list[TailRecord]:
    return [
        TailRecord(entry, record, None, is_void=False, chain_before="")
        for entry, record in zip(entries[:count], records[:count], strict=True)
    ]


def mark_before(records: Sequence[TailRecord]) -> ChainMark | None:
    """Return the mark for the page of older records that ends before the first judged one; None if there is none."""
    first = next((one for one in records if one.reading is not None and one.chain_before), None)
    if first is None or first.chain_before == FIRST_CHAIN.hex():
        return None
    return ChainMark(first.entry.offset - 1, first.chain_before)
