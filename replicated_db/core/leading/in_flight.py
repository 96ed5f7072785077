"""The records of one claim: numbered and chained at their append, then in flight, then effective.

A record becomes effective when its report is error-free, every earlier one is effective, and its offset directly
follows the previous own record's. If other offsets lie between, the log is read there first: while
:attr:`RecordsInFlight.must_read` is set, nothing more becomes effective. After a failed append, or one whose outcome is
unknown, nothing more is appended: :class:`Deposed`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from xxhash import xxh3_128_digest

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import AheadOfLog
from replicated_db.core.execution.service import Reply
from replicated_db.core.leading.builder import Header, OnApplied
from replicated_db.core.ports import DeliveryReport
from replicated_db.core.tables.digests import next_chain
from schemas.codecs.codec import encode_at
from schemas.records.log import CountingRecord
from schemas.records.record import record


class Deposed(Exception):
    """Nothing more may be appended under this claim. The log tells what became of the records in flight."""


@record
class Append:
    """A record to append; ``token`` comes back in its delivery report."""

    token: int
    value: bytes


@record
class Effective:
    """A record that became effective and was applied: replies to send, and the outcome of applying the record."""

    offset: int
    record: CountingRecord
    record_hash: bytes
    replies: list[Reply]
    outcome: Offered


@dataclass(slots=True, kw_only=True)
class _InFlight:
    seq: int
    record: CountingRecord
    value: bytes = field(repr=False)
    chain: bytes
    on_applied: OnApplied | None
    report: DeliveryReport | None = None


class RecordsInFlight:
    """The records appended under the claim at ``claim_offset``, the last record that ``replica`` has read."""

    def __init__(self, replica: Replica, claim_offset: int) -> None:
        position = replica.position
        self._replica = replica
        self.term = position.term
        self.nonce = position.nonce
        self.seq = 0
        """Number of the last record appended."""
        self.chain = position.chain
        """Chain after the last record appended."""
        self.deposed: str | None = None
        """Why nothing more may be appended."""
        self._last_offset = claim_offset
        self._in_flight: deque[_InFlight] = deque()
        self._must_read: _InFlight | None = None

    def __len__(self) -> int:
        """Return the number of records appended and not yet effective."""
        return len(self._in_flight)

    @property
    def settled(self) -> bool:
        """Whether no batch is in flight. Other records may be."""
        return all(entry.on_applied is None for entry in self._in_flight)

    def header(self) -> Header:
        """Return the next record's header: the four fields with which every record but a claim begins."""
        return {"term": self.term, "nonce": self.nonce, "seq": self.seq + 1, "prev_chain": self.chain}

    def append(self, record: CountingRecord, feature_level: int, on_applied: OnApplied | None = None) -> Append:
        """Encode a record that has the next :meth:`header`, and await its report.

        Raises Deposed after a failure, and if the replica has read another claim: what the record says was executed on
        rows of that claim then, and should the log lose the claim, the record would count all the same.
        """
        if self.deposed is not None:
            raise Deposed(self.deposed)
        if self._replica.position.nonce != self.nonce:
            raise self._depose(self.seq + 1, f"not appended: term {self._replica.position.term} leads")
        value = encode_at(record, feature_level)
        self.seq += 1
        self.chain = next_chain(self.chain, value)
        self._in_flight.append(
            _InFlight(seq=self.seq, record=record, value=value, chain=self.chain, on_applied=on_applied)
        )
        return Append(token=self.seq, value=value)

    def on_report(self, report: DeliveryReport) -> list[Effective]:
        """Take a delivery report; return the records that it makes effective, in order.

        Raises Deposed as soon as an append failed or its outcome is unknown, even if earlier ones are still in flight;
        AheadOfLog if offsets run backwards.
        """
        for entry in self._in_flight:
            if entry.seq == report.token:
                entry.report = report
                if report.error is not None or report.offset < 0:
                    raise self._depose(entry.seq, report.error or "no offset reported")
        return self._advance()

    def _depose(self, seq: int, reason: str) -> Deposed:
        self.deposed = f"seq {seq} of term {self.term}: {reason}"
        return Deposed(self.deposed)

    @property
    def must_read(self) -> int | None:
        """Offset up to which (inclusive) the log must be offered to the replica first; None if nothing must be read."""
        entry = self._must_read
        return None if entry is None or entry.report is None else entry.report.offset

    def on_read(self) -> list[Effective]:
        """Go on after everything up to :attr:`must_read` has been offered to the replica."""
        entry, self._must_read = self._must_read, None
        if entry is None or entry.report is None:
            return []
        return [self._settle(entry, entry.report.offset), *self._advance()]

    def _advance(self) -> list[Effective]:
        effective: list[Effective] = []
        while self._must_read is None and self._in_flight and (report := self._in_flight[0].report) is not None:
            entry = self._in_flight[0]
            if report.offset <= self._last_offset:
                raise AheadOfLog(f"seq {entry.seq} lies at {report.offset}, not behind {self._last_offset}")
            if report.offset == self._last_offset + 1:
                effective.append(self._settle(entry, report.offset))
            else:
                self._must_read = entry
        return effective

    def _settle(self, entry: _InFlight, offset: int) -> Effective:
        """Apply a record that lies after everything offered so far, and release its replies."""
        outcome = self._replica.offer(offset, entry.value, entry.record, entry.chain)
        position = self._replica.position
        record_hash = xxh3_128_digest(entry.value)
        if position.nonce != self.nonce or position.seq < entry.seq or self._replica.counted(offset) != record_hash:
            raise self._depose(entry.seq, f"did not count: term {position.term} leads")
        self._in_flight.popleft()
        self._last_offset = offset
        return Effective(
            offset=offset,
            record=entry.record,
            record_hash=record_hash,
            replies=[] if entry.on_applied is None else entry.on_applied(offset),
            outcome=outcome,
        )
