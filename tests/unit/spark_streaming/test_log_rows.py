"""Decoding in the operator: what the matching and the windows take of each record, against the tests' own model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.codecs import codec
from schemas.codecs.codec import encode
from schemas.column_families import DN_COLUMN_FAMILIES, OM_COLUMN_FAMILIES
from schemas.records.datanode import BlockReport
from schemas.records.log import Put
from schemas.records.messages import AuditReport, Verdict
from spark_streaming.verdicts import log_rows
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.inputs import LogRow, ReplicaReport
from spark_streaming.verdicts.log_rows import CHECKED_EACH, RowHashes, decoded_log_record
from spark_streaming.verdicts.reports import MAX_SLOTS, decoded_report, report_of
from spark_streaming.windows.core.window_book import RowKey
from spark_streaming.windows.samples import LOGGED, LONGEST_MS, log_samples, report_samples
from tests.support.audit import auditmodel
from tests.support.audit.shard_auditor import Auditor
from tests.support.logs.logbuilder import REPLICAS, START_MS, LogBuilder, ordinary_log
from tests.support.logs.pipelinelog import PipelineLog, ordinary_pipeline


def row_of(offset: int, value: bytes | None, families: Any = OM_COLUMN_FAMILIES) -> LogRow:
    return RowHashes(families).log_row(offset, value or b"", decoded_log_record(offset, value))


def odd_log() -> LogBuilder:
    """Everything that a log may hold, and much that it should not."""
    log = ordinary_log()
    log.digest_base()
    log.members(*REPLICAS, "om4")
    log.batch(results=0)
    log.mode()
    log.request_batch(requests=3)
    log.batch(Put(cf="newTable", key=b"k", value=b"", prev=-(2**63)), Put(cf="", key=b"", value=b"x", prev=2**63 - 1))
    log.batch(log.put("keyTable", b"", b""), log.put("keyTable", "/v/b/ключ".encode(), bytes(range(256)) * 300))
    return log


@pytest.mark.parametrize(
    ("log", "families"), [(odd_log(), OM_COLUMN_FAMILIES), (ordinary_pipeline(), DN_COLUMN_FAMILIES)]
)
def test_rows_of_a_log_are_the_models(log: LogBuilder, families: tuple[str, ...]):
    for offset, value in enumerate(log.values):
        found, wanted = row_of(offset, value, families), auditmodel.log_row(offset, value, families)
        assert found.header == wanted.header
        for name in ("slot", "next", "prev", "base_slots", "base_sums"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), (offset, name)
        assert (found.base_basis, found.base_asked_by) == (wanted.base_basis, wanted.base_asked_by)
        assert sorted(found.unknown_families) == sorted(wanted.unknown_families)


def test_a_record_that_cannot_be_read_has_only_its_error():
    log = ordinary_log()
    values = [
        None, b"", b"\xc3\x01", b"garbage of more than ten bytes", b"\xc3\x01" + b"12345678" + b"body",
        encode(log.report(log.barriers[0])), log.values[2][:-5], log.values[2] + b"x",
    ]  # fmt: skip
    rows = [row_of(7, value) for value in values]
    errors = [row.header.error or "" for row in rows]
    assert errors[:5] == [
        "no value", "0 bytes are no encoded record", "2 bytes are no encoded record", "not single-object encoded Avro",
        f"unknown schema fingerprint {b'12345678'.hex()}",
    ]  # fmt: skip
    assert errors[5].startswith("unknown schema fingerprint "), "a record of another kind has no place in a log"
    assert errors[6].startswith("not a valid Batch: ")
    assert errors[7] == "1 bytes too many after a Batch"
    for row in rows:
        assert (row.header.offset, row.header.kind, len(row.slot), row.unknown_families) == (7, None, 0, ())


def test_what_two_decoders_read_differently_is_not_judged(monkeypatch: pytest.MonkeyPatch):
    """A fault of the codec that the nodes use would be the auditor's too: some records are read by another one."""
    log = ordinary_log()
    value = log.values[2]
    right = codec.decode(value)
    monkeypatch.setattr(log_rows, "decode", lambda data: replace(right, term=right.term + 1) if data == value else None)
    assert decoded_log_record(CHECKED_EACH - 1, value).error is None
    found = decoded_log_record(CHECKED_EACH, value)
    assert (found.record, found.error) == (
        None, "unknown schema fingerprint, for two decoders read its records differently"
    )  # fmt: skip
    audit = Auditor().audit()
    (verdict,) = audit.take([row_of(0, value)], [], 0)
    assert isinstance(verdict, Verdict)
    assert (verdict.verdict, verdict.basis) == ("unknown", "log")


