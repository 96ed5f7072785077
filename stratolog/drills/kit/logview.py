"""What a shard's log says: its digest at any record, the records that are void, the results of a client's calls.

Two readers go over the records. What is *void*, and why, is said by the nodes' reading rule (``replicated_db.core.log.reading``). The *digest*
is computed by the auditor's rule and arithmetic, which share no code with the nodes: Σ(next − prev) over the claims of what counts
(design, section 3), kept slot by slot. A DigestBase restarts it; after a RequestBatch the log alone does not give it.

All but :func:`survey` and :func:`records_of` is pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh64_intdigest

from replicated_db.core.errors import StopProcess
from replicated_db.core.log.reading import Reading
from schemas.column_families import BUCKETS, RETRY_TABLE
from schemas.records.log import (
    Barrier,
    Batch,
    Checkpoint,
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
from stratolog.cluster.shard_log import read_judged
from stratolog.configuration.settings import Settings
from stratolog.drills.kit.report import StepFailed

MASK = (1 << 64) - 1
SEED = 42
MAX_VOID_KEPT = 1_000
"""Void records that a survey remembers; the number of all is kept."""

Sums = dict[int, int]
"""Slot -> unsigned sum of the row hashes of its rows, sums of 0 left out: a state digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A record of the log, and what the nodes' rule says of it."""

    offset: int
    timestamp_ms: int
    value: bytes
    record: LogRecord
    reading: Reading


def records_of(settings: Settings, shard: int, until: int | None = None) -> Iterator[LogEntry]:
    """Read a shard's log up to and with offset ``until``; raises StepFailed if it breaks its contract."""
    for entry, record, verdict in read_judged(settings, shard, until):
        if record is None or isinstance(verdict, StopProcess):
            raise StepFailed(f"the log of shard {shard} breaks its contract at offset {entry.offset}: {verdict}")
        yield LogEntry(
            offset=entry.offset, timestamp_ms=entry.timestamp_ms, value=entry.value, record=record, reading=verdict
        )


def unsigned(slots: Iterable[int], sums: Iterable[int]) -> Sums:
    """Return a digest as reports and the nodes' HTTP API give it."""
    return {slot: total & MASK for slot, total in zip(slots, sums, strict=True) if total & MASK}


def total(sums: Sums) -> str:
    """Return the one figure that people compare: the sum of all slots mod 2^64, 16 hex digits."""
    return f"{sum(sums.values()) & MASK:016x}"


def differing(one: Sums, other: Sums) -> list[int]:
    """Return the slots in which two digests differ."""
    return sorted(slot for slot in one.keys() | other.keys() if one.get(slot, 0) != other.get(slot, 0))


# -- the log's digest --------------------------------------------------------------------------------------------------


class LogDigest:
    """Follows a log by the auditor's rule; offered every record from offset 0 on."""

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
        """Take the next record; return whether it takes effect. Raises spark_streaming.records.core.reading.LogBroken."""
        self.position, outcome = reading.read(self.position, header_of(offset, value, record))
        if outcome is not reading.Ruling.COUNTS:
            return outcome is reading.Ruling.CLAIM
        if isinstance(record, Genesis):
            self.families = tuple(record.column_families)
            self._slots = {
                cf: (number * BUCKETS, xxh64_intdigest(cf.encode(), SEED)) for number, cf in enumerate(self.families)
            }
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

    def _claim(self, operation: Operation) -> None:
        if isinstance(operation, Put):
            self._change(operation.cf, operation.key, operation.prev, operation.value)
        elif isinstance(operation, Delete):
            self._change(operation.cf, operation.key, operation.prev, None)
        elif isinstance(operation, Merge):
            self._change(operation.cf, operation.key, operation.prev, None, operation.next)

    def _change(self, cf: str, key: bytes, prev: int | None, value: bytes | None, known: int = 0) -> None:
        """Add next − prev; next is the hash of ``value``, or ``known`` without one."""
        first, seed = self._slots[cf]
        key_hash = xxh64_intdigest(key, seed)
        slot = first + (key_hash & (BUCKETS - 1))
        after = known if value is None else xxh64_intdigest(value, key_hash)
        self._sums[slot] = self._sums.get(slot, 0) + after - (prev or 0)


def row_hash(cf: str, key: bytes, value: bytes) -> int:
    """Return the unsigned row hash: XXH64 chained over column family, key and value, each the seed of the next."""
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


LATE = "a request that is validated late"
"""In place of the type of a request that was logged, not executed."""

