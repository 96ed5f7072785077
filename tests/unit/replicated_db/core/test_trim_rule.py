"""What each rule of trimming says, and what a member's answer must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replicated_db.core.trimming.audit_view import audit_place
from replicated_db.core.trimming.bases import MAX_BASES, Base, Bases
from replicated_db.core.trimming.places import MAX_DIGESTS, MAX_HOLDS, AuditPlace, MemberPlace, agreeing
from replicated_db.core.trimming.trim_rule import AUDIT_SILENCE_MS, TrimFacts, TrimWish, decide, lost
from schemas.records.messages import Verdict
from transport.topics.core.latest_verdicts import LatestVerdicts

NOW_MS = 10 * AUDIT_SILENCE_MS
MEMBERS = ("n1", "n2", "n3")
CHAIN = bytes(range(32))
OLD, NEW = Base(10, 5, CHAIN), Base(30, 9, CHAIN)
LOGGED_AT_MS = {OLD: NOW_MS - AUDIT_SILENCE_MS, NEW: NOW_MS - 1000}


def place(node: str, **changed: Any) -> MemberPlace:
    fields: dict[str, Any] = {
        "node": node, "cluster": "c", "shard": 0, "offset": 35, "keeps_from": 34, "index": 10, "flagged": False,
        "members": MEMBERS, "bases": (OLD, NEW), "digests": ((10, "ab"),),
    }  # fmt: skip
    return MemberPlace(**(fields | changed))


def known(**answers: MemberPlace | str) -> TrimFacts:
    places = {name: place(name) for name in MEMBERS} | answers
    return TrimFacts(first=0, end=40, now_ms=NOW_MS, answers=places, logged_at_ms=LOGGED_AT_MS)


def why(facts: TrimFacts, rule: str, wish: TrimWish = TrimWish()) -> str:  # noqa: B008 - frozen
    return next(found.why for found in decide(facts, wish).findings if found.rule == rule)


def test_the_log_is_trimmed_to_the_newest_base_that_all_are_past():
    done = decide(known(), TrimWish())
    assert (done.offset, done.base, done.records) == (30, NEW, 30)
    assert decide(known(n2=place("n2", offset=20, keeps_from=20)), TrimWish()).offset == 10


def test_a_member_that_does_not_answer_ends_it_and_is_named():
    facts = known(n3="connection refused")
    assert decide(facts, TrimWish()).offset == 0
    assert why(facts, "members") == "n3 is a member and its position is not known: connection refused"
    assert decide(facts, TrimWish(leave_behind=frozenset({"n3"}))).offset == 30


def test_a_log_that_has_lost_what_a_member_has_read_is_kept_whole():
    facts = known(n2=place("n2", offset=40))
    assert decide(facts, TrimWish()).offset == 0
    assert why(facts, "members") == "n2 has read offset 40, but the log ends at 40: it has lost its end"
    assert decide(facts, TrimWish(leave_behind=frozenset({"n2"}))).offset == 30


def test_a_member_whose_last_record_the_log_has_not_is_not_known():
    read = place("n2", record_hash="ab" * 16)
    assert lost(read, "ab" * 16) is None
    assert lost(place("n2"), None) is None, "an earlier version says no hash"
    assert lost(replace(read, offset=-1), None) is None
    assert "does not hold at 35 what it has read there" in str(lost(read, "cd" * 16))
    assert "has lost its end" in str(lost(read, None))


def test_a_member_that_joined_meanwhile_is_known_from_the_member_that_read_furthest():
    facts = known(n1=place("n1", offset=36, members=(*MEMBERS, "n4")))
    assert decide(facts, TrimWish()).offset == 0
    assert "n4 is a member and its position is not known" in why(facts, "members")


def test_an_empty_member_needs_the_whole_log_unless_it_is_left_behind():
    facts = known(n3=place("n3", offset=-1, keeps_from=0, bases=()))
    assert decide(facts, TrimWish()).offset == 0
    assert why(facts, "members") == "n3 has read nothing yet"
    assert decide(facts, TrimWish(leave_behind=frozenset({"n3"}))).offset == 30


def test_never_are_so_many_left_behind_that_a_majority_is_missing():
    wish = TrimWish(leave_behind=frozenset({"n2", "n3"}))
    assert decide(known(), wish).offset == 0
    assert why(known(), "majority", wish).startswith("1 of 3 members are known, healthy and not left behind")


def test_flagged_members_are_no_majority():
    facts = known(n1=place("n1", flagged=True), n2=place("n2", flagged=True))
    assert decide(facts, TrimWish()).offset == 0
    assert "(flagged: n1, n2)" in why(facts, "majority")


def test_a_transfer_holds_the_log():
    assert decide(known(n1=place("n1", holds=(25, 33))), TrimWish()).offset == 10


@pytest.mark.parametrize(
    ("audit", "offset"),
    [
        (None, 30),
        (AuditPlace(offset=29, decided_at_ms=NOW_MS), 30),
        (AuditPlace(offset=28, decided_at_ms=NOW_MS), 10),
        (AuditPlace(offset=3, decided_at_ms=0), 10),
        (AuditPlace(offset=-1, decided_at_ms=0), 10),
        (AuditPlace(offset=39, decided_at_ms=NOW_MS, diverged=("n2",)), 0),
        (AuditPlace(offset=39, decided_at_ms=NOW_MS, diverged=("n9",)), 30),  # it was removed
        (AuditPlace(offset=39, decided_at_ms=NOW_MS, diverged=("n2", "n9")), 0),
        (AuditPlace(offset=39, decided_at_ms=NOW_MS, diverged=("",)), 0),  # the log itself
        ("no broker", 0),
    ],
)
def test_what_the_audit_has_read(audit: AuditPlace | str | None, offset: int):
    assert decide(replace(known(), audit=audit), TrimWish()).offset == offset
    assert decide(replace(known(), audit=audit), TrimWish(without_audit=True)).offset == 30


def test_an_operator_keeps_records_or_a_time():
    assert decide(known(), TrimWish(keep_records=15)).offset == 10
    assert decide(known(), TrimWish(keep_ms=60_000)).offset == 10
    assert decide(known(), TrimWish(keep_ms=2 * AUDIT_SILENCE_MS)).offset == 0
    assert "younger" in why(known(), "base", TrimWish(keep_ms=2 * AUDIT_SILENCE_MS))


def test_a_base_of_a_minority_is_none():
    facts = known(n1=place("n1", bases=(OLD,)), n2=place("n2", bases=(OLD,)))
    assert decide(facts, TrimWish()).offset == 10
    assert decide(known(n1=place("n1", bases=()), n2=place("n2", bases=())), TrimWish()).offset == 0


def test_members_that_read_another_log_are_no_majority():
    """They hold a tail that the brokers have lost: a base at the same offset, of the same index, is another one."""
    lost = (OLD, Base(30, 9, bytes(32)))
    assert decide(known(n1=place("n1", bases=lost), n2=place("n2", bases=lost)), TrimWish()).offset == 10


def test_a_log_that_begins_at_the_base_is_left_alone():
    facts = replace(known(), first=30, logged_at_ms={})
    done = decide(facts, TrimWish())
    assert (done.offset, done.base, done.records, done.held_by.rule) == (30, None, 0, "base")
    assert why(facts, "base") == "the log begins at the newest base already"


def test_a_base_that_is_not_found_in_the_log_is_not_used():
    assert decide(replace(known(), logged_at_ms={OLD: NOW_MS}), TrimWish()).offset == 10
    assert decide(replace(known(), logged_at_ms={}), TrimWish()).offset == 0


def test_members_agree_at_an_index():
    ahead = place("n1", digests=((10, "ab"), (11, "cd")))
    assert agreeing([ahead, place("n2"), place("n3", digests=((10, "xy"),))]) == (10, ("n1", "n2"))
    assert agreeing([place("n1", flagged=True), place("n2", digests=())]) == (-1, ())


def test_an_answer_is_restored():
    answer = place("n1", holds=(3,))
    assert MemberPlace.from_json(answer.to_json()) == answer


@pytest.mark.parametrize(
    "changed",
    [
        {"offset": "35"}, {"offset": -2}, {"offset": True}, {"keeps_from": 36}, {"keeps_from": -1}, {"flagged": 0},
        {"members": "n1"}, {"members": [1]}, {"bases": [[1, 2, "ab"]]}, {"bases": [[1, 2]]}, {"bases": [[1, 2, "x"]]}, {"bases": [[0, 0, CHAIN.hex()]] * (MAX_BASES + 1)},
        {"digests": [[1, 2]]}, {"holds": [-1]}, {"node": None}, {"cluster": 5}, {"shard": -1}, {"index": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_foreign_answer_is_refused(changed: dict[str, Any]):
    with pytest.raises(ValueError, match=r".+"):
        MemberPlace.from_json(place("n1").to_json() | changed)


@pytest.mark.parametrize("answer", [None, [], "x", {}])
def test_what_is_no_answer_at_all(answer: Any):
    with pytest.raises(ValueError, match=r".+"):
        MemberPlace.from_json(answer)


def test_a_base_counts_once_its_members_are_read():
    bases = Bases(None, -1)
    row = bases.on_digest_base(OLD)
    assert not bases.whole
    assert Bases(row, OLD.offset).whole == ()
    written = bases.on_other(is_members=True)
    assert bases.whole == (OLD,)
    assert written is not None
    assert Bases(written, 99).whole == (OLD,)
    assert bases.on_other(is_members=True) is None


def test_a_base_without_members_is_dropped():
    bases = Bases(None, -1)
    row = bases.on_digest_base(OLD)
    assert bases.on_other(is_members=False) is None
    assert bases.on_other(is_members=True) is None
    assert not bases.whole
    after_a_crash, elsewhere = Bases(row, OLD.offset), Bases(row, OLD.offset + 1)
    assert after_a_crash.on_other(is_members=True) is not None
    assert after_a_crash.whole == (OLD,)
    assert elsewhere.on_other(is_members=True) is None


def test_the_oldest_bases_are_forgotten():
    bases = Bases(None, -1)
    for number in range(MAX_BASES + 3):
        bases.on_digest_base(Base(number, number, CHAIN))
        row = bases.on_other(is_members=True)
    assert row is not None
    assert len(Bases(row, 0).whole) == MAX_BASES
    assert bases.whole[0].offset == 3


def verdict(node: str, word: str, offset: int, basis: str = "incremental", **changed: Any) -> Verdict:
    fields: dict[str, Any] = {
        "cluster": "c", "shard": 0, "node": node, "barrier_offset": offset, "index": 1, "verdict": word, "basis": basis,
        "differences": [], "differing_slots": 0, "evidence": None, "reason": "", "decided_at_ms": offset, "log": "om.log",
    }  # fmt: skip
    return Verdict(**(fields | changed))


class Followed:
    """The verdicts on the Object Manager's log, taken as they come."""

    def __init__(self, most: int = 100) -> None:
        self.latest = LatestVerdicts("om.log", most=most)

    def place(self, *verdicts: Verdict, shard: int = 0) -> AuditPlace | str | None:
        self.latest.take(verdicts)
        return audit_place(self.latest, "om.log", shard)


