"""From raw Kafka records to the rows that the jobs take, by built-in functions alone. DataFrame to DataFrame.

* The audit's stateful operator takes records and reports as they are, in one schema, so that both reach the operator of
  their partition; it decodes them itself (``verdicts/log_rows.py``).
* The batch jobs' reading rule takes headers. ``chain_after`` is SHA-256(own prev_chain + value). The rule proves that
  each counting record's prev_chain is the chain before it, so ``chain_after`` is the chain after it. Hashing needs no
  order, and runs in parallel here. Claims have no prev_chain: only they bring their value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom
from pyspark.sql import types as T  # noqa: N812

from schemas.column_families import BUCKETS
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
)
from spark_streaming.records.decode import ERROR, RECORD_TYPE, column_of, decoded, schema_text

BLOCK_REPORT = "BlockReport"
WAKE_UP_PREFIX = "wake-up:"
"""What a wake-up's key begins with (``jobs/wake_ups.py``)."""

UNKNOWN_SLOT = -1
"""Slot of a row whose column family is not in the auditor's list."""

_TEXTS = T.ArrayType(T.StringType())

AUDIT_SCHEMA = T.StructType(
    [
        T.StructField("log", T.StringType()),
        T.StructField("shard", T.IntegerType()),
        T.StructField("source", T.StringType()),
        T.StructField("offset", T.LongType()),
        T.StructField("appended_ms", T.LongType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
    ]
)
"""One row of the operator's input: a record of a log or a report as it lies in Kafka. The operator decodes it."""

HEADER_SCHEMA = T.StructType(
    [
        # ``kind``: the type of a log record, or null with an error.
        T.StructField("log", T.StringType()),
        T.StructField("shard", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("kind", T.StringType()),
        T.StructField("error", T.StringType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("term", T.LongType()),
        T.StructField("nonce", T.BinaryType()),
        T.StructField("seq", T.LongType()),
        T.StructField("prev_chain", T.BinaryType()),
        T.StructField("chain_after", T.BinaryType()),
        T.StructField("first_index", T.LongType()),
        T.StructField("last_index", T.LongType()),
        T.StructField("timestamp_ms", T.LongType()),
        T.StructField("scrub", T.BooleanType()),
        T.StructField("shards", T.IntegerType()),
        T.StructField("replicas", _TEXTS),
        T.StructField("column_families", _TEXTS),
        T.StructField("feature_level", T.IntegerType()),
        T.StructField("index", T.LongType()),
        T.StructField("cluster", T.StringType()),
        T.StructField("node", T.StringType()),
        T.StructField("named_shard", T.IntegerType()),
    ]
)
"""A log record without its rows, as the batch jobs' reading rule needs it.

A field that a row's kind does not have is null, or 0 or false: pandas would turn a column of integers with a null into
floats.
"""

LOG_SOURCE = "log"
REPORT_SOURCE = "report"
WAKE_UP_SOURCE = "wake-up"

TASK = "task"
TASK_TRIES = 8
"""For each task; the share of partitions that find no number is about exp(-TASK_TRIES)."""


def audit_rows(log: DataFrame, reports: DataFrame) -> DataFrame:
    """Return records of logs and reports as one frame of AUDIT_SCHEMA."""
    return _raw_rows(log, LOG_SOURCE).unionByName(_raw_rows(reports, REPORT_SOURCE))


def _raw_rows(records: DataFrame, source: str) -> DataFrame:
    columns = {"source": F.lit(source), "appended_ms": F.unix_millis("timestamp")}
    return records.select(*(columns.get(name, F.col(name)).alias(name) for name in AUDIT_SCHEMA.fieldNames()))


def wake_up_rows(records: DataFrame, logs: Iterable[str]) -> DataFrame:
    """Turn wake-ups into rows of AUDIT_SCHEMA, without key and value; leave out what else is on their topic.

    ``records``: a topic as Kafka's source gives it. A wake-up's key is WAKE_UP_PREFIX, the name of a log, a slash and a
    partition of it. Partitions of other logs than ``logs`` are left out.
    """
    text = F.col("key").cast("string")
    place = rf"^{WAKE_UP_PREFIX}([^/]+)/([0-9]{{1,9}})$"
    columns = {
        "log": F.regexp_extract(text, place, 1),
        "shard": F.regexp_extract(text, place, 2).cast("int"),
        "source": F.lit(WAKE_UP_SOURCE),
        "offset": F.col("offset"),
        "appended_ms": F.unix_millis("timestamp"),
        "key": F.lit(None).cast("binary"),
        "value": F.lit(None).cast("binary"),
    }
    rows = records.select(*(columns[name].alias(name) for name in AUDIT_SCHEMA.fieldNames()))
    return rows.where(F.col("log").isin(*logs))


def with_tasks(rows: DataFrame, tasks: int) -> DataFrame:
    """Add TASK, a number by which ``groupBy("log", "shard", TASK)`` spreads the partitions of a log over all tasks.

    Spark gives a group to the task that the hash of its key names, so of eight shards three may share a task while
    three tasks have none. The number is the first that leads to the wanted task, the shard's number (modulo ``tasks``)
    counted from a beginning of each log's own. It depends on nothing else, so that state is found again. If no number
    below TASK_TRIES leads there (of three thousand partitions one), 0 is taken.

    One task reads, sorts and audits by itself: Spark then needs no second stage, and writes no files between two.
    """
    if tasks == 1:
        return rows.coalesce(1).withColumn(TASK, F.lit(0))
    wanted = F.pmod(F.col("shard") + F.pmod(F.hash("log"), F.lit(tasks)), F.lit(tasks))
    numbers = F.sequence(F.lit(0), F.lit(TASK_TRIES * tasks - 1))
    leads = F.filter(numbers, lambda number: F.pmod(F.hash("log", "shard", number), F.lit(tasks)) == wanted)
    return rows.withColumn(TASK, F.coalesce(F.get(leads, 0), F.lit(0)))


def header_rows(records: DataFrame) -> DataFrame:
    """Turn records of a log topic into rows of HEADER_SCHEMA, as the reading rule needs them.

    Operations and results are skipped over, not decoded: much cheaper, but a batch that is malformed within one of
    them may pass.
    """
    light = {
        BATCH: without_fields(BATCH, "operations", "results"),
        REQUEST_BATCH: without_fields(REQUEST_BATCH, "requests"),
    }
    return _header_rows(decoded(records, LOG_RECORD_TYPES, light))


def without_fields(record_type: str, *unwanted: str) -> Any:
    """Return the current schema of a record type without some of its fields: they are skipped over, not built."""
    schema = json.loads(schema_text(record_type))
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in unwanted]
    return schema


def _header_rows(frame: DataFrame) -> DataFrame:
    columns: dict[str, Column] = {
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
    }
    own = {"log": F.col("log"), "shard": F.col("shard"), "offset": F.col("offset"), "error": F.col(ERROR), **columns}
    return frame.select(*(_typed(own[field.name], field) for field in HEADER_SCHEMA))


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


_COUNTING = tuple(kind for kind in LOG_RECORD_TYPES if kind != CLAIM)


def _field(name: str, *record_types: str) -> Column:
    """Return a field that several record types have, from the type that the record is."""
    return F.coalesce(*(F.col(column_of(record_type))[name] for record_type in record_types))


def _typed(value: Column, field: T.StructField) -> Column:
    default: Any = None
    if isinstance(field.dataType, T.IntegralType):
        default = 0
    elif isinstance(field.dataType, T.BooleanType):
        default = False
    absent = F.lit(default).cast(field.dataType)
    typed = value.cast(field.dataType)
    return (typed if default is None else F.coalesce(typed, absent)).alias(field.name)
