"""Samples for the windows of throughput and latency over the logs, and of the replicas' lag (design, section 9).

Each record gives *samples* (metric, kind, status, amount), and how often it has each of
them. The operator adds them up by window of time (``core/sampling.py``): a log is decoded once for digests and windows.
Windows go by the broker's append time.

===============  ==========================  ===================  ==================================================
metric           kind                        status               amount
===============  ==========================  ===================  ==================================================
``request``      request type                result code          commit latency, ms: append of the batch - first sent
``operation``    put, delete, merge,         ''                   operations of the record; ``total`` counts them
                 checkpoint, retry_row
``record``       record type                 ''                   bytes of the record
``batch``        requests, operations        ''                   size of the batch
``log_index``    ''                          ''                   last index of the batch
``block``        commit, delete              ''                   PutBlocks, tombstones; ``total`` counts them
``replica``      node                        basis                index of the report
===============  ==========================  ===================  ==================================================

Records are counted as they lie in the log, void ones too: rates are of what was written. Rates are ``total / seconds``
(of requests ``count / seconds``).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from schemas.codecs.codec import Undecodable, decode_as
from schemas.column_families import BLOCK_TABLE
from schemas.records.log import Batch, Checkpoint, Delete, LateRequest, Merge, Put, RequestBatch, Result
from schemas.records.messages import AuditReport, Response
from spark_streaming.windows.core.sampling import RecordSamples
from spark_streaming.windows.core.window_book import RowKey

LOGGED = "LOGGED"
"""Status of a request under late validation: the log does not hold its result."""

UNDECODABLE = "undecodable"
UNKNOWN_STATUS = "?"
OPERATION_KINDS = {Put: "put", Delete: "delete", Merge: "merge", Checkpoint: "checkpoint"}

LONGEST_MS = 10**12
"""Thirty years. When a request was sent is the client's word, and may be any number; sums must stay within 64 bits."""

_TOMBSTONE = b"\xff" * 8
"""First bytes of a blockTable row whose block is deleted (schemas/codecs/block_rows.py)."""


def log_samples(record: Any, size: int, appended_ms: int) -> RecordSamples:
    """Return the samples of a decoded log record of ``size`` bytes; None stands for one that cannot be decoded."""
    kind = UNDECODABLE if record is None else type(record).__name__
    found: Counter[tuple[RowKey, int]] = Counter([(RowKey("record", kind, ""), size)])
    if isinstance(record, Batch):
        _add_batch(found, record)
        requests = Counter(
            (one.request_type, status_of(one.response), _latency(one, appended_ms)) for one in record.results
        )
    elif isinstance(record, RequestBatch):
        _add(found, "batch", "requests", len(record.requests))
        _add(found, "log_index", "", record.last_index)
        requests = Counter((one.request_type, LOGGED, _latency(one, appended_ms)) for one in record.requests)
    else:
        return found
    for (request_type, status, latency), count in requests.items():
        found[RowKey("request", request_type, status), latency] += count
    return found


def report_samples(report: AuditReport) -> RecordSamples:
    """Return the samples of a replica's report."""
    return {(RowKey("replica", report.node, report.basis), report.index): 1}


def _add(found: Counter[tuple[RowKey, int]], metric: str, kind: str, amount: int) -> None:
    found[RowKey(metric, kind, ""), amount] += 1


def _add_batch(found: Counter[tuple[RowKey, int]], batch: Batch) -> None:
    kinds = Counter(map(type, batch.operations))
    for cls, kind in OPERATION_KINDS.items():
        _add(found, "operation", kind, kinds[cls])
    blocks = [_is_tombstone(op) for op in batch.operations if isinstance(op, Merge) and op.cf == BLOCK_TABLE]
    _add(found, "block", "commit", len(blocks) - sum(blocks))
    _add(found, "block", "delete", sum(blocks))
    _add(found, "operation", "retry_row", sum(result.recorded for result in batch.results))
    _add(found, "batch", "operations", len(batch.operations))
    _add(found, "batch", "requests", len(batch.results))
    _add(found, "log_index", "", batch.last_index)


def _latency(request: Result | LateRequest, appended_ms: int) -> int:
    return max(-LONGEST_MS, min(LONGEST_MS, appended_ms - request.first_sent_at_ms))


def _is_tombstone(op: Merge) -> bool:
    return op.operand.startswith(_TOMBSTONE)


def status_of(response: bytes) -> str:
    """Return the result code of an encoded response; UNKNOWN_STATUS if it cannot be decoded."""
    try:
        return decode_as(Response, response).status
    except Undecodable:
        return UNKNOWN_STATUS
