"""What Spark's transforms make of a log, computed in Python from the same bytes: the model they are tested against."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from schemas.codecs.codec import Undecodable, decode, decode_as, encode
from schemas.column_families import OM_COLUMN_FAMILIES, RETRY_TABLE
from schemas.records.datanode import BlockReport
from schemas.records.log import Batch, Checkpoint, Delete, DigestBase, FeatureLevel, LeaderClaim, Merge, Put
from schemas.records.log import Genesis as GenesisRecord
from schemas.records.messages import AuditReport
from spark_streaming.records.core.reading import GenesisFacts, Header
from spark_streaming.verdicts.core.inputs import LogRow, ReplicaReport, ReportPlace
from spark_streaming.verdicts.core.shard_state import KeptBarrier
from spark_streaming.verdicts.state import report_from, report_value
from tests.support.logs.logbuilder import row_hash, slot_of


def changes(batch: Batch, families: Sequence[str] = OM_COLUMN_FAMILIES) -> list[tuple[int, int, int]]:
    """(slot, next, prev) of each row that a batch changes; slot -1 for an unknown column family."""
    found = []
    for op in batch.operations:
        if isinstance(op, Checkpoint):
            continue
        slot = slot_of(op.cf, op.key, families) if op.cf in families else -1
        after = {Put: lambda o: row_hash(o.cf, o.key, o.value), Delete: lambda _: 0, Merge: lambda o: o.next}[type(op)](
            op
        )
        found.append((slot, after, op.prev or 0))
    for result in batch.results:
        if result.recorded:
            key, value = result.client_id + result.call_id, result.request_hash + result.response
            found.append((slot_of(RETRY_TABLE, key, families), row_hash(RETRY_TABLE, key, value), 0))
    return found


def header(offset: int, value: bytes) -> Header:
    try:
        record = decode(value)
    except Undecodable as error:
        return Header(offset=offset, kind=None, error=str(error))
    names = {field.name for field in fields(Header)} - {"offset", "kind", "error", "value", "genesis"}
    found: dict[str, Any] = {name: getattr(record, name) for name in names if hasattr(record, name)}
    if "replicas" in found:
        found["replicas"] = tuple(found["replicas"])
    if isinstance(record, FeatureLevel):
        found["feature_level"] = record.level
    if isinstance(record, LeaderClaim):
        found["value"] = value
    else:
        found["chain_after"] = hashlib.sha256(record.prev_chain + value).digest()
    if isinstance(record, GenesisRecord):
        found["genesis"] = GenesisFacts(
            cluster=record.cluster,
            shard=record.shard,
            shards=record.shards,
            replicas=tuple(record.replicas),
            column_families=tuple(record.column_families),
        )
    return Header(offset=offset, kind=type(record).__name__, **found)


def log_row(offset: int, value: bytes, families: Sequence[str] = OM_COLUMN_FAMILIES) -> LogRow:
    head = header(offset, value)
    record = decode(value) if head.kind is not None else None
    flat = changes(record, families) if isinstance(record, Batch) else []
    columns = np.array(flat, dtype=np.int64).reshape(-1, 3).T
    unknown = []
    if isinstance(record, Batch):
        named = [op.cf for op in record.operations if not isinstance(op, Checkpoint)]
        unknown = sorted(set(named) - set(families))
    base = record if isinstance(record, DigestBase) else None
    return LogRow(
        header=head,
        slot=columns[0],
        next=columns[1],
        prev=columns[2],
        unknown_families=tuple(unknown),
        base_slots=base.slots if base else (),
        base_sums=base.sums if base else (),
        base_basis=base.basis if base else "",
        base_asked_by=asked_by(record),
    )


def asked_by(record: Any) -> str:
    """The client of a batch's first request, if that asked for a DigestBase."""
    first = record.results[0] if isinstance(record, Batch) and record.results else None
    return first.client_id.hex() if first is not None and first.request_type == "LogDigestBase" else ""


def log_rows(values: list[bytes], start: int = 0, families: Sequence[str] = OM_COLUMN_FAMILIES) -> list[LogRow]:
    return [log_row(start + n, value, families) for n, value in enumerate(values[start:])]


def report(record: AuditReport, offset: int = 0) -> ReplicaReport:
    found = {field.name: getattr(record, field.name) for field in fields(AuditReport)}
    del found["reported_at_ms"]
    return ReplicaReport(partition=record.shard, offset=offset, **found)


class ReportsInMemory:
    """A ``ReportTopic`` on a list: its position is a report's offset. ``lost``: the first offset that is still there."""

    def __init__(self) -> None:
        self.reports: list[AuditReport] = []
        self.lost = 0
        self.reads: list[tuple[int, int]] = []

    def read(self, first: int, end: int) -> Iterator[ReplicaReport]:
        """Yield the reports from offset ``first`` on, before ``end``."""
        self.reads.append((first, end))
        for offset in range(max(first, self.lost), end):
            yield report(self.reports[offset], offset)


class MatchingState:
    """A ``MatchingStore`` on dicts; reports go through the bytes of Spark's state store."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.barriers: dict[int, KeptBarrier] = {}
        self.reports: dict[ReportPlace, tuple[int, bytes]] = {}
        self.blocks: dict[tuple[int, str], bytes] = {}

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""
        self.blocks[report.log_offset, report.datanode] = encode(report)

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""
        return decode_as(BlockReport, self.blocks[offset, node])

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""
        del self.blocks[offset, node]

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""
        self.barriers[barrier.offset] = barrier

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""
        return self.barriers[offset]

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""
        del self.barriers[offset]

    def put_report(self, report: ReplicaReport) -> int:
        """Keep a report at its place; return the bytes that it takes."""
        self.reports[report.place] = (report.offset, report_value(report))
        return len(self.reports[report.place][1])

    def get_report(self, place: ReportPlace) -> ReplicaReport:
        """Return a kept report."""
        offset, value = self.reports[place]
        return report_from(self._shard, offset, value)

    def drop_report(self, place: ReportPlace) -> None:
        """Forget a kept report."""
        del self.reports[place]
