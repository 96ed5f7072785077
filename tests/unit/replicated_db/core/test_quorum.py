"""Who is wrong, with three members: n1 leads and wrote the batch at offset 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from replicated_db.core.log.quorum import BarrierDigest, Judgement, Quorum
from schemas.records.messages import AuditReport, Evidence

MEMBERS = frozenset({"n1", "n2", "n3"})
EVIDENCE = Evidence(
    index=3, offset=5, term=1, leader="n1", operation=0, cf="things", key=b"a", claim="prev", claimed=1, own=2
)


def report(node: str, evidence: Evidence | None) -> AuditReport:
    return AuditReport(
        cluster="c", node=node, shard=0, basis="evidence", barrier_offset=-1, index=3, chain=bytes(32), slots=[], sums=[],
        flagged=evidence is not None, evidence=evidence, reported_at_ms=0,
    )  # fmt: skip


def judged(me: str, reports: Mapping[str, Evidence | None], own: Evidence | None = None) -> Judgement:
    quorum = Quorum(me=me, members=MEMBERS)
    for node, evidence in reports.items():
        quorum.on_report(report(node, evidence))
    return quorum.judge(own)[0]


def test_a_majority_contradicts_the_leader():
    both = {"n2": EVIDENCE, "n3": EVIDENCE}
    assert judged("n1", both) is Judgement.FLAG
    assert judged("n2", both, EVIDENCE) is Judgement.SETTLE
    assert judged("n3", both, EVIDENCE) is Judgement.SETTLE


def test_the_leader_is_flagged_with_the_evidence_against_it():
    quorum = Quorum(me="n1", members=MEMBERS)
    for node in ("n2", "n3"):
        quorum.on_report(report(node, EVIDENCE))
    assert quorum.judge(None) == (Judgement.FLAG, EVIDENCE)


def test_one_alone_stays_flagged():
    alone = {"n2": EVIDENCE, "n1": None, "n3": None}
    assert judged("n1", alone) is Judgement.NOTHING
    assert judged("n2", alone, EVIDENCE) is Judgement.NOTHING
    assert judged("n3", alone) is Judgement.NOTHING


@pytest.mark.parametrize("changed", [{"own": 3}, {"key": b"b"}, {"offset": 6}, {"operation": 1}, {"cf": "counters"}])
def test_evidence_that_differs_does_not_add_up(changed: dict[str, object]):
    both = {"n2": EVIDENCE, "n3": replace(EVIDENCE, **changed)}  # type: ignore[arg-type]
    assert judged("n1", both) is Judgement.NOTHING
    assert judged("n2", both, EVIDENCE) is Judgement.NOTHING


def test_a_batch_of_another_node_does_not_flag_me():
    others = replace(EVIDENCE, leader="n2")
    assert judged("n1", {"n2": others, "n3": others}) is Judgement.NOTHING


def test_a_digest_base_is_never_settled_by_number():
    base = replace(EVIDENCE, claim="base", cf="", key=b"", own=None)
    assert judged("n1", {"n2": base, "n3": base}) is Judgement.NOTHING
    assert judged("n2", {"n3": base}, base) is Judgement.NOTHING


@pytest.mark.parametrize("me", ["n1", "n3"])
def test_who_replays_a_settled_batch_is_settled_by_a_majority_of_digests(me: str):
    """n1 wrote the false batch, and was built anew; n3 only replays it."""
    quorum = Quorum(me=me, members=MEMBERS)
    own = {3: "aa", 7: "bb"}
    assert quorum.agreeing(EVIDENCE, own) == []
    for digest in (BarrierDigest(2, "aa"), BarrierDigest(7, "bc"), BarrierDigest(8, "bb")):
        quorum.on_barrier("n2", digest)
        assert quorum.agreeing(EVIDENCE, own | {2: "aa"}) == [], "before the batch; other rows; not there yet"
    quorum.on_barrier("n9", BarrierDigest(7, "bb"))
    quorum.on_barrier(me, BarrierDigest(7, "bb"))
    assert quorum.agreeing(EVIDENCE, own) == [], "neither a stranger nor itself"
    quorum.on_barrier("n2", BarrierDigest(7, "bb"))
    assert quorum.agreeing(EVIDENCE, own) == ["n2"]
    for claim in ("base", "scan"):
        assert quorum.agreeing(replace(EVIDENCE, claim=claim), own) == []
    quorum.members = MEMBERS | {"n4"}
    assert quorum.agreeing(EVIDENCE, own) == [], "two of four"


def test_one_alone_settles_nothing_by_its_digest():
    quorum = Quorum(me="n1", members=frozenset({"n1"}))
    quorum.on_barrier("n1", BarrierDigest(7, "bb"))
    assert quorum.agreeing(EVIDENCE, {7: "bb"}) == []


def test_strangers_are_not_heard_and_the_latest_report_counts():
    quorum = Quorum(me="n1", members=MEMBERS)
    quorum.on_report(report("n9", EVIDENCE))
    quorum.on_report(report("n2", EVIDENCE))
    assert quorum.judge(None)[0] is Judgement.NOTHING
    quorum.on_report(report("n3", EVIDENCE))
    assert quorum.judge(None)[0] is Judgement.FLAG
    quorum.on_report(report("n2", None))
    assert quorum.judge(None)[0] is Judgement.NOTHING


@pytest.mark.parametrize(
    ("members", "reporting", "expected"), [(1, 0, False), (2, 1, False), (4, 2, False), (4, 3, True), (5, 3, True)]
)
def test_majorities(members: int, reporting: int, expected: bool):
    names = [f"n{number}" for number in range(1, members + 1)]
    quorum = Quorum(me="n1", members=frozenset(names))
    for node in names[1 : 1 + reporting]:
        quorum.on_report(report(node, EVIDENCE))
    assert (quorum.judge(None)[0] is Judgement.FLAG) is expected


def test_a_member_that_was_removed_has_no_say():
    quorum = Quorum(me="n1", members=MEMBERS)
    for node in ("n2", "n3"):
        quorum.on_report(report(node, EVIDENCE))
    quorum.members = frozenset({"n1", "n2", "n4"})
    assert quorum.judge(None)[0] is Judgement.NOTHING
    quorum.members = frozenset({"n1", "n2", "n3", "n4", "n5"})
    assert quorum.judge(None)[0] is Judgement.NOTHING, "two of five are no majority"


def test_a_member_that_has_reported_without_evidence_does_not_contradict_any_more():
    quorum = Quorum(me="n1", members=MEMBERS)
    for node in ("n2", "n3"):
        quorum.on_report(report(node, EVIDENCE))
    quorum.forget("n3")
    assert quorum.judge(None)[0] is Judgement.NOTHING
    quorum.forget("n3")
    quorum.forget("a stranger")
    assert set(quorum.latest) == {"n2"}
