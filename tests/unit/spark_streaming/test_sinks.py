"""What the audit writes where, as far as it needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from schemas.records.messages import Verdict
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.batch.core.gathering import PartitionFacts
from spark_streaming.batch.log_view import LogView
from spark_streaming.records import batch_gate
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.logs import OBJECT_MANAGER, PIPELINES, AuditedLog
from spark_streaming.records.sources import log_source, reports_source
from spark_streaming.verdicts.audit import (
    BARRIER_ROW,
    FINDING_SCHEMA,
    NO_DEADLINE,
    PARTITION_ROW,
    VERDICT_ROW,
    verdict_value,
)
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.written import WrittenBatch
from spark_streaming.verdicts.sinks import FindingSink

VERDICT = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000, log=OM_LOG,
)  # fmt: skip


@dataclass
class Findings:
    """A micro-batch that can be collected, and no more: whoever would write it needs a session."""

    rows: list[Row]
    sparkSession: None = None  # noqa: N815 - Spark's name

    def collect(self) -> list[Row]:
        return self.rows


def test_a_sink_with_nowhere_to_write_only_tells():
    heard: list[WrittenBatch] = []
    sink = FindingSink(bootstrap_servers="nowhere", topic=None, output_dir=None, on_written=heard.append)
    make = Row(*FINDING_SCHEMA.fieldNames())
    sums = digests.zeros(1)
    sums[4] = 9
    rows = [
        make(BARRIER_ROW, OM_LOG, 0, 10, 5, bytearray(digests.to_bytes(sums)), bytearray(b"chain")),
        make(VERDICT_ROW, OM_LOG, 0, 10, 5, bytearray(verdict_value(VERDICT)), None),
        make(BARRIER_ROW, OM_LOG, 1, 11, 6, None, bytearray(b"blind")),
        make(PARTITION_ROW, OM_LOG, 1, 7, 1234, None, None),
        make(PARTITION_ROW, DN_LOG, 3, 2, NO_DEADLINE, None, None),
    ]
    frame: Any = Findings(rows)
    sink(frame, 7)
    sink(Findings([]), 8)  # type: ignore[arg-type]
    written, empty = heard
    assert (written.batch_id, written.verdicts, written.news, written.has_news) == (7, [VERDICT], 9, True)
    assert written.deadlines == {ReportedPartition(OM_LOG, 1): 1234, ReportedPartition(DN_LOG, 3): None}
    summed, blind = written.barriers
    assert (summed.shard, summed.offset, summed.index, summed.chain) == (0, 10, 5, b"chain")
    assert summed.sums is not None
    assert digests.to_sparse(summed.sums) == ([4], [9])
    assert (blind.shard, blind.sums) == (1, None)
    assert (empty.batch_id, empty.verdicts, empty.barriers, empty.deadlines, empty.has_news) == (8, [], [], {}, False)


def test_a_micro_batch_of_ticks_alone_leaves_the_gate_quiet(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(batch_gate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    gate = BatchGate()
    sink = FindingSink(bootstrap_servers="nowhere", topic=None, output_dir=None, on_written=lambda *_: None, gate=gate)
    now[0] = 130.0
    make = Row(*FINDING_SCHEMA.fieldNames())
    sink(Findings([make(PARTITION_ROW, OM_LOG, 1, 0, NO_DEADLINE, None, None)]), 1)  # type: ignore[arg-type]
    assert (gate.quiet_s(), gate.passed) == (30.0, 1)
    sink(Findings([make(PARTITION_ROW, OM_LOG, 1, 1, NO_DEADLINE, None, None)]), 2)  # type: ignore[arg-type]
    assert gate.quiet_s() == 0.0


def test_the_topics_of_logs_and_of_their_reports():
    logs = (OBJECT_MANAGER, PIPELINES)
    assert log_source("here", logs).topics == {"om.log": OM_LOG, "dn.log": DN_LOG}
    assert reports_source("here", logs).topics == {"om.audit": OM_LOG, "dn.audit": DN_LOG}


def view(log: AuditedLog, facts: dict[int, PartitionFacts]) -> LogView:
    return LogView(log=log, records=None, effective=None, facts=facts, partition_count=0)  # type: ignore[arg-type]


def test_every_shard_is_judged_even_if_it_has_no_records():
    """Genesis says how many shards there are; a pipeline is there once it has a record."""
    facts = {1: PartitionFacts(shards=4), 6: PartitionFacts()}
    assert view(OBJECT_MANAGER, facts).partitions() == [0, 1, 2, 3, 6]
    assert view(PIPELINES, facts).partitions() == [1, 6]
    assert view(OBJECT_MANAGER, {}).partitions() == []
