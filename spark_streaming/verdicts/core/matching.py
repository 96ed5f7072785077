"""The audit of one shard (a partition of a log) as a pure state machine: log records and reports in, verdicts out (design, section 9).

No Spark, no clock, no I/O: :mod:`audit` runs it inside Spark's stateful operator, tests run it alone. Rules:

1. Reports of a micro-batch are taken first, then its log records in offset order. So a report that is here when its
   barrier is read is matched there, and one that comes later is matched against the barrier's kept sums.
2. A barrier expects an incremental report of each member (those of Genesis, or of the last Members record), and a scrubbed one too if it says
   ``scrub``. What is missing at the deadline (processing time) is ``unknown``. A report that comes after it is
   judged all the same, as long as its barrier is kept.
3. ``equal`` needs the same slots, chain and index, and a replica that is not flagged. Evidence makes ``diverged``.
4. Once the log is broken nothing can be derived: every replica is ``diverged`` on basis ``log``, there and at every
   later barrier.
5. After a RequestBatch, and until a DigestBase, the log does not say what the rows are (``Core.blind``). At a barrier there
   the replicas are compared with each other (:mod:`peers`): what a majority of the members reports stands for the log's sums,
   and the verdict's basis says so.
6. State is bounded: KEPT_BARRIERS sums, EARLY_REPORTS reports and KEPT_SCANS scans a shard; beyond them the oldest goes, with its
   missing reports judged ``unknown``.
7. The first report of stored bytes at a barrier opens a *scan*, which waits for all members; then, or at its deadline, they are
   compared with each other (:mod:`scans`), and who has not reported is ``unknown``. What the log says of those bytes needs its rows:
   that is the batch job's to compute.
8. The column families of a log that older software began are the first of those that the auditor knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from schemas.records.datanode import BlockReport
from schemas.records.messages import Difference, Evidence, Verdict
from schemas.topics import OM_LOG
from spark_streaming.records.core.reading import (
    BARRIER,
    BATCH,
    DIGEST_BASE,
    REQUEST_BATCH,
    AuditPosition,
    Header,
    LogBroken,
    Ruling,
    read,
)
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.digests import Hashes, Sums
from spark_streaming.verdicts.core.peers import agreed, alone_basis
from spark_streaming.verdicts.core.scans import among_members

KEPT_BARRIERS = 256
"""Barriers whose sums are kept for reports to come: over four minutes at one a second, 14 KiB each."""

EARLY_REPORTS = 1024
"""Reports kept until their barrier is read."""

KEPT_SCANS = 4
"""Scans of stored bytes whose reports are kept until all members have reported."""

MAX_DIFFERENCES = 64
"""Differing slots that a verdict names; it counts them all."""

INCREMENTAL = "incremental"
SCRUBBED = "scrubbed"
EVIDENCE = "evidence"
LOG = "log"
BLOCKS = "blocks"

EQUAL = "equal"
DIVERGED = "diverged"
UNKNOWN = "unknown"

Key = tuple[str, str]
"""(node, basis) of a report."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogRow:
    """A log record as the transforms hand it over: header, changes of a batch, digest of a DigestBase."""

    header: Header
    slot: Hashes
    next: Hashes
    prev: Hashes
    unknown_families: tuple[str, ...] = ()
    base_slots: Sequence[int] | Hashes = ()
    base_sums: Sequence[int] | Hashes = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaReport:
    """A replica's report, or what is left of one that could not be decoded (``error``)."""

    partition: int
    offset: int
    cluster: str
    node: str
    shard: int
    basis: str
    barrier_offset: int
    index: int
    chain: bytes
    slots: Sequence[int] | Hashes
    sums: Sequence[int] | Hashes
    flagged: bool
    evidence: Evidence | None
    error: str | None = None

    @property
    def key(self) -> Key:
        """Return (node, basis)."""
        return self.node, self.basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptBarrier:
    """What the log says at a barrier; of a ``blind`` one, ``sums`` are what a majority of the replicas has reported."""

    offset: int
    index: int
    chain: bytes
    sums: Sums
    blind: bool = False


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Reports that a kept barrier still waits for; ``deadline_ms`` is None once they were judged unknown.

    At a blind barrier ``held`` are the reports kept until enough of them agree; ``voters`` is None once they did.
    """

    deadline_ms: int | None
    index: int
    missing: set[Key]
    voters: int | None = None
    held: set[Key] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Scan:
    """A scan of stored bytes: who has reported, and when it is judged without the others."""

    deadline_ms: int
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Core:
    """The small part of a shard's state, loaded and stored with every micro-batch.

    ``early`` gives for each kept report (barrier offset, node, basis) its deadline, None once judged unknown.
    """

    position: AuditPosition
    sums: Sums
    waiting: dict[int, Waiting] = field(default_factory=dict)
    early: dict[tuple[int, str, str], int | None] = field(default_factory=dict)
    scans: dict[int, Scan] = field(default_factory=dict)
    blind: bool = False
    broken_at: int | None = None
    broken_reason: str = ""


class MatchingStore(Protocol):
    """Where kept barriers and reports lie: Spark's state store, or a dict."""

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""

    def put_report(self, report: ReplicaReport) -> None:
        """Keep a report under (barrier offset, node, basis)."""

    def get_report(self, barrier_offset: int, key: Key) -> ReplicaReport:
        """Return a kept report."""

    def drop_report(self, barrier_offset: int, key: Key) -> None:
        """Forget a kept report."""

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingLimits:
    """Named limits of one shard's audit; ``report_timeout_ms`` counts from when the auditor reads a barrier.

    ``scan_timeout_ms`` counts from the first report of stored bytes: reading a disk takes one member longer than another.
    """

    report_timeout_ms: int = 10_000
    scan_timeout_ms: int = 600_000
    kept_scans: int = KEPT_SCANS
    kept_barriers: int = KEPT_BARRIERS
    early_reports: int = EARLY_REPORTS


