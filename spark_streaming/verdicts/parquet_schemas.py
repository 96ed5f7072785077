"""The columns of the Parquet tables that the audit writes."""

from __future__ import annotations

import pyarrow as pa

_DIFFERENCE = pa.struct(
    [("cf", pa.string()), ("bucket", pa.int32()), ("log_sum", pa.int64()), ("replica_sum", pa.int64())]
)
_EVIDENCE = pa.struct(
    [
        ("index", pa.int64()), ("offset", pa.int64()), ("term", pa.int64()), ("leader", pa.string()),
        ("operation", pa.int32()), ("cf", pa.string()), ("key", pa.binary()), ("claim", pa.string()),
        ("claimed", pa.int64()), ("own", pa.int64()),
    ]
)  # fmt: skip
_CONTAINER = pa.struct(
    [
        ("container_id", pa.int64()), ("expected", pa.int64()), ("found", pa.int64()),
        ("blocks", pa.list_(pa.binary())),
    ]
)  # fmt: skip

VERDICTS = pa.schema(
    [
        ("cluster", pa.string()), ("shard", pa.int32()), ("node", pa.string()), ("barrier_offset", pa.int64()),
        ("index", pa.int64()), ("verdict", pa.string()), ("basis", pa.string()),
        ("differences", pa.list_(_DIFFERENCE)), ("differing_slots", pa.int32()), ("evidence", _EVIDENCE),
        ("reason", pa.string()), ("decided_at_ms", pa.int64()), ("log", pa.string()),
        ("containers", pa.list_(_CONTAINER)),
    ]
)  # fmt: skip
"""The fields of a Verdict, in its order."""

BARRIERS = pa.schema(
    [
        ("log", pa.string()), ("shard", pa.int32()), ("offset", pa.int64()), ("index", pa.int64()),
        ("chain", pa.binary()), ("digest", pa.string()), ("slots", pa.list_(pa.int32())),
        ("sums", pa.list_(pa.int64())),
    ]
)  # fmt: skip