def test_the_audit_has_come_as_far_as_it_judged_equal():
    audit = Followed()
    assert audit.place() is None
    assert audit.place(verdict("n1", "unknown", 10**9), verdict("n1", "equal", 7, log="dn.log")) is None
    found = audit.place(verdict("n1", "equal", 7), verdict("n2", "diverged", 9), verdict("n1", "equal", 5))
    assert found == AuditPlace(offset=7, decided_at_ms=9, diverged=("n2",))
    assert audit.place(verdict("n2", "equal", 11)) == AuditPlace(offset=11, decided_at_ms=11)
    assert audit.place(shard=1) is None


def test_what_is_not_equal_any_more_was_read_all_the_same():
    audit = Followed()
    found = audit.place(verdict("n1", "equal", 7), verdict("n1", "diverged", 9), verdict("n1", "unknown", 12))
    assert found == AuditPlace(offset=7, decided_at_ms=9, diverged=("n1",)), "unknown says nothing of what it was"


def test_the_last_word_on_a_node_counts_whatever_its_barrier_and_basis():
    """Nobody says ``equal`` on evidence; a scan is apart."""
    audit = Followed()
    found = audit.place(verdict("n1", "equal", 9), verdict("n1", "diverged", -1, "evidence"))
    assert found == AuditPlace(offset=9, decided_at_ms=9, diverged=("n1",))
    assert audit.place(verdict("n1", "equal", 10)) == AuditPlace(offset=10, decided_at_ms=10)
    late = audit.place(verdict("n1", "diverged", 8, decided_at_ms=12))
    assert late == AuditPlace(offset=10, decided_at_ms=12, diverged=("n1",)), "written last, of an older barrier"


