"""What the audit of a shard remembers between micro-batches, and its limits. Pure.

The log is in one of four states (:class:`LogStanding`)::

    SUMMED --RequestBatch--> BLIND --DigestBase--> SUMMED
    either --the log breaks its contract--> BROKEN, for ever
    either --newer software wrote a record--> UNREADABLE, until the audit is upgraded
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from schemas.records.datanode import BlockReport
from schemas.records.messages import Verdict
from schemas.settings.table import AuditSettings
from spark_streaming.records.core.reading import DIGEST_BASE, REQUEST_BATCH, AuditPosition, LogBroken, LogTooNew
from spark_streaming.verdicts.core.digests import Sums
from spark_streaming.verdicts.core.inputs import ReplicaReport, ReportKey, ReportPlace

KEPT_BARRIERS = 256
"""Barriers whose sums are kept for later reports: over four minutes at one a second, 20 KiB each."""

EARLY_REPORTS = 1024
"""Most reports that are kept until their barrier is read; those of the farthest barriers are held back beyond it."""

EARLY_BYTES = 64 * 1024 * 1024
"""Most bytes of such reports: a report has 8 MiB at most, 20 KiB as a rule."""

TAKEN_BACK = 20_000
"""Most reports that were held back and are read again in one micro-batch."""

KEPT_SCANS = 4
"""Most scans of stored bytes that are kept until all members have reported."""

EARLY_SCAN_REPORTS = 8
"""Most reports of a scan that are kept before the log says who the members are: a report has 8 MiB at most."""


class LogStanding(Enum):
    """What the log alone tells about a shard's rows."""

    SUMMED = "summed"
    """The log's claims give the sums of all rows."""
    BLIND = "blind"
    """The log holds a RequestBatch: every replica has derived its rows itself, until a DigestBase."""
    BROKEN = "broken"
    """The log breaks its contract: nothing can be derived from there on."""
    UNREADABLE = "unreadable"
    """Newer software has written what this audit cannot read: nothing is known from there on."""


ENDED = (LogStanding.BROKEN, LogStanding.UNREADABLE)
"""Standings in which no further record is read."""


AFTER_RECORD: Mapping[tuple[LogStanding, str], LogStanding] = {
    (LogStanding.SUMMED, REQUEST_BATCH): LogStanding.BLIND,
    (LogStanding.BLIND, DIGEST_BASE): LogStanding.SUMMED,
}
"""The standing after a counting record; a record that is not listed changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptBarrier:
    """A barrier with the log's sums; a ``blind`` one has the ``sums`` that a majority of the replicas has reported."""

    offset: int
    index: int
    chain: bytes
    sums: Sums
    blind: bool = False


Finding = Verdict | KeptBarrier
"""The audit's output: verdicts, and the log's own digest at each barrier."""


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Reports that a kept barrier still waits for; ``deadline_ms`` is None once they have been judged unknown.

    At a blind barrier ``held`` are the reports kept until enough of them agree; ``voters`` is None once they do.
    """

    deadline_ms: int | None
    index: int
    missing: set[ReportKey]
    voters: int | None = None
    held: set[ReportKey] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether a report is missing, or one is held that not enough others agree with."""
        return bool(self.missing or self.held)

    def is_due(self, now_ms: int) -> bool:
        """Say whether the missing reports have to be judged unknown now."""
        return self.deadline_ms is not None and self.deadline_ms <= now_ms


@dataclass(slots=True, kw_only=True)
class Scan:
    """A scan of stored bytes: which nodes have reported, and when it is judged without the others."""

    deadline_ms: int
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class EarlyReport:
    """A report that is kept until its barrier is read.

    ``deadline_ms`` is None once it has been judged unknown. ``offset``: its own, in the topic of reports. ``size``: the
    bytes that it takes.
    """

    deadline_ms: int | None
    offset: int
    size: int


class HeldBack(NamedTuple):
    """Offsets in the topic of reports: all that is held back lies from ``first`` on, before ``end``."""

    first: int
    end: int