Finding = Verdict | KeptBarrier
"""What the audit puts out: verdicts, and the log's own digest at each barrier."""


class ShardAudit:
    """One shard's audit. Not thread-safe; call :meth:`take` for each micro-batch, :meth:`expire` on a timer."""

    def __init__(
        self,
        *,
        shard: int,
        families: Sequence[str],
        limits: MatchingLimits,
        core: Core,
        store: MatchingStore,
        log: str = OM_LOG,
    ) -> None:
        self.log = log
        self.shard = shard
        self.families = tuple(families)
        self.limits = limits
        self.core = core
        self._store = store
        self._arrived: dict[tuple[int, str, str], ReplicaReport] = {}

    def take(
        self,
        log_rows: Sequence[LogRow],
        reports: Sequence[ReplicaReport],
        now_ms: int,
        block_reports: Sequence[BlockReport] = (),
    ) -> Iterator[Finding]:
        """Read a micro-batch, in any order of its rows, at processing time ``now_ms``; yield what it settles."""
        for report in sorted(reports, key=lambda report: report.offset):
            yield from self._take_report(report, now_ms)
        for row in sorted(log_rows, key=lambda row: row.header.offset):
            yield from self._take_log_row(row, now_ms)
        yield from self._keep_early(now_ms)
        for blocks in block_reports:
            yield from self._take_blocks(blocks, now_ms)
        yield from self._finish_scans(now_ms)

    def expire(self, now_ms: int) -> Iterator[Verdict]:
        """Judge ``unknown`` whatever has not come by its deadline."""
        for offset, waiting in self.core.waiting.items():
            if waiting.deadline_ms is not None and waiting.deadline_ms <= now_ms:
                waiting.deadline_ms = None
                yield from self._missing(offset, waiting, "no report in time", now_ms)
        for (offset, node, basis), deadline_ms in self.core.early.items():
            if deadline_ms is not None and deadline_ms <= now_ms:
                self.core.early[offset, node, basis] = None
                report = self._store.get_report(offset, (node, basis))
                yield self._unknown(report, "no barrier in the log at that offset yet", now_ms)
        for offset in [offset for offset, scan in self.core.scans.items() if scan.deadline_ms <= now_ms]:
            yield from self._judge_scan(offset, now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when :meth:`expire` has something to do, None if never."""
        deadlines = [w.deadline_ms for w in self.core.waiting.values() if w.deadline_ms is not None]
        deadlines += [deadline for deadline in self.core.early.values() if deadline is not None]
        deadlines += [scan.deadline_ms for scan in self.core.scans.values()]
        return min(deadlines, default=None)

    # Reports.

    def _take_report(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        core = self.core
        wrong = report.error or self._foreign(report)
        if wrong:
            yield self._unknown(report, wrong, now_ms)
        elif report.basis == EVIDENCE:
            yield self._verdict(report, DIVERGED, EVIDENCE, "the replica found another row than the log claims", now_ms)
        elif report.barrier_offset in core.waiting:
            waiting = core.waiting[report.barrier_offset]
            waiting.missing.discard(report.key)
            yield from self._match(self._store.get_barrier(report.barrier_offset), waiting, report, now_ms)
        elif core.broken_at is not None and report.barrier_offset >= core.broken_at:
            yield self._verdict(report, DIVERGED, LOG, self._broken_reason(), now_ms)
        elif report.barrier_offset < core.position.next_offset:
            yield self._unknown(report, "no kept barrier at that offset", now_ms)
        else:
            self._arrived[report.barrier_offset, *report.key] = report

    def _foreign(self, report: ReplicaReport) -> str | None:
        """Return why the report is not of this shard, or None."""
        genesis = self.core.position.genesis
        if report.basis not in (INCREMENTAL, SCRUBBED, EVIDENCE):
            return f"unknown basis {report.basis!r}"
        if report.shard != self.shard:
            return f"reports shard {report.shard} on partition {self.shard}"
        if genesis is not None and report.cluster != genesis.cluster:
            return f"reports cluster {report.cluster!r}, the log's is {genesis.cluster!r}"
        if genesis is not None and report.node not in self.core.position.members:
            return f"{report.node!r} is no replica of this shard"
        return None

    def _match(self, barrier: KeptBarrier, waiting: Waiting, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        """Judge a report of a kept barrier, or hold it until a majority of the replicas agrees there."""
        if waiting.voters is None or self._foreign(report):
            yield self._judge(barrier, report, now_ms)
            return
        self._store.put_report(report)
        waiting.held.add(report.key)
        held = [self._store.get_report(barrier.offset, key) for key in sorted(waiting.held)]
        found = agreed(held, len(self.families), waiting.voters)
        if found is not None:
            barrier = replace(barrier, sums=found)
            self._store.put_barrier(barrier)
            waiting.voters = None
            yield from (self._judge(barrier, one, now_ms) for one in held)
        elif not waiting.missing:
            reason = "no majority of the replicas holds the same"
            yield from (self._verdict(one, DIVERGED, alone_basis(one.basis), reason, now_ms) for one in held)
        else:
            return
        self._release(barrier.offset, waiting)

    def _release(self, offset: int, waiting: Waiting) -> None:
        for key in waiting.held:
            self._store.drop_report(offset, key)
        waiting.held.clear()

    def _judge(self, barrier: KeptBarrier, report: ReplicaReport, now_ms: int) -> Verdict:
        """Compare a report with its barrier."""
        wrong = self._foreign(report)
        if wrong:
            return self._unknown(report, wrong, now_ms)
        try:
            found = digests.from_sparse(len(self.families), report.slots, report.sums)
        except ValueError as error:
            return self._verdict(report, DIVERGED, report.basis, f"malformed digest: {error}", now_ms)
        own = digests.grown(barrier.sums, len(self.families))
        differing = (own != found).nonzero()[0]
        differences = [self._difference(int(slot), own, found) for slot in differing[:MAX_DIFFERENCES]]
        reasons = []
        if report.flagged or report.evidence is not None:
            reasons.append("the replica is flagged")
        if len(differing):
            others = "what a majority of the replicas holds" if barrier.blind else "the log's sums"
            reasons.append(f"{len(differing)} slots differ from {others}")
        if report.chain != barrier.chain:
            reasons.append(f"chain {report.chain.hex()[:16]}, the log's is {barrier.chain.hex()[:16]}")
        if report.index != barrier.index:
            reasons.append(f"index {report.index}, the log's is {barrier.index}")
        basis = alone_basis(report.basis) if barrier.blind else report.basis
        basis = EVIDENCE if report.flagged or report.evidence is not None else basis
        verdict = self._verdict(report, DIVERGED if reasons else EQUAL, basis, "; ".join(reasons) or "", now_ms)
        return replace(verdict, index=barrier.index, differences=differences, differing_slots=len(differing))

    def _difference(self, slot: int, log: Sums, replica: Sums) -> Difference:
        family, bucket = digests.slot_name(slot, self.families)
        log_sum, replica_sum = digests.signed(log[slot]), digests.signed(replica[slot])
        return Difference(cf=family, bucket=bucket, log_sum=log_sum, replica_sum=replica_sum)

    def _keep_early(self, now_ms: int) -> Iterator[Verdict]:
        """Keep what arrived before its barrier; judge what a broken log will never reach."""
        core = self.core
        for at, report in self._arrived.items():
            if core.broken_at is not None and report.barrier_offset >= core.broken_at:
                yield self._verdict(report, DIVERGED, LOG, self._broken_reason(), now_ms)
            elif report.barrier_offset < core.position.next_offset:
                yield self._unknown(report, "no barrier at that offset", now_ms)
            else:
                self._store.put_report(report)
                core.early[at] = now_ms + self.limits.report_timeout_ms
        self._arrived.clear()
        while len(core.early) > self.limits.early_reports:
            oldest = min(core.early)
            yield from self._drop_early(oldest, "too many reports wait for their barriers", now_ms)

    def _drop_early(self, at: tuple[int, str, str], reason: str, now_ms: int) -> Iterator[Verdict]:
        deadline_ms = self.core.early.pop(at)
        report = self._store.get_report(at[0], at[1:])
        self._store.drop_report(at[0], at[1:])
        if deadline_ms is not None:
            yield self._unknown(report, reason, now_ms)

    # Stored bytes.

    def _take_blocks(self, report: BlockReport, now_ms: int) -> Iterator[Verdict]:
        """Keep a report of stored bytes, unless it is none of this partition's."""
        wrong = self._foreign_blocks(report)
        if wrong:
            yield self._plain_verdict(
                report.datanode, report.log_offset, report.index, UNKNOWN, alone_basis(BLOCKS), wrong, now_ms
            )
            return
        scan = self.core.scans.setdefault(report.log_offset, Scan(deadline_ms=now_ms + self.limits.scan_timeout_ms))
        scan.reported.add(report.datanode)
        self._store.put_blocks(report)

    def _foreign_blocks(self, report: BlockReport) -> str | None:
        """Return why a report of stored bytes is none of this partition, or None."""
        position = self.core.position
        if report.partition != self.shard:
            return f"reports blocks of partition {report.partition} on partition {self.shard}"
        if position.genesis is None:
            return "the log has no Genesis"
        if report.cluster != position.genesis.cluster:
            return f"reports cluster {report.cluster!r}, the log's is {position.genesis.cluster!r}"
        if report.datanode not in position.members:
            return f"{report.datanode!r} is no member of this pipeline"
        waiting = self.core.waiting.get(report.log_offset)
        if waiting is not None and waiting.index != report.index:
            return f"names index {report.index} at a barrier of index {waiting.index}"
        return None

    def _finish_scans(self, now_ms: int) -> Iterator[Verdict]:
        """Judge scans that all members have reported, and the oldest ones of too many."""
        members = set(self.core.position.members)
        for offset in [offset for offset, scan in self.core.scans.items() if scan.reported >= members]:
            yield from self._judge_scan(offset, now_ms)
        while len(self.core.scans) > self.limits.kept_scans:
            yield from self._judge_scan(min(self.core.scans), now_ms)

    def _judge_scan(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        """Compare the reports of a scan with each other, and forget them."""
        reported = sorted(self.core.scans.pop(offset).reported)
        reports = [self._store.get_blocks(offset, node) for node in reported]
        members = self.core.position.members
        basis, index = alone_basis(BLOCKS), max(report.index for report in reports)
        for node, found in among_members(reports, len(members)).items():
            verdict = self._plain_verdict(node, offset, index, found.verdict, basis, found.reason, now_ms)
            yield replace(verdict, containers=found.containers)
        for node in sorted(set(members) - set(reported)):
            reason = "no report of its stored bytes in time"
            yield self._plain_verdict(node, offset, index, UNKNOWN, basis, reason, now_ms)
        for node in reported:
            self._store.drop_blocks(offset, node)

    # The log.

    def _take_log_row(self, row: LogRow, now_ms: int) -> Iterator[Finding]:
        if self.core.broken_at is not None:
            return
        try:
            self.core.position, outcome = read(self.core.position, row.header)
            if outcome is Ruling.COUNTS:
                self._apply(row)
        except LogBroken as broken:
            yield from self._break(broken, now_ms)
            return
        if outcome is Ruling.COUNTS and row.header.kind == BARRIER:
            yield from self._reach_barrier(row.header, now_ms)

    def _apply(self, row: LogRow) -> None:
        header, genesis = row.header, self.core.position.genesis
        if header.genesis is not None and genesis is not None and not self._knows(genesis.column_families):
            raise LogBroken(
                header.offset, f"column families {list(genesis.column_families)}, this auditor's {list(self.families)}"
            )
        if header.genesis is not None and header.genesis.shard != self.shard:
            raise LogBroken(header.offset, f"Genesis of shard {header.genesis.shard} on partition {self.shard}")
        if header.kind == BATCH:
            if row.unknown_families:
                raise LogBroken(header.offset, f"unknown column families: {', '.join(row.unknown_families)}")
            digests.add_changes(self.core.sums, row.slot, row.next, row.prev)
        elif header.kind == REQUEST_BATCH:
            self.core.blind = True
        elif header.kind == DIGEST_BASE:
            self.core.blind = False
            try:
                self.core.sums = digests.from_sparse(len(self.families), row.base_slots, row.base_sums)
            except ValueError as error:
                raise LogBroken(header.offset, f"malformed DigestBase: {error}") from error

    def _knows(self, families: Sequence[str]) -> bool:
        """Say whether a log's column families are the first of the auditor's."""
        return bool(families) and self.families[: len(families)] == tuple(families)

    def _reach_barrier(self, header: Header, now_ms: int) -> Iterator[Finding]:
        position = self.core.position
        barrier = KeptBarrier(
            offset=header.offset, index=header.index, chain=position.chain, sums=self.core.sums.copy(),
            blind=self.core.blind,
        )  # fmt: skip
        bases = (INCREMENTAL, SCRUBBED) if header.scrub else (INCREMENTAL,)
        missing = {(node, basis) for node in position.members for basis in bases}
        deadline_ms = now_ms + self.limits.report_timeout_ms
        voters = len(position.members) if barrier.blind else None
        waiting = Waiting(deadline_ms=deadline_ms, index=header.index, missing=missing, voters=voters)
        self.core.waiting[header.offset] = waiting
        self._store.put_barrier(barrier)
        yield barrier
        for report in self._early_of(header.offset):
            waiting.missing.discard(report.key)
            yield from self._match(self._store.get_barrier(header.offset), waiting, report, now_ms)
        while len(self.core.waiting) > self.limits.kept_barriers:
            yield from self._drop_barrier(min(self.core.waiting), now_ms)

    def _early_of(self, offset: int) -> list[ReplicaReport]:
        """Return the reports that came before their barrier at ``offset``, and keep them no longer."""
        found = [self._arrived.pop(at) for at in list(self._arrived) if at[0] == offset]
        for at in [at for at in self.core.early if at[0] == offset]:
            del self.core.early[at]
            found.append(self._store.get_report(at[0], at[1:]))
            self._store.drop_report(at[0], at[1:])
        return found

    def _drop_barrier(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        waiting = self.core.waiting.pop(offset)
        self._store.drop_barrier(offset)
        if waiting.deadline_ms is not None:
            yield from self._missing(offset, waiting, "no report while the barrier was kept", now_ms)
        self._release(offset, waiting)

    def _break(self, broken: LogBroken, now_ms: int) -> Iterator[Verdict]:
        self.core.broken_at, self.core.broken_reason = broken.offset, broken.reason
        for node in self.core.position.members or ("",):
            yield self._plain_verdict(
                node, broken.offset, self.core.position.last_index, DIVERGED, LOG, self._broken_reason(), now_ms
            )
        for at in [at for at in self.core.early if at[0] >= broken.offset]:
            yield from self._drop_early(at, self._broken_reason(), now_ms)

    def _broken_reason(self) -> str:
        return f"the log breaks its contract at offset {self.core.broken_at}: {self.core.broken_reason}"

    # Verdicts.

    def _missing(self, offset: int, waiting: Waiting, reason: str, now_ms: int) -> Iterator[Verdict]:
        for node, basis in sorted(waiting.missing):
            yield self._plain_verdict(node, offset, waiting.index, UNKNOWN, basis, reason, now_ms)
        for key in sorted(waiting.held):
            held = self._store.get_report(offset, key)
            reason = "no majority of the replicas has reported the same"
            yield self._verdict(held, UNKNOWN, alone_basis(held.basis), reason, now_ms)

    def _unknown(self, report: ReplicaReport, reason: str, now_ms: int) -> Verdict:
        return self._verdict(report, UNKNOWN, report.basis, reason, now_ms)

    def _verdict(self, report: ReplicaReport, verdict: str, basis: str, reason: str, now_ms: int) -> Verdict:
        plain = self._plain_verdict(report.node, report.barrier_offset, report.index, verdict, basis, reason, now_ms)
        return replace(plain, evidence=report.evidence)

    def _plain_verdict(
        self, node: str, offset: int, index: int, verdict: str, basis: str, reason: str, now_ms: int
    ) -> Verdict:
        genesis = self.core.position.genesis
        return Verdict(
            cluster=genesis.cluster if genesis else "",
            shard=self.shard,
            node=node,
            barrier_offset=offset,
            index=index,
            verdict=verdict,
            basis=basis,
            differences=[],
            differing_slots=0,
            evidence=None,
            reason=reason,
            decided_at_ms=now_ms,
            log=self.log,
        )