def test_a_scan_that_differed_holds_until_a_scan_is_equal():
    audit = Followed()
    found = audit.place(verdict("n1", "diverged", 5, "scrubbed"), verdict("n1", "equal", 6))
    assert found == AuditPlace(offset=6, decided_at_ms=6, diverged=("n1",))
    assert audit.place(verdict("n1", "equal", 8, "scrubbed")) == AuditPlace(offset=8, decided_at_ms=8)
    assert audit.place(verdict("n1", "diverged", 9, "replicas:scrubbed")) == AuditPlace(
        offset=8, decided_at_ms=9, diverged=("n1",)
    )


def test_a_flood_of_verdicts_lets_nothing_be_trimmed():
    """What was left out may have named a replica that diverged, or this shard."""
    audit = Followed(most=5)
    assert audit.place(verdict("n1", "diverged", 1)) == AuditPlace(offset=-1, decided_at_ms=1, diverged=("n1",))
    flood = [verdict(f"x{number}", "equal", 10**9) for number in range(5)]
    told = "they name more than 5 replicas of om.log"
    assert audit.place(*flood) == told
    assert audit.place(shard=7) == told
    facts = replace(known(), audit=audit.place())
    assert decide(facts, TrimWish()).records == 0
    assert why(facts, "audit") == f"its verdicts cannot be read: {told}"


