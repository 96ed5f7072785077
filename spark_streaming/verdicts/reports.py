"""From a report's bytes to what the matching takes: a replica's digest, or a member's scan of stored bytes. Pure."""

from __future__ import annotations

from dataclasses import replace

from schemas.column_families import BUCKETS
from schemas.records.datanode import BlockReport
from schemas.records.messages import AuditReport
from spark_streaming.verdicts.core.inputs import ReplicaReport
from spark_streaming.verdicts.log_rows import Decoded, decoded
from spark_streaming.verdicts.state import replica_report

REPORT_TYPES = (AuditReport.__name__, BlockReport.__name__)

MAX_SLOTS = 64 * BUCKETS
"""Slots of a report; a log has fewer column families."""


def decoded_report(value: bytes | None) -> Decoded:
    """Decode a report of either kind."""
    return decoded(value, REPORT_TYPES)


def report_of(partition: int, offset: int, key: bytes | None, found: Decoded) -> ReplicaReport | BlockReport:
    """Return a decoded report as the matching takes it.

    One that could not be decoded is of the node that its message's key names (``<shard>/<node>``). One with more slots
    than any log has keeps none of them.
    """
    if isinstance(found.record, BlockReport):
        return found.record
    if found.record is None:
        return _unreadable(partition, offset, key, found.error)
    report = replica_report(partition, offset, found.record)
    slots, sums = len(report.slots), len(report.sums)
    if max(slots, sums) > MAX_SLOTS:
        return replace(report, slots=(), sums=(), error=f"{slots} slots with {sums} sums are no digest")
    return report


def _unreadable(partition: int, offset: int, key: bytes | None, error: str | None) -> ReplicaReport:
    node = (key or b"").decode(errors="replace").split("/", 1)[-1]
    return ReplicaReport(
        partition=partition, offset=offset, cluster="", node=node, shard=0, basis="", barrier_offset=-1, index=0,
        chain=b"", slots=(), sums=(), flagged=False, evidence=None, error=error,
    )  # fmt: skip
