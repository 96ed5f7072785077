"""Spark's transforms and its oracle, in batch, against Python models of the same bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame

from schemas.codecs.codec import decode_as, encode
from schemas.column_families import DN_COLUMN_FAMILIES, OM_COLUMN_FAMILIES
from schemas.records.datanode import BlockReport
from schemas.records.log import Merge, Operation, Put
from schemas.records.messages import AuditReport
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.batch import counting, oracle
from spark_streaming.records.logs import KNOWN_LOGS
from spark_streaming.records.transforms import LOG_SOURCE, audit_rows, log_rows, report_rows
from spark_streaming.verdicts.audit import log_row, report
from spark_streaming.windows.core.sampling import LOG, REPORTS, SEPARATOR, Sampling
from spark_streaming.windows.core.window_book import Amounts, ChangedWindow, WindowBook
from spark_streaming.windows.samples import LOGGED, ROW_SAMPLES
from tests.support.audit import auditmodel
from tests.support.audit.spark import APPENDED_AT, raw_records
from tests.support.logs.logbuilder import START_MS, LogBuilder, counter, digest, ordinary_log, row_hash, total_hex
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
    frame: Any = log_rows(raw_records({0: log.values}), KNOWN_LOGS).toPandas()
    return log, {row.offset: row for row in frame.itertuples(index=False)}


def test_every_record_becomes_one_row(transformed):
    log, rows = transformed
    assert sorted(rows) == list(range(len(log.values)))


def test_headers_and_chains_are_the_models(transformed):
    log, rows = transformed
    for offset, value in enumerate(log.values):
        found, wanted = log_row(rows[offset]).header, auditmodel.header(offset, value)
        if wanted.kind is None:
            assert found.kind is None
            assert found.error
        else:
            assert found == wanted


def test_changes_are_the_models(transformed):
    log, rows = transformed
    changes = 0
    for offset, value in enumerate(log.values):
        found, wanted = log_row(rows[offset]), auditmodel.log_row(offset, value)
        if wanted.header.kind is None:
            continue
        for name in ("slot", "next", "prev", "base_slots", "base_sums"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), (offset, name)
        assert sorted(found.unknown_families) == sorted(wanted.unknown_families)
        changes += len(wanted.slot)
    assert changes > 100


def test_errors_name_what_is_wrong(transformed):
    log, rows = transformed
    errors = [rows[offset].error for offset in range(len(log.values) - 7, len(log.values))]
    assert errors == [
        "0 bytes are no encoded record",
        "2 bytes are no encoded record",
        "not single-object encoded Avro",
        f"unknown schema fingerprint {b'12345678'.hex()}",
        f"unknown schema fingerprint {b'87654321'.hex()}",
        "not a valid Batch",
        "not a valid LeaderClaim",
    ]


@pytest.mark.slow
def test_a_pipelines_changes_are_the_models():
    """Both logs in one frame: each row gets the slots of its own log's column families."""
    om, dn = ordinary_log(), ordinary_pipeline()
    both = raw_records({0: om.values}).unionByName(raw_records({0: dn.values}, log=DN_LOG))
    frame: Any = log_rows(both, KNOWN_LOGS).toPandas()
    rows = {(row.log, row.offset): row for row in frame.itertuples(index=False)}
    assert len(rows) == len(om.values) + len(dn.values)
    for log, name in ((om, OM_LOG), (dn, DN_LOG)):
        for offset, value in enumerate(log.values):
            found, wanted = log_row(rows[name, offset]), auditmodel.log_row(offset, value, log.families)
            assert found.header == wanted.header
            for field in ("slot", "next", "prev"):
                assert np.array_equal(getattr(found, field), getattr(wanted, field)), (name, offset, field)
            assert not found.unknown_families


def test_reports_of_blocks():
    log = ordinary_pipeline()
    sent = log.block_report(log.barriers[-1], "dn2")
    (row,) = report_rows(raw_records({0: [encode(sent)]}, log=DN_LOG)).collect()
    assert (row.log, row.kind, row.node, row.named_shard, row.basis) == (DN_LOG, "BlockReport", "dn2", 0, "blocks")
    assert (row.barrier_offset, row["index"]) == (sent.log_offset, sent.index)
    assert decode_as(BlockReport, bytes(row.value)) == sent


def test_reports():
    log = ordinary_log()
    evidence = log.evidence_report("om2", "keyTable", b"\x00k", own=None)
    sent: list[AuditReport] = [
        *log.all_reports(),
        evidence,
        log.report(log.barriers[0], flagged=True, evidence=evidence.evidence),
    ]
    values: list[bytes | None] = [encode(one) for one in sent]
    values += [b"nonsense", None, values[0][:20] if values[0] else None]
    frame: Any = report_rows(raw_records({0: values}, key=b"0/om7")).toPandas()
    rows = {row.offset: report(row) for row in frame.itertuples(index=False)}
    for offset, one in enumerate(sent):
        found, wanted = rows[offset], auditmodel.report(one, offset)
        assert list(found.slots) == list(wanted.slots)
        assert list(found.sums) == list(wanted.sums)
        for name in ("cluster", "node", "shard", "basis", "barrier_offset", "index", "chain", "flagged", "evidence"):
            assert getattr(found, name) == getattr(wanted, name), name
        assert found.error is None
    for offset in range(len(sent), len(values)):
        assert rows[offset].error
        assert rows[offset].node == "om7"
        assert rows[offset].barrier_offset == -1


