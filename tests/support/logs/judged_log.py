"""A shard's log as somebody outside the product reads it: every record with what the reading rule says of it.

Sums and last rows are computed here, with the plain functions of ``logbuilder``; only the reading rule is the product's
(``replicated_db.core.log.reading``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading, advance, judge
from replicated_db.core.ports import Entry
from replicated_db.shell.kafka.kafka_log import KafkaLog
from schemas.codecs.codec import decode
from schemas.column_families import RETRY_TABLE
from schemas.records.log import Batch, Delete, DigestBase, LogRecord, Merge, Put
from schemas.topics import OM_LOG
from tests.support.logs.logbuilder import MASK, Rows, merged, row_hash, slot_of

READ_RECORDS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A record of the log and what the reading rule says of it."""

    offset: int
    value: bytes
    record: LogRecord
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLog:
    """A shard's whole log, read by the rule."""

    records: list[Judged]
    position: Position

    def counting(self, kind: type | None = None) -> list[Any]:
        """Return the records that take effect (of one type), in order."""
        found = [judged.record for judged in self.records if judged.reading.takes_effect]
        return [record for record in found if kind is None or isinstance(record, kind)]

    def void(self) -> list[Judged]:
        return [judged for judged in self.records if not judged.reading.takes_effect]

    def results_by_call(self) -> dict[tuple[bytes, bytes], int]:
        """Return how many recorded results each call has: one, if it has one effect."""
        found: dict[tuple[bytes, bytes], int] = defaultdict(int)
        for batch in self.counting(Batch):
            for result in batch.results:
                if result.recorded:
                    found[result.client_id, result.call_id] += 1
        return found

    def rows(self) -> Rows:
        """Return the live rows: the last operation on each key decides, claims unused."""
        rows: Rows = {}
        for batch in self.counting(Batch):
            for operation in batch.operations:
                if isinstance(operation, Put):
                    rows[operation.cf, operation.key] = operation.value
                elif isinstance(operation, Delete):
                    rows.pop((operation.cf, operation.key), None)
                elif isinstance(operation, Merge):
                    row = (operation.cf, operation.key)
                    rows[row] = merged(rows.get(row), operation.operand)
            for key, value in retry_rows(batch):
                rows[RETRY_TABLE, key] = value
        return rows

    def sums(self, up_to_offset: int | None = None) -> dict[int, int]:
        """Return the log's own digest: the sum of next - prev in each slot, claims believed; DigestBase restarts it."""
        sums: dict[int, int] = defaultdict(int)
        for judged in self.records:
            if not judged.reading.takes_effect or (up_to_offset is not None and judged.offset > up_to_offset):
                continue
            if isinstance(judged.record, DigestBase):
                sums = defaultdict(int, zip(judged.record.slots, judged.record.sums, strict=True))
            elif isinstance(judged.record, Batch):
                add_claims(sums, judged.record)
        return {slot: total & MASK for slot, total in sorted(sums.items()) if total & MASK}


def add_claims(sums: dict[int, int], batch: Batch) -> None:
    """Add next - prev of a batch's operations and retry rows to the sums by slot."""
    for operation in batch.operations:
        if isinstance(operation, Put):
            change = row_hash(operation.cf, operation.key, operation.value) - (operation.prev or 0)
        elif isinstance(operation, Delete):
            change = -(operation.prev or 0)
        elif isinstance(operation, Merge):
            change = operation.next - (operation.prev or 0)
        else:
            continue
        sums[slot_of(operation.cf, operation.key)] += change
    for key, value in retry_rows(batch):
        sums[slot_of(RETRY_TABLE, key)] += row_hash(RETRY_TABLE, key, value)


def retry_rows(batch: Batch) -> list[tuple[bytes, bytes]]:
    return [(r.client_id + r.call_id, r.request_hash + r.response) for r in batch.results if r.recorded]


def unsigned(slots: Sequence[int], sums: Sequence[int]) -> dict[int, int]:
    """Return slot -> unsigned sum, as reports and the HTTP API give them."""
    return {slot: total & MASK for slot, total in zip(slots, sums, strict=True) if total & MASK}


def read_log(bootstrap_servers: str, shard: int) -> JudgedLog:
    """Read a shard's log from its first record to its present end, and judge every record."""
    reader = LogReader()
    records = list(reader.read(bootstrap_servers, shard))
    return JudgedLog(records=records, position=reader.position)


class LogReader:
    """Reads a log record by record, for logs that are too long to be held; ``position`` is where it has come to."""

    def __init__(self) -> None:
        self.position = Position()

    def read(self, bootstrap_servers: str, shard: int) -> Iterator[Judged]:
        """Iterate over a shard's log from its first record to its present end, each record judged."""
        log = KafkaLog(bootstrap_servers, OM_LOG, shard, "")
        try:
            following, end = log.bounds()
            while following < end:
                for entry in log.read(following, min(READ_RECORDS, end - following), 5.0):
                    yield self.judged(entry)
                    following = entry.offset + 1
        finally:
            log.close()

    def judged(self, entry: Entry) -> Judged:
        """Judge the next record."""
        record = decode(entry.value)
        reading = judge(self.position, record)
        if reading.takes_effect:
            self.position = advance(self.position, record, entry.offset, entry.value)
        return Judged(offset=entry.offset, value=entry.value, record=record, reading=reading)
