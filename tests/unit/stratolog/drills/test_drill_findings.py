"""From what a drill has seen to findings: each question answered with yes, and with no for each way in which it can be no."""

from __future__ import annotations

import pytest

from replicated_db.core.log.reading import Reading
from schemas.codecs.codec import decode
from stratolog.cluster.core.findings import Finding
from stratolog.drills.core import (
    damage_findings,
    digest_findings,
    leader_findings,
    request_findings,
    wording,
)
from stratolog.drills.core.damage_findings import DigestBucket
from stratolog.drills.core.leader_findings import Read
from stratolog.drills.core.log_digest import LogDigest, total
from stratolog.drills.core.log_survey import Claim, Digest, Recorded, VoidRecord
from stratolog.drills.core.request_findings import Answered, Rejection, Standing
from stratolog.drills.kit.core import write_findings
from stratolog.drills.kit.core.journal import COMMIT, Journal
from stratolog.drills.kit.core.judging import Aftermath
from tests.support.logs.logbuilder import ordinary_log

NODES = ("om1", "om2")


def journal(acknowledged: dict[str, int], **unanswered: int) -> Journal:
    found = Journal(client_id="00" * 16, volume="v", bucket="b")
    for key, size in (acknowledged | unanswered).items():
        found.on_tried(key, COMMIT, size)
    for number, key in enumerate(acknowledged):
        found.on_acknowledged(key, COMMIT, call_id=number, index=10 + number, at_ms=100_000 + 1_000 * number)
    return found


def recorded(*indexes: int, response: bytes = b"answer", kept: bool = True) -> list[Recorded]:
    return [Recorded(offset=i, index=i, recorded=kept, request_type="CreateKey", response=response) for i in indexes]


@pytest.mark.parametrize(
    ("listing", "holds"),
    [({"a": 1, "b": 2}, True), ({"a": 1, "b": 2, "c": 3}, True), ({"a": 1}, False), ({"a": 1, "b": 3}, False)],
)
def test_nothing_lost(listing: dict[str, int], holds: bool) -> None:
    lost, _ = write_findings.writes_hold(journal({"a": 1, "b": 2}), {"om1": {"a": 1, "b": 2}, "om2": listing})
    assert lost.holds is holds
    assert ("om2: b" in lost.seen) is not holds


def test_nothing_acknowledged_proves_nothing() -> None:
    assert not write_findings.writes_hold(journal({}), {"om1": {}})[0].holds
    assert not write_findings.writes_hold(journal({"a": 1}), {})[0].holds


def test_what_the_log_has_lost_is_lost() -> None:
    told = Aftermath()
    told.note("lost", ["call 7 was acknowledged and is not in the log"])
    lost, strange = write_findings.writes_hold(journal({"a": 1}), {"om1": {"a": 1}}, told)
    assert (lost.holds, strange.holds) == (False, True)
    assert "call 7" in lost.seen


@pytest.mark.parametrize(
    ("one", "other", "holds"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),  # tried, not acknowledged, had its effect
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "c": 1}, {"a": 1, "c": 1}, False),
        ({"a": 1, "b": 9}, {"a": 1, "b": 9}, False),
    ],
)
def test_nothing_invented(one: dict[str, int], other: dict[str, int], holds: bool) -> None:
    lost, strange = write_findings.writes_hold(journal({"a": 1}, b=2), {"om1": one, "om2": other})
    assert (lost.holds, strange.holds) == (True, holds)


@pytest.mark.parametrize(
    ("twice", "counters", "holds"),
    [
        ([], {"used_bytes": 3, "used_namespace": 2}, True),
        (["call 1"], {"used_bytes": 3, "used_namespace": 2}, False),
        ([], {"used_bytes": 5, "used_namespace": 2}, False),
        ([], {"used_bytes": 3, "used_namespace": 3}, False),
    ],
)
def test_applied_once(twice: list[str], counters: dict[str, int], holds: bool) -> None:
    calls, listings = {b"\x01": recorded(1), b"\x02": recorded(2)}, {"om1": {"a": 1, "b": 2}}
    assert write_findings.applied_once(calls, {}, twice, listings, {"om1": counters}).holds is holds
    assert not write_findings.applied_once({}, {}, twice, listings, {"om1": counters}).holds, "nothing was seen"


