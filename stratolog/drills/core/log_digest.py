"""A shard's digest, computed from its log alone: Σ(next − prev) over what counts (design, section 3). Pure.

The computation follows the auditor's rule and arithmetic, which share no code with the nodes. It keeps a sum for each
slot. A DigestBase restarts the sums; after a RequestBatch the log alone does not give them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from xxhash import xxh64_intdigest

from schemas.column_families import BUCKETS, OM_COLUMN_FAMILIES, RETRY_TABLE
from schemas.records.log import (
    Batch,
    Delete,
    DigestBase,
    FeatureLevel,
    Genesis,
    LeaderClaim,
    LogRecord,
    Members,
    Merge,
    Operation,
    Put,
    RequestBatch,
)
from spark_streaming.records.core import reading

MASK = (1 << 64) - 1
SEED = 42

Sums = dict[int, int]
"""A state digest: slot -> unsigned sum of the hashes of its rows, sums of 0 left out."""


def unsigned(slots: Iterable[int], sums: Iterable[int]) -> Sums:
    """Return a digest as reports and the nodes' HTTP API give it."""
    return {slot: total & MASK for slot, total in zip(slots, sums, strict=True) if total & MASK}


def total(sums: Sums) -> str:
    """Return the one figure that people compare: the sum of all slots mod 2^64, 16 hex digits."""
    return f"{sum(sums.values()) & MASK:016x}"


def differing(one: Sums, other: Sums) -> list[int]:
    """Return the slots in which two digests differ."""
    return sorted(slot for slot in one.keys() | other.keys() if one.get(slot, 0) != other.get(slot, 0))


class LogDigest:
    """Follows a log by the auditor's rule; the caller offers every record from the log's first one on.

    A trimmed log begins with a base, and names no column families: they are those that this software knows.
    """

    def __init__(self) -> None:
        self.position = reading.AuditPosition()
        self.families: tuple[str, ...] = ()
        self.known = True
        self._slots: dict[str, tuple[int, int]] = {}
        self._sums: dict[int, int] = {}

    @property
    def index(self) -> int:
        """The managed index of the last batch that counts."""
        return self.position.last_index

    def sums(self) -> Sums:
        """Return the digest after the last record offered."""
        return {slot: value & MASK for slot, value in sorted(self._sums.items()) if value & MASK}

    def offer(self, offset: int, value: bytes, record: LogRecord) -> bool:
        """Take the next record; return whether it takes effect.

        Raises spark_streaming.records.core.reading.LogBroken.
        """
        self.position, outcome = reading.read(self.position, header_of(offset, value, record))
        if outcome is reading.Ruling.OPENS_BASE and isinstance(record, DigestBase):
            self._name_families(OM_COLUMN_FAMILIES)
            self._sums, self.known = dict(unsigned(record.slots, record.sums)), True
            return True
        if outcome is not reading.Ruling.COUNTS:
            return outcome is reading.Ruling.CLAIM
        if isinstance(record, Genesis):
            self._name_families(tuple(record.column_families))
        elif isinstance(record, DigestBase):
            self._sums, self.known = dict(unsigned(record.slots, record.sums)), True
        elif isinstance(record, RequestBatch):
            self.known = False
        elif isinstance(record, Batch):
            for operation in record.operations:
                self._claim(operation)
            for result in record.results:
                if result.recorded:
                    self._change(
                        RETRY_TABLE, result.client_id + result.call_id, None, result.request_hash + result.response
                    )
        return True

    def _name_families(self, families: tuple[str, ...]) -> None:
        self.families = families
        self._slots = {cf: (number * BUCKETS, xxh64_intdigest(cf.encode(), SEED)) for number, cf in enumerate(families)}

    def _claim(self, operation: Operation) -> None:
        if isinstance(operation, Put):
            self._change(operation.cf, operation.key, operation.prev, operation.value)
        elif isinstance(operation, Delete):
            self._change(operation.cf, operation.key, operation.prev, None)
        elif isinstance(operation, Merge):
            self._change(operation.cf, operation.key, operation.prev, None, operation.next)

    def _change(self, cf: str, key: bytes, prev: int | None, value: bytes | None, known: int = 0) -> None:
        """Add next − prev to the row's slot; next is the hash of ``value``, or ``known`` if there is no value."""
        first, seed = self._slots[cf]
        key_hash = xxh64_intdigest(key, seed)
        slot = first + (key_hash & (BUCKETS - 1))
        after = known if value is None else xxh64_intdigest(value, key_hash)
        self._sums[slot] = self._sums.get(slot, 0) + after - (prev or 0)


def row_hash(cf: str, key: bytes, value: bytes) -> int:
    """Return the unsigned row hash: XXH64 chained over column family, key and value, each hash the seed of the next."""
    return xxh64_intdigest(value, xxh64_intdigest(key, xxh64_intdigest(cf.encode(), SEED)))


def slot_of(families: Iterable[str], cf: str, key: bytes) -> int:
    """Return the digest slot of a row."""
    bucket = xxh64_intdigest(key, xxh64_intdigest(cf.encode(), SEED)) & (BUCKETS - 1)
    return list(families).index(cf) * BUCKETS + bucket


def header_of(offset: int, value: bytes, record: LogRecord) -> reading.Header:
    """Return what the auditor's rule needs of a record."""
    kind = type(record).__name__
    if isinstance(record, LeaderClaim):
        return reading.Header(
            offset=offset, kind=kind, term=record.term, nonce=record.nonce, node=record.node, value=value
        )
    return reading.Header(
        offset=offset, kind=kind, term=record.term, nonce=record.nonce, seq=record.seq, prev_chain=record.prev_chain,
        chain_after=hashlib.sha256(record.prev_chain + value).digest(),
        first_index=getattr(record, "first_index", 0), last_index=getattr(record, "last_index", 0),
        timestamp_ms=getattr(record, "timestamp_ms", 0), index=getattr(record, "index", 0),
        replicas=tuple(record.replicas) if isinstance(record, Members) else (),
        feature_level=_level_of(record), genesis=_genesis_of(record),
    )  # fmt: skip


def _level_of(record: LogRecord) -> int:
    if isinstance(record, Genesis):
        return record.feature_level
    return record.level if isinstance(record, FeatureLevel) else 0


def _genesis_of(record: LogRecord) -> reading.GenesisFacts | None:
    if not isinstance(record, Genesis):
        return None
    return reading.GenesisFacts(
        cluster=record.cluster, shard=record.shard, shards=record.shards, replicas=tuple(record.replicas),
        column_families=tuple(record.column_families),
    )  # fmt: skip
