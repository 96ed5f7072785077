"""The audit of a whole log, without Spark: what the passes gather, and what follows from it."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from schemas.codecs.codec import HEADER_BYTES, encode
from schemas.codecs.registry import registry
from schemas.records.datanode import BlockReport, ContainerDigest
from schemas.records.messages import Response, Verdict
from spark_streaming.batch import acknowledgements, counting, meaning
from spark_streaming.batch.block_reports import judge_blocks
from spark_streaming.batch.core.computed import CounterDifference, LogPoint, ShardDigest
from spark_streaming.batch.core.gathering import FactRow, GatheredVerdicts, LogPartition, PartitionFacts, facts_from
from spark_streaming.batch.core.results import partition_result, whole_result, with_meaning
from spark_streaming.batch.core.stored_bytes import (
    ScanHead,
    are_blocks_ok,
    blocks_result,
    newest_scans,
    no_blocks,
)
from spark_streaming.batch.log_view import LogView
from spark_streaming.records.logs import OBJECT_MANAGER, PIPELINES
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.written import LogBarrier, WrittenBatch

SHARD = LogPartition("om.log", 0)
NODES = ["om1", "om2"]


def verdict(node: str, said: str, offset: int = 9, basis: str = "incremental") -> Verdict:
    return Verdict(
        cluster="c", shard=0, node=node, barrier_offset=offset, index=3, verdict=said, basis=basis, differences=[],
        differing_slots=0, evidence=None, reason="", decided_at_ms=0, log="om.log",
    )  # fmt: skip


def barrier(offset: int = 9, value: int = 0) -> LogBarrier:
    sums = digests.zeros(1)
    sums[0] = value
    return LogBarrier(log="om.log", shard=0, offset=offset, index=3, chain=b"\x01", sums=sums)


def gathered(*verdicts: Verdict) -> GatheredVerdicts:
    found = GatheredVerdicts(replicas={SHARD: NODES})
    found.on_written(WrittenBatch(batch_id=0, verdicts=list(verdicts), barriers=[barrier()]))
    return found


def computed(value: int = 0) -> ShardDigest:
    return ShardDigest(shard=0, index=3, offset=9, sums=barrier(value=value).sums, rows=1)  # type: ignore[arg-type]


def test_the_last_barrier_is_judged_until_it_is_fixed():
    found = GatheredVerdicts()
    found.on_written(WrittenBatch(batch_id=0, verdicts=[], barriers=[barrier(12), barrier(9)]))
    found.fixed = True
    found.on_written(WrittenBatch(batch_id=1, verdicts=[], barriers=[barrier(15)]))
    assert found.barriers[SHARD].offset == 12


def test_what_is_judged_is_the_worst_at_the_barrier():
    found = gathered(verdict("om1", "equal"), verdict("om1", "diverged", basis="scrubbed"), verdict("om2", "unknown"))
    judged = found.judged(SHARD, "om1")
    assert judged is not None
    assert (judged.verdict, judged.basis) == ("diverged", "scrubbed")
    assert not found.is_settled()
    found.on_written(WrittenBatch(batch_id=1, verdicts=[verdict("om2", "equal")], barriers=[]))
    assert found.is_settled()


@pytest.mark.parametrize("bases", [("incremental", "scrubbed"), ("scrubbed", "incremental")])
def test_of_two_verdicts_that_say_the_same_the_one_of_a_scrub_counts(bases: tuple[str, str]):
    judged = gathered(*(verdict("om1", "equal", basis=basis) for basis in bases)).judged(SHARD, "om1")
    assert judged is not None
    assert judged.basis == "scrubbed"


def test_other_barriers_do_not_count_but_a_broken_log_does():
    found = gathered(verdict("om1", "equal"), verdict("om1", "diverged", offset=5, basis="evidence"))
    assert (judged := found.judged(SHARD, "om1")) is not None
    assert judged.verdict == "equal"
    found.on_written(WrittenBatch(batch_id=1, verdicts=[verdict("", "diverged", offset=4, basis="log")], barriers=[]))
    assert (judged := found.judged(SHARD, "om1")) is not None
    assert judged.basis == "log"


def test_verdicts_past_the_barrier_and_on_stored_bytes_are_left_out():
    left_out = verdict("om1", "diverged", offset=20), verdict("om1", "diverged", basis="replicas:blocks")
    assert gathered(*left_out).judged(SHARD, "om1") is None
    assert (judged := gathered(*left_out, *ALL_EQUAL).judged(SHARD, "om1")) is not None
    assert judged.verdict == "equal"


def test_facts_of_partitions():
    rows = [
        FactRow(0, 1, "Genesis", 2, ("om1",), None),
        FactRow(0, 5, "Members", 0, ("om1", "om2"), None),
        FactRow(1, 3, None, 0, (), "a gap"),
    ]
    facts = facts_from(rows, {0: 7}, {})
    assert facts[0] == PartitionFacts(shards=2, replicas=NODES, late_from=7)
    assert facts[1].broken == "offset 3: a gap"
    assert (facts[0].is_late(7), facts[0].is_late(8), facts[1].is_late(8)) == (False, True, False)


ALL_EQUAL = (verdict("om1", "equal"), verdict("om2", "equal"))
FALSE = CounterDifference(shard=0, cf="usage", key=b"\x05", value=1, claimed=2, own=3)


@pytest.mark.parametrize(
    ("found", "oracle", "counters", "fact", "ok"),
    [
        (gathered(*ALL_EQUAL), computed(), [], PartitionFacts(), True),
        (gathered(*ALL_EQUAL), computed(1), [], PartitionFacts(), False),
        (gathered(*ALL_EQUAL), None, [], PartitionFacts(), False),
        (gathered(*ALL_EQUAL), None, [], PartitionFacts(late_from=2), True),
        (gathered(*ALL_EQUAL), computed(), [FALSE], PartitionFacts(), False),
        (gathered(*ALL_EQUAL), computed(), [], PartitionFacts(broken="offset 1: a gap"), False),
        (gathered(verdict("om1", "equal")), computed(), [], PartitionFacts(), False),
        (GatheredVerdicts(), computed(), [], PartitionFacts(), False),
    ],
)
def test_when_all_is_well(
    found: GatheredVerdicts, oracle: ShardDigest | None, counters: list[CounterDifference], fact: PartitionFacts, ok: bool
):  # fmt: skip
    entry = partition_result(SHARD, found, oracle, counters, fact)
    assert whole_result([entry], [], shards_wanted=True, blocks_required=False)["ok"] is ok
    assert entry["false_counters"] == [
        {"shard": 0, "cf": "usage", "key": "05", "value": 1, "claimed": 2, "own": 3} for _ in counters
    ]


def test_partitions_to_judge():
    """Every shard that Genesis counts, even one without a record; of the pipelines only those that have one."""
    facts = {1: PartitionFacts(shards=3), 5: PartitionFacts()}
    nothing: Any = None
    for log, wanted in ((OBJECT_MANAGER, [0, 1, 2, 5]), (PIPELINES, [1, 5])):
        view = LogView(log=log, records=nothing, effective=nothing, facts=facts, partition_count=0)
        assert view.partitions() == wanted
        assert LogView(log=log, records=nothing, effective=nothing, facts={}, partition_count=0).partitions() == []


def test_a_log_without_blocks_has_no_stored_bytes_to_judge():
    nothing: Any = None
    view = LogView(
        log=OBJECT_MANAGER,
        records=nothing,
        effective=nothing,
        facts={0: PartitionFacts(replicas=NODES)},
        partition_count=0,
    )
    assert judge_blocks(nothing, "nowhere", view) == {}


def test_nothing_found_is_not_well():
    assert not whole_result([], [], shards_wanted=True, blocks_required=False)["ok"]
    assert not whole_result([], [], shards_wanted=False, blocks_required=False)["ok"]


def test_the_newest_scan_of_a_majority_is_compared():
    members = {0: {"dn1", "dn2", "dn3"}, 1: {"dn1", "dn2", "dn3"}}
    heads = [
        ScanHead(0, 1, "dn1", 10), ScanHead(0, 2, "dn2", 10), ScanHead(0, 3, "dn1", 20), ScanHead(0, 4, "dn9", 20),
        ScanHead(0, 5, "dn2", 10), ScanHead(1, 6, "dn1", 7), ScanHead(1, 7, "dn2", 8), ScanHead(2, 8, "dn1", 7),
    ]  # fmt: skip
    assert sorted(newest_scans(heads, members)) == [(0, 1), (0, 5), (1, 7)]


def block_report(node: str, digest: int, index: int = 3) -> BlockReport:
    container = ContainerDigest(container_id=1, blocks=1, used_bytes=1, digest=digest, unreadable=[])
    return BlockReport(
        cluster="c", datanode=node, partition=0, index=index, log_offset=9, containers=[container], complete=True,
        reported_at_ms=0,
    )  # fmt: skip


def test_stored_bytes_are_judged_by_the_rows_of_the_log():
    reports = [block_report("dn1", 5), block_report("dn2", 6), block_report("dn3", 5, index=2)]
    result = blocks_result(["dn1", "dn2", "dn3", "dn4"], 9, 3, reports, {1: 5})
    assert [member["verdict"] for member in result["members"]] == ["equal", "diverged", "unknown", "unknown"]
    assert result["members"][1]["containers"] == [{"container_id": 1, "expected": 5, "found": 6, "blocks": []}]
    assert not are_blocks_ok({"blocks": result}, required=False)
    assert (result["log_offset"], result["index"]) == (9, 3)
    trimmed = [blocks_result(["dn1"], 9, index, reports, None) for index in (3, 0)]
    assert [one["index"] for one in trimmed] == [3, None], "before the base no index is known"


def test_unknown_stored_bytes_are_well_unless_they_are_required():
    entry = {"blocks": no_blocks(["dn1"])}
    assert are_blocks_ok(entry, required=False)
    assert not are_blocks_ok(entry, required=True)


FINDING = {"check": "usage", "shard": 0, "subject": "/v/b/#usedBytes", "said": "9", "found": "8"}


@pytest.mark.parametrize(("ok", "findings", "wanted"), [(True, [], True), (True, [FINDING], False), (False, [], False)])
def test_what_rows_mean_counts_beside_digests(ok: bool, findings: list[Any], wanted: bool):
    said = {"findings": findings, "left_out": ["shard 1: its log was trimmed"]}
    found = with_meaning({"ok": ok, "shards": []}, said)
    assert found == {"ok": wanted, "shards": [], "semantics": said}


def test_what_the_log_does_not_give_is_left_out(monkeypatch: pytest.MonkeyPatch):
    ends = {shard: LogPoint(10, 5) for shard in range(4)}
    monkeypatch.setattr(counting, "ends", lambda _: ends)
    facts = {
        0: PartitionFacts(), 1: PartitionFacts(broken="offset 3"), 2: PartitionFacts(base=LogPoint(2, 1)),
        3: PartitionFacts(late_from=10),
    }  # fmt: skip
    view: Any = LogView(log=OBJECT_MANAGER, records=None, effective=None, facts=facts, partition_count=4)  # type: ignore[arg-type]
    assert meaning._ends(view, "shard") == (
        {0: LogPoint(10, 5)},
        [
            "shard 1: its log is broken", "shard 2: its log was trimmed",
            "shard 3: its requests are validated late",
        ],
    )  # fmt: skip
    ends.pop(0)
    found = meaning.check_meaning(None, "nowhere", [view], 0)  # type: ignore[arg-type]
    assert (found["findings"], len(found["left_out"])) == ([], 3)


def test_an_answer_is_read_without_what_its_request_returned():
    """Avro reads a narrower schema only if the fields' types are the writer's own: client ids are of fixed size."""
    told = Response(client_id=b"c" * 16, call_id=9, shard=1, index=3, status="OK", message="m", result=None)
    writer = fastavro.parse_schema(json.loads(registry.current("Response").text))
    reader = fastavro.parse_schema(acknowledgements._answer())
    found = fastavro.schemaless_reader(io.BytesIO(encode(told)[HEADER_BYTES:]), writer, reader)
    assert found == {"client_id": b"c" * 16, "call_id": 9, "shard": 1, "index": 3, "status": "OK"}