def test_of_several_bases_the_newest_that_may_be_is_the_logs_beginning():
    third = Base(20, 7, CHAIN)
    bases = (OLD, third, NEW)
    places = {name: place(name, bases=bases) for name in MEMBERS}
    facts = replace(known(**places), logged_at_ms=LOGGED_AT_MS | {third: NOW_MS - 1000})
    assert decide(facts, TrimWish()).base == NEW
    assert decide(replace(facts, first=10), TrimWish()).base == NEW
    assert decide(facts, TrimWish(keep_records=20)).base == third
    silent = dict.fromkeys(bases, NOW_MS - AUDIT_SILENCE_MS)
    audit = AuditPlace(offset=5, decided_at_ms=NOW_MS - 7_000)
    late = replace(facts, logged_at_ms=silent, audit=audit)
    assert decide(late, TrimWish()).base == NEW
    assert why(late, "audit") == "silent for 7 s, longer than it may hold the log: it begins anew at the base"
    one_overdue = replace(late, logged_at_ms=silent | {NEW: NOW_MS})
    assert decide(one_overdue, TrimWish()).base == third


def test_what_is_said_of_a_decision():
    done = decide(known(), TrimWish())
    said = done.to_json()
    assert (said["first"], said["end"], said["offset"], said["records"]) == (0, 40, 30, 30)
    assert (said["base"], said["held_by"]) == ({"offset": 30, "index": 9}, done.held_by.rule)
    assert [one["rule"] for one in said["rules"]] == [one.rule for one in done.findings]
    assert said["rules"][0] == {"rule": "members", "allows": 34, "why": done.findings[0].why}
    assert decide(replace(known(), first=30), TrimWish()).to_json()["base"] is None


def test_without_members_nothing_is_trimmed():
    nobody = replace(known(), answers={"n1": place("n1", members=())})
    assert why(nobody, "members") == "no node that answers knows the shard's members"
    assert decide(nobody, TrimWish()).offset == 0
    everybody = TrimWish(leave_behind=frozenset(MEMBERS))
    assert why(known(), "members", everybody) == "every member would be left behind"
    assert decide(known(), everybody).offset == 0


def test_an_answer_has_as_many_items_as_it_may():
    most = [[number, "ab"] for number in range(MAX_DIGESTS + 1)]
    given = place("n1").to_json()
    assert len(MemberPlace.from_json(given | {"digests": most}).digests) == MAX_DIGESTS + 1
    with pytest.raises(ValueError, match="digests is no list of up to"):
        MemberPlace.from_json(given | {"digests": [*most, [0, "ab"]]})
    assert len(MemberPlace.from_json(given | {"holds": [1] * MAX_HOLDS}).holds) == MAX_HOLDS
    with pytest.raises(ValueError, match="holds is no list of up to"):
        MemberPlace.from_json(given | {"holds": [1] * (MAX_HOLDS + 1)})
    empty = MemberPlace.from_json(given | {"offset": -1, "keeps_from": 0, "index": 0, "shard": 0, "holds": [0]})
    assert (empty.offset, empty.keeps_from, empty.holds) == (-1, 0, (0,))
    with pytest.raises(ValueError, match="keeps_from 1 lies behind offset -1"):
        MemberPlace.from_json(given | {"offset": -1, "keeps_from": 1})


@pytest.mark.parametrize("left_out", ["flagged", "left behind"])
def test_a_base_needs_a_majority_without_those_that_are_flagged_or_left_behind(left_out: str):
    """Of three members one agrees with the newest base, another has not come to it, and the third does not count."""
    flagged = left_out == "flagged"
    facts = known(n2=place("n2", bases=(OLD,)), n3=place("n3", flagged=flagged))
    wish = TrimWish() if flagged else TrimWish(leave_behind=frozenset({"n3"}))
    assert decide(facts, wish).base == OLD
    assert decide(known(n2=place("n2", bases=(OLD,))), TrimWish()).base == NEW
