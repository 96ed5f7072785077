"""The reading rule of the log, written from design section 3: which records count, and when the log is broken.

Pure: headers in, states out; no I/O, no clock, no Spark. Rules:

1. A claim is valid iff its term is the current term + 1. It becomes the current claim; its seq starts at 0.
2. Any other record counts iff its (term, nonce) is the current claim's and its seq is the last counted + 1.
3. A record at or below the current term that does not count is void: skipped, as if it had never been written.
4. A claim above the current term + 1, or another record above the current term, proves a missed claim: AHEAD_OF_LOG.
5. Valid claims and counting records make the chain: SHA-256(chain before + value). A counting record must carry the
   chain before it. A batch (of results or of requests) must start at the last index + 1 and not before the last
   timestamp. The first counting record is Genesis, and there is no other. Anything else breaks the contract:
   :class:`LogBroken`.
6. A log that does not begin at offset 0 has been trimmed. It is read from its first *base* on: a DigestBase whose next
   record of the same claim is a Members record that follows it in seq, chain and index. What lies before is not judged,
   and nothing there breaks the contract. Whoever trims a log cuts it right before a base.
7. The members are Genesis' replicas until a Members record names others.
8. What newer software has written ends the reading, and breaks nothing: :class:`LogTooNew`. It is a feature level that
   this auditor does not know (the meaning of later records is unknown too), or a record of an unknown schema.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum

from schemas.features import LATEST
from schemas.records.log import CHAIN_BYTES

CLAIM = "LeaderClaim"
GENESIS = "Genesis"
BARRIER = "Barrier"
TICK = "Tick"
DIGEST_BASE = "DigestBase"
BATCH = "Batch"
REQUEST_BATCH = "RequestBatch"
MODE = "Mode"
MEMBERS = "Members"
FEATURE_LEVEL = "FeatureLevel"
PREPARED = "Prepared"
BASE = "Base"
"""No record: a DigestBase with the Members record behind it, where the judging of a trimmed log begins."""
INDEXED = (BARRIER, DIGEST_BASE, MEMBERS, FEATURE_LEVEL, PREPARED, MODE)
"""Records that name the last index."""
LOG_RECORD_TYPES = (CLAIM, GENESIS, TICK, BATCH, REQUEST_BATCH, *INDEXED)


class LogBroken(Exception):
    """The log breaks its contract at ``offset``; no digest can be derived from there on."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class LogTooNew(LogBroken):
    """Newer software has written the record at ``offset``: nothing is wrong, but this auditor must be upgraded."""


UNKNOWN_SCHEMA = "unknown schema fingerprint"
"""How the error of a record begins whose schema is of no known version."""


