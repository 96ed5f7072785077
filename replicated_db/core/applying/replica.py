"""A replica of one shard: reads the log by the rule and applies each record that counts, as one atomic write.

Rules:
    - Every record of the partition is offered, in order, without gaps. A record that was offered before is skipped.
    - Data, retry rows, position, chain, index, digests and flag change in one write.
    - Logged requests (late validation) are applied into a cache first and written in groups (``late_apply``). A caller
      that needs the store itself flushes first.
    - A replica that finds a false claim flags itself durably and goes on applying. The flag is taken away when the
      contradiction is settled (``settle``), or at a DigestBase equal to the replica's own digest.
    - A replica whose scan finds other rows than its digest says flags itself likewise (``flag_scanned``). Only a later
      scan that finds the rows right takes that flag away (``settle_scanned``): all else compares digests.

The leader offers its own records too, so leader, follower and recovery share one apply. Callers in several threads
share ``lock``; this module itself starts no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from xxhash import xxh3_128_digest

from replicated_db.core.applying.apply import FalseClaim, plan_batch
from replicated_db.core.applying.counted import CountedRecords
from replicated_db.core.applying.evidence import audit_report, evidence_of, scan_evidence
from replicated_db.core.applying.identity import Identity, check_genesis
from replicated_db.core.applying.late import Executor
from replicated_db.core.applying.late_apply import LateApply
from replicated_db.core.applying.pruning import ExpiryPruning
from replicated_db.core.applying.stored_state import local_rows, state_key, stored_state
from replicated_db.core.errors import AheadOfLog, BrokenLog
from replicated_db.core.execution.shard_state import state_after
from replicated_db.core.log.position import (
    ANCHOR_KEY,
    BARRIER_KEY,
    BASES_KEY,
    FLAG_KEY,
    GENESIS_KEY,
    KEY_INDEX_KEY,
    POSITION_KEY,
    REQUEST_KEY,
    UNFLAGGED_KEY,
    Position,
    decode_request_position,
    encode_request_position,
)
from replicated_db.core.log.reading import Reading, advance, judge
from replicated_db.core.ports import Store, StoreSnapshot, StoreView, Write
from replicated_db.core.tables.column_families import TRANSACTION_INFO, Families
from replicated_db.core.tables.digest_rows import DigestRows
from replicated_db.core.tables.digests import MASK, Digests, digest_of_rows
from replicated_db.core.trimming.bases import Base, Bases
from replicated_db.core.trimming.places import MAX_DIGESTS, MemberPlace
from schemas import features
from schemas.codecs.codec import Undecodable, decode, decode_as, encode
from schemas.column_families import BUCKETS
from schemas.records.log import (
    Barrier,
    Batch,
    ControlRecord,
    DigestBase,
    Genesis,
    LeaderClaim,
    LogRecord,
    Members,
    RequestBatch,
)
from schemas.records.messages import AuditReport, Evidence
from schemas.records.record import record
from schemas.records.verdict_words import SCAN

__all__ = ["Identity", "KnownMembers", "Offered", "Replica", "ReplicaSnapshot"]

SCAN_STEP_ROWS = 200
"""A scrub in the same process as a leader pauses after so many rows (a fraction of a millisecond)."""

MAX_KNOWN_MEMBERS = 64
"""Changes of a shard's members that a replica remembers."""


@record
class Offered:
    """The outcome of offering a record.

    ``reading`` is None if the record had been read before. At a counting barrier ``digests`` is a copy of the
    incremental digests; for a scrub, ``snapshot`` is what to scan (close it). ``evidence`` is new evidence, to be
    published at once.
    """

    reading: Reading | None
    record: LogRecord | None = None
    position: Position
    evidence: Evidence | None = None
    digests: Digests | None = None
    snapshot: StoreSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMembers:
    """Members of a shard: ``names`` holds from the log's record at ``offset`` on."""

    offset: int
    names: tuple[str, ...]


class ReplicaSnapshot(NamedTuple):
    """One moment of a replica: its position, a copy of its incremental digests, and its rows (close the snapshot)."""

    position: Position
    digests: Digests
    rows: StoreSnapshot


