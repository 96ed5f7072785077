"""From a log record's bytes to what the audit keeps of it: header and hashes for the matching, samples for the windows.

``log_rows`` and ``windows.samples`` say what that is. Batches are nearly all of a log, so they are read in C where that
could be built (``native``): the same comes out. What the scanner does not understand, malformed batches and unknown
column families among it, goes the other way. Of every CHECKED_EACH-th record the outcome is compared with what the
other way makes of fastavro's reading (decision 0056).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from schemas.codecs.codec import HEADER_BYTES, Undecodable, decode_by_fastavro
from schemas.column_families import RETRY_TABLE
from schemas.records.log import Batch, Tick
from schemas.records.messages import LogDigestBase, Response
from spark_streaming.records.core.log_headers import chain_after
from spark_streaming.records.core.reading import BATCH, UNKNOWN_SCHEMA, Header
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.inputs import LogRow
from spark_streaming.verdicts.log_rows import (
    CHECKED_EACH,
    SEED,
    TWO_READINGS,
    Decoded,
    RowHashes,
    decoded_log_record,
)
from spark_streaming.windows.core.sampling import RecordSamples
from spark_streaming.windows.samples import LONGEST_MS, BatchFigures, batch_samples, log_samples, status_of

try:
    from spark_streaming.verdicts.native import BatchScanner
except ImportError:  # not built, for want of a compiler
    BatchScanner = None  # type: ignore[assignment,misc]

SCANNED = {Batch: bytes.fromhex("c30194949ab26c288cf4"), Response: bytes.fromhex("c3017863e9993286cf1a")}
"""Of each type that the scanner reads the version that it was written for: how its values begin.

Batches of another version are read in Python, and responses of another one decoded.
"""


class ReadRecord(NamedTuple):
    """What is kept of a record; ``is_news``: whether it is more than a Tick."""

    row: LogRow
    samples: RecordSamples
    is_news: bool = True


class LogReader:
    """Reads the records of one log; for one thread."""

    def __init__(self, families: Sequence[str]) -> None:
        """Raises ValueError if there is no table for retry rows."""
        self._hashes = RowHashes(families)
        self._scanner = None
        if BatchScanner is not None:
            self._scanner = BatchScanner(families, RETRY_TABLE, SCANNED[Response], status_of, LONGEST_MS, SEED)

    def read(self, offset: int, appended_ms: int, value: bytes | None) -> ReadRecord:
        """Read a record that was appended at ``appended_ms``."""
        raw = value or b""
        scanned = None
        if self._scanner is not None and raw.startswith(SCANNED[Batch]):
            scanned = self._scanner.scan(raw, HEADER_BYTES, appended_ms)
        if scanned is None:
            return self._made_of(offset, appended_ms, raw, decoded_log_record(offset, value))
        found = _of_scan(offset, raw, scanned)
        if offset % CHECKED_EACH == 0 and not self._is_right(found, offset, appended_ms, raw):
            return self._made_of(offset, appended_ms, raw, Decoded(None, f"{UNKNOWN_SCHEMA}, {TWO_READINGS}"))
        return found

    def _made_of(self, offset: int, appended_ms: int, raw: bytes, found: Decoded) -> ReadRecord:
        row = self._hashes.log_row(offset, raw, found)
        samples = log_samples(found.record, len(raw), appended_ms)
        return ReadRecord(row, samples, is_news=not isinstance(found.record, Tick))

    def _is_right(self, found: ReadRecord, offset: int, appended_ms: int, raw: bytes) -> bool:
        try:
            record = decode_by_fastavro(raw)
        except Undecodable:
            return False
        return are_alike(found, self._made_of(offset, appended_ms, raw, Decoded(record)))


def are_alike(one: ReadRecord, other: ReadRecord) -> bool:
    """Say whether two readings of a record are the same."""
    first, second = one.row, other.row
    same_rows = all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in ("slot", "next", "prev")
    )  # fmt: skip
    same_words = (first.header, first.unknown_families, first.base_asked_by) == (
        second.header, second.unknown_families, second.base_asked_by,
    )  # fmt: skip
    return same_rows and same_words and dict(one.samples) == dict(other.samples)


def _of_scan(offset: int, raw: bytes, scanned: tuple[Any, ...]) -> ReadRecord:
    fields, rows, operations, blocks, retries, requests, client, request_type = scanned
    term, nonce, seq, prev_chain, first_index, last_index, timestamp_ms = fields
    header = Header(
        offset=offset, kind=BATCH, term=term, nonce=nonce, seq=seq, prev_chain=prev_chain,
        chain_after=chain_after(prev_chain, raw), first_index=first_index, last_index=last_index,
        timestamp_ms=timestamp_ms,
    )  # fmt: skip
    slot, after, prev = np.ascontiguousarray(np.frombuffer(rows, dtype=np.int64).reshape(-1, 3).T)
    slot, after, prev = digests.condensed(slot, after, prev)
    asked_by = client.hex() if client is not None and request_type == LogDigestBase.__name__ else ""
    row = LogRow(header=header, slot=slot, next=after, prev=prev, base_asked_by=asked_by)
    figures = BatchFigures(len(raw), operations, blocks, retries, last_index, requests)
    return ReadRecord(row, batch_samples(figures))