def test_a_report_keeps_its_value_only_if_evidence_or_blocks_are_read_from_it():
    log = ordinary_log()
    plain, evidence = log.report(log.barriers[0]), log.evidence_report("om2", "keyTable", b"k")
    pipeline = ordinary_pipeline()
    blocks = pipeline.block_report(pipeline.barriers[-1], "dn2")
    rows = report_rows(raw_records({0: list(map(encode, (plain, evidence, blocks)))})).orderBy("offset").collect()
    assert [row.value and bytes(row.value) for row in rows] == [None, encode(evidence), encode(blocks)]


@pytest.mark.parametrize(("key", "node"), [(None, ""), (b"0/om7", "om7"), (b"0/om/7", "om/7"), (b"om7", "om7")])
def test_a_damaged_report_is_of_the_node_that_its_key_names(key: bytes | None, node: str):
    (row,) = report_rows(raw_records({0: [None]}, key=key)).collect()
    assert (row.node, row.error, row.kind) == (node, "no value", None)


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


def test_windows_count_what_is_in_the_log():
    log = LogBuilder().start()
    log.batch(log.put("keyTable", b"/v/a", b"1"), log.put("keyTable", b"/v/b", b"1"), log.merge(b"/v/n", 1), results=2)
    log.batch(log.delete("keyTable", b"/v/a"), results=3, recorded=False)
    at = log.barrier()
    log.batch(results=5)
    log.request_batch(requests=2)
    reports = raw_records({0: [encode(log.report(at, "om1")), encode(log.report(at, "om2", index=at.index - 2))]})
    rows = rows_of(samples(raw_records({0: log.values}), reports))
    operations = {key[1]: row.total for key, row in rows.items() if key[0] == "operation"}
    assert operations == {"put": 2, "delete": 1, "merge": 1, "checkpoint": 0, "retry_row": 7}
    requests = rows["request", "CreateKey", "OK"]
    assert requests.count == 10
    sent_at_ms = [START_MS + 10 * n - 5 for n in (1, 2, 3) for _ in range({1: 2, 2: 3, 3: 5}[n])]
    assert requests.greatest == APPENDED_AT.timestamp() * 1000 - min(sent_at_ms)
    assert requests.total == APPENDED_AT.timestamp() * 1000 * 10 - sum(sent_at_ms)
    assert rows["request", "CreateKey", LOGGED].count == 2
    assert (rows["batch", "requests", ""].total, rows["batch", "requests", ""].count) == (12, 4)
    assert rows["record", "Batch", ""].total == sum(len(log.values[n]) for n in (2, 3, 5))
    assert {key[1] for key in rows if key[0] == "record"} == {
        "LeaderClaim", "Genesis", "Batch", "Barrier", "RequestBatch",
    }  # fmt: skip
    assert rows["block", "commit", ""].total == rows["block", "delete", ""].total == 0
    reached = [rows["replica", node, "incremental"].greatest for node in ("om1", "om2")]
    assert (rows["log_index", "", ""].greatest, reached) == (12, [5, 3])


def test_what_cannot_be_decoded_is_counted_all_the_same():
    """A record by its bytes, a result by the mark that its code is not known."""
    log = LogBuilder().start()
    result = replace(log.result(), response=b"nonsense")
    log.count(log.batch_of([], [result, log.result(status="NO_SUCH_KEY")], 2))
    values = [*log.values, b"garbage", None]
    rows = samples(raw_records({0: values}), raw_records({0: []})).collect()
    found = [
        (*name.split(SEPARATOR), amount)
        for row in rows
        for name, amount in zip(row.sample_names, row.sample_amounts, strict=True)
    ]
    assert [amount for metric, kind, _, amount in found if (metric, kind) == ("record", "undecodable")] == [7, 0]
    assert sorted(status for metric, _, status, _ in found if metric == "request") == ["?", "NO_SUCH_KEY"]
    assert [amount for metric, _, _, amount in found if metric == "log_index"] == [2]
    assert {(row.shard, row.appended_ms) for row in rows} == {(0, APPENDED_AT.timestamp() * 1000)}


def samples(log: DataFrame, reports: DataFrame) -> DataFrame:
    """The rows that the operator takes, as far as windows are made of them."""
    rows = audit_rows(log, reports, KNOWN_LOGS, ROW_SAMPLES)
    return rows.select("log", "shard", "source", "appended_ms", "sample_names", "sample_amounts")


def book_of(found: DataFrame) -> list[ChangedWindow]:
    """Windows of all samples at once."""
    partitions: dict[tuple[str, int], Sampling] = {}
    for row in found.where("sample_names is not null").collect():
        source = LOG if row.source == LOG_SOURCE else REPORTS
        partitions.setdefault((row.log, row.shard), Sampling(10_000)).add(
            source, row.appended_ms, row.sample_names, np.array(row.sample_amounts, dtype=np.int64)
        )
    return WindowBook(10_000).take(0, (one for place, found in partitions.items() for one in found.samples(*place)))


def rows_of(found: DataFrame) -> dict[tuple[str, str, str], Amounts]:
    """The rows of the one window of all samples."""
    return {(row.metric, row.kind, row.status): amounts for one in book_of(found) for row, amounts in one.rows.items()}


@pytest.mark.slow
def test_windows_count_blocks():
    log = PipelineLog().start()
    log.batch(log.put_block(1, 1, b"a"), log.put_block(1, 2, b"b"), log.put("containerTable", b"c", b"1"))
    log.batch(log.delete_block(1, 1))
    reports = raw_records({0: []}, log=DN_LOG)
    found = book_of(samples(raw_records({0: log.values}, log=DN_LOG), reports))
    assert {one.stream.log for one in found} == {DN_LOG}
    totals = {row.kind: one.total for window in found for row, one in window.rows.items() if row.metric == "block"}
    assert totals == {"commit": 2, "delete": 1}