class ChangedSlot(NamedTuple):
    """A slot that a DigestBase has changed: the sum that the log's operations gave (signed), and the base's."""

    slot: int
    before: int
    after: int


@dataclass(slots=True, kw_only=True)
class BaseChange:
    """A DigestBase at ``offset`` that replaced the log's sums by others.

    ``slots``: how many differ; ``named``: the first of them. ``basis``: as the record says. ``asked_by``: the client of
    the command, in hexadecimal; empty while it is not known. ``is_told``: whether a verdict has said it.
    """

    offset: int
    index: int
    slots: int
    named: tuple[ChangedSlot, ...]
    basis: str
    leader: str
    asked_by: str = ""
    is_told: bool = False


@dataclass(slots=True, kw_only=True)
class AuditState:
    """The small part of a shard's state, loaded and stored with every micro-batch.

    ``early``: the reports that wait for their barriers; ``held_back``: where those lie that had no room. ``broken_at``
    and ``broken_reason`` say where and why the log is BROKEN or UNREADABLE. ``base``: the last DigestBase that changed
    the sums.
    """

    position: AuditPosition
    sums: Sums
    waiting: dict[int, Waiting] = field(default_factory=dict)
    early: dict[ReportPlace, EarlyReport] = field(default_factory=dict)
    held_back: HeldBack | None = None
    scans: dict[int, Scan] = field(default_factory=dict)
    standing: LogStanding = LogStanding.SUMMED
    broken_at: int | None = None
    broken_reason: str = ""
    base: BaseChange | None = None

    def pass_record(self, kind: str) -> None:
        """Take the standing that a counting record of ``kind`` leads to."""
        self.standing = AFTER_RECORD.get((self.standing, kind), self.standing)

    def break_log(self, broken: LogBroken) -> None:
        """Remember where and why the log breaks its contract, or cannot be read."""
        self.standing = LogStanding.UNREADABLE if isinstance(broken, LogTooNew) else LogStanding.BROKEN
        self.broken_at, self.broken_reason = broken.offset, broken.reason

    def hold_back(self, first: int, end: int) -> None:
        """Remember that reports from offset ``first`` on, before ``end``, are to be read again."""
        known = self.held_back or HeldBack(first, end)
        self.held_back = HeldBack(min(known.first, first), max(known.end, end))

    @property
    def holds_back(self) -> bool:
        """Whether there are reports to be read again."""
        return self.held_back is not None

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of what is missing, None if nothing is."""
        deadlines = [one.deadline_ms for one in self.waiting.values() if one.deadline_ms is not None and one.is_open]
        deadlines += [early.deadline_ms for early in self.early.values() if early.deadline_ms is not None]
        deadlines += [scan.deadline_ms for scan in self.scans.values()]
        return min(deadlines, default=None)


class MatchingStore(Protocol):
    """Where kept barriers and reports lie: Spark's state store, or a dict."""

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""

    def put_report(self, report: ReplicaReport) -> int:
        """Keep a report at its place; return the bytes that it takes."""

    def get_report(self, place: ReportPlace) -> ReplicaReport:
        """Return a kept report."""

    def drop_report(self, place: ReportPlace) -> None:
        """Forget a kept report."""

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""


class ReportTopic(Protocol):
    """The topic of the replicas' reports, where those that were held back are read again."""

    def read(self, first: int, end: int) -> Iterator[ReplicaReport]:
        """Yield the reports of the shard's partition from offset ``first`` on, before ``end``, in their order.

        Reports of other kinds are left out, and so are those that the topic has lost.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingLimits:
    """Limits of one shard's audit. ``report_timeout_ms`` counts from the moment at which the auditor reads a barrier.

    ``scan_timeout_ms`` counts from the first report of stored bytes: some members read their disks faster than others.
    """

    report_timeout_ms: int = AuditSettings.audit_report_timeout_ms
    scan_timeout_ms: int = AuditSettings.audit_scan_timeout_ms
    kept_scans: int = KEPT_SCANS
    kept_barriers: int = KEPT_BARRIERS
    early_reports: int = EARLY_REPORTS
    early_bytes: int = EARLY_BYTES
    taken_back: int = TAKEN_BACK
