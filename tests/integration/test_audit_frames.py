"""What Spark finds and writes in batch, without a broker: facts and reports of whole topics, and the sinks' Parquet."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from schemas.codecs.codec import encode
from schemas.records.messages import Verdict
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.batch import counting
from spark_streaming.batch.block_reports import newest_reports
from spark_streaming.batch.log_view import facts_of
from spark_streaming.verdicts.audit import BARRIER_ROW, FINDING_SCHEMA, VERDICT_ROW, verdict_value
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.written import WrittenBatch
from spark_streaming.verdicts.sinks import FindingSink
from tests.support.audit.spark import raw_records, spark
from tests.support.logs.logbuilder import REPLICAS, LogBuilder, ordinary_log
from tests.support.logs.pipelinelog import MEMBERS, ordinary_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

VERDICT = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000, log=OM_LOG,
)  # fmt: skip


def test_the_facts_of_a_log():
    """Genesis and Members that count, where a log breaks, and from where on the oracle cannot compute its rows."""
    changed = ordinary_log()
    changed.stale(changed.term, b"twin" * 4)
    changed.members(*REPLICAS, "om9")
    late = LogBuilder(shard=1, shards=2).start()
    at = late.request_batch(requests=1)
    late.request_batch(requests=1)
    late.append_value(b"garbage of some length")
    effective = counting.effective_records(raw_records({0: changed.values, 1: late.values}))
    facts = facts_of(effective)
    assert facts[0].replicas == [*REPLICAS, "om9"]
    assert (facts[0].shards, facts[0].broken, facts[0].late_from) == (1, None, None)
    assert (facts[1].shards, facts[1].replicas) == (2, list(REPLICAS))
    assert facts[1].broken == f"offset {len(late.values) - 1}: not single-object encoded Avro"
    assert facts[1].late_from == at
    assert counting.indexes_at(effective, {}) == {}
    assert counting.indexes_at(effective, {0: 10**6, 7: 5}) == {0: changed.index}


@pytest.mark.slow
def test_the_reports_of_stored_bytes_to_compare():
    """The newest that a majority has reported on; reports of others, of other types, and damaged ones do not count."""
    log = ordinary_pipeline()
    first, last = log.barriers[0], log.barriers[-1]
    wanted = [log.block_report(first, node) for node in MEMBERS[:2]]
    others = [log.block_report(last, "dn1"), log.block_report(last, "dn9"), log.report(last, "dn1")]
    values: list[bytes | None] = [*map(encode, [*wanted, *others]), b"nonsense", None]
    records = raw_records({0: values, 4: values}, log=DN_LOG)
    members = set(MEMBERS)
    assert newest_reports(records, {0: members}) == {0: wanted}
    assert newest_reports(records, {0: {"dn7"}}) == newest_reports(records, {}) == {}


def finding(kind: str, offset: int, value: bytes | None, chain: bytes | None = None) -> tuple[Any, ...]:
    return kind, OM_LOG, 0, offset, 5, value, chain


@pytest.mark.slow
def test_findings_are_written_once_however_often_a_micro_batch_is_repeated(tmp_path: Path):
    sums = digests.zeros(9)
    sums[[3, 700]] = [7, 2**64 - 1]
    other = replace(VERDICT, node="om2", verdict="diverged", reason="why")
    rows = [
        finding(VERDICT_ROW, 10, verdict_value(VERDICT)),
        finding(VERDICT_ROW, 10, verdict_value(other)),
        finding(BARRIER_ROW, 10, digests.to_bytes(sums), b"chain"),
        finding(BARRIER_ROW, 11, None, b"blind"),
    ]
    heard: list[WrittenBatch] = []
    sink = FindingSink(bootstrap_servers="nowhere", topic=None, output_dir=tmp_path, on_written=heard.append)
    frame = spark().createDataFrame(rows, FINDING_SCHEMA)
    for _ in range(2):
        sink(frame, 3)
    assert [(one.batch_id, one.verdicts) for one in heard] == [(3, [VERDICT, other])] * 2
    summed, blind = heard[0].barriers
    assert (summed.log, summed.shard, summed.offset, summed.index, summed.chain) == (OM_LOG, 0, 10, 5, b"chain")
    assert summed.sums is not None
    assert (summed.sums == sums).all()
    assert (blind.offset, blind.sums) == (11, None)

    found = spark().read.parquet(str(tmp_path / "verdicts")).collect()
    names = ("cluster", "shard", "node", "barrier_offset", "index", "verdict", "reason", "log")
    assert [tuple(row[name] for name in names) for row in sorted(found, key=lambda row: row.node)] == [
        tuple(asdict(one)[name] for name in names) for one in (VERDICT, other)
    ]
    barriers = sorted(spark().read.parquet(str(tmp_path / "barriers")).collect(), key=lambda row: row.offset)
    assert [(row["index"], bytes(row.chain)) for row in barriers] == [(5, b"chain"), (5, b"blind")]
    assert (barriers[0].digest, barriers[0].slots, barriers[0].sums) == (digests.total(sums), [3, 700], [7, -1])
    assert (barriers[1].digest, barriers[1].slots, barriers[1].sums) == (None, None, None)


def test_the_session_is_as_it_is_configured():
    found = spark().sparkContext.getConf()
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }.items():
        assert found.get(name) == value, name