def test_every_record_of_ours_is_read_the_same_by_both_decoders():
    for log in (odd_log(), ordinary_pipeline()):
        for value in log.values:
            assert decoded_log_record(0, value).error is None


def test_a_record_with_very_many_changes_takes_the_memory_of_all_slots_at_most():
    """A record of 8 MiB holds hundreds of thousands; its sums are the same."""
    log = LogBuilder().start()
    log.batch(*(log.put("keyTable", b"/v/b/%d" % n, b"") for n in range(3_000)))
    found, wanted = row_of(2, log.values[2]), auditmodel.log_row(2, log.values[2])
    assert len(found.slot) == len(found.next) == len(found.prev) <= len(digests.zeros(len(OM_COLUMN_FAMILIES)))
    assert len(found.slot) < len(wanted.slot)
    one, other = (digests.zeros(len(OM_COLUMN_FAMILIES)) for _ in range(2))
    digests.add_changes(one, wanted.slot, wanted.next, wanted.prev)
    digests.add_changes(other, found.slot, found.next, found.prev)
    assert (one == other).all()


def test_a_log_needs_a_table_for_retry_rows():
    with pytest.raises(ValueError, match="without retryTable"):
        RowHashes(("keyTable",))


# Reports.


def report_from(value: bytes | None, key: bytes | None = b"0/om7") -> ReplicaReport | BlockReport:
    return report_of(2, 9, key, decoded_report(value))


def test_reports_are_the_models():
    log = ordinary_log()
    evidence = log.evidence_report("om2", "keyTable", b"\x00k", own=None)
    flagged = log.report(log.barriers[0], flagged=True, evidence=evidence.evidence)
    for sent in (*log.all_reports(), evidence, flagged):
        found, wanted = report_from(encode(sent)), auditmodel.report(sent, 9)
        assert isinstance(found, ReplicaReport)
        assert (found.partition, found.offset, found.error) == (2, 9, None)
        names = ("cluster", "node", "shard", "basis", "barrier_offset", "index", "chain", "flagged", "evidence", "slots", "sums")  # fmt: skip
        for name in names:
            assert getattr(found, name) == getattr(wanted, name), name


def test_a_report_of_stored_bytes_is_the_record_itself():
    log = ordinary_pipeline()
    sent = log.block_report(log.barriers[-1], "dn2")
    assert report_from(encode(sent)) == sent


@pytest.mark.parametrize(("key", "node"), [(None, ""), (b"0/om7", "om7"), (b"0/om/7", "om/7"), (b"om7", "om7"), (b"0/\xff", "\ufffd")])  # fmt: skip
def test_a_damaged_report_is_of_the_node_that_its_key_names(key: bytes | None, node: str):
    found = report_from(None, key)
    assert isinstance(found, ReplicaReport)
    assert (found.node, found.error, found.basis, found.barrier_offset) == (node, "no value", "", -1)
    damaged = report_from(encode(ordinary_log().report(ordinary_log().barriers[0]))[:20], key)
    assert isinstance(damaged, ReplicaReport)
    assert (damaged.error or "").startswith("not a valid AuditReport")


def test_a_report_with_more_slots_than_any_log_has_keeps_none_of_them():
    """A report may have 8 MiB, and 8,000 of them come in a micro-batch."""
    log = ordinary_log()
    slots = list(range(MAX_SLOTS + 1))
    found = report_from(encode(log.report(log.barriers[0], slots=slots, sums=slots)))
    assert isinstance(found, ReplicaReport)
    assert (list(found.slots), list(found.sums)) == ([], [])
    assert found.error == f"{MAX_SLOTS + 1} slots with {MAX_SLOTS + 1} sums are no digest"