# -- one pass ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidRecord:
    """A record that has no effect, and why."""

    offset: int
    term: int
    kind: str
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that is valid, and the managed index before it."""

    offset: int
    term: int
    node: str
    index_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The result of a call in a batch that counts."""

    offset: int
    index: int
    recorded: bool
    request_type: str
    response: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The log's digest at one of its records: ``known`` unless late validation made it something that the log does not give."""

    offset: int
    index: int
    timestamp_ms: int
    sums: Sums
    known: bool
    families: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Survey:
    """What one pass over a log has found.

    ``calls`` are the results of one client's calls by call id; ``void`` the void records from ``since`` on, the first MAX_VOID_KEPT of
    them; ``late_calls`` that client's calls which were logged for late validation, how often each; ``checkpoints`` name -> offset
    of the batch that took it last; ``barrier`` the digest at the last barrier; ``others`` the types of other clients' requests
    behind ``since``; ``rules_differ`` the offset at which the nodes' rule and the auditor's disagree, if they do.
    """

    digest: LogDigest = field(default_factory=LogDigest)
    end_offset: int = -1
    claims: list[Claim] = field(default_factory=list)
    void: list[VoidRecord] = field(default_factory=list)
    void_records: int = 0
    calls: dict[bytes, list[Recorded]] = field(default_factory=dict)
    late_calls: dict[bytes, int] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    barrier: Digest | None = None
    end_timestamp_ms: int = 0
    others: set[str] = field(default_factory=set)
    rules_differ: int | None = None

    def take(self, entry: LogEntry, client_id: bytes | None, since: int) -> None:
        """Take the next record."""
        index_before = self.digest.index
        effective = self.digest.offer(entry.offset, entry.value, entry.record)
        if effective != entry.reading.takes_effect and self.rules_differ is None:
            self.rules_differ = entry.offset
        self.end_offset, self.end_timestamp_ms = entry.offset, entry.timestamp_ms
        record = entry.record
        if not entry.reading.takes_effect:
            self._take_void(entry, since)
        elif isinstance(record, LeaderClaim):
            self.claims.append(
                Claim(offset=entry.offset, term=record.term, node=record.node, index_before=index_before)
            )
        elif isinstance(record, Batch):
            self._take_batch(entry.offset, record, client_id, since)
        elif isinstance(record, RequestBatch):
            for request in record.requests:
                if request.client_id == client_id:
                    self.late_calls[request.call_id] = self.late_calls.get(request.call_id, 0) + 1
                elif entry.offset >= since:
                    self.others.add(LATE)
        elif isinstance(record, Barrier):
            self.barrier = self.digest_here()

    def digest_here(self) -> Digest:
        """Return the log's digest after the last record taken."""
        return Digest(
            offset=self.end_offset, index=self.digest.index, timestamp_ms=self.end_timestamp_ms, sums=self.digest.sums(),
            known=self.digest.known, families=self.digest.families,
        )  # fmt: skip

    def _take_void(self, entry: LogEntry, since: int) -> None:
        if entry.offset < since:
            return
        self.void_records += 1
        if len(self.void) < MAX_VOID_KEPT:
            kind = type(entry.record).__name__
            self.void.append(VoidRecord(offset=entry.offset, term=entry.record.term, kind=kind, reading=entry.reading))

    def _take_batch(self, offset: int, batch: Batch, client_id: bytes | None, since: int) -> None:
        if batch.operations and isinstance(batch.operations[0], Checkpoint):
            self.checkpoints[batch.operations[0].name] = offset
        for result in batch.results:
            if result.client_id == client_id:
                found = Recorded(
                    offset=offset, index=result.index, recorded=result.recorded, request_type=result.request_type,
                    response=result.response,
                )  # fmt: skip
                self.calls.setdefault(result.call_id, []).append(found)
            elif offset >= since:
                self.others.add(result.request_type)


def survey(
    settings: Settings, shard: int, *, until: int | None = None, client_id: bytes | None = None, since: int = 0,
    stop: Callable[[LogEntry], bool] = lambda _: False,
) -> Survey:  # fmt: skip
    """Read a log up to and with ``until``, or up to the first record for which ``stop`` says so, which is left out."""
    found = Survey()
    for entry in records_of(settings, shard, until):
        if stop(entry):
            break
        try:
            found.take(entry, client_id, since)
        except reading.LogBroken as error:
            raise StepFailed(f"by the auditor's rule the log of shard {shard} is broken: {error}") from error
    return found
