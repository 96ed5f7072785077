"""Every answer that clients were given has its result in the log: what was acknowledged has happened.

An answer of a request that was executed names its index, and its bytes are those of the result in the log, also if it
was given again (decision 0001). Refusals have no index and no result, and are passed over. The topic of answers is
bounded, so this looks at what is kept of it.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.registry import registry
from spark_streaming.batch.semantics import MAX_FINDINGS, LogRows, SemanticFinding
from spark_streaming.records.core.reading import BATCH
from spark_streaming.records.decode import column_of, decoded

CHECK = "acknowledgement without result"
SETTLE_MS = 5_000
"""An answer that is younger than the reading of the log by no more than this is left out, if its index is not read."""

_FIELDS = ("client_id", "call_id", "shard", "index", "status")


def _answer() -> dict[str, Any]:
    """Return the schema of Response with _FIELDS alone: what a request returns is not looked at."""
    schema: dict[str, Any] = json.loads(registry.current("Response").text)
    return {**schema, "fields": [field for field in schema["fields"] if field["name"] in _FIELDS]}


def unfounded(responses: DataFrame, log: LogRows, indexes: dict[int, int], read_at_ms: int) -> list[SemanticFinding]:
    """Return answers without a result, at most MAX_FINDINGS.

    ``responses``: raw records of om.responses. ``indexes``: the last index that was read of each shard; other shards
    are passed over. ``read_at_ms``: when the reading of the log began.
    """
    answers = _answers(responses).where(F.col("index") >= 0)
    ends = log.records.sparkSession.createDataFrame(list(indexes.items()), "shard int, last long")
    is_old = F.unix_millis("timestamp") < read_at_ms - SETTLE_MS
    due = answers.join(F.broadcast(ends), "shard").where((F.col("index") <= F.col("last")) | is_old)
    missing = due.join(_results(log), ["shard", "answer"], "left_anti").select(*_FIELDS).distinct().limit(MAX_FINDINGS)
    found = [
        SemanticFinding(
            check=CHECK, shard=row.shard, subject=f"request {bytes(row.client_id).hex()}/{row.call_id}",
            said=f"{row.status} at index {row['index']}", found="the log has no such result",
        )
        for row in missing.collect()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.shard, one.subject))


def _answers(responses: DataFrame) -> DataFrame:
    """Return each answer once for each time that it was sent: its bytes, its fields, when it was sent."""
    enveloped = decoded(responses.select("value", "timestamp"), ["Responses"])
    inside = F.col(column_of("Responses"))["responses"]
    single = enveloped.select("timestamp", F.explode(F.coalesce(inside, F.array("value"))).alias("value"))
    fields = F.col(column_of("Response"))
    readable = decoded(single, ["Response"], {"Response": _answer()}).where(F.col("error").isNull())
    return readable.select("timestamp", F.col("value").alias("answer"), *(fields[name].alias(name) for name in _FIELDS))


def _results(log: LogRows) -> DataFrame:
    wanted = log.effective.where(F.col("kind") == BATCH).select("shard", "offset")
    batches = decoded(log.records.join(wanted, ["shard", "offset"]), [BATCH])
    results = F.explode(F.col(column_of(BATCH))["results"]).alias("result")
    return batches.select("shard", results).select("shard", F.col("result.response").alias("answer"))
