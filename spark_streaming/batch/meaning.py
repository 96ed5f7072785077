"""The checks of what rows mean, and of answers, over the logs that a batch audit has opened."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark.sql import SparkSession

from schemas.kafka.connection import Brokers
from schemas.topics import OM_RESPONSES
from spark_streaming.batch import counting
from spark_streaming.batch.acknowledgements import unfounded
from spark_streaming.batch.core.computed import LogPoint
from spark_streaming.batch.core.results import Json
from spark_streaming.batch.log_view import LogView
from spark_streaming.batch.semantics import LogRows, as_json, semantic_findings
from spark_streaming.records import sources


def check_meaning(session: SparkSession, bootstrap_servers: Brokers, views: Sequence[LogView], read_at_ms: int) -> Json:
    """Return {"findings": [...], "left_out": [why, ...]}; ``views``: of the Object Manager's log, and of pipelines'.

    ``read_at_ms``: when the reading of the logs began. Partitions whose rows the log alone does not give are left out,
    and then the comparisons between the two logs are.
    """
    shards = next(view for view in views if view.log.every_partition)
    pipelines = next((view for view in views if not view.log.every_partition), None)
    ends, left_out = _ends(shards, "shard")
    if not ends:
        return {"findings": [], "left_out": left_out}
    rows = _rows(shards, ends)
    beside: LogRows | None = None
    if pipelines is not None:
        own, why = _ends(pipelines, "pipeline")
        left_out += why
        if left_out:
            left_out.append("blocks against keys: not all logs give their rows")
        elif own:
            beside = _rows(pipelines, own)
    findings = semantic_findings(rows, beside, time.time_ns() // 1_000_000)
    source = sources.KafkaSource(
        bootstrap_servers=bootstrap_servers, topics={OM_RESPONSES: OM_RESPONSES}, may_lose=True
    )
    indexes = {shard: point.index for shard, point in ends.items()}
    findings += unfounded(sources.bounded(session, source), rows, indexes, read_at_ms)
    return {"findings": as_json(findings), "left_out": left_out}


def _rows(view: LogView, ends: dict[int, LogPoint]) -> LogRows:
    until = {shard: point.offset for shard, point in ends.items()}
    return LogRows(records=view.records, effective=view.effective, until=until)


def _ends(view: LogView, kind: str) -> tuple[dict[int, LogPoint], list[str]]:
    """Return where each computable partition ends, and why the others are not."""
    found, left_out = {}, []
    for partition, point in sorted(counting.ends(view.effective).items()):
        fact = view.facts[partition]
        if fact.broken is not None:
            left_out.append(f"{kind} {partition}: its log is broken")
        elif fact.base is not None:
            left_out.append(f"{kind} {partition}: its log was trimmed")
        elif fact.late_from is not None:
            left_out.append(f"{kind} {partition}: its requests are validated late")
        else:
            found[partition] = point
    return found, left_out