def test_failover_is_the_first_acknowledgement_of_a_later_leader() -> None:
    # a, b and c have the indexes 10, 11, 12 and were acknowledged at 100, 101, 102 s.
    written = journal({"a": 1, "b": 1, "c": 1})
    claims = [
        Claim(offset=0, term=1, node="om1", index_before=0),
        Claim(offset=50, term=2, node="om2", index_before=10),
        Claim(offset=70, term=3, node="om1", index_before=11),
    ]
    assert write_findings.failover_s(written, 99.5, claims, old_term=1) == pytest.approx(1.5)
    assert write_findings.failover_s(written, 99.5, claims, old_term=2) == pytest.approx(2.5)
    assert write_findings.failover_s(written, 99.5, claims[:1], old_term=1) is None
    late = [Claim(offset=90, term=2, node="om2", index_before=12)]
    assert write_findings.failover_s(written, 99.5, late, old_term=1) is None


@pytest.mark.parametrize(
    ("successor", "pause_s", "holds"), [("om2", 1.0, True), ("om1", 1.0, False), ("om2", None, False)]
)
def test_failed_over(successor: str, pause_s: float | None, holds: bool) -> None:
    assert write_findings.failed_over("om1", successor, pause_s).holds is holds


def digest_of_an_ordinary_log(*, known: bool = True) -> Digest:
    found = LogDigest()
    for offset, value in enumerate(ordinary_log().values):
        found.offer(offset, value, decode(value))
    return Digest(offset=9, index=found.index, timestamp_ms=0, sums=found.sums(), known=known, families=found.families)


def test_digests_equal() -> None:
    log = digest_of_an_ordinary_log()
    truth = log.sums
    slot = next(iter(truth))
    wrong = truth | {slot: truth[slot] ^ 1}

    def judged(**reported: dict[int, int]) -> Finding:
        return digest_findings.digests_equal(NODES, reported, log, basis="incremental")

    assert judged(om1=truth, om2=truth).holds
    assert not judged(om1=wrong, om2=wrong).holds, "they agree with each other and not with the log"
    different = judged(om1=truth, om2=wrong)
    assert not different.holds
    assert f"om2 differs in {log.families[slot // 256]} bucket {slot % 256}" in different.seen
    assert judged(om1=truth).seen == "no report from om2"
    assert not judged(om1=truth).holds
    log = digest_of_an_ordinary_log(known=False)
    assert judged(om1=wrong, om2=wrong).holds, "the log alone does not say: the replicas are compared with each other"
    assert not judged(om1=wrong, om2=truth).holds


def void(offset: int, term: int = 3, reading: Reading = Reading.STALE_TERM) -> VoidRecord:
    return VoidRecord(offset=offset, term=term, kind="Batch", reading=reading)


@pytest.mark.parametrize(
    ("records", "holds"),
    [
        ([void(11), void(12)], True),
        ([void(11), void(9, reading=Reading.GAP)], True),  # before the claim: not this one's doing
        ([void(11), void(13, term=2, reading=Reading.TWIN)], True),
        ([], False),
        ([void(9)], False),
        ([void(11, reading=Reading.TWIN)], False),
    ],
)
def test_stale_is_void(records: list[VoidRecord], holds: bool) -> None:
    assert leader_findings.stale_is_void(records, stale_term=3, claimed_offset=10).holds is holds


@pytest.mark.parametrize(
    ("reads", "holds"),
    [
        ([Read(status=200, size=77), Read(status=503, size=None), Read(status=0, size=None)], True),
        ([Read(status=503, size=None)], True),
        ([Read(status=200, size=76)], False),
        ([Read(status=200, size=77), Read(status=404, size=None)], False),
        ([Read(status=500, size=None)], False),
    ],
)
def test_reads_right(reads: list[Read], holds: bool) -> None:
    assert leader_findings.reads_right(reads, 77).holds is holds


