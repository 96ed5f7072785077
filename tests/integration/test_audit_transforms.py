"""Spark's transforms and its oracle, in batch, against Python models of the same bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from schemas.codecs.codec import encode
from schemas.column_families import DN_COLUMN_FAMILIES, OM_COLUMN_FAMILIES
from schemas.records.log import Merge, Operation, Put
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.batch import counting, oracle
from spark_streaming.batch.counting import header_of
from spark_streaming.jobs.wake_ups import wake_up
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.transforms import AUDIT_SCHEMA, audit_rows, header_rows, wake_up_rows, with_tasks
from spark_streaming.verdicts.log_rows import decoded_log_record
from tests.support.audit import auditmodel
from tests.support.audit.spark import APPENDED_AT, raw_records, spark
from tests.support.logs.logbuilder import LogBuilder, counter, digest, ordinary_log, row_hash, total_hex
from tests.support.logs.pipelinelog import PipelineLog, ordinary_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def odd_log() -> LogBuilder:
    """Everything that a log may hold, and much that it may not."""
    log = ordinary_log()
    log.digest_base()
    log.batch(results=0)
    log.mode()
    log.request_batch(requests=3)
    log.batch(Put(cf="newTable", key=b"k", value=b"", prev=-(2**63)), Put(cf="", key=b"", value=b"x", prev=2**63 - 1))
    log.batch(log.put("keyTable", b"", b""), log.put("keyTable", "/v/b/ключ".encode(), bytes(range(256)) * 300))
    for value in (
        b"",
        b"\xc3\x01",
        b"garbage of more than ten bytes",
        b"\xc3\x01" + b"12345678" + b"body",
        b"\xc3\x0187654321",
    ):
        log.append_value(value)
    log.append_value(log.values[2][:-5])
    log.append_value(log.values[0][:14])
    return log


@pytest.fixture(scope="module")
def transformed() -> tuple[LogBuilder, dict[int, Any]]:
    log = odd_log()
    frame: Any = header_rows(raw_records({0: log.values})).toPandas()
    return log, {row.offset: row for row in frame.itertuples(index=False)}


def test_every_record_becomes_one_row(transformed):
    log, rows = transformed
    assert sorted(rows) == list(range(len(log.values)))


def test_headers_and_chains_are_the_models(transformed):
    log, rows = transformed
    for offset, value in enumerate(log.values):
        found, wanted = header_of(rows[offset]), auditmodel.header(offset, value)
        if wanted.kind is None:
            # What is malformed within a batch's operations is skipped over here.
            assert found.error or found.kind == "Batch"
        else:
            assert found == wanted


def test_the_two_readers_name_the_same_errors(transformed):
    """Spark's functions in the batch jobs, and the operator's decoder."""
    log, rows = transformed
    for offset in (n for n, value in enumerate(log.values) if rows[n].error):
        error = decoded_log_record(offset, log.values[offset]).error
        assert error is not None
        assert error.startswith(rows[offset].error), offset


def test_the_operator_takes_records_and_reports_as_they_are():
    log, pipeline = ordinary_log(), ordinary_pipeline()
    records = raw_records({0: log.values}).unionByName(raw_records({3: pipeline.values}, log=DN_LOG))
    reports = raw_records({0: [encode(log.report(log.barriers[0])), None]}, key=b"0/om7")
    rows = audit_rows(records, reports).orderBy("log", "source", "offset").collect()
    assert [(row.log, row.shard, row.source, row.offset, row.value and bytes(row.value)) for row in rows] == [
        *((DN_LOG, 3, "log", n, value) for n, value in enumerate(pipeline.values)),
        *((OM_LOG, 0, "log", n, value) for n, value in enumerate(log.values)),
        (OM_LOG, 0, "report", 0, encode(log.report(log.barriers[0]))), (OM_LOG, 0, "report", 1, None),
    ]  # fmt: skip
    assert {row.appended_ms for row in rows} == {APPENDED_AT.timestamp() * 1000}
    assert {row.key and bytes(row.key) for row in rows} == {None, b"0/om7"}


def test_wake_ups_become_rows_of_their_partitions():
    """What else lies on the topic, or names no partition of a known log, gives none."""
    keys = [
        wake_up(ReportedPartition(OM_LOG, 3))[0], wake_up(ReportedPartition(DN_LOG, 0))[0], b"wake-up", b"om.log/3", None,
        b"wake-up:om.log/", b"wake-up:om.log/-1", b"wake-up:om.log/99999999999", b"wake-up:other.log/1", b"\xff\x00", b"",
        b"wake-up:om.log/1/2", b"wake-up:om.log/12 ",
    ]  # fmt: skip
    schema = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    records = spark().createDataFrame([(key, b"", "om.stats", 0, n, APPENDED_AT) for n, key in enumerate(keys)], schema)
    rows = wake_up_rows(records, [OM_LOG, DN_LOG])
    assert rows.dtypes == [(field.name, field.dataType.simpleString()) for field in AUDIT_SCHEMA]
    assert [(row.log, row.shard, row.source, row.offset, row.key, row.value) for row in rows.collect()] == [
        (OM_LOG, 3, "wake-up", 0, None, None), (DN_LOG, 0, "wake-up", 1, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_each_partition_has_one_task_of_the_operator(tasks: int):
    rows = with_tasks(raw_records({shard: [b"", b""] for shard in range(9)}).repartition(4), tasks)
    assert rows.rdd.getNumPartitions() == (1 if tasks == 1 else 4)
    found = rows.collect()
    assert len(found) == 18
    assert len({(row.shard, row.task) for row in found}) == 9
    assert {row.task for row in found} == {0} or tasks > 1


def random_log(shard: int, seed: int) -> LogBuilder:
    """Puts, deletes and merges on few keys, so that every order of them on one key occurs."""
    choose = random.Random(seed)
    log = LogBuilder(shard=shard, shards=3).start()
    for _ in range(60):
        operations: list[Operation] = []
        for _ in range(choose.randint(0, 12)):
            key = b"/v/%d" % choose.randint(0, 5)
            kind = choose.choice(["put", "delete", "merge", "merge", "row", "row", "unrow"])
            if kind == "put":
                operations.append(log.put("usageTable", key, counter(choose.choice([0, -1, 2**63 - 1, 77]))))
            elif kind == "delete":
                operations.append(log.delete("usageTable", key))
            elif kind == "merge":
                operations.append(log.merge(key, choose.choice([1, -1, 2**63 - 1, -(2**63), 10**12, 0])))
            elif kind == "row":
                operations.append(log.put("keyTable", key, choose.randbytes(choose.randint(0, 50))))
            else:
                operations.append(log.delete("keyTable", key))
        log.batch(*operations, results=choose.randint(0, 3), recorded=choose.random() < 0.8)
        if choose.random() < 0.2:
            log.stale(log.term, b"twin" * 4)
            log.gap()
        if choose.random() < 0.1:
            log.claim(choose.choice(["om1", "om2"]))
    return log


def test_the_oracle_computes_the_models_rows():
    """At the end of the logs and at a barrier before it; void records do not count; claims are not used."""
    logs = {shard: random_log(shard, seed=shard) for shard in range(3)}
    for log in logs.values():
        log.barrier()
        log.batch(log.put("keyTable", b"/v/later", b"x"), replace(log.put("keyTable", b"/v/0", b"y"), prev=99))
    records = raw_records({shard: log.values for shard, log in logs.items()})
    effective = counting.effective_records(records).persist()
    for at in ("end", "barrier"):
        found, false = oracle.check(records, OM_COLUMN_FAMILIES, effective, counting.ends(effective, at))
        assert false == []
        for shard, log in logs.items():
            rows = log.rows if at == "end" else log.barriers[-1].rows
            assert found[shard].rows == len(rows)
            assert found[shard].digest == total_hex(rows)
            slots, sums = found[shard].base()
            assert dict(zip(slots, (value % 2**64 for value in sums), strict=True)) == digest(rows)
        assert {shard: found[shard].index for shard in logs} == {
            shard: log.index if at == "end" else log.barriers[-1].index for shard, log in logs.items()
        }
    effective.unpersist()


@pytest.mark.slow
def test_counters_that_are_claimed_falsely_are_named():
    log = LogBuilder().start()
    log.batch(log.merge(b"/v/right", 5), log.merge(b"/v/wrong", 5))
    true = log.merge(b"/v/wrong", 2)
    log.batch(replace(true, next=row_hash("usageTable", b"/v/wrong", counter(8))), log.merge(b"/v/right", 2))
    records = raw_records({0: log.values})
    effective = counting.effective_records(records)
    found, false = oracle.check(records, OM_COLUMN_FAMILIES, effective, counting.ends(effective))
    assert [(one.cf, one.key, one.value) for one in false] == [("usageTable", b"/v/wrong", 7)]
    assert found[0].digest == total_hex(log.rows)


@pytest.mark.slow
def test_the_oracle_computes_pipelines():
    """Largest rows of blockTable, tombstones, void records; and from the rows what the stored bytes must be."""
    logs = {shard: ordinary_pipeline(shard) for shard in (0, 200)}
    records = raw_records({shard: log.values for shard, log in logs.items()}, log=DN_LOG)
    effective = counting.effective_records(records).persist()
    ends = counting.ends(effective, "barrier")
    found, false = oracle.check(records, DN_COLUMN_FAMILIES, effective, ends)
    assert false == []
    until = {shard: point.offset for shard, point in ends.items()}
    containers = oracle.container_digests(records, DN_COLUMN_FAMILIES, effective, until)
    for shard, log in logs.items():
        assert found[shard].rows == len(log.rows)
        assert found[shard].digest == total_hex(log.rows, DN_COLUMN_FAMILIES)
        report = log.block_report(log.barriers[-1], "dn1")
        assert len(report.containers) == 2
        assert containers[shard] == {one.container_id: one.digest for one in report.containers}
    assert counting.indexes_at(effective, until) == {shard: log.index for shard, log in logs.items()}
    effective.unpersist()


@pytest.mark.slow
def test_a_block_that_is_claimed_falsely_is_named():
    log = PipelineLog().start()
    log.batch(log.put_block(5, 1, b"right"))
    larger = log.put_block(5, 2, b"larger")
    log.batch(larger, replace(log.put_block(5, 2, b"small"), next=row_hash("blockTable", larger.key, b"small")))
    records = raw_records({0: log.values}, log=DN_LOG)
    effective = counting.effective_records(records)
    _, false = oracle.check(records, DN_COLUMN_FAMILIES, effective, counting.ends(effective))
    assert [(one.cf, one.key, one.value) for one in false] == [("blockTable", larger.key, 6)]


@pytest.mark.slow
def test_a_merge_that_cannot_be_computed_is_an_error():
    log = LogBuilder().start()
    log.batch(Merge(cf="usageTable", key=b"\xabk", operator="max", operand=bytes(8), prev=None, next=1))
    records = raw_records({0: log.values})
    effective = counting.effective_records(records)
    with pytest.raises(Exception, match="cannot compute the merges of usageTable AB6B"):
        oracle.check(records, OM_COLUMN_FAMILIES, effective, counting.ends(effective))


def false_counters(log: LogBuilder) -> list[tuple[bytes, int]]:
    records = raw_records({log.shard: log.values})
    effective = counting.effective_records(records)
    _, false = oracle.check(records, OM_COLUMN_FAMILIES, effective, counting.ends(effective))
    return [(one.key, one.value) for one in false]


@pytest.mark.slow
def test_false_counters_are_bounded_and_come_by_key(monkeypatch: pytest.MonkeyPatch):
    """Also those of one slot; a negative one is named as such."""
    monkeypatch.setattr(oracle, "MAX_COUNTER_DIFFERENCES", 2)
    log = LogBuilder().start()
    keys = [b"/v/%d" % n for n in (3, 1, 2)]
    log.batch(*(replace(log.merge(key, -5), next=1) for key in keys))
    assert false_counters(log) == [(b"/v/1", -5), (b"/v/2", -5)]


@pytest.mark.parametrize("length", [*(pytest.param(length, marks=pytest.mark.slow) for length in (0, 7)), 9])
def test_counters_of_another_size_are_an_error(length: int):
    """A merge adds 8 bytes to 8 bytes: neither the row below nor an operand may have another length."""
    for odd in (
        Put(cf="usageTable", key=b"\xabk", value=bytes(length), prev=None),
        Merge(cf="usageTable", key=b"\xabk", operator="add_int64", operand=bytes(length), prev=None, next=1),
    ):
        log = LogBuilder().start()
        log.batch(odd, log.merge(b"\xabk", 1))
        with pytest.raises(Exception, match="cannot compute the merges of usageTable AB6B"):
            false_counters(log)


@pytest.mark.slow
def test_what_lies_below_the_last_put_or_delete_does_not_matter():
    log = LogBuilder().start()
    for below in (log.put("usageTable", b"/v/deleted", b"odd"), log.put("usageTable", b"/v/put", b"odd")):
        log.batch(below)
    log.batch(log.delete("usageTable", b"/v/deleted"), log.put("usageTable", b"/v/put", counter(7)))
    log.batch(log.merge(b"/v/deleted", 1), log.merge(b"/v/put", 1))
    assert false_counters(log) == []
    assert log.rows["usageTable", b"/v/put"] == counter(8)


@pytest.mark.slow
def test_rows_of_an_unknown_column_family_are_an_error():
    log = LogBuilder().start()
    log.batch(log.put("keyTable", b"k", b"v"))
    records = raw_records({0: log.values})
    effective = counting.effective_records(records)
    with pytest.raises(oracle.OracleError, match="shard 0 has rows in a column family that is not among"):
        oracle.check(records, ("retryTable",), effective, counting.ends(effective))
    assert oracle.check(records, OM_COLUMN_FAMILIES, effective, {}) == ({}, [])
    assert oracle.container_digests(records, OM_COLUMN_FAMILIES, effective, {0: 9}) == {}
    assert counting.ends(effective, "barrier") == {}


@pytest.mark.slow
def test_containers_have_the_digests_of_their_live_blocks():
    """One whose blocks are all deleted is left out; until is the last offset that counts; a damaged row is an error."""
    log = PipelineLog().start()
    until = log.batch(log.put_block(5, 1, b"a"), log.put_block(2**40, 1, b"b"))
    log.batch(log.delete_block(5, 1), log.put_block(6, 2, b"c"))
    last = log.barrier()
    records = raw_records({0: log.values}, log=DN_LOG)
    effective = counting.effective_records(records).persist()
    early = oracle.container_digests(records, DN_COLUMN_FAMILIES, effective, {0: until})
    late = oracle.container_digests(records, DN_COLUMN_FAMILIES, effective, {0: last.offset, 7: 3})
    assert [sorted(early[0]), sorted(late[0]), late[7]] == [[5, 2**40], [6, 2**40], {}]
    assert late[0] == {one.container_id: one.digest for one in log.block_report(last, "dn1").containers}
    effective.unpersist()

    log.batch(log.merge_max(b"\xabk", b"\xff" * 30))
    records = raw_records({0: log.values}, log=DN_LOG)
    effective = counting.effective_records(records)
    with pytest.raises(oracle.OracleError, match="shard 0 has a row of blockTable that cannot be read: AB6B: "):
        oracle.container_digests(records, DN_COLUMN_FAMILIES, effective, {0: len(log.values)})


@pytest.mark.slow
def test_the_oracle_stops_where_the_log_breaks():
    log = ordinary_log()
    good, rows = len(log.values), dict(log.rows)
    log.append_value(b"garbage of some length")
    log.batch(log.put("keyTable", b"/v/x", b"x"))
    records = raw_records({0: log.values})
    effective = counting.effective_records(records)
    (broken,) = effective.where("broken is not null").collect()
    assert (broken.offset, broken.broken) == (good, "not single-object encoded Avro")
    found, _ = oracle.check(records, OM_COLUMN_FAMILIES, effective, counting.ends(effective))
    assert found[0].digest == total_hex(rows)
