"""A log record as the auditor's reading rule sees it, decoded in Python. Pure.

The audit's own headers come from Spark's functions (``records/transforms.py``), because it needs no values. Tables need
the values, so each record is decoded here once, whole.
"""

from __future__ import annotations

import hashlib
from typing import Any

from schemas.codecs.codec import Undecodable, UnknownSchema, decode
from schemas.records.log import LogRecord
from spark_streaming.records.core.reading import (
    BARRIER,
    BATCH,
    CLAIM,
    FEATURE_LEVEL,
    GENESIS,
    INDEXED,
    LOG_RECORD_TYPES,
    MEMBERS,
    REQUEST_BATCH,
    UNKNOWN_SCHEMA,
    GenesisFacts,
    Header,
)


def read_record(offset: int, value: bytes | None) -> tuple[Header, LogRecord | None]:
    """Decode a record of a log; return its header and itself, or a header with an error and None."""
    if value is None:
        return Header(offset=offset, kind=None, error="no value"), None
    try:
        record = decode(value)
    except UnknownSchema as error:
        return Header(offset=offset, kind=None, error=f"{UNKNOWN_SCHEMA} {error.fingerprint.hex()}"), None
    except Undecodable as error:
        return Header(offset=offset, kind=None, error=str(error)), None
    kind = type(record).__name__
    if kind not in LOG_RECORD_TYPES:
        return Header(offset=offset, kind=None, error=f"a {kind} is no record of a log"), None
    return Header(offset=offset, kind=kind, **_fields(kind, record, value)), record


def _fields(kind: str, record: Any, value: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"term": record.term, "nonce": record.nonce}
    if kind == CLAIM:
        return found | {"value": value, "node": record.node}
    chain_after = hashlib.sha256(record.prev_chain + value).digest()
    found |= {"seq": record.seq, "prev_chain": record.prev_chain, "chain_after": chain_after}
    if kind in (BATCH, REQUEST_BATCH):
        found |= {name: getattr(record, name) for name in ("first_index", "last_index", "timestamp_ms")}
    if kind in INDEXED:
        found["index"] = record.index
    return found | _own_fields(kind, record)


def _own_fields(kind: str, record: Any) -> dict[str, Any]:
    if kind == GENESIS:
        facts = GenesisFacts(
            cluster=record.cluster, shard=record.shard, shards=record.shards, replicas=tuple(record.replicas),
            column_families=tuple(record.column_families),
        )  # fmt: skip
        return {"genesis": facts, "feature_level": record.feature_level}
    if kind == MEMBERS:
        return {"replicas": tuple(record.replicas)}
    if kind == FEATURE_LEVEL:
        return {"feature_level": record.level}
    return {"scrub": record.scrub} if kind == BARRIER else {}