class Replica:
    """One shard's state machine over a store.

    Its methods take ``lock`` themselves; only :attr:`rows` is for callers that hold it.
    """

    def __init__(
        self, identity: Identity, families: Families, store: Store, lock: AbstractContextManager[Any] | None = None,
        executor: Executor | None = None, writing: AbstractContextManager[Any] | None = None,
    ) -> None:  # fmt: skip
        """Restore the replica from its store; raises StoreFailure if the store cannot be read.

        An ``executor`` makes late validation possible. ``writing`` is a lock; it is needed if :meth:`flush_behind` has
        a thread of its own.
        """
        self.identity = identity
        self.families = families
        self.store = store
        self.lock = lock if lock is not None else nullcontext()
        self.late = LateApply(families, store, executor, writing if writing is not None else nullcontext())
        stored = store.get(TRANSACTION_INFO, POSITION_KEY)
        self.position = Position() if stored is None else Position.decode(stored)
        anchor = store.get(TRANSACTION_INFO, ANCHOR_KEY) if self.position.seq == 0 else None
        self.anchor = self.position if anchor is None else Position.decode(anchor)
        """Position after the last counting record, whose prev_chain commits to all before it. A claim has none."""
        self.digests = Digests(families)
        self._digest_rows = DigestRows(families)
        self._digest_rows.read(store, self.digests)
        genesis = store.get(TRANSACTION_INFO, GENESIS_KEY)
        self.genesis = None if genesis is None else decode_as(Genesis, genesis)
        if self.genesis is not None:
            check_genesis(identity, families, self.genesis)
        self.state = stored_state(store, self.genesis)
        flag = store.get(TRANSACTION_INFO, FLAG_KEY)
        self.evidence = None if flag is None else decode_as(AuditReport, flag).evidence
        self.read_offset = self.position.offset
        known = KnownMembers(offset=self.position.offset, names=self.state.replicas)
        self.known_members: tuple[KnownMembers, ...] = (known,) if known.names else ()
        """Who the members were, in order: at this process's start and since then; the last MAX_KNOWN_MEMBERS."""
        stored_hint = store.get(TRANSACTION_INFO, REQUEST_KEY)
        self.request_position = None if stored_hint is None else decode_request_position(stored_hint)
        self._bases = Bases(store.get(TRANSACTION_INFO, BASES_KEY), self.position.offset)
        barrier = store.get(TRANSACTION_INFO, BARRIER_KEY)
        self.barrier = None if barrier is None else Position.decode(barrier)
        """Position after the last barrier that counted, if one is known. Restarts keep it: scans are reported there."""
        self._barrier_digests: dict[int, str] = {}
        self._held: list[int] = []
        """Offsets from which somebody in this process reads the log again (:meth:`reading_again`)."""
        self._pruning = ExpiryPruning()
        self._counted = CountedRecords()
        self.records_applied = 0
        self.records_void = 0

    @property
    def rows(self) -> StoreView:
        """All that is applied, whether or not it is in the store yet. Hold the lock.

        The store alone may be behind (:meth:`flush`).
        """
        return self.late.cache

    # -- the log ---------------------------------------------------------------------------------------------------

    def adopt_topic(self, topic_id: str, record_at_position: bytes | None) -> None:
        """Check that the log is the one that this replica has read. A replica that has read none adopts the log.

        ``record_at_position`` is the value at the stored offset, None if the log does not reach that far.
        Raises AheadOfLog if topic, length or record differ.
        """
        position = self.position
        if position.offset < 0:
            self.position = replace(position, topic_id=topic_id)
            return
        where = f"shard {self.identity.shard}, offset {position.offset}"
        if position.topic_id != topic_id:
            raise AheadOfLog(f"{where}: the log is topic {topic_id}, this replica has read {position.topic_id}")
        if record_at_position is None:
            raise AheadOfLog(f"{where}: the log ends before the replica's position")
        if xxh3_128_digest(record_at_position) != position.record_hash:
            raise AheadOfLog(f"{where}: the log holds another record than the one applied")

    def offer(self, offset: int, value: bytes, record: LogRecord | None = None, chain: bytes | None = None) -> Offered:
        """Offer the record at ``offset``.

        A caller that has just encoded and chained the record passes ``record`` and ``chain``, to save decoding and
        hashing.

        Raises AheadOfLog, BrokenLog or StoreFailure, each of which must stop the process.
        """
        with self.lock:
            if offset <= self.read_offset:
                return Offered(reading=None, position=self.position)
            if offset != self.read_offset + 1:
                raise AheadOfLog(f"offset {offset} follows {self.read_offset}: part of the log was missed")
            if record is None:
                record = _decoded(self.identity.shard, offset, value)
            reading = judge(self.position, record)
            if not reading.takes_effect:
                self.records_void += 1
                self.read_offset = offset
                return Offered(reading=reading, record=record, position=self.position)
            outcome = self._take(reading, record, offset, value, chain)
            self.records_applied += 1
            self._counted.add(offset, outcome.position.record_hash)
            # This comes last: a reader that sees the new offset may ask at once whether the record counted.
            self.read_offset = offset
            return outcome

    def counted(self, offset: int) -> bytes | None:
        """Return the hash of the record that took effect at ``offset``.

        None if it did not, or if more than MAX_COUNTED records have taken effect since.
        """
        return self._counted.hash_at(offset)

    def has_counted(self, offset: int, record_hash: bytes) -> bool:
        """Whether the leader's record at ``offset`` counted here; this replica has read past that offset.

        Returns False if that is too long ago to tell. Raises AheadOfLog if the record did not count: this replica and
        that leader read different logs.
        """
        with self.lock:
            counted, remembered = self.counted(offset), self._counted.reaches(offset, self.read_offset)
        if counted == record_hash:
            return True
        if counted is None and not remembered:
            return False
        raise AheadOfLog(
            f"shard {self.identity.shard}: the leader's record at {offset} was read here but did not count"
        )

    def _take(self, reading: Reading, record: LogRecord, offset: int, value: bytes, chain: bytes | None) -> Offered:
        position = advance(self.position, record, offset, value, chain)
        bases = None if isinstance(record, DigestBase) else self._bases.on_other(is_members=isinstance(record, Members))
        if isinstance(record, RequestBatch):
            self._apply_requests(record, position)
            return Offered(reading=reading, record=record, position=position)
        if self.late.unwritten:
            self.flush()
        if isinstance(record, Batch):
            evidence = self._apply_batch(record, position)
            return Offered(reading=reading, record=record, position=position, evidence=evidence)
        writes: list[Write] = [] if bases is None else [(TRANSACTION_INFO, BASES_KEY, bases)]
        evidence = None
        if isinstance(record, LeaderClaim):
            writes.append((TRANSACTION_INFO, ANCHOR_KEY, self.anchor.encode()))
        elif isinstance(record, Genesis):
            check_genesis(self.identity, self.families, record)
            writes.append((TRANSACTION_INFO, GENESIS_KEY, value))
        elif isinstance(record, DigestBase):
            evidence = self._judge_base(record, position, writes)
        elif isinstance(record, ControlRecord):
            writes.append((TRANSACTION_INFO, state_key(record), value))
        if isinstance(record, Barrier):
            writes.append((TRANSACTION_INFO, BARRIER_KEY, position.encode()))
        state = state_after(self.state, record)
        self._write(writes, position, flags=evidence is not None)
        if state.replicas != self.state.replicas:
            now = KnownMembers(offset=offset, names=state.replicas)
            self.known_members = (*self.known_members, now)[-MAX_KNOWN_MEMBERS:]
        self.state = state
        if isinstance(record, Genesis):
            self.genesis = record
        if isinstance(record, Barrier):
            self.barrier = position
            self._remember_digest()
            snapshot = self.store.snapshot() if record.scrub else None
            return Offered(
                reading=reading, record=record, position=position, digests=self.digests.copy(), snapshot=snapshot
            )
        return Offered(reading=reading, record=record, position=position, evidence=evidence)

    def _apply_batch(self, batch: Batch, position: Position) -> Evidence | None:
        plan = plan_batch(self.families, self.store, batch)
        if plan.checkpoint is not None:
            self.store.checkpoint(plan.checkpoint)
        writes = plan.writes(batch)
        writes += self._digest_rows.after(
            self.digests, plan.deltas, lists=self.state.feature_level >= features.LISTED_SUMS
        )
        writes.append((TRANSACTION_INFO, KEY_INDEX_KEY, position.key_index()))
        if batch.request_position is not None:
            writes.append((TRANSACTION_INFO, REQUEST_KEY, encode_request_position(batch.request_position)))
        evidence = None
        if plan.false_claims:
            evidence = evidence_of(plan.false_claims[0], position, batch.first_index)
            if self.evidence is None:
                writes.append((TRANSACTION_INFO, FLAG_KEY, self._flag_row(evidence)))
        writes += self._pruning.writes(position.timestamp_ms, self.store)
        self._write(writes, position, flags=evidence is not None)
        self.request_position = batch.request_position or self.request_position
        if evidence is not None and self.evidence is None:
            self.evidence = evidence
        return evidence

    # -- late validation -------------------------------------------------------------------------------------------

    def _apply_requests(self, record: RequestBatch, position: Position) -> None:
        """Execute logged requests and apply what they amount to, into the cache."""
        derived, plan = self.late.plan(record, position.offset, self.state)
        forgotten = self._pruning.writes(position.timestamp_ms, self.late.cache)
        self.digests.change(plan.deltas)
        self.late.apply(derived, plan, forgotten, position.offset)
        self.position = position
        self.request_position = record.request_position or self.request_position
        if self.late.is_full:
            self.flush()

    def flush(self) -> None:
        """Write to the store all that late validation has applied; the store is up to date afterwards."""
        with self.lock:
            if self.late.unwritten:
                self.late.flush(self._local_rows())

    def flush_behind(self) -> None:
        """Do the same as :meth:`flush`, but let applying go on while the group is written. For a thread of its own."""
        with ExitStack() as writing:
            with self.lock:
                if not self.late.unwritten:
                    return
                group = self.late.begin_flush(self._local_rows(), writing)
            self.late.write(group)
        with self.lock:
            self.late.end_flush(group)

    def _local_rows(self) -> list[Write]:
        """Return the replica's local rows as of the last record applied: those that a batch writes beside its rows."""
        return local_rows(self._digest_rows, self.digests, self.position, self.request_position)

    # -- the write -------------------------------------------------------------------------------------------------

    def _write(self, writes: list[Write], position: Position, *, flags: bool = False) -> None:
        """Write, with the position. A flag must survive a loss of power: the evidence for it may not turn up again."""
        writes.append((TRANSACTION_INFO, POSITION_KEY, position.encode()))
        self.store.write(writes)
        if flags:
            self.store.sync()
        self.position = position
        if position.seq:
            self.anchor = position

    # -- divergence ------------------------------------------------------------------------------------------------

    def _judge_base(self, base: DigestBase, position: Position, writes: list[Write]) -> Evidence | None:
        if (base.slots, base.sums) == self.digests.slots():
            row = self._bases.on_digest_base(Base(position.offset, position.index, position.chain))
            writes.append((TRANSACTION_INFO, BASES_KEY, row))
            if self.evidence is not None and self.evidence.claim != SCAN:
                writes.append((TRANSACTION_INFO, FLAG_KEY, None))
                self.evidence = None
            return None
        self._bases.on_other(is_members=False)
        claim = FalseClaim(operation=0, cf="", key=b"", claim="base", claimed=None, own=None)
        evidence = evidence_of(claim, position, base.index)
        if self.evidence is None:
            self.evidence = evidence
            writes.append((TRANSACTION_INFO, FLAG_KEY, self._flag_row(evidence)))
        return evidence

    def flag(self, evidence: Evidence) -> None:
        """Flag this replica durably: the other replicas have shown that this one is wrong."""
        with self.lock:
            if self.evidence is None:
                self._flag(evidence)

    def flag_scanned(self, cf: str) -> Evidence | None:
        """Flag this replica durably: a scan found its rows of ``cf`` wrong. Return the evidence if that is new.

        It takes the place of other evidence, which others may settle.
        """
        with self.lock:
            if self.evidence is not None and self.evidence.claim == SCAN:
                return None
            evidence = scan_evidence(self.position, cf)
            self._flag(evidence)
            return evidence

    def settle_scanned(self, standing: Evidence | None) -> bool:
        """Take a scan's flag away: a later scan has found all rows right. Return whether that was so.

        ``standing`` is the evidence that stood when the later scan began: what was found since then stays.
        """
        with self.lock:
            if standing is None or standing.claim != SCAN or self.evidence is not standing:
                return False
            self.settle()
            return True

    def _flag(self, evidence: Evidence) -> None:
        self.store.write([(TRANSACTION_INFO, FLAG_KEY, self._flag_row(evidence))])
        self.store.sync()
        self.evidence = evidence

    def settle(self, by_hand: bytes | None = None, of: Evidence | None = None) -> None:
        """Take the flag away: the contradiction has been settled in this replica's favour.

        When an operator settles it by hand, ``by_hand`` is the value to keep under #UNFLAGGED. ``of``: the evidence
        that was settled; other evidence that was found meanwhile stays.
        """
        with self.lock:
            if of is not None and self.evidence is not of:
                return
            writes: list[Write] = [(TRANSACTION_INFO, FLAG_KEY, None)]
            if by_hand is not None:
                writes.append((TRANSACTION_INFO, UNFLAGGED_KEY, by_hand))
            self.store.write(writes)
            self.store.sync()
            self.evidence = None

    def _flag_row(self, evidence: Evidence) -> bytes:
        return encode(audit_report(self.identity, "evidence", -1, self.position, Digests(self.families), evidence, 0))

    # -- trimming --------------------------------------------------------------------------------------------------

    def _remember_digest(self) -> None:
        self._barrier_digests[self.position.index] = f"{self.digests.total():016x}"
        while len(self._barrier_digests) > MAX_DIGESTS:
            del self._barrier_digests[next(iter(self._barrier_digests))]

    def barrier_digests(self) -> dict[int, str]:
        """Return the digests at the last barriers since the start: the sum over all slots in hex, by index."""
        with self.lock:
            return dict(self._barrier_digests)

    @property
    def bases(self) -> tuple[Base, ...]:
        """The last records at which this log can begin, in order."""
        return self._bases.whole

    @contextmanager
    def reading_again(self) -> Iterator[None]:
        """Keep the log from being trimmed behind this moment's position and anchor, while the code within reads it.

        The replica may move on meanwhile, and tell a later position to the trimmer.
        """
        with self.lock:
            held = self._keeps_from()
            self._held.append(held)
        try:
            yield
        finally:
            with self.lock:
                self._held.remove(held)

    def _keeps_from(self) -> int:
        return max(min(self.position.offset, self.anchor.offset), 0)

    def durable_place(self, holds: Iterable[int] = ()) -> MemberPlace:
        """Return where this replica stands, with everything up to there on the disk (``core/trimming``).

        The position is taken before the store is synced: what is applied meanwhile may be lost with the power.
        ``holds``: offsets from which transfers still need the log. Raises StoreFailure.
        """
        with self.lock:
            self.flush()
            position = self.position
            digests = {**self._barrier_digests, position.index: f"{self.digests.total():016x}"}
            place = MemberPlace(
                node=self.identity.node, cluster=self.identity.cluster, shard=self.identity.shard,
                offset=position.offset, keeps_from=min((self._keeps_from(), *self._held)), index=position.index,
                flagged=self.evidence is not None, members=self.state.replicas, bases=self._bases.whole,
                digests=tuple(digests.items()), holds=tuple(holds), record_hash=position.record_hash.hex(),
            )  # fmt: skip
        self.store.sync()
        return place

    # -- reads -----------------------------------------------------------------------------------------------------

    def scan(self, view: StoreView, pause: Callable[[], None] | None = None) -> Digests:
        """Return the digest of a full scan of ``view``: the scrub. Calls ``pause`` after each SCAN_STEP_ROWS rows."""
        return digest_of_rows(self.families, _all_rows(self.families.names, view, pause))

    def lost_families(self) -> dict[int, int]:
        """Return by how much the rows are off the digest, by slot, of families that should have rows and have none.

        It reads a row of each family: a database that has lost its table files is known before it serves.
        """
        with self.lock:
            self.flush()
            found: dict[int, int] = {}
            for position, name in enumerate(self.families.names):
                sums = self.digests.sums[position]
                if any(sums) and not ((page := self.store.page(name, b"", 1)).rows or page.more):
                    found |= {position * BUCKETS + bucket: -kept & MASK for bucket, kept in enumerate(sums) if kept}
            return found

    def snapshot(self) -> ReplicaSnapshot:
        """Return this moment of the replica. Close its ``rows``."""
        with self.lock:
            self.flush()
            return ReplicaSnapshot(self.position, self.digests.copy(), self.store.snapshot())

    def moment(self, families: Iterable[str]) -> tuple[int, StoreSnapshot]:
        """Return the last applied index, and the rows of some families at this moment (close them)."""
        with self.lock:
            self.flush()
            return self.position.index, self.store.snapshot(families)

    @contextmanager
    def held(self) -> Iterator[tuple[int, StoreView]]:
        """Yield the last applied index and the rows, which stay as they are while the code within reads a few of them.

        It costs a hundredth of a :meth:`moment`, and nothing is applied meanwhile.
        """
        with self.lock:
            yield self.position.index, self.rows


def _decoded(shard: int, offset: int, value: bytes) -> LogRecord:
    try:
        record: LogRecord = decode(value)
    except Undecodable as error:
        raise BrokenLog(f"shard {shard}, offset {offset}: {error}") from error
    if not isinstance(record, LogRecord):
        raise BrokenLog(f"shard {shard}, offset {offset}: a {type(record).__name__} does not belong in a log")
    return record


def _all_rows(
    names: Iterable[str], view: StoreView, pause: Callable[[], None] | None
) -> Iterable[tuple[str, bytes, bytes]]:
    rows = 0
    for name in names:
        for key, value in view.iterate(name, b""):
            yield name, key, value
            rows += 1
            if pause is not None and rows % SCAN_STEP_ROWS == 0:
                pause()
