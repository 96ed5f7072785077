"""From a decoded record of a log to the header that the reading rule takes. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from schemas.records import log
from spark_streaming.records.core.reading import GenesisFacts, Header

_COPIED = (
    "term", "nonce", "seq", "prev_chain", "node", "first_index", "last_index", "timestamp_ms", "index", "scrub",
    "feature_level",
)  # fmt: skip


def header_of(offset: int, value: bytes, record: Any) -> Header:
    """Return the header of a record at ``offset`` whose bytes are ``value``."""
    fields: dict[str, Any] = {name: getattr(record, name) for name in _COPIED if hasattr(record, name)}
    if isinstance(record, log.LeaderClaim):
        fields["value"] = value
    else:
        fields["chain_after"] = chain_after(record.prev_chain, value)
    if isinstance(record, log.FeatureLevel):
        fields["feature_level"] = record.level
    if isinstance(record, log.Genesis | log.Members):
        fields["replicas"] = tuple(record.replicas)
    if isinstance(record, log.Genesis):
        fields["genesis"] = GenesisFacts(
            cluster=record.cluster, shard=record.shard, shards=record.shards, replicas=tuple(record.replicas),
            column_families=tuple(record.column_families),
        )  # fmt: skip
    return Header(offset=offset, kind=type(record).__name__, **fields)


def chain_after(prev_chain: bytes, value: bytes) -> bytes:
    """Return the chain after a record of ``value`` that carries ``prev_chain``."""
    chained = hashlib.sha256(prev_chain)
    chained.update(value)
    return chained.digest()
