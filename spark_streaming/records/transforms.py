"""From raw Kafka records to the rows of the audit's stateful operator, by built-in functions alone.

DataFrame to DataFrame, the same for streams and batch. One row for each log record (header, flat arrays of its row
changes) and one for each report, in one schema, so that both reach the operator of their shard. Definitions:

* row hash: ``xxhash64(cf, key, value)``; bucket: ``xxhash64(cf, key) & 255``; slot: position of cf * 256 + bucket
  (design, section 3). ``next`` and ``prev`` are hashes of the rows after and before an operation, 0 for absent ones.
* A retry row is derived from each recorded result: cf ``retryTable``, key client_id + call_id, value request_hash +
  response, after the batch's operations.
* ``chain_after`` is SHA-256(own prev_chain + value). The operator proves that each counting record's prev_chain is the
  chain before it, so ``chain_after`` is the chain after it. Hashing needs no order, runs in parallel here, and the
  value bytes need not travel to the operator. Claims have no prev_chain: only they bring their value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom
from pyspark.sql import types as T  # noqa: N812

from schemas.column_families import BUCKETS, RETRY_TABLE
from schemas.records.messages import LogDigestBase
from spark_streaming.records.core.reading import (
    BARRIER,
    BATCH,
    CLAIM,
    DIGEST_BASE,
    FEATURE_LEVEL,
    GENESIS,
    INDEXED,
    LOG_RECORD_TYPES,
    MEMBERS,
    REQUEST_BATCH,
)
from spark_streaming.records.decode import ERROR, RECORD_TYPE, column_of, decoded, schema_text
from spark_streaming.records.logs import AuditedLog

REPORT = "AuditReport"
BLOCK_REPORT = "BlockReport"
BLOCKS = "blocks"
"""Basis of a report of stored bytes."""
FAMILIES = "_families"
UNKNOWN_SLOT = -1
"""Slot of a row whose column family is not in the auditor's list."""

_LONGS = T.ArrayType(T.LongType())
_TEXTS = T.ArrayType(T.StringType())

AUDIT_SCHEMA = T.StructType(
    [
        # Identity. ``kind``: the type of a log record or report, or null with an error.
        T.StructField("log", T.StringType()),
        T.StructField("shard", T.IntegerType()),
        T.StructField("source", T.StringType()),
        T.StructField("offset", T.LongType()),
        T.StructField("kind", T.StringType()),
        T.StructField("error", T.StringType()),
        T.StructField("value", T.BinaryType()),
        # Log records.
        T.StructField("term", T.LongType()),
        T.StructField("nonce", T.BinaryType()),
        T.StructField("seq", T.LongType()),
        T.StructField("prev_chain", T.BinaryType()),
        T.StructField("chain_after", T.BinaryType()),
        T.StructField("first_index", T.LongType()),
        T.StructField("last_index", T.LongType()),
        T.StructField("timestamp_ms", T.LongType()),
        T.StructField("slot", _LONGS),
        T.StructField("next", _LONGS),
        T.StructField("prev", _LONGS),
        T.StructField("unknown_families", _TEXTS),
        T.StructField("scrub", T.BooleanType()),
        T.StructField("shards", T.IntegerType()),
        T.StructField("replicas", _TEXTS),
        T.StructField("column_families", _TEXTS),
        T.StructField("feature_level", T.IntegerType()),
        T.StructField("base_asked_by", T.StringType()),
        # Log records and reports.
        T.StructField("index", T.LongType()),
        T.StructField("cluster", T.StringType()),
        T.StructField("node", T.StringType()),
        T.StructField("named_shard", T.IntegerType()),
        T.StructField("slots", T.ArrayType(T.IntegerType())),
        T.StructField("sums", _LONGS),
        T.StructField("basis", T.StringType()),
        # Reports.
        T.StructField("barrier_offset", T.LongType()),
        T.StructField("chain", T.BinaryType()),
        T.StructField("flagged", T.BooleanType()),
        # Samples for windows (:class:`RowSamples`).
        T.StructField("appended_ms", T.LongType()),
        T.StructField("sample_names", _TEXTS),
        T.StructField("sample_amounts", _LONGS),
    ]
)
"""One row of the operator's input.

A field that a row's kind does not have is null, or 0 or false: pandas would turn a column of integers with a null into
floats.
"""