class Ruling(Enum):
    """The class of one record under the rule."""

    CLAIM = "claim"
    COUNTS = "counts"
    VOID = "void"
    UNJUDGED = "unjudged"
    """It lies before the base of a trimmed log."""
    OPENS_BASE = "opens a base"
    """A DigestBase of a trimmed log: a base, if its Members record follows. Its sums are those to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenesisFacts:
    """What the shard's first counting record fixes."""

    cluster: str
    shard: int
    shards: int
    replicas: tuple[str, ...]
    column_families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One log record without its operations.

    ``kind`` is its record type, or None with an ``error`` if it could not be decoded. ``chain_after`` is SHA-256(*its
    own* prev_chain + value): the chain after the record if prev_chain proves right. A claim has no prev_chain, so it
    has its ``value`` instead. The kinds in INDEXED have ``index``, Members has ``replicas``, Genesis and FeatureLevel
    have ``feature_level``.
    """

    offset: int
    kind: str | None
    error: str | None = None
    term: int = 0
    nonce: bytes = b""
    seq: int = 0
    prev_chain: bytes = b""
    chain_after: bytes = b""
    value: bytes = b""
    node: str = ""
    first_index: int = 0
    last_index: int = 0
    timestamp_ms: int = 0
    index: int = 0
    scrub: bool = False
    genesis: GenesisFacts | None = None
    replicas: tuple[str, ...] = ()
    feature_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPosition:
    """All that a reader remembers of the log before ``next_offset``.

    ``trimmed_to``: the first offset of a trimmed log, -1 for a whole one. ``opened_at``: offset of the last DigestBase
    of a trimmed log whose Members record has not been read. ``base_offset``, ``base_index``: the base from which a
    trimmed log is judged, -1 until it is found.
    """

    next_offset: int = 0
    term: int = 0
    nonce: bytes = b""
    leader: str = ""
    seq: int = 0
    chain: bytes = bytes(CHAIN_BYTES)
    last_index: int = 0
    timestamp_ms: int = 0
    genesis: GenesisFacts | None = None
    members: tuple[str, ...] = ()
    trimmed_to: int = -1
    opened_at: int = -1
    base_offset: int = -1
    base_index: int = -1

    @property
    def seeks_base(self) -> bool:
        """Whether the log was trimmed, and no base has been read yet."""
        return self.trimmed_to >= 0 and self.base_offset < 0

    @property
    def has_begun(self) -> bool:
        """Whether the members are known: Genesis or a base has been read."""
        return self.genesis is not None or self.base_offset >= 0

    def is_unjudged(self, offset: int) -> bool:
        """Whether a record at ``offset`` lies in a trimmed log before its base, as far as that is known."""
        return offset < (self.next_offset if self.seeks_base else self.base_offset)


def read(position: AuditPosition, header: Header) -> tuple[AuditPosition, Ruling]:
    """Read the next record of the partition; return the position after it and what it is.

    Raises LogBroken where a reader must stop, also LogTooNew.
    """
    if position.next_offset == 0 and header.offset > 0:
        position = replace(position, next_offset=header.offset, trimmed_to=header.offset)
    if header.offset != position.next_offset:
        raise LogBroken(header.offset, f"offset {position.next_offset} was expected: records are missing")
    after = replace(position, next_offset=header.offset + 1)
    if position.seeks_base:
        return _seek_base(after, header)
    if header.kind is None:
        raise _undecodable(header)
    if header.kind == CLAIM:
        return _read_claim(after, header)
    if header.term > position.term:
        raise LogBroken(
            header.offset, f"AHEAD_OF_LOG: {header.kind} of term {header.term}, the current one is {position.term}"
        )
    if header.term != position.term or header.nonce != position.nonce or header.seq != position.seq + 1:
        return after, Ruling.VOID
    return _count(after, header), Ruling.COUNTS


def _undecodable(header: Header) -> LogBroken:
    reason = header.error or "undecodable record"
    if reason.startswith(UNKNOWN_SCHEMA):
        return LogTooNew(header.offset, f"{reason}: upgrade the audit")
    return LogBroken(header.offset, reason)


def _seek_base(position: AuditPosition, header: Header) -> tuple[AuditPosition, Ruling]:
    """Read a record of a trimmed log whose base has not been found."""
    if header.kind == DIGEST_BASE:
        opened = replace(
            position, opened_at=header.offset, term=header.term, nonce=header.nonce, seq=header.seq,
            chain=header.chain_after, last_index=header.index,
        )  # fmt: skip
        return opened, Ruling.OPENS_BASE
    if position.opened_at < 0 or header.kind != MEMBERS or not _follows(position, header):
        return position, Ruling.UNJUDGED
    begun = replace(
        position, seq=header.seq, chain=header.chain_after, members=header.replicas, base_offset=position.opened_at,
        base_index=header.index,
    )  # fmt: skip
    return begun, Ruling.COUNTS


def _follows(position: AuditPosition, header: Header) -> bool:
    return (header.term, header.nonce, header.seq, header.prev_chain, header.index) == (
        position.term, position.nonce, position.seq + 1, position.chain, position.last_index,
    )  # fmt: skip


def _read_claim(position: AuditPosition, header: Header) -> tuple[AuditPosition, Ruling]:
    if header.term > position.term + 1:
        raise LogBroken(header.offset, f"AHEAD_OF_LOG: claim of term {header.term}, the current one is {position.term}")
    if header.term <= position.term:
        return position, Ruling.VOID
    chain = hashlib.sha256(position.chain + header.value).digest()
    claimed = replace(position, term=header.term, nonce=header.nonce, leader=header.node, seq=0, chain=chain)
    return claimed, Ruling.CLAIM


def _count(position: AuditPosition, header: Header) -> AuditPosition:
    if header.prev_chain != position.chain:
        raise LogBroken(
            header.offset,
            f"{header.kind} carries prev_chain {header.prev_chain.hex()[:16]}, it is {position.chain.hex()[:16]}",
        )
    if position.has_begun == (header.kind == GENESIS):
        found = "a second Genesis" if header.kind == GENESIS else f"{header.kind} before Genesis"
        raise LogBroken(header.offset, found)
    counted = replace(position, seq=header.seq, chain=header.chain_after)
    if header.kind == GENESIS:
        _check_level(header)
        return replace(counted, genesis=header.genesis, members=header.genesis.replicas if header.genesis else ())
    if header.kind in (BATCH, REQUEST_BATCH):
        return _count_batch(counted, header)
    if header.kind in INDEXED and header.index != position.last_index:
        raise LogBroken(
            header.offset, f"{header.kind} of index {header.index}, the last index is {position.last_index}"
        )
    if header.kind == FEATURE_LEVEL:
        _check_level(header)
    return replace(counted, members=header.replicas) if header.kind == MEMBERS else counted


def _check_level(header: Header) -> None:
    if header.feature_level > LATEST:
        reason = f"feature level {header.feature_level}, this audit knows up to {LATEST}: upgrade it"
        raise LogTooNew(header.offset, reason)


def _count_batch(position: AuditPosition, header: Header) -> AuditPosition:
    if header.first_index != position.last_index + 1:
        raise LogBroken(
            header.offset, f"batch starts at index {header.first_index}, {position.last_index + 1} was expected"
        )
    if header.last_index < header.first_index - 1:
        raise LogBroken(header.offset, f"batch of indexes {header.first_index}..{header.last_index}")
    if header.timestamp_ms < position.timestamp_ms:
        raise LogBroken(
            header.offset, f"batch timestamp {header.timestamp_ms} ms is before the last, {position.timestamp_ms} ms"
        )
    return replace(position, last_index=header.last_index, timestamp_ms=header.timestamp_ms)
