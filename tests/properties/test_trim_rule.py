"""How far a log may be trimmed, over random clusters: nothing that anybody still needs is ever deleted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from replicated_db.core.trimming.bases import Base
from replicated_db.core.trimming.places import AuditPlace, MemberPlace
from replicated_db.core.trimming.trim_rule import AUDIT_SILENCE_MS, TrimFacts, TrimWish, decide

NAMES = ("n1", "n2", "n3", "n4", "n5")
OFFSETS = st.integers(0, 40)
NOW_MS = 10 * AUDIT_SILENCE_MS


@st.composite
def facts(draw: st.DrawFn) -> TrimFacts:
    members = NAMES[: draw(st.integers(1, 5))]
    logged = [Base(offset, offset, bytes(32)) for offset in sorted(draw(st.sets(OFFSETS, max_size=6)))]
    times = sorted(NOW_MS - draw(st.integers(0, 2 * AUDIT_SILENCE_MS)) for _ in logged)
    answers: dict[str, MemberPlace | str] = {}
    for name in members:
        if draw(st.integers(0, 9)) == 0:
            answers[name] = "it does not answer"
            continue
        offset = draw(st.integers(-1, 40))
        answers[name] = MemberPlace(
            node=name, cluster="c", shard=0, offset=offset, keeps_from=draw(st.integers(0, max(offset, 0))),
            index=max(offset, 0), flagged=draw(st.integers(0, 5)) == 0, members=members,
            bases=tuple(base for base in logged if base.offset <= offset and draw(st.integers(0, 9))),
            holds=tuple(draw(st.lists(OFFSETS, max_size=2))),
        )  # fmt: skip
    audit = draw(
        st.one_of(
            st.none(),
            st.just("no answer"),
            st.builds(
                AuditPlace, offset=st.integers(-1, 40), decided_at_ms=st.integers(0, NOW_MS),
                diverged=st.sampled_from([(), (), (), ("n1",)]),
            ),
        )
    )  # fmt: skip
    first = draw(st.integers(0, 20))
    return TrimFacts(
        first=first, end=draw(st.integers(max(first, 40), 60)), now_ms=NOW_MS, answers=answers, audit=audit,
        logged_at_ms=dict(zip(logged, times, strict=True)),
    )  # fmt: skip


WISHES = st.builds(
    TrimWish, keep_records=st.integers(0, 50), keep_ms=st.sampled_from([0, 0, AUDIT_SILENCE_MS]),
    leave_behind=st.frozensets(st.sampled_from(NAMES), max_size=3), without_audit=st.booleans(),
)  # fmt: skip


@given(known=facts(), wish=WISHES)
def test_nothing_that_is_needed_is_deleted(known: TrimFacts, wish: TrimWish):
    done = decide(known, wish)
    assert known.first <= done.offset <= known.end
    if done.offset == known.first:
        assert done.base is None
        return
    members = next(place.members for place in known.answers.values() if isinstance(place, MemberPlace))
    majority = len(members) // 2 + 1
    places = [place for place in known.answers.values() if isinstance(place, MemberPlace)]
    for name in members:
        place = known.answers[name]
        assert name in wish.leave_behind or (
            isinstance(place, MemberPlace) and place.keeps_from >= done.offset and place.offset < known.end
        )
    holders = [
        place for place in places
        if not place.flagged and place.node not in wish.leave_behind and place.keeps_from >= done.offset
    ]  # fmt: skip
    assert len(holders) >= majority
    assert all(hold >= done.offset for place in places for hold in place.holds)
    assert done.base is not None
    assert done.base.offset == done.offset
    assert sum(done.base in place.bases for place in holders) >= majority
    assert known.logged_at_ms[done.base] <= known.now_ms - wish.keep_ms
    assert known.end - done.offset >= wish.keep_records
    if not wish.without_audit:
        audit = known.audit
        assert not isinstance(audit, str)
        if audit is not None:
            assert not audit.diverged
            is_overdue = known.logged_at_ms[done.base] + AUDIT_SILENCE_MS <= known.now_ms
            assert audit.offset >= done.offset - 1 or is_overdue


@given(known=facts(), wish=WISHES)
def test_every_rule_speaks_and_none_is_overstepped(known: TrimFacts, wish: TrimWish):
    done = decide(known, wish)
    names = [finding.rule for finding in done.findings]
    assert sorted(names) == ["agreement", "audit", "base", "keep", "majority", "members", "transfers"]
    assert all(finding.why for finding in done.findings)
    if done.records:
        assert all(finding.allows >= done.offset for finding in done.findings)
    assert done.held_by in done.findings
    if done.held_by.rule != "base":
        assert done.held_by.allows == min(finding.allows for finding in done.findings if finding.rule != "base")


@given(known=facts(), wish=WISHES, name=st.sampled_from(NAMES))
def test_knowing_less_never_allows_more(known: TrimFacts, wish: TrimWish, name: str):
    if name in wish.leave_behind or name not in known.answers:
        return
    less = replace(known, answers={**known.answers, name: "it does not answer"})
    assert decide(less, wish).offset == known.first
    unread = replace(known, audit="no answer")
    assert decide(unread, wish).offset <= decide(known, wish).offset


@given(known=facts(), wish=WISHES)
def test_a_wish_to_keep_more_never_deletes_more(known: TrimFacts, wish: TrimWish):
    more = replace(wish, keep_records=wish.keep_records + 5, keep_ms=wish.keep_ms + AUDIT_SILENCE_MS)
    assert decide(known, more).offset <= decide(known, wish).offset
