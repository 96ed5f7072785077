"""From a log record's bytes to what the matching takes: its header, and the hashes of the rows that it changes. Pure.

Definitions (design, section 3):

* row hash: XXH64 chained over column family, key, value, seed 42 (Spark's ``xxhash64(cf, key, value)``); bucket:
  ``xxhash64(cf, key) & 255``; slot: position of cf * 256 + bucket. ``next`` and ``prev`` are hashes of the rows after
  and before an operation, 0 for absent ones.
* A retry row is derived from each recorded result: cf ``retryTable``, key client_id + call_id, value request_hash +
  response, after the batch's operations.
* ``chain_after`` is SHA-256(own prev_chain + value). The matching proves that each counting record's prev_chain is the
  chain before it, so ``chain_after`` is the chain after it.

The nodes decode with the same compiled codec. So that a fault of it cannot hide here, of every CHECKED_EACH-th record
fastavro's reading is compared too (decision 0056); and the batch job's oracle decodes with Spark's functions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh64_intdigest

from schemas.codecs.codec import HEADER_BYTES, Undecodable, UnknownSchema, decode, decode_by_fastavro
from schemas.codecs.registry import MARKER
from schemas.column_families import BUCKETS, RETRY_TABLE
from schemas.records import log
from schemas.records.messages import LogDigestBase
from spark_streaming.records.core.log_headers import header_of
from spark_streaming.records.core.reading import LOG_RECORD_TYPES, UNKNOWN_SCHEMA, Header
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.digests import Hashes
from spark_streaming.verdicts.core.inputs import LogRow

CHECKED_EACH = 64
"""Of so many records one is decoded a second time, by fastavro: it takes some ten times as long."""

TWO_READINGS = "for two decoders read its records differently"
"""Why such a record is not judged."""

UNKNOWN_SLOT = -1
"""Slot of a row whose column family is not in the auditor's list."""

SEED = 42
_MASK = (1 << 64) - 1
_NO_HASHES: Hashes = np.zeros(0, dtype=np.int64)


class Decoded(NamedTuple):
    """A record of one of the wanted types, or why there is none."""

    record: Any
    error: str | None = None


def decoded(value: bytes | None, wanted: Sequence[str]) -> Decoded:
    """Decode a value; one of another type than those wanted has a schema that is not known here."""
    if value is None:
        return Decoded(None, "no value")
    if len(value) < HEADER_BYTES:
        return Decoded(None, f"{len(value)} bytes are no encoded record")
    if value[: len(MARKER)] != MARKER:
        return Decoded(None, "not single-object encoded Avro")
    try:
        record = decode(value)
    except UnknownSchema as error:
        return Decoded(None, f"{UNKNOWN_SCHEMA} {error.fingerprint.hex()}")
    except Undecodable as error:
        return Decoded(None, str(error))
    if type(record).__name__ not in wanted:
        return Decoded(None, f"{UNKNOWN_SCHEMA} {value[len(MARKER) : HEADER_BYTES].hex()}")
    return Decoded(record)


def decoded_log_record(offset: int, value: bytes | None) -> Decoded:
    """Decode a log record; some of them twice, by two decoders. What these read differently is not judged."""
    found = decoded(value, LOG_RECORD_TYPES)
    if found.record is not None and value is not None and offset % CHECKED_EACH == 0:
        try:
            is_same = decode_by_fastavro(value) == found.record
        except Undecodable:
            is_same = False
        if not is_same:
            return Decoded(None, f"{UNKNOWN_SCHEMA}, {TWO_READINGS}")
    return found


class Changes(NamedTuple):
    """Slot of each row that a batch changes, and its hashes after and before, modulo 2^64."""

    slot: list[int]
    next: list[int]
    prev: list[int]


class RowHashes:
    """Hashes of rows, and slots, of one log's column families."""

    def __init__(self, families: Sequence[str]) -> None:
        """Raises ValueError if there is no table for retry rows."""
        if RETRY_TABLE not in families:
            raise ValueError(f"column families {list(families)} without {RETRY_TABLE}")
        self._places = {
            cf: (xxh64_intdigest(cf.encode(), SEED), position * BUCKETS) for position, cf in enumerate(families)
        }

    def changes(self, batch: log.Batch) -> Changes:
        """Return slot, next and prev of each row that a batch changes: operations, then retry rows."""
        found = Changes([], [], [])
        for op in batch.operations:
            if not isinstance(op, log.Checkpoint):
                self._add_operation(found, op)
        seed, first = self._places[RETRY_TABLE]
        for result in batch.results:
            if result.recorded:
                hashed = xxh64_intdigest(result.client_id + result.call_id, seed)
                found.slot.append(first + hashed % BUCKETS)
                found.next.append(xxh64_intdigest(result.request_hash + result.response, hashed))
                found.prev.append(0)
        return found

    def _add_operation(self, found: Changes, op: log.Put | log.Delete | log.Merge) -> None:
        place = self._places.get(op.cf)
        seed, first = place if place is not None else (xxh64_intdigest(op.cf.encode(), SEED), -1)
        hashed = xxh64_intdigest(op.key, seed)
        found.slot.append(first + hashed % BUCKETS if first >= 0 else UNKNOWN_SLOT)
        if isinstance(op, log.Put):
            found.next.append(xxh64_intdigest(op.value, hashed))
        else:
            found.next.append(op.next & _MASK if isinstance(op, log.Merge) else 0)
        found.prev.append((op.prev or 0) & _MASK)

    def log_row(self, offset: int, value: bytes, found: Decoded) -> LogRow:
        """Return what the matching takes of a record; one that could not be decoded has its error alone."""
        record = found.record
        if record is None:
            header = Header(offset=offset, kind=None, error=found.error)
            return LogRow(header=header, slot=_NO_HASHES, next=_NO_HASHES, prev=_NO_HASHES)
        header = header_of(offset, value, record)
        if isinstance(record, log.Batch):
            return self._of_batch(header, record)
        base = record if isinstance(record, log.DigestBase) else None
        return LogRow(
            header=header, slot=_NO_HASHES, next=_NO_HASHES, prev=_NO_HASHES,
            base_slots=base.slots if base else (), base_sums=base.sums if base else (),
            base_basis=base.basis if base else "",
        )  # fmt: skip

    def _of_batch(self, header: Header, batch: log.Batch) -> LogRow:
        found = self.changes(batch)
        slot = np.array(found.slot, dtype=np.int64)
        after, prev = (np.array(one, dtype=np.uint64).view(np.int64) for one in (found.next, found.prev))
        unknown: tuple[str, ...] = ()
        if len(slot) and slot.min() < 0:
            named = {op.cf: None for op in batch.operations if not isinstance(op, log.Checkpoint)}
            unknown = tuple(cf for cf in named if cf not in self._places)
        slot, after, prev = digests.condensed(slot, after, prev)
        return LogRow(
            header=header, slot=slot, next=after, prev=prev, unknown_families=unknown, base_asked_by=_asked_by(batch)
        )


def _asked_by(batch: log.Batch) -> str:
    """Return the client whose command logged a DigestBase: it is the first request of the batch behind the base."""
    first = batch.results[0] if batch.results else None
    return first.client_id.hex() if first is not None and first.request_type == LogDigestBase.__name__ else ""
