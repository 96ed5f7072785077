"""Which verdict on a replica counts, and what is remembered of the others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from schemas.records.messages import Verdict
from schemas.topics import DN_LOG, OM_LOG
from transport.topics.core.latest_verdicts import JudgedSubject, LatestVerdicts, VerdictSubject, subject_of

EQUAL = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000,
)  # fmt: skip
SUBJECT = VerdictSubject(OM_LOG, 0, "om1", "incremental")


def at(offset: int, said: str = "equal", **changed: object) -> Verdict:
    return replace(EQUAL, barrier_offset=offset, verdict=said, **changed)  # type: ignore[arg-type]


def said_of(*verdicts: Verdict) -> JudgedSubject:
    latest = LatestVerdicts()
    latest.take(verdicts)
    return dict(latest.subjects())[SUBJECT]


def test_the_last_barriers_verdict_stays():
    latest = LatestVerdicts()
    changes = latest.take(at(offset) for offset in (10, 30, 20))
    assert [one.barrier_offset for one in latest] == [30]
    assert [(one.before, one.now) for one in changes] == [(None, at(10)), (at(10), at(30))]
    assert latest.seen == 3
    assert latest.of(*SUBJECT) == at(30)
    assert latest.of(OM_LOG, 1, "om1", "incremental") is None


def test_a_later_verdict_for_the_same_barrier_replaces():
    assert said_of(at(10, "unknown"), at(10)).latest == at(10)
    assert said_of(at(10), at(10, "unknown")).latest == at(10, "unknown")


def test_what_is_not_the_latest_is_remembered_in_part():
    bad, unknown = at(20, "diverged"), at(30, "unknown")
    found = said_of(at(10), bad, unknown)
    assert (found.latest, found.equal_offset, found.word, found.diverged) == (unknown, 10, bad, bad)
    late = said_of(at(10), at(30), bad)
    assert (late.latest, late.equal_offset, late.word, late.diverged) == (at(30), 30, bad, bad)
    nothing = said_of(unknown)
    assert (nothing.equal_offset, nothing.word, nothing.diverged) == (-1, None, None)


def test_of_two_subjects_the_later_word_has_the_larger_number():
    latest = LatestVerdicts()
    latest.take([at(9), at(5, basis="scrubbed"), at(99, "unknown")])
    assert {subject.basis: said.word_number for subject, said in latest.subjects()} == {"incremental": 1, "scrubbed": 2}


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_of_any_order_is_the_one_at_the_highest_barrier(seed: int):
    chance = random.Random(seed)
    verdicts = [
        at(chance.randrange(6), chance.choice(["equal", "diverged", "unknown"]), node=f"om{chance.randrange(3)}")
        for _ in range(40)
    ]
    latest = LatestVerdicts()
    latest.take(verdicts)
    for subject, said in latest.subjects():
        of_it = [one for one in verdicts if subject_of(one) == subject]
        assert said.latest == max(enumerate(of_it), key=lambda one: (one[1].barrier_offset, one[0]))[1]
        assert said.equal_offset == max((v.barrier_offset for v in of_it if v.verdict == "equal"), default=-1)


def test_the_object_managers_log_comes_first():
    latest = LatestVerdicts()
    latest.take([at(1, log=DN_LOG), at(1, shard=1), at(1, node="om2"), at(1, basis="scrubbed"), at(1)])
    assert [subject_of(one) for one in latest] == [
        (OM_LOG, 0, "om1", "incremental"),
        (OM_LOG, 0, "om1", "scrubbed"),
        (OM_LOG, 0, "om2", "incremental"),
        (OM_LOG, 1, "om1", "incremental"),
        (DN_LOG, 0, "om1", "incremental"),
    ]


def test_one_log_may_be_followed_alone():
    latest = LatestVerdicts(DN_LOG)
    assert latest.take([at(1), at(2, log=DN_LOG)])[0].now.log == DN_LOG
    assert (len(latest), latest.seen) == (1, 1)


def test_subjects_are_bounded_and_the_one_goes_that_was_judged_least_recently():
    latest = LatestVerdicts(most=3)
    latest.take([at(1, node="a"), at(1, node="b"), at(1, node="c"), at(0, node="a")])
    assert latest.dropped == 0
    latest.take([at(1, node="d"), at(1, node="e")])
    assert [one.node for one in latest] == ["a", "d", "e"], "an older barrier is a sign of life, too"
    assert latest.dropped == 2


def test_what_is_forgotten_begins_anew():
    latest = LatestVerdicts()
    latest.take([at(10, "diverged")])
    latest.forget(SUBJECT)
    latest.forget(SUBJECT)
    assert list(latest) == []
    assert latest.take([at(5)])[0].before is None
    assert dict(latest.subjects())[SUBJECT].diverged is None
