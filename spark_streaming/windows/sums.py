"""Samples added up by window, and the replicas' lag that follows (DataFrame to DataFrame)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

WATERMARK_SECONDS = 5
"""How long a window waits for records of other partitions."""

_ACCURACY = 1000


def windowed(found: DataFrame, *, seconds: int) -> DataFrame:
    """Add samples up in windows of ``seconds``: count, total, mean, greatest, p50, p99 of the amounts."""
    amount = F.col("amount")
    if found.isStreaming:
        found = found.withWatermark("time", f"{WATERMARK_SECONDS} seconds")
    added = found.groupBy(F.window("time", f"{seconds} seconds"), "log", "shard", "metric", "kind", "status").agg(
        F.count("*").alias("count"),
        F.sum(amount).alias("total"),
        F.avg(amount).alias("mean"),
        F.max(amount).alias("greatest"),
        F.percentile_approx(amount, [0.5, 0.99], _ACCURACY).alias("percentiles"),
    )
    return added.select(
        F.col("window.start").alias("start"),
        F.lit(seconds).alias("seconds"),
        "log", "shard", "metric", "kind", "status", "count", "total", "mean", "greatest",
        F.col("percentiles")[0].alias("p50"),
        F.col("percentiles")[1].alias("p99"),
    )  # fmt: skip


def lags(windows: DataFrame) -> DataFrame:
    """Return the replicas' lag by window: start, log, shard, node, lag (indexes behind the last batch, at least 0).

    Windows without both a batch and a report are left out.
    """
    last = windows.where(F.col("metric") == "log_index").select(
        "start", "log", "shard", F.col("greatest").alias("last")
    )
    reported = windows.where((F.col("metric") == "replica") & (F.col("status") != "evidence"))
    replica = reported.groupBy("start", "log", "shard", F.col("kind").alias("node")).agg(
        F.max("greatest").alias("reached")
    )
    behind = F.greatest(F.col("last") - F.col("reached"), F.lit(0.0)).cast("long")
    return replica.join(last, ["start", "log", "shard"]).select("start", "log", "shard", "node", behind.alias("lag"))