LOG_SOURCE = "log"
REPORT_SOURCE = "report"


@dataclass(frozen=True, slots=True)
class RowSamples:
    """How decoded records get their samples: each adds ``sample_names`` and ``sample_amounts`` to a frame."""

    of_log: Callable[[DataFrame], DataFrame]
    of_reports: Callable[[DataFrame], DataFrame]


SAMPLES = ("sample_names", "sample_amounts")


def log_rows(records: DataFrame, logs: Sequence[AuditedLog], samples: RowSamples | None = None) -> DataFrame:
    """Turn records of log topics into rows of AUDIT_SCHEMA; without ``samples`` they have none."""
    families = families_of(logs)
    light = {REQUEST_BATCH: _light_request_batch() if samples else without_fields(REQUEST_BATCH, "requests")}
    frame = with_changes(decoded(records, LOG_RECORD_TYPES, light), families)
    changes = {name: F.col(name) for name in ("slot", "next", "prev")}
    changes |= {"unknown_families": unknown_families(), "base_asked_by": _base_asked_by()}
    return _log_rows(samples.of_log(frame) if samples else frame, changes | _sample_columns(samples))


def _sample_columns(samples: RowSamples | None) -> dict[str, Column]:
    if samples is None:
        return {}
    return {name: F.col(name) for name in SAMPLES} | {"appended_ms": F.unix_millis("timestamp")}


def _light_request_batch() -> Any:
    """Return RequestBatch's schema with requests reduced to their type and time: all that their samples need."""
    schema = json.loads(schema_text(REQUEST_BATCH))
    for field in schema["fields"]:
        if field["name"] == "requests":
            request = field["type"]["items"]
            request["fields"] = [f for f in request["fields"] if f["name"] in ("first_sent_at_ms", "request_type")]
    return schema


def _base_asked_by() -> Column:
    """Return the client whose command logged a DigestBase: it is the first request of the batch behind the base."""
    first = F.get(F.col(column_of(BATCH))["results"], 0)
    return F.when(first["request_type"] == LogDigestBase.__name__, F.lower(F.hex(first["client_id"])))


def families_of(logs: Sequence[AuditedLog]) -> Column:
    """Return the column families of a row's log."""
    arrays = [F.array(*map(F.lit, log.column_families)) for log in logs]
    found = arrays[0]
    for log, names in zip(logs[1:], arrays[1:], strict=True):
        found = F.when(F.col("log") == log.name, names).otherwise(found)
    return found


def header_rows(records: DataFrame) -> DataFrame:
    """Turn records of a log topic into rows of AUDIT_SCHEMA without their changes, as the reading rule needs them.

    Operations and results are skipped over, not decoded: much cheaper, but a batch that is malformed within one of
    them may pass.
    """
    light = {
        BATCH: without_fields(BATCH, "operations", "results"),
        REQUEST_BATCH: without_fields(REQUEST_BATCH, "requests"),
    }
    return _log_rows(decoded(records, LOG_RECORD_TYPES, light), {})


def without_fields(record_type: str, *unwanted: str) -> Any:
    """Return the current schema of a record type without some of its fields: they are skipped over, not built."""
    schema = json.loads(schema_text(record_type))
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in unwanted]
    return schema


