"""After a RequestBatch the log does not say what its rows are: verdicts rest on the replicas alone, until a DigestBase."""

from __future__ import annotations

from dataclasses import replace

from schemas.column_families import OM_COLUMN_FAMILIES
from spark_streaming.verdicts.core.digests import from_sparse
from spark_streaming.verdicts.core.judging import agreed
from spark_streaming.verdicts.core.shard_state import MatchingLimits
from tests.support.audit.auditmodel import report
from tests.support.audit.shard_auditor import Auditor, simple_log, told
from tests.support.logs.logbuilder import LogBuilder, Rows, digest, signed

FAMILIES = len(OM_COLUMN_FAMILIES)
ALONE, ALONE_SCRUBBED = "replicas:incremental", "replicas:scrubbed"


def late_log() -> LogBuilder:
    log = simple_log()
    log.barrier()
    log.mode()
    log.request_batch(log.put("keyTable", b"/v/b/late", b"1"), log.delete("keyTable", b"/v/b/k"), requests=2)
    return log


def other_rows(log: LogBuilder) -> Rows:
    return {**log.rows, ("keyTable", b"/v/b/late"): b"of other software"}


def test_equal_replicas_are_equal_on_the_basis_of_each_other():
    log = late_log()
    at = log.barrier(scrub=True)
    auditor = Auditor()
    verdicts = auditor.take(log.values, [log.report(log.barriers[0], node) for node in ("om1", "om2", "om3")])
    assert {(v.verdict, v.basis) for v in verdicts} == {("equal", "incremental")}
    verdicts = auditor.take(
        log.values, [log.report(at, n, basis=b) for n in ("om1", "om2", "om3") for b in ("incremental", "scrubbed")]
    )
    assert told(verdicts) == {
        (node, "equal", basis): 1 for node in ("om1", "om2", "om3") for basis in (ALONE, ALONE_SCRUBBED)
    }
    assert all(not verdict.differing_slots for verdict in verdicts)
    assert not auditor.store.reports


def test_reports_are_held_until_a_majority_agrees_and_the_minority_is_wrong():
    log = late_log()
    at = log.barrier()
    auditor = Auditor()
    assert auditor.take(log.values, [log.report(at, "om2", rows=other_rows(log))]) == []
    assert auditor.take(log.values, [log.report(at, "om1")]) == []
    verdicts = auditor.take(log.values, [log.report(at, "om3")])
    assert told(verdicts) == {("om1", "equal", ALONE): 1, ("om3", "equal", ALONE): 1, ("om2", "diverged", ALONE): 1}
    [wrong] = [verdict for verdict in verdicts if verdict.verdict == "diverged"]
    assert (wrong.differing_slots, wrong.differences[0].cf) == (1, "keyTable")
    assert "from what a majority of the replicas holds" in wrong.reason


def test_one_that_comes_after_the_majority_is_compared_with_it():
    log = late_log()
    at = log.barrier()
    auditor = Auditor()
    auditor.take(log.values, [log.report(at, "om1"), log.report(at, "om2")])
    [verdict] = auditor.take(log.values, [log.report(at, "om3", rows=other_rows(log))])
    assert (verdict.verdict, verdict.basis, verdict.differing_slots) == ("diverged", ALONE, 1)


def test_no_majority_at_all():
    log = late_log()
    at = log.barrier()
    third = {**log.rows, ("keyTable", b"/v/b/late"): b"third"}
    auditor = Auditor()
    reports = [log.report(at, "om1"), log.report(at, "om2", rows=other_rows(log)), log.report(at, "om3", rows=third)]
    verdicts = auditor.take(log.values, reports)
    assert {(v.verdict, v.basis, v.reason) for v in verdicts} == {
        ("diverged", ALONE, "no majority of the replicas holds the same")
    }
    assert len(verdicts) == 3
    assert not auditor.store.reports


