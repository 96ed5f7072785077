"""Samples of a micro-batch added up by window, row and bucket (DataFrame to DataFrame)."""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from spark_streaming.windows.core.window_book import BUCKET_RATIO, RowKey, Sample, WindowStream

LOG = "log"
REPORTS = "reports"


def added_up(found: DataFrame, *, window_ms: int) -> DataFrame:
    """Add samples up: log, shard, source, start_ms, metric, kind, status, bucket; samples, total, greatest."""
    start = (F.floor(F.unix_millis("time") / window_ms) * window_ms).alias("start_ms")
    source = F.when(F.col("metric") == "replica", REPORTS).otherwise(LOG).alias("source")
    amount = F.col("amount").cast("long")
    return found.groupBy("log", "shard", source, start, "metric", "kind", "status", _bucket(amount)).agg(
        F.count("*").alias("samples"), F.sum(amount).alias("total"), F.max(amount).alias("greatest")
    )


def _bucket(amount: Column) -> Column:
    """Return the bucket of an amount (:func:`amount_of`): 0 for 0 and less."""
    bucket = F.greatest(F.lit(1), F.ceil(F.log(amount) / F.lit(math.log(BUCKET_RATIO))))
    return F.when(amount > 0, bucket).otherwise(F.lit(0)).cast("int").alias("bucket")


def sample_of(row: Row) -> Sample:
    """Return a row of :func:`added_up` as the book takes it."""
    return Sample(
        stream=WindowStream(row.log, row.shard, row.source), start_ms=row.start_ms,
        row=RowKey(row.metric, row.kind, row.status), bucket=row.bucket,
        samples=row.samples, total=row.total, greatest=row.greatest,
    )  # fmt: skip