@pytest.mark.parametrize(
    ("answers", "holds"),
    [
        ({1: [b"answer"], 2: [b"answer", b"answer"]}, True),
        ({1: [b"answer"], 3: [b"refused: not leader"]}, True),  # not recorded: a retryable refusal
        ({1: [b"answer", b"another"]}, False),
        ({1: [b"another"]}, False),
        ({3: [b"refused"]}, False),
        ({}, False),
    ],
)
def test_answers_right(answers: dict[int, list[bytes]], holds: bool) -> None:
    calls = {number.to_bytes(8, "big"): recorded(number) for number in (1, 2)}
    assert leader_findings.answers_right(answers, calls, {}).holds is holds


def test_calls_that_were_validated_late() -> None:
    late = {(7).to_bytes(8, "big"): 2}
    assert write_findings.applied_once(
        {}, late, [], {"om1": {"a": 1}}, {"om1": {"used_bytes": 1, "used_namespace": 1}}
    ).holds
    assert leader_findings.answers_right({7: [b"one", b"one"]}, {}, late).holds
    assert not leader_findings.answers_right({7: [b"one", b"two"]}, {}, late).holds


def test_stepped_down_and_burst() -> None:
    assert leader_findings.stepped_down("om1", "om2").holds
    assert not leader_findings.stepped_down("om1", "om1").holds
    assert not leader_findings.stepped_down("om1", "").holds
    assert leader_findings.burst_answered(5, []).holds
    assert not leader_findings.burst_answered(5, ["no answer"]).holds


@pytest.mark.parametrize(
    ("stored", "read_offset", "records", "holds"), [(40, 60, 20, True), (40, 60, 61, False), (-1, 60, 61, False)]
)
def test_resumed(stored: int, read_offset: int, records: int, holds: bool) -> None:
    assert digest_findings.resumed(stored, read_offset, records).holds is holds


@pytest.mark.parametrize(
    ("seen", "holds"),
    [
        (Rejection(code="UNDECODABLE", message="3 bytes"), True),
        (Answered(code="UNDECODABLE", message="3 bytes"), True),
        (Rejection(code="UNDECODABLE", message=""), False),
        (Answered(code="OK", message=""), False),
        (None, False),
    ],
)
def test_poison_refused(seen: Rejection | Answered | None, holds: bool) -> None:
    assert request_findings.poison_refused("rubbish", "UNDECODABLE", seen).holds is holds


def test_data_unchanged() -> None:
    one = {300: 5, 301: 6}
    assert digest_findings.data_unchanged({"om1": one}, {"om1": dict(one)}).holds
    assert not digest_findings.data_unchanged({"om1": one}, {"om1": {300: 5}}).holds
    assert not digest_findings.data_unchanged({"om1": one}, {}).holds
    assert not digest_findings.data_unchanged({}, {}).holds


def test_nothing_stopped() -> None:
    one = Standing(pid=1, leader="om1", term=3)
    assert request_findings.nothing_stopped({"om1": one}, {"om1": one}).holds
    for other in (
        Standing(pid=2, leader="om1", term=3), Standing(pid=None, leader="om1", term=3),
        Standing(pid=1, leader="om2", term=4), Standing(pid=1, leader="om1", term=4),
    ):  # fmt: skip
        assert not request_findings.nothing_stopped({"om1": one}, {"om1": other}).holds
    stopped = Standing(pid=None, leader="om1", term=3)
    assert not request_findings.nothing_stopped({"om1": stopped}, {"om1": stopped}).holds


def test_many_are_named_few() -> None:
    assert wording.named("abc") == "a, b, c"
    assert wording.named("abcde") == "a, b, c and 2 more"


