"""Samples for the windows of throughput and latency over the logs, and of the replicas' lag (design, section 9).

Each record gives *samples* (metric, kind, status, amount), as two arrays in the audit's own row of that record: their
names, joined by SEPARATOR, and their amounts. So a log is decoded once for both. The operator adds them up by window of
time (``core/sampling.py``). Windows go by the broker's append time.

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

import json
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.registry import MARKER, registry
from schemas.column_families import BLOCK_TABLE
from spark_streaming.records.core.reading import BATCH, REQUEST_BATCH
from spark_streaming.records.decode import RECORD_TYPE, column_of, decode_value, schema_text
from spark_streaming.records.transforms import REPORT, RowSamples
from spark_streaming.windows.core.sampling import SEPARATOR

LOGGED = "LOGGED"
"""Status of a request under late validation: the log does not hold its result."""

OPERATION_KINDS = ("put", "delete", "merge", "checkpoint")
ROW_SAMPLES = RowSamples(
    of_log=lambda frame: sampled(frame, log_samples()), of_reports=lambda frame: sampled(frame, report_samples())
)
"""How rows of the audit get their samples."""

_TOMBSTONE = b"\xff" * 8
"""First bytes of a blockTable row whose block is deleted (schemas/codecs/block_rows.py)."""


def sampled(frame: DataFrame, found: Column) -> DataFrame:
    """Add a record's samples to its row: ``sample_names`` and ``sample_amounts``."""
    column = "_samples"
    both = frame.select("*", found.alias(column))
    names, amounts = F.col(column)["name"], F.col(column)["amount"]
    return both.select("*", names.alias("sample_names"), amounts.alias("sample_amounts")).drop(column)


def log_samples() -> Column:
    """Return the samples of a decoded log record (an array of structs); values and keys of operations are not read."""
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
    return (
        F.when(kind == BATCH, F.concat(per_record, per_batch, per_request))
        .when(kind == REQUEST_BATCH, F.concat(per_record, per_late, per_logged))
        .otherwise(per_record)
    )


def report_samples() -> Column:
    """Return the samples of a decoded report (an array of structs), null for one that is none of rows."""
    report = F.col(column_of(REPORT))
    sample = F.array(_sample("replica", report["node"], report["basis"], report["index"]))
    return F.when(F.col(RECORD_TYPE) == REPORT, sample)


def _sample(metric: str, kind: Column | str, status: Column | str, amount: Column) -> Column:
    names = (F.lit(one) if isinstance(one, str) else one for one in (kind, status))
    return F.struct(F.concat_ws(SEPARATOR, F.lit(metric), *names).alias("name"), amount.cast("long").alias("amount"))


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