def test_too_few_reports_in_time_are_unknown_and_may_be_settled_later():
    log = late_log()
    at = log.barrier()
    auditor = Auditor(MatchingLimits(report_timeout_ms=1000))
    auditor.take(log.values, [log.report(at, "om1"), log.report(at, "om2", rows=other_rows(log))])
    verdicts = auditor.expire(2000)
    assert told([v for v in verdicts if v.barrier_offset == at.offset]) == {
        ("om1", "unknown", ALONE): 1, ("om2", "unknown", ALONE): 1, ("om3", "unknown", "incremental"): 1,
    }  # fmt: skip
    verdicts = auditor.take(log.values, [log.report(at, "om3")], 3000)
    assert told(verdicts) == {("om1", "equal", ALONE): 1, ("om3", "equal", ALONE): 1, ("om2", "diverged", ALONE): 1}


def test_a_flagged_replica_does_not_vote():
    log = late_log()
    at = log.barrier()
    auditor = Auditor()
    assert auditor.take(log.values, [log.report(at, "om1"), log.report(at, "om2", flagged=True)]) == []
    verdicts = auditor.take(log.values, [log.report(at, "om3")])
    assert told(verdicts) == {
        ("om1", "equal", ALONE): 1,
        ("om3", "equal", ALONE): 1,
        ("om2", "diverged", "evidence"): 1,
    }


def test_chain_and_index_are_still_the_logs():
    log = late_log()
    at = log.barrier()
    auditor = Auditor()
    reports = [log.report(at, "om1"), log.report(at, "om2"), log.report(at, "om3", chain=bytes(32))]
    verdicts = auditor.take(log.values, reports)
    assert told(verdicts)["om3", "diverged", ALONE] == 1


def test_a_digest_base_gives_the_log_its_sums_back():
    log = late_log()
    log.digest_base()
    log.batch(log.put("keyTable", b"/v/b/after", b"1"))
    at = log.barrier()
    auditor = Auditor()
    verdicts = auditor.take(log.values, [log.report(at, "om1"), log.report(at, "om2", rows=other_rows(log))])
    assert told(verdicts) == {("om1", "equal", "incremental"): 1, ("om2", "diverged", "incremental"): 1}
    assert [barrier.blind for barrier in auditor.barriers] == [False, False]
    assert digest(log.rows)


def test_batches_after_requests_do_not_bring_the_sums_back():
    log = late_log()
    log.batch(log.put("keyTable", b"/v/b/after", b"1"))
    at = log.barrier()
    auditor = Auditor()
    verdicts = auditor.take(log.values, [log.report(at, node) for node in ("om1", "om2", "om3")])
    assert {(v.verdict, v.basis) for v in verdicts} == {("equal", ALONE)}
    assert [barrier.blind for barrier in auditor.barriers] == [False, True]


def test_a_dropped_barrier_leaves_nothing_behind():
    log = late_log()
    at = log.barrier()
    auditor = Auditor(MatchingLimits(kept_barriers=1))
    auditor.take(log.values, [log.report(at, "om1")])
    log.tick()
    log.barrier()
    verdicts = auditor.take(log.values)
    assert ("om1", "unknown", ALONE) in told(verdicts)
    assert not auditor.store.reports


def test_agreement():
    log = late_log()
    at = log.barrier()
    right, wrong = (report(log.report(at, "om1")), report(log.report(at, "om1", rows=other_rows(log))))
    slots = digest(log.rows)
    sums = from_sparse(FAMILIES, list(slots), [signed(total) for total in slots.values()])
    others = [replace(right, node=node) for node in ("om2", "om3")]
    found = agreed([right, *others], FAMILIES, 3)
    assert found is not None
    assert (found == sums).all()
    assert agreed([right, replace(wrong, node="om2")], FAMILIES, 3) is None
    assert agreed([right, right], FAMILIES, 3) is None, "one node has one vote"
    assert agreed([right, replace(others[0], basis="scrubbed")], FAMILIES, 3) is None
    assert agreed([right, replace(others[0], slots=[-5], sums=[1])], FAMILIES, 3) is None
    for no_vote in (replace(others[0], slots=[-5], sums=[1]), replace(others[0], flagged=True)):
        assert agreed([no_vote, right, others[1]], FAMILIES, 3) is not None
    assert agreed([right, others[0]], FAMILIES, 4) is None
    assert agreed([right], FAMILIES, 1) is not None