def _log_rows(frame: DataFrame, changes: dict[str, Column]) -> DataFrame:
    columns: dict[str, Column] = {
        "source": F.lit(LOG_SOURCE),
        "kind": F.col(RECORD_TYPE),
        "value": F.when(F.col(RECORD_TYPE) == CLAIM, F.col("value")),
        "term": _field("term", *LOG_RECORD_TYPES),
        "nonce": _field("nonce", *LOG_RECORD_TYPES),
        "seq": _field("seq", *_COUNTING),
        "prev_chain": _field("prev_chain", *_COUNTING),
        "chain_after": F.unhex(F.sha2(F.concat(_field("prev_chain", *_COUNTING), F.col("value")), 256)),
        "first_index": _field("first_index", BATCH, REQUEST_BATCH),
        "last_index": _field("last_index", BATCH, REQUEST_BATCH),
        "timestamp_ms": _field("timestamp_ms", BATCH, REQUEST_BATCH),
        "scrub": _field("scrub", BARRIER),
        "shards": _field("shards", GENESIS),
        "replicas": _field("replicas", GENESIS, MEMBERS),
        "feature_level": F.coalesce(_field("feature_level", GENESIS), _field("level", FEATURE_LEVEL)),
        "column_families": _field("column_families", GENESIS),
        "index": _field("index", *INDEXED),
        "cluster": _field("cluster", GENESIS),
        "node": _field("node", CLAIM),
        "named_shard": _field("shard", GENESIS),
        "slots": _field("slots", DIGEST_BASE),
        "sums": _field("sums", DIGEST_BASE),
        "basis": _field("basis", DIGEST_BASE),
        **changes,
    }
    return _as_audit_rows(frame, columns)


def report_rows(records: DataFrame, samples: RowSamples | None = None) -> DataFrame:
    """Turn records of the report topics into rows of AUDIT_SCHEMA; without ``samples`` they have none.

    The value is kept only if it holds evidence or is a report of blocks. For a report that could not be decoded,
    ``node`` comes from the message key ``<shard>/<node>``.
    """
    frame = decoded(records, [REPORT, BLOCK_REPORT])
    frame = samples.of_reports(frame) if samples else frame
    report, blocks = F.col(column_of(REPORT)), F.col(column_of(BLOCK_REPORT))
    of_blocks = F.col(RECORD_TYPE) == BLOCK_REPORT
    key_node = F.element_at(F.split(F.decode("key", "UTF-8"), "/", 2), -1)
    columns: dict[str, Column] = {
        "source": F.lit(REPORT_SOURCE),
        "kind": F.col(RECORD_TYPE),
        "value": F.when(report["evidence"].isNotNull() | of_blocks, F.col("value")),
        "node": F.coalesce(report["node"], blocks["datanode"], key_node, F.lit("")),
        "named_shard": F.coalesce(report["shard"], blocks["partition"]),
        **{name: F.coalesce(report[name], blocks[name]) for name in ("index", "cluster")},
        **{name: report[name] for name in ("slots", "sums", "chain", "flagged")},
        "basis": F.when(of_blocks, F.lit(BLOCKS)).otherwise(report["basis"]),
        "barrier_offset": F.coalesce(report["barrier_offset"], blocks["log_offset"], F.lit(-1)),
        **_sample_columns(samples),
    }
    return _as_audit_rows(frame, columns)


def audit_rows(
    log: DataFrame, reports: DataFrame, logs: Sequence[AuditedLog], samples: RowSamples | None = None
) -> DataFrame:
    """Return log records and reports as one frame of AUDIT_SCHEMA, with samples for windows if they are wanted."""
    return log_rows(log, logs, samples).unionByName(report_rows(reports, samples))


def no_rows(frame: DataFrame) -> DataFrame:
    """Return a frame without rows as one of AUDIT_SCHEMA."""
    return frame.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in AUDIT_SCHEMA))


def with_changes(frame: DataFrame, families: Column) -> DataFrame:
    """Add ``slot``, ``next``, ``prev`` to decoded log records: one entry for each row that a batch changes.

    They are null for other records. The three arrays run in parallel: operations first, then derived retry rows.
    """
    batch = F.col(column_of(BATCH))
    operations = F.filter(batch["operations"], lambda op: op["member_checkpoint"].isNull())
    recorded = F.filter(batch["results"], lambda result: result["recorded"])
    frame = frame.select("*", operations.alias("_operations"), recorded.alias("_recorded"), families.alias(FAMILIES))
    known = F.col(FAMILIES)
    slot = F.concat(
        F.transform("_operations", lambda op: slot_of(operation_family(op), operation_key(op), known)),
        F.transform("_recorded", lambda r: slot_of(F.lit(RETRY_TABLE), retry_key(r), known)),
    )
    after = F.concat(
        F.transform("_operations", next_hash),
        F.transform("_recorded", lambda r: F.xxhash64(F.lit(RETRY_TABLE), retry_key(r), retry_value(r))),
    )
    prev = F.concat(
        F.transform("_operations", prev_hash),
        F.transform("_recorded", lambda _: F.lit(0).cast("long")),
    )
    return frame.select("*", slot.alias("slot"), after.alias("next"), prev.alias("prev"))