def test_a_rebuilt_replica() -> None:
    log = digest_of_an_ordinary_log()
    slot = next(iter(log.sums))
    wrong = log.sums | {slot: log.sums[slot] ^ 1}
    assert digest_findings.rebuilt_equal({"running": log.sums, "scanned": log.sums}, log).holds
    found = digest_findings.rebuilt_equal({"running": log.sums, "scanned": wrong}, log)
    assert not found.holds
    assert f"scanned digest differs in {log.families[slot // 256]} bucket {slot % 256}" in found.seen
    assert digest_findings.scan_equal(log.sums, dict(log.sums)).holds
    assert not digest_findings.scan_equal(log.sums, wrong).holds
    assert digest_findings.live_equal({"om1": log.sums}, log.sums, log.families, ["om2"]).holds
    assert "not to be had of om2" in digest_findings.live_equal({"om1": log.sums}, log.sums, log.families, ["om2"]).seen
    assert not digest_findings.live_equal({"om1": log.sums, "om2": wrong}, log.sums, log.families, []).holds
    assert not digest_findings.live_equal({}, log.sums, log.families, ["om1", "om2"]).holds
    assert digest_findings.no_evidence(None).holds
    assert not digest_findings.no_evidence("keyTable b'x' at index 3").holds


@pytest.mark.parametrize(("digest", "index", "holds"), [(None, None, True), ("0" * 16, None, False), (None, 1, False)])
def test_the_oracle(digest: str | None, index: int | None, holds: bool) -> None:
    log = digest_of_an_ordinary_log()
    assert digest_findings.oracle_equal(digest or total(log.sums), index or log.index, log).holds is holds


def test_a_damaged_row() -> None:
    log = digest_of_an_ordinary_log()
    slot, other = list(log.sums)[:2]
    damaged = log.sums | {slot: log.sums[slot] ^ 1}
    assert damage_findings.scrub_names("om2", {"om1": log.sums, "om2": damaged}, log, [slot]).holds
    assert not damage_findings.scrub_names("om2", {"om1": damaged, "om2": damaged}, log, [slot]).holds
    assert not damage_findings.scrub_names("om2", {"om1": log.sums, "om2": log.sums}, log, []).holds
    assert not damage_findings.scrub_names("om2", {"om1": log.sums, "om2": damaged}, log, [slot, other]).holds
    assert damage_findings.audit_names("om2", [DigestBucket("keyTable", 7)], [DigestBucket("keyTable", 7)]).holds
    assert not damage_findings.audit_names("om2", [DigestBucket("keyTable", 8)], [DigestBucket("keyTable", 7)]).holds
    assert not damage_findings.audit_names("om2", [], []).holds


def test_the_audit_must_name_the_damaged_row_alone():
    key, one = b"/v/b/key-4", "keyTable bucket 7: '/v/b/key-4' (another value)"
    assert damage_findings.audit_names_row("om2", one, key).holds
    for wrong in ("", one.replace("another value", "missing"), one + ", '/v/b/key-5' (extra)", one.replace("-4", "-3")):
        assert not damage_findings.audit_names_row("om2", wrong, key).holds
    assert damage_findings.narrowed(b"/v/b/k", [b"/v/b/k"]).holds
    assert not damage_findings.narrowed(b"/v/b/k", []).holds
    assert not damage_findings.narrowed(b"/v/b/k", [b"/v/b/k", b"/v/b/l"]).holds


def test_a_lost_broker() -> None:
    # Acknowledged at 100, 101 and 102 s.
    written = journal({"a": 1, "b": 1, "c": 1})
    assert write_findings.pause_after(written, 100.5) == pytest.approx(1.0)
    assert write_findings.pause_after(written, 99.0) == pytest.approx(1.0)
    assert write_findings.pause_after(written, 200.0) == 0.0
    assert write_findings.written_without(2, 30, 2).holds
    assert not write_findings.written_without(2, 30, 3).holds
    assert write_findings.in_sync({0: 3, 1: 3}, 3).holds
    assert not write_findings.in_sync({0: 3, 1: 2}, 3).holds
    assert not write_findings.in_sync({}, 3).holds
