"""What one pass over a shard's log finds: digests, void records, the results of a client's calls. Pure.

The nodes' reading rule (``replicated_db.core.log.reading``) says which records are *void*, and why. The digest follows
the auditor's rule (:mod:`log_digest`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from replicated_db.core.log.reading import Reading
from schemas.records.log import (
    Barrier,
    Batch,
    Checkpoint,
    LeaderClaim,
    LogRecord,
    RequestBatch,
)
from stratolog.drills.core.log_digest import LogDigest, Sums

MAX_VOID_KEPT = 1_000
"""Void records that a survey keeps; it counts all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A record of the log, and what the nodes' rule says of it."""

    offset: int
    timestamp_ms: int
    value: bytes
    record: LogRecord
    reading: Reading


LATE = "a request that is validated late"
"""Stands for the type of a request that was logged and not executed."""


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
    """The log's digest at one of its records.

    It is not ``known`` after late validation, because the log then does not say what the rows are.
    """

    offset: int
    index: int
    timestamp_ms: int
    sums: Sums
    known: bool
    families: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Survey:
    """What one pass over a log has found.

    - ``calls``: the results of one client's calls, by call id.
    - ``late_calls``: how often each call of that client was logged for late validation.
    - ``others``: the types of other clients' requests from offset ``since`` on.
    - ``void``: the first MAX_VOID_KEPT void records from ``since`` on; ``void_records`` counts all of them.
    - ``checkpoints``: for each name, the offset of the last batch that took it.
    - ``barrier``: the digest at the last barrier.
    - ``rules_differ``: the first offset at which the nodes' rule and the auditor's disagree, if any.
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
            offset=self.end_offset, index=self.digest.index, timestamp_ms=self.end_timestamp_ms,
            sums=self.digest.sums(), known=self.digest.known, families=self.digest.families,
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
