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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.codecs.codec import Undecodable, decode_as
from schemas.column_families import BLOCK_TABLE
from schemas.records.log import Batch, Checkpoint, Delete, LateRequest, Merge, Put, RequestBatch, Result
from schemas.records.messages import AuditReport, Response
from spark_streaming.windows.core.sampling import RecordSamples
from spark_streaming.windows.core.window_book import OTHER, RowKey

LOGGED = "LOGGED"
"""Status of a request under late validation: the log does not hold its result."""

UNDECODABLE = "undecodable"
UNKNOWN_STATUS = "?"
OPERATION_KINDS = {Put: "put", Delete: "delete", Merge: "merge", Checkpoint: "checkpoint"}

_OPERATIONS = tuple(RowKey("operation", kind, "") for kind in OPERATION_KINDS.values())
_BATCH_RECORD = RowKey("record", Batch.__name__, "")
_BLOCKS_COMMITTED = RowKey("block", "commit", "")
_BLOCKS_DELETED = RowKey("block", "delete", "")
_RETRY_ROWS = RowKey("operation", "retry_row", "")
_BATCH_OPERATIONS = RowKey("batch", "operations", "")
_BATCH_REQUESTS = RowKey("batch", "requests", "")
_LOG_INDEX = RowKey("log_index", "", "")

KNOWN_CHARACTERS = 256
"""Longest request type and result code together that have a row; longer ones are no words of ours, and are OTHER."""

KNOWN_REQUESTS = 4_096
"""Rows of requests that are remembered: a type and a result code each."""

LONGEST_MS = 10**12
"""Thirty years. When a request was sent is the client's word, and may be any number; sums must stay within 64 bits."""

_TOMBSTONE = b"\xff" * 8
"""First bytes of a blockTable row whose block is deleted (schemas/codecs/block_rows.py)."""


class BatchFigures(NamedTuple):
    """What the windows count of a batch of ``size`` bytes.

    ``operations``: puts, deletes, merges, checkpoints. ``blocks``: merges of ``blockTable``, and how many of these are
    tombstones. ``requests``: by type, result code and latency.
    """

    size: int
    operations: tuple[int, int, int, int]
    blocks: tuple[int, int]
    retries: int
    last_index: int
    requests: Mapping[tuple[str, str, int], int]


def log_samples(record: Any, size: int, appended_ms: int) -> RecordSamples:
    """Return the samples of a decoded log record of ``size`` bytes; None stands for one that cannot be decoded."""
    if isinstance(record, Batch):
        return batch_samples(_figures(record, size, appended_ms))
    kind = UNDECODABLE if record is None else type(record).__name__
    found = Counter({(RowKey("record", kind, ""), size): 1})
    if isinstance(record, RequestBatch):
        found[_BATCH_REQUESTS, len(record.requests)] = 1
        found[_LOG_INDEX, record.last_index] = 1
        found.update((_request(one.request_type, LOGGED), _latency(one, appended_ms)) for one in record.requests)
    return found


def batch_samples(figures: BatchFigures) -> RecordSamples:
    """Return the samples of a batch."""
    merged, deleted = figures.blocks
    found = {
        (_BATCH_RECORD, figures.size): 1,
        (_BLOCKS_COMMITTED, merged - deleted): 1,
        (_BLOCKS_DELETED, deleted): 1,
        (_RETRY_ROWS, figures.retries): 1,
        (_BATCH_OPERATIONS, sum(figures.operations)): 1,
        (_BATCH_REQUESTS, sum(figures.requests.values())): 1,
        (_LOG_INDEX, figures.last_index): 1,
    }
    for row, count in zip(_OPERATIONS, figures.operations, strict=True):
        found[row, count] = 1
    for (request_type, status, latency_ms), count in figures.requests.items():
        sample = _request(request_type, status), latency_ms
        found[sample] = found.get(sample, 0) + count
    return found


def _figures(batch: Batch, size: int, appended_ms: int) -> BatchFigures:
    kinds = Counter(map(type, batch.operations))
    puts, deletes, merges, checkpoints = (kinds[cls] for cls in OPERATION_KINDS)
    blocks = [_is_tombstone(op) for op in batch.operations if isinstance(op, Merge) and op.cf == BLOCK_TABLE]
    return BatchFigures(
        size, (puts, deletes, merges, checkpoints), (len(blocks), sum(blocks)),
        sum(result.recorded for result in batch.results), batch.last_index,
        Counter((one.request_type, status_of(one.response), _latency(one, appended_ms)) for one in batch.results),
    )  # fmt: skip


def report_samples(report: AuditReport) -> RecordSamples:
    """Return the samples of a replica's report."""
    return {(RowKey("replica", report.node, report.basis), report.index): 1}


def _request(request_type: str, status: str) -> RowKey:
    if len(request_type) + len(status) > KNOWN_CHARACTERS:
        return RowKey("request", OTHER, OTHER)
    return _known_request(request_type, status)


@lru_cache(KNOWN_REQUESTS)
def _known_request(request_type: str, status: str) -> RowKey:
    return RowKey("request", request_type, status)


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