def test_decoded_rows_lead_to_the_verdicts_that_the_models_lead_to():
    """The whole way, without Spark: bytes of an ordinary log and its reports, all replicas equal."""
    log = ordinary_log()
    auditor = Auditor()
    rows = [row_of(offset, value) for offset, value in enumerate(log.values)]
    reports = [report_from(encode(sent)) for sent in log.all_reports()]
    audit = auditor.audit()
    taken = [one for one in reports if isinstance(one, ReplicaReport)]
    found = list(audit.take(rows, [replace(one, partition=0, offset=n) for n, one in enumerate(taken)], 0))
    verdicts = [one for one in found if hasattr(one, "verdict")]
    assert {one.verdict for one in verdicts} == {"equal"}
    assert len(verdicts) == len(reports)


# Samples.


def samples_of(value: bytes | None, appended_ms: int = START_MS) -> dict[tuple[str, str, str, int], int]:
    found = log_samples(decoded_log_record(1, value).record, len(value or b""), appended_ms)
    return {(*row, amount): count for (row, amount), count in found.items()}


def test_samples_of_a_batch():
    log = LogBuilder().start()
    put = log.put("keyTable", b"/v/a", b"1")
    offset = log.batch(put, log.delete("keyTable", b"/v/a"), log.merge(b"/v/n", 1), log.merge(b"/v/m", 1), results=2)
    found = samples_of(log.values[offset], START_MS + 100)
    latency = START_MS + 100 - codec.decode(log.values[offset]).results[0].first_sent_at_ms
    assert found == {
        ("record", "Batch", "", len(log.values[offset])): 1, ("operation", "put", "", 1): 1,
        ("operation", "delete", "", 1): 1, ("operation", "merge", "", 2): 1, ("operation", "checkpoint", "", 0): 1,
        ("operation", "retry_row", "", 2): 1, ("block", "commit", "", 0): 1, ("block", "delete", "", 0): 1,
        ("batch", "operations", "", 4): 1, ("batch", "requests", "", 2): 1, ("log_index", "", "", log.index): 1,
        ("request", "CreateKey", "OK", latency): 2,
    }  # fmt: skip


def test_requests_that_are_logged_have_no_result_yet():
    log = LogBuilder().start()
    found = samples_of(log.values[log.request_batch(requests=2)])
    assert found["batch", "requests", "", 2] == found["log_index", "", "", log.index] == 1
    assert sum(count for (metric, _, status, _), count in found.items() if (metric, status) == ("request", LOGGED)) == 2


def test_blocks_are_counted():
    log = PipelineLog().start()
    first = log.batch(log.put_block(1, 1, b"a"), log.put_block(1, 2, b"b"), log.put("containerTable", b"c", b"1"))
    second = log.batch(log.delete_block(1, 1))
    assert ("block", "commit", "", 2) in samples_of(log.values[first])
    assert ("block", "delete", "", 1) in samples_of(log.values[second])


def test_what_cannot_be_decoded_is_counted_all_the_same():
    """A record by its bytes, a result by the mark that its code is not known."""
    assert samples_of(b"garbage") == {("record", "undecodable", "", 7): 1}
    assert samples_of(None) == {("record", "undecodable", "", 0): 1}
    log = LogBuilder().start()
    results = [replace(log.result(), response=b"nonsense"), log.result(status="NO_SUCH_KEY")]
    found = samples_of(log.values[log.count(log.batch_of([], results, 2))])
    assert sorted(status for metric, _, status, _ in found if metric == "request") == ["?", "NO_SUCH_KEY"]


@pytest.mark.parametrize("sent_at_ms", [-(2**63), 2**63 - 1])
def test_a_time_that_a_client_invents_stays_within_bounds(sent_at_ms: int):
    log = LogBuilder().start()
    offset = log.count(log.batch_of([], [replace(log.result(), first_sent_at_ms=sent_at_ms)], 1))
    (amount,) = (amount for metric, *_, amount in samples_of(log.values[offset]) if metric == "request")
    assert abs(amount) == LONGEST_MS


def test_a_report_shows_how_far_its_replica_is():
    log = ordinary_log()
    sent: AuditReport = log.report(log.barriers[0], "om2")
    assert report_samples(sent) == {(RowKey("replica", "om2", sent.basis), sent.index): 1}
