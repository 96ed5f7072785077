"""The audit of one shard, without Spark: verdicts for logs and replicas that are right, wrong, late or missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from schemas.column_families import BUCKETS, OM_COLUMN_FAMILIES
from schemas.features import LATEST
from schemas.records.log import Put
from schemas.records.messages import Verdict
from schemas.settings.table import AuditSettings
from spark_streaming.records.core.reading import BATCH, DIGEST_BASE, REQUEST_BATCH, LogBroken
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.report_matching import BarrierPlace, place_of
from spark_streaming.verdicts.core.shard_state import LogStanding, MatchingLimits, Waiting
from spark_streaming.verdicts.state import state_from, state_row
from tests.support.audit.auditmodel import log_rows, report
from tests.support.audit.shard_auditor import LIMITS, Auditor, simple_log, told
from tests.support.logs.logbuilder import REPLICAS, LogBuilder, digest, ordinary_log

SLOTS = len(OM_COLUMN_FAMILIES) * BUCKETS


def test_the_logs_own_sums_are_the_models_at_every_barrier():
    log = ordinary_log(batches=40)
    auditor = Auditor()
    auditor.take(log.values)
    assert len(auditor.barriers) == len(log.barriers) > 5
    for found, true in zip(auditor.barriers, log.barriers, strict=True):
        slots, sums = digests.to_sparse(found.sums)
        assert (found.offset, found.index, found.chain) == (true.offset, true.index, true.chain)
        assert dict(zip(slots, (s % 2**64 for s in sums), strict=True)) == digest(true.rows)


def test_true_replicas_are_equal():
    log = ordinary_log()
    verdicts = Auditor().take(log.values, log.all_reports())
    incremental = {(node, "equal", "incremental"): len(log.barriers) for node in REPLICAS}
    scrubbed = {(node, "equal", "scrubbed"): 1 for node in REPLICAS}
    assert told(verdicts) == incremental | scrubbed
    assert all(v.reason == "" and v.differences == [] and v.cluster == "test-cluster" for v in verdicts)


@pytest.mark.parametrize("seed", range(20))
def test_any_split_into_micro_batches_gives_the_same_verdicts(seed):
    """Reports before, with and after their barriers."""
    log = ordinary_log()
    reports = log.all_reports()
    whole = Auditor().take(log.values, reports)
    choose = random.Random(seed)
    choose.shuffle(reports)
    auditor, split, read = Auditor(), [], 0
    while read < len(log.values) or reports:
        read = min(read + choose.randint(0, 9), len(log.values))
        some = choose.randint(0, 9)
        split += auditor.take(log.values[:read], reports[:some])
        reports = reports[some:]
    assert told(split) == told(whole)
    assert not auditor.store.reports


def test_a_replica_that_does_not_report_is_unknown():
    log = simple_log()
    at = log.barrier()
    auditor = Auditor()
    assert told(auditor.take(log.values, [log.report(at, "om1"), log.report(at, "om3")], now_ms=100)) == {
        ("om1", "equal", "incremental"): 1,
        ("om3", "equal", "incremental"): 1,
    }
    assert auditor.audit().next_deadline_ms() == 1100
    assert auditor.expire(1099) == []
    (verdict,) = auditor.expire(1100)
    assert (verdict.node, verdict.verdict, verdict.basis) == ("om2", "unknown", "incremental")
    assert (verdict.barrier_offset, verdict.index) == (at.offset, at.index)
    assert auditor.audit().next_deadline_ms() is None
    assert auditor.expire(10**9) == []


def test_a_report_that_comes_late_is_judged_all_the_same():
    log = simple_log()
    at = log.barrier()
    auditor = Auditor()
    auditor.take(log.values)
    assert set(told(auditor.expire(5000))) == {(node, "unknown", "incremental") for node in REPLICAS}
    assert told(auditor.take(log.values, [log.report(at, "om2")], now_ms=6000)) == {("om2", "equal", "incremental"): 1}


def test_a_scrub_barrier_expects_both_reports():
    log = simple_log()
    at = log.barrier(scrub=True)
    auditor = Auditor()
    auditor.take(log.values, [log.report(at, "om1"), log.report(at, "om2", basis="scrubbed")])
    assert set(told(auditor.expire(5000))) == {
        ("om1", "unknown", "scrubbed"),
        ("om2", "unknown", "incremental"),
        ("om3", "unknown", "incremental"),
        ("om3", "unknown", "scrubbed"),
    }


def test_a_changed_row_names_column_family_and_bucket():
    log = simple_log()
    at = log.barrier()
    wrong = at.rows | {("keyTable", b"/v/b/k"): b"2"}
    (verdict,) = Auditor().take(log.values, [log.report(at, "om2", rows=wrong)])
    assert (verdict.node, verdict.verdict, verdict.basis, verdict.differing_slots) == (
        "om2", "diverged", "incremental", 1,
    )  # fmt: skip
    (difference,) = verdict.differences
    slot = OM_COLUMN_FAMILIES.index(difference.cf) * 256 + difference.bucket
    assert difference.cf == "keyTable"
    assert difference.log_sum % 2**64 == digest(at.rows)[slot]
    assert difference.replica_sum % 2**64 == digest(wrong)[slot]


def test_at_most_64_differences_are_named_and_all_are_counted():
    log = LogBuilder().start()
    log.batch(*(log.put("keyTable", b"/v/b/%d" % n, b"x") for n in range(400)))
    at = log.barrier()
    (verdict,) = Auditor().take(log.values, [log.report(at, rows={})])
    assert len(verdict.differences) == 64
    assert verdict.differing_slots == len(digest(at.rows)) > 64


def test_replicas_that_are_wrong_alike_are_diverged():
    log = simple_log()
    at = log.barrier()
    wrong = at.rows | {("keyTable", b"/v/b/other"): b"2"}
    verdicts = Auditor().take(log.values, [log.report(at, node, rows=wrong) for node in REPLICAS])
    assert {v.verdict for v in verdicts} == {"diverged"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"chain": b"c" * 32}, "chain"), ({"index": 99}, "index 99"), ({"slots": [1, 1], "sums": [1, 1]}, "twice"),
     ({"slots": [5]}, "slots with"), ({"slots": [SLOTS], "sums": [1]}, f"not in 0..{SLOTS - 1}"),
     ({"flagged": True}, "flagged")],
)  # fmt: skip
def test_reports_that_differ_in_anything_are_diverged(changed, reason):
    log = simple_log()
    at = log.barrier()
    (verdict,) = Auditor().take(log.values, [log.report(at, **changed)])
    assert verdict.verdict == "diverged"
    assert reason in verdict.reason


def test_chains_and_indexes_that_differ_are_told_with_the_logs():
    """A chain by its first 16 digits."""
    log = simple_log()
    at = log.barrier()
    (verdict,) = Auditor().take(log.values, [log.report(at, chain=b"\xab" * 32, index=99)])
    assert verdict.reason == (
        f"chain {'ab' * 8}, the log's is {at.chain.hex()[:16]}; index 99, the log's is {at.index}"
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"cluster": "other"}, "cluster"), ({"node": "om9"}, "no replica"), ({"shard": 3}, "shard 3"),
     ({"basis": "guess"}, "basis"), ({"barrier_offset": 2}, "no kept barrier")],
)  # fmt: skip
@pytest.mark.parametrize("early", [False, True])
def test_reports_that_belong_to_nothing_here_are_unknown(changed, reason, early):
    log = simple_log()
    at = log.barrier()
    auditor = Auditor()
    strange = log.report(at, **changed)
    if early:
        verdicts = auditor.take([], [strange]) + auditor.take(log.values)
        reason = reason.replace("no kept barrier", "")
    else:
        verdicts = auditor.take(log.values) + auditor.take(log.values, [strange])
    verdicts = verdicts or auditor.expire(10**6)
    assert {v.verdict for v in verdicts if v.node == strange.node} == {"unknown"}
    assert any(reason in v.reason for v in verdicts)


def test_an_early_report_is_judged_once_and_not_before_its_deadline():
    log = simple_log()
    at = log.barrier()
    auditor = Auditor()
    assert auditor.take(log.values[:2], [log.report(at, "om1")], now_ms=1) == []
    assert auditor.expire(1000) == []
    (verdict,) = auditor.expire(1001)
    assert (verdict.node, verdict.verdict, verdict.barrier_offset) == ("om1", "unknown", at.offset)
    assert verdict.reason == "no barrier in the log at that offset yet"
    assert auditor.expire(10**6) == []
    assert told(auditor.take(log.values)) == {("om1", "equal", "incremental"): 1}


def test_a_report_whose_barrier_never_comes_is_unknown():
    log = simple_log()
    at = log.barrier()
    auditor = Auditor()
    auditor.take(log.values, [log.report(at, "om1", barrier_offset=1000)], now_ms=1)
    verdicts = [v for v in auditor.expire(1001) if v.barrier_offset == 1000]
    assert [(v.node, v.verdict) for v in verdicts] == [("om1", "unknown")]


def test_evidence_is_diverged_at_once_and_while_the_replica_is_flagged():
    log = simple_log()
    evidence = log.evidence_report("om2", "keyTable", b"/v/b/k")
    at = log.barrier()
    flagged = log.report(at, "om2", flagged=True, evidence=evidence.evidence)
    auditor = Auditor()
    first, second = auditor.take(log.values, [evidence, flagged])
    for verdict in (first, second):
        assert (verdict.node, verdict.verdict, verdict.basis) == ("om2", "diverged", "evidence")
        assert verdict.evidence == evidence.evidence
    assert second.reason == "the replica found another row than the log claims"
    healed = log.barrier()
    assert told(auditor.take(log.values, [log.report(healed, "om2")])) == {("om2", "equal", "incremental"): 1}


def test_what_a_replicas_own_scan_has_found_is_told_as_such():
    log = simple_log()
    report = log.evidence_report("om2", "keyTable", b"")
    assert report.evidence is not None
    found = replace(report, evidence=replace(report.evidence, claim="scan", leader="", own=None))
    (verdict,) = Auditor().take(log.values, [found])
    assert (verdict.verdict, verdict.basis) == ("diverged", "evidence")
    assert verdict.reason == "the replica found rows that are not those of its digest"


def test_evidence_that_waits_for_its_barrier_survives_the_store():
    log = simple_log()
    at = log.barrier()
    evidence = log.evidence_report("om2", "keyTable", b"/v/b/k").evidence
    auditor = Auditor()
    assert auditor.take([], [log.report(at, "om2", flagged=True, evidence=evidence)]) == []
    (verdict,) = auditor.take(log.values)
    assert verdict.evidence == evidence


def false_prev(log: LogBuilder) -> None:
    """The leader writes a false prev; replicas subtract the row that they find."""
    true = log.put("keyTable", b"/v/b/k", b"3")
    log.batch(replace(true, prev=12345))


def test_a_false_prev_diverges_until_a_digest_base_heals():
    log = simple_log()
    false_prev(log)
    before = log.barrier()
    log.digest_base()
    after = log.barrier()
    log.batch(log.put("keyTable", b"/v/b/k2", b"3"))
    later = log.barrier(scrub=True)
    verdicts = Auditor().take(log.values, log.all_reports())
    by_offset = {at.offset: {v.verdict for v in verdicts if v.barrier_offset == at.offset} for at in log.barriers}
    assert by_offset == {before.offset: {"diverged"}, after.offset: {"equal"}, later.offset: {"equal"}}


def lying(log: LogBuilder, **changed: object) -> LogBuilder:
    """Make the next record claim something false."""
    for name, value in changed.items():
        setattr(log, name, value)
    return log


BREAKS: dict[str, Callable[[LogBuilder], object]] = {
    "undecodable": lambda log: log.append_value(b"garbage"),
    "truncated": lambda log: log.append_value(log.values[-1][:-3]),
    "ahead": lambda log: log.stale(log.term + 1),
    "claim ahead": lambda log: lying(log, term=log.term + 1).claim(),
    "chain": lambda log: lying(log, chain=b"x" * 32).tick(),
    "index": lambda log: lying(log, index=log.index + 1).batch(),
    "barrier index": lambda log: lying(log, index=log.index + 1).barrier(),
    "base index": lambda log: lying(log, index=log.index + 1).digest_base(),
    "time": lambda log: lying(log, timestamp_ms=5).batch(),
    "second genesis": lambda log: log.genesis(),
    "unknown family": lambda log: log.batch(Put(cf="newTable", key=b"k", value=b"v", prev=None)),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_log_makes_every_replica_diverged_on_the_log(how):
    log = simple_log()
    good = log.barrier()
    broken_at = len(log.values)
    BREAKS[how](log)
    bad = log.barrier()
    auditor = Auditor()
    verdicts = auditor.take(log.values, [log.report(good, "om1"), log.report(bad, "om1")])
    broken = [v for v in verdicts if v.basis == "log"]
    assert ("om1", "equal", "incremental") in told(verdicts)
    assert {v.node for v in broken if v.barrier_offset == broken_at} == set(REPLICAS)
    assert all(v.verdict == "diverged" and f"offset {broken_at}" in v.reason for v in broken)
    assert [v.node for v in broken if v.barrier_offset == bad.offset] in (["om1"], [*REPLICAS, "om1"])
    later = auditor.take(log.values, [log.report(bad, "om3"), log.report(good, "om3")])
    assert told(later) == {("om3", "diverged", "log"): 1, ("om3", "equal", "incremental"): 1}


@pytest.mark.parametrize("expired", [False, True])
def test_early_reports_behind_a_break_are_diverged_as_if_they_had_come_with_it(*, expired: bool):
    """Also if they have been judged unknown before; one on what lies before the break, where no barrier is, is not."""
    log = simple_log()
    before = log.barrier()
    broken_at = log.append_value(b"garbage")
    at_break = log.report(before, "om2", barrier_offset=broken_at)
    behind = [at_break, log.report(log.barrier(), "om1")]
    no_barrier = log.report(before, "om3", barrier_offset=before.offset - 1)
    auditor = Auditor()
    assert auditor.take([], [*behind, no_barrier]) == []
    if expired:
        assert {verdict.verdict for verdict in auditor.expire(10**6)} == {"unknown"}
    together = Auditor().take(log.values, behind)
    assert [v for v in auditor.take(log.values) if v.basis == "log"] == [v for v in together if v.basis == "log"]
    assert not auditor.store.reports


def test_a_log_broken_before_genesis_names_no_replica():
    (verdict,) = Auditor().take([b"garbage"])
    assert (verdict.node, verdict.verdict, verdict.basis) == ("", "diverged", "log")


@pytest.mark.parametrize("changed", [{"column_families": ["volumeTable"]}, {"shard": 4}])
def test_a_genesis_of_another_kind_breaks_the_log(changed):
    log = LogBuilder()
    log.claim()
    log.genesis(**changed)
    verdicts = Auditor().take(log.values)
    assert {(v.verdict, v.basis) for v in verdicts} == {("diverged", "log")}


def test_kept_barriers_are_bounded():
    log = simple_log()
    for _ in range(6):
        log.barrier()
    auditor = Auditor(MatchingLimits(report_timeout_ms=1000, kept_barriers=4))
    verdicts = auditor.take(log.values)
    assert len(auditor.store.barriers) == 4
    assert {(v.barrier_offset, v.verdict) for v in verdicts} == {(at.offset, "unknown") for at in log.barriers[:2]}
    late = auditor.take(log.values, [log.report(log.barriers[0])])
    assert told(late) == {("om1", "unknown", "incremental"): 1}


FEW = MatchingLimits(report_timeout_ms=1000, early_reports=4)


def test_of_early_reports_those_of_the_nearest_barriers_stay_and_the_others_are_held_back():
    log = simple_log()
    for _ in range(6):
        log.barrier()
    auditor = Auditor(FEW)
    assert auditor.take([], [log.report(at) for at in reversed(log.barriers)]) == []
    assert sorted(place.offset for place in auditor.store.reports) == [at.offset for at in log.barriers[:4]]
    assert told(auditor.take(log.values)) == {("om1", "equal", "incremental"): 6}
    assert not auditor.store.reports


def test_without_a_topic_to_read_again_the_farthest_are_unknown():
    log = simple_log()
    for _ in range(6):
        log.barrier()
    auditor = Auditor(FEW)
    auditor.topic = None
    verdicts = auditor.take([], [log.report(at) for at in log.barriers])
    assert [(v.barrier_offset, v.verdict) for v in verdicts] == [
        (at.offset, "unknown") for at in log.barriers[4:]
    ]  # fmt: skip
    assert told(auditor.take(log.values)) == {("om1", "equal", "incremental"): 4}


def backlog(barriers: int) -> LogBuilder:
    log = simple_log()
    for n in range(barriers):
        log.batch(log.put("keyTable", b"/v/b/%d" % (n % 9), b"%d" % n))
        log.barrier(scrub=n % 7 == 0)
    return log


def last_words(verdicts: Sequence[Verdict]) -> dict[tuple[int, str, str], str]:
    """The last verdict on each report, as a reader takes it."""
    return {(v.barrier_offset, v.node, v.basis): v.verdict for v in verdicts}


@pytest.mark.parametrize("early_bytes", [10**9, 9_000])
def test_on_a_backlog_whose_reports_come_first_every_healthy_replica_is_equal(early_bytes: int):
    """They were lost when the oldest reports were dropped for want of room."""
    log = backlog(150)
    limits = MatchingLimits(report_timeout_ms=1000, early_reports=60, early_bytes=early_bytes)
    auditor, reports, verdicts = Auditor(limits), log.all_reports(), []
    for n in range(0, len(reports), 50):
        verdicts += auditor.take(log.values[: n // 20], reports[n : n + 50], now_ms=n)
        assert sum(len(value) for _, value in auditor.store.reports.values()) <= early_bytes
        assert len(auditor.store.reports) <= 60
    for read in range(10, len(log.values) + 10, 10):
        verdicts += auditor.take(log.values[:read], now_ms=10_000)
    assert last_words(verdicts) == {
        (at.offset, node, basis): "equal"
        for at in log.barriers for node in REPLICAS for basis in ("incremental", "scrubbed")[: 1 + at.scrub]
    }  # fmt: skip
    assert {v.verdict for v in verdicts} == {"equal"}
    assert auditor.audit().state.held_back is None
    assert not auditor.store.reports


@pytest.mark.parametrize("records_at_once", [20, 300])
def test_a_backlog_is_read_at_rates_at_which_no_barrier_goes_before_its_reports_come(records_at_once: int):
    """A batch and a barrier, and three reports: at one rate for records and reports a third was `unknown`.

    Also if one micro-batch has far more barriers than are kept, and than there is room for their reports.
    """
    log = backlog(200)
    reports, records = log.all_reports(), log.values
    auditor, verdicts = Auditor(MatchingLimits(report_timeout_ms=10**6, early_reports=20, kept_barriers=8)), []
    for end in range(records_at_once, len(records) + records_at_once, records_at_once):
        some = reports[(end - records_at_once) * RATIO : end * RATIO]
        verdicts += auditor.take(records[:end], some)
    assert {v.verdict for v in verdicts} == {"equal"}
    assert len(last_words(verdicts)) == len(reports)


RATIO = AuditSettings.audit_reports_per_trigger // AuditSettings.audit_records_per_trigger


@pytest.mark.parametrize("basis", ["log", "base", "replicas:incremental", "x" * 99])
def test_a_report_never_has_a_basis_that_only_the_auditor_gives(basis: str):
    """``unknown`` on basis ``log`` ends the running audit: anybody could have ended it."""
    log = simple_log()
    at = log.barrier()
    (verdict,) = Auditor().take(log.values, [log.report(at, basis=basis)])
    assert (verdict.verdict, verdict.basis, verdict.reason) == ("unknown", "incremental", f"unknown basis {basis!r}")


@pytest.mark.parametrize("seed", range(20))
def test_any_order_and_any_micro_batches_give_the_same_with_room_for_few_early_reports(seed: int):
    choose = random.Random(seed)
    log = backlog(20)
    wrong = log.report(log.barriers[4], "om2", rows={})
    reports = [one for one in log.all_reports() if (one.node, one.barrier_offset) != ("om2", wrong.barrier_offset)]
    reports.append(wrong)
    choose.shuffle(reports)
    limits = MatchingLimits(report_timeout_ms=1000, early_reports=choose.randint(1, 9), taken_back=choose.randint(1, 9))
    auditor, verdicts, read = Auditor(limits), [], 0
    expected = last_words(Auditor().take(log.values, reports))
    while read < len(log.values) or reports:
        read = min(read + choose.randint(0, 9), len(log.values))
        some = choose.randint(0, 30)
        verdicts += auditor.take(log.values[:read], reports[:some])
        reports = reports[some:]
    for _ in range(200):
        if auditor.audit().next_deadline_ms() != 0:
            break
        verdicts += auditor.expire(1)
    assert last_words(verdicts) == expected
    assert len(verdicts) == len(expected), "nothing is said twice"


def test_what_the_topic_of_reports_has_lost_is_unknown_at_its_deadline():
    log = backlog(12)
    auditor = Auditor(FEW)
    auditor.take([], log.all_reports(("om1",)))
    assert auditor.topic is not None
    auditor.topic.lost = len(auditor.topic.reports)
    said = last_words([*auditor.take(log.values), *auditor.expire(10**6)])
    of_om1 = {
        offset: verdict for (offset, node, basis), verdict in said.items() if (node, basis) == ("om1", "incremental")
    }
    assert list(of_om1.values()).count("equal") >= 3
    assert set(of_om1.values()) == {"equal", "unknown"}


def test_reports_on_barriers_that_no_log_will_have_do_not_block_those_that_come():
    """Anybody may write reports."""
    log = simple_log()
    at = log.barrier()
    auditor = Auditor(FEW)
    foreign = [log.report(at, "om3", barrier_offset=10**9 + n) for n in range(20)]
    auditor.take(log.values[:-1], foreign)
    assert told(auditor.take(log.values[:-1], log.all_reports())) == {}
    assert told(auditor.take(log.values)) == {(node, "equal", "incremental"): 1 for node in REPLICAS}
    for _ in range(30):
        at = log.barrier()
        verdicts = auditor.take(log.values, [log.report(at, node) for node in REPLICAS])
        assert told(verdicts) == {(node, "equal", "incremental"): 1 for node in REPLICAS}


def test_they_do_not_keep_out_those_that_are_held_back():
    log = backlog(12)
    auditor = Auditor(MatchingLimits(report_timeout_ms=1000, early_reports=12))
    at = log.barriers[0]
    auditor.take(log.values[:2], [log.report(at, "om3", barrier_offset=10**9 + n) for n in range(9)])
    assert len(auditor.expire(1000)) == 9
    verdicts = auditor.take(log.values[:2], log.all_reports(), now_ms=1000)
    verdicts += auditor.take(log.values, now_ms=1000)
    said = last_words(verdicts)
    assert [said[one.barrier_offset, one.node, one.basis] for one in log.all_reports()] == ["equal"] * len(said)


def test_an_early_report_at_an_offset_that_holds_no_barrier_takes_no_room_for_ever():
    log = simple_log()
    at = log.barrier()
    auditor = Auditor()
    auditor.take([], [log.report(at, barrier_offset=at.offset - 1)])
    verdicts = auditor.take(log.values)
    assert [(v.node, v.verdict, v.reason) for v in verdicts] == [("om1", "unknown", "no barrier at that offset")]
    assert not auditor.store.reports


def test_early_reports_are_not_unknown_while_a_backlog_is_read():
    log = backlog(30)
    auditor = Auditor()
    late_ms = log.timestamp_ms + 3_600_000
    assert auditor.take(log.values[:3], log.all_reports(), now_ms=late_ms) == []
    auditor.take(log.values[:4], now_ms=late_ms + 900)
    assert [v for v in auditor.expire(late_ms + 1100) if v.reason.startswith("no barrier")] == []
    assert [v for v in auditor.expire(late_ms + 1900) if v.reason.startswith("no barrier")] != []


def test_a_report_of_a_member_that_the_auditor_has_not_read_of_waits_for_its_barrier():
    log = simple_log()
    log.members(*REPLICAS, "om4")
    at = log.barrier()
    auditor = Auditor()
    assert auditor.take(log.values[:3], [log.report(at, "om4")]) == []
    assert told(auditor.take(log.values)) == {("om4", "equal", "incremental"): 1}


def test_undecodable_report_is_unknown():
    log = simple_log()
    log.barrier()
    auditor = Auditor()
    audit = auditor.audit()
    bad = replace(report(log.report(log.barriers[0], "om2")), error="not a valid AuditReport")
    (verdict,) = auditor.keep(audit, list(audit.take(log_rows(log.values), [bad], 0)))[-1:]
    assert (verdict.node, verdict.verdict, verdict.reason) == ("om2", "unknown", "not a valid AuditReport")


def test_a_new_member_is_expected_from_its_record_on_and_a_removed_one_no_longer():
    log = simple_log()
    first = log.barrier()
    log.members(*REPLICAS, "om4")
    second = log.barrier()
    log.members("om2", "om3", "om4")
    third = log.barrier()
    expected = [(first, REPLICAS), (second, (*REPLICAS, "om4")), (third, ("om2", "om3", "om4"))]
    auditor = Auditor()
    verdicts = auditor.take(log.values, [log.report(at, node) for at, nodes in expected for node in nodes])
    assert told(verdicts) == {
        ("om1", "equal", "incremental"): 2, ("om2", "equal", "incremental"): 3,
        ("om3", "equal", "incremental"): 3, ("om4", "equal", "incremental"): 2,
    }  # fmt: skip
    log.barrier()
    assert not auditor.take(log.values)
    missing = auditor.expire(LIMITS.report_timeout_ms)
    assert {v.node for v in missing if v.verdict == "unknown"} == {"om2", "om3", "om4"}


NEWER: dict[str, Callable[[LogBuilder], object]] = {
    "feature level": lambda log: log.feature_level(LATEST + 1),
    "schema": lambda log: log.append_value(b"\xc3\x01" + b"12345678" + b"body"),
}


@pytest.mark.parametrize("what", NEWER)
def test_what_newer_software_wrote_makes_no_replica_diverged(what: str):
    log = simple_log()
    good = log.barrier()
    NEWER[what](log)
    ended_at = len(log.values) - 1
    behind = log.barrier()
    auditor = Auditor()
    verdicts = auditor.take(log.values, [log.report(good), log.report(behind, "om2")])
    said = {(v.node, v.barrier_offset): (v.verdict, v.basis) for v in verdicts}
    assert said == {("om1", good.offset): ("equal", "incremental"), ("om2", behind.offset): ("unknown", "log")} | {
        (node, ended_at): ("unknown", "log") for node in REPLICAS
    }
    assert all("upgrade" in v.reason and f"offset {ended_at}" in v.reason for v in verdicts if v.basis == "log")
    assert told(auditor.take(log.values, [log.report(behind, "om3")])) == {("om3", "unknown", "log"): 1}
    assert auditor.audit().state.standing is LogStanding.UNREADABLE


def test_an_upgraded_audit_goes_on_from_the_state_before_that_record(monkeypatch: pytest.MonkeyPatch):
    """The running audit does not commit the micro-batch in which it met the record."""
    log = simple_log()
    first = log.barrier()
    read = len(log.values)
    log.feature_level(LATEST + 1)
    log.batch(log.put("keyTable", b"/v/b/new", b"1"))
    second = log.barrier()
    auditor = Auditor()
    auditor.take(log.values[:read], [log.report(first, node) for node in REPLICAS])
    kept = auditor.row
    assert {v.verdict for v in auditor.take(log.values)} == {"unknown"}
    auditor.row, auditor.read = kept, read
    monkeypatch.setattr("spark_streaming.records.core.reading.LATEST", LATEST + 1)
    verdicts = auditor.take(log.values, [log.report(second, node) for node in REPLICAS])
    assert told(verdicts) == {(node, "equal", "incremental"): 1 for node in REPLICAS}


def test_a_genesis_with_further_column_families_is_newer_softwares():
    log = LogBuilder()
    log.claim()
    log.genesis(column_families=[*OM_COLUMN_FAMILIES, "laterTable"])
    verdicts = Auditor().take(log.values)
    assert told(verdicts) == {(node, "unknown", "log"): 1 for node in REPLICAS}
    assert all("laterTable" in verdict.reason for verdict in verdicts)


# A DigestBase that changes the sums.


def test_a_base_that_makes_shared_wrong_rows_right_is_told_and_who_asked_for_it():
    log = simple_log()
    wrong = log.rows | {("keyTable", b"/v/b/k"): b"forged"}
    before = log.barrier()
    log.digest_base(rows=wrong)
    log.rows = dict(wrong)
    asked = log.result(request_type="LogDigestBase")
    log.count(log.batch_of([], [asked], 1))
    log.index += 1
    after = log.barrier()
    verdicts = Auditor().take(log.values, [log.report(before, rows=wrong), log.report(after)])
    by_basis = {v.basis: v for v in verdicts if v.basis != "incremental"}
    (base,) = by_basis.values()
    assert (base.node, base.verdict, base.basis, base.differing_slots) == ("", "unknown", "base", 1)
    assert [one.cf for one in base.differences] == ["keyTable"]
    assert asked.client_id.hex() in base.reason
    assert "basis 'oracle'" in base.reason
    said = {v.barrier_offset: (v.verdict, v.reason) for v in verdicts if v.basis == "incremental"}
    assert said[before.offset][0] == "diverged"
    assert said[after.offset] == ("equal", base.reason)


def test_a_base_of_which_the_log_does_not_say_who_asked_is_told_at_the_next_barrier():
    log = simple_log()
    log.digest_base(rows={})
    auditor = Auditor()
    assert auditor.take(log.values) == []
    log.barrier()
    (verdict,) = auditor.take(log.values)
    assert verdict.basis == "base"
    assert "a client that the log does not name" in verdict.reason
    log.barrier()
    assert auditor.take(log.values) == [], "it is told once"


def test_a_base_that_changes_nothing_is_not_told():
    log = simple_log()
    log.digest_base()
    at = log.barrier()
    (verdict,) = Auditor().take(log.values, [log.report(at)])
    assert (verdict.verdict, verdict.reason) == ("equal", "")


def standing_after(kinds: Sequence[str]) -> LogStanding:
    state = state_from(None, len(OM_COLUMN_FAMILIES))
    for kind in kinds:
        state.pass_record(kind)
    return state.standing


def test_what_the_log_alone_says_of_the_rows():
    assert standing_after([BATCH, DIGEST_BASE]) is LogStanding.SUMMED
    assert standing_after([REQUEST_BATCH, BATCH, REQUEST_BATCH]) is LogStanding.BLIND
    assert standing_after([REQUEST_BATCH, DIGEST_BASE]) is LogStanding.SUMMED


def test_a_broken_log_stays_broken():
    state = state_from(None, len(OM_COLUMN_FAMILIES))
    state.pass_record(REQUEST_BATCH)
    state.break_log(LogBroken(7, "why"))
    state.pass_record(DIGEST_BASE)
    assert state.standing is LogStanding.BROKEN
    assert state_from(state_row(state), len(OM_COLUMN_FAMILIES)).standing is LogStanding.BROKEN
    assert (state.broken_at, state.broken_reason) == (7, "why")


def test_where_the_barrier_of_a_report_lies():
    state = state_from(None, len(OM_COLUMN_FAMILIES))
    state.position = replace(state.position, next_offset=10)
    state.waiting[5] = Waiting(deadline_ms=None, index=1, missing=set())
    assert [place_of(state, at) for at in (4, 5, 10)] == [BarrierPlace.PASSED, BarrierPlace.KEPT, BarrierPlace.AHEAD]
    state.break_log(LogBroken(9, "why"))
    places = [place_of(state, at) for at in (5, 8, 9, 10)]
    assert places == [
        BarrierPlace.KEPT, BarrierPlace.PASSED, BarrierPlace.BEHIND_BREAK, BarrierPlace.BEHIND_BREAK,
    ]  # fmt: skip