def operation_family(op: Column) -> Column:
    """Return the column family of an operation other than Checkpoint."""
    return F.coalesce(op["member_put"]["cf"], op["member_delete"]["cf"], op["member_merge"]["cf"])


def operation_key(op: Column) -> Column:
    """Return the key of an operation other than Checkpoint."""
    return F.coalesce(op["member_put"]["key"], op["member_delete"]["key"], op["member_merge"]["key"])


def retry_key(result: Column) -> Column:
    """Return the key of a result's retry row: client_id (16) + call_id (8)."""
    return F.concat(result["client_id"], result["call_id"])


def retry_value(result: Column) -> Column:
    """Return the value of a result's retry row: request_hash (16) + response."""
    return F.concat(result["request_hash"], result["response"])


def slot_of(family: Column, key: Column, families: Column) -> Column:
    """Return the digest slot of a row, UNKNOWN_SLOT if its column family is not in ``families``."""
    position = F.array_position(families, family)
    bucket = F.xxhash64(family, key).bitwiseAND(F.lit(BUCKETS - 1).cast("long"))
    return F.when(position > 0, (position - 1) * BUCKETS + bucket).otherwise(F.lit(UNKNOWN_SLOT).cast("long"))


def next_hash(op: Column) -> Column:
    """Return the hash of the row that an operation leaves; for a Merge it is the claimed hash."""
    put, merge = op["member_put"], op["member_merge"]
    return (
        F.when(put.isNotNull(), F.xxhash64(put["cf"], put["key"], put["value"]))
        .when(merge.isNotNull(), merge["next"])
        .otherwise(F.lit(0).cast("long"))
    )


def prev_hash(op: Column) -> Column:
    """Return the claimed hash of the row that an operation replaces."""
    claimed = F.coalesce(op["member_put"]["prev"], op["member_delete"]["prev"], op["member_merge"]["prev"])
    return F.coalesce(claimed, F.lit(0).cast("long"))


def unknown_families() -> Column:
    """Return the column families that a batch's operations name and their log lacks; null if none (the usual case)."""
    named = F.array_distinct(F.transform("_operations", operation_family))
    return F.when(F.array_contains("slot", F.lit(UNKNOWN_SLOT).cast("long")), F.array_except(named, F.col(FAMILIES)))


_COUNTING = tuple(kind for kind in LOG_RECORD_TYPES if kind != CLAIM)


def _field(name: str, *record_types: str) -> Column:
    """Return a field that several record types have, from the type that the record is."""
    return F.coalesce(*(F.col(column_of(record_type))[name] for record_type in record_types))


def _as_audit_rows(frame: DataFrame, columns: dict[str, Column]) -> DataFrame:
    own = {"log": F.col("log"), "shard": F.col("shard"), "offset": F.col("offset"), "error": F.col(ERROR), **columns}
    return frame.select(*(_typed(own.get(field.name), field) for field in AUDIT_SCHEMA))


def _typed(value: Column | None, field: T.StructField) -> Column:
    default: Any = None
    if isinstance(field.dataType, T.IntegralType):
        default = 0
    elif isinstance(field.dataType, T.BooleanType):
        default = False
    absent = F.lit(default).cast(field.dataType)
    if value is None:
        return absent.alias(field.name)
    typed = value.cast(field.dataType)
    return (typed if default is None else F.coalesce(typed, absent)).alias(field.name)
