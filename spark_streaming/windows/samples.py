"""Samples for the windows of throughput and latency over the logs, and of the replicas' lag (design, section 9).

Each record gives *samples* (log, shard, time, metric, kind, status, amount); a window adds them up. One aggregation
serves all metrics: Spark 4.0.0 refuses two aggregations in a row in update mode, and a query for each metric would
decode the log anew each time. Windows go by the broker's append time; a window is written when the watermark has
passed its end.

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

Records are counted as they lie in the log, void ones too: only the stateful operator knows which records count. Spark
only aggregates: rates are ``total / seconds`` (of requests ``count / seconds``), and :func:`sums.lags` joins the
replicas' index with the log's in the frame of a micro-batch.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.registry import MARKER, registry
from schemas.column_families import BLOCK_TABLE
from spark_streaming.records.core.reading import BATCH, LOG_RECORD_TYPES, REQUEST_BATCH
from spark_streaming.records.decode import RECORD_TYPE, column_of, decode_value, decoded, schema_text
from spark_streaming.records.transforms import REPORT

LOGGED = "LOGGED"
"""Status of a request under late validation: the log does not hold its result."""

OPERATION_KINDS = ("put", "delete", "merge", "checkpoint")
_TOMBSTONE = b"\xff" * 8
"""First bytes of a blockTable row whose block is deleted (schemas/codecs/block_rows.py)."""


def samples(log: DataFrame, reports: DataFrame) -> DataFrame:
    """Turn raw records of both topics into samples: log, shard, time, metric, kind, status, amount (double)."""
    return log_samples(log).unionByName(report_samples(reports))


def log_samples(records: DataFrame) -> DataFrame:
    """Samples of log records; values and keys of operations are skipped over."""
    frame = decoded(records, LOG_RECORD_TYPES, {BATCH: _light_batch(), REQUEST_BATCH: _light_request_batch()})
    batch, late = F.col(column_of(BATCH)), F.col(column_of(REQUEST_BATCH))
    size = F.coalesce(F.length("value"), F.lit(0))
    per_record = F.array(_sample("record", F.coalesce(RECORD_TYPE, F.lit("undecodable")), "", size))
    counts = [
        _sample("operation", kind, "", F.size(F.filter(batch["operations"], _is(kind)))) for kind in OPERATION_KINDS
    ]
    retry_rows = F.size(F.filter(batch["results"], lambda result: result["recorded"]))
    per_batch = F.array(
        *counts,
        _sample("block", "commit", "", F.size(F.filter(batch["operations"], _is_block(deleted=False)))),
        _sample("block", "delete", "", F.size(F.filter(batch["operations"], _is_block(deleted=True)))),
        _sample("operation", "retry_row", "", retry_rows),
        _sample("batch", "operations", "", F.size(batch["operations"])),
        _sample("batch", "requests", "", F.size(batch["results"])),
        _sample("log_index", "", "", batch["last_index"]),
    )
    appended_ms = F.unix_millis("timestamp")
    per_request = F.transform(
        batch["results"],
        lambda result: _sample(
            "request", result["request_type"], _status(result["response"]), appended_ms - result["first_sent_at_ms"]
        ),
    )
    per_late = F.array(
        _sample("batch", "requests", "", F.size(late["requests"])), _sample("log_index", "", "", late["last_index"])
    )
    per_logged = F.transform(
        late["requests"],
        lambda request: _sample("request", request["request_type"], LOGGED, appended_ms - request["first_sent_at_ms"]),
    )
    kind = F.col(RECORD_TYPE)
    found = (
        F.when(kind == BATCH, F.concat(per_record, per_batch, per_request))
        .when(kind == REQUEST_BATCH, F.concat(per_record, per_late, per_logged))
        .otherwise(per_record)
    )
    return frame.select("log", "shard", F.col("timestamp").alias("time"), F.explode(found).alias("s")).select(
        "log", "shard", "time", "s.*"
    )


def report_samples(records: DataFrame) -> DataFrame:
    """Samples of replicas' reports."""
    report = F.col(column_of(REPORT))
    known = decoded(records, [REPORT]).where(F.col(RECORD_TYPE) == REPORT)
    sample = _sample("replica", report["node"], report["basis"], report["index"])
    named = known.select("log", "shard", F.col("timestamp").alias("time"), sample.alias("s"))
    return named.select("log", "shard", "time", "s.*")


def _sample(metric: str, kind: Column | str, status: Column | str, amount: Column) -> Column:
    return F.struct(
        F.lit(metric).alias("metric"),
        (F.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        (F.lit(status) if isinstance(status, str) else status).alias("status"),
        amount.cast("double").alias("amount"),
    )


def _is(kind: str) -> Any:
    return lambda op: op[f"member_{kind}"].isNotNull()


def _is_block(*, deleted: bool) -> Any:
    """Return a test for a Merge of blockTable whose row is a tombstone, or is not."""

    def holds(op: Column) -> Column:
        merge = op["member_merge"]
        is_tombstone = F.substring(merge["operand"], 1, len(_TOMBSTONE)) == F.lit(_TOMBSTONE)
        return (merge["cf"] == BLOCK_TABLE) & (is_tombstone if deleted else ~is_tombstone)

    return holds


def _status(response: Column) -> Column:
    """Return the result code within an encoded response of any version."""
    reader = _projected("Response", ("status",))
    found: list[Column] = []
    for version in registry.versions("Response"):
        header = MARKER + version.fingerprint
        known = F.substring(response, 1, len(header)) == F.lit(header)
        found.append(F.when(known, decode_value(response, version.text, reader)["status"]))
    return F.coalesce(*found, F.lit("?"))


def _projected(name: str, wanted: tuple[str, ...]) -> str:
    schema = json.loads(schema_text(name))
    schema["fields"] = [field for field in schema["fields"] if field["name"] in wanted]
    return json.dumps(schema)


def _light_request_batch() -> Any:
    """RequestBatch's schema without the requests themselves."""
    schema = json.loads(schema_text(REQUEST_BATCH))
    for field in schema["fields"]:
        if field["name"] == "requests":
            request = field["type"]["items"]
            request["fields"] = [f for f in request["fields"] if f["name"] in ("first_sent_at_ms", "request_type")]
    return schema


def _light_batch() -> Any:
    """Batch's schema with operations reduced to their kind and a Merge's operand (which may be a row of blockTable)."""
    schema = json.loads(schema_text(BATCH))
    for field in schema["fields"]:
        if field["name"] == "operations":
            for operation in field["type"]["items"]:
                operation["fields"] = [f for f in operation["fields"] if f["name"] in ("cf", "name", "operand")]
    return schema
