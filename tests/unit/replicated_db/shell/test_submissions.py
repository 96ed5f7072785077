"""Submissions of a replicated database: each gets its own answer, whatever else is answered with it."""

from __future__ import annotations

import pytest

from replicated_db.core.errors import Refused
from replicated_db.core.leading.leader import Proposal, Refusal, Reply
from replicated_db.core.tables.memory import ManualClock, SequenceIds
from replicated_db.shell.database import submissions as module
from replicated_db.shell.database.submissions import Submissions, SubmissionUnknown
from schemas.records.log import Put

PUT = Put(cf="stock", key=b"bolts", value=b"1", prev=None)


@pytest.fixture
def submissions() -> Submissions:
    return Submissions(SequenceIds(), ManualClock(now_ms=1, elapsed=1))


def taken(submissions: Submissions, count: int) -> list[Proposal]:
    found = list(submissions.take(count, 1.0))
    assert len(found) == count
    return found


def test_answers_come_in_any_order_and_those_of_nobody_are_passed_over(submissions: Submissions) -> None:
    futures = [submissions.add([PUT]) for _ in range(4)]
    first, second, third, fourth = taken(submissions, 4)
    submissions.reply([Reply(proposal=second, response=b"i8")])
    again = Reply(proposal=second, response=b"i9")  # its record was read a second time
    refusals = [
        Reply(proposal=third, response=submissions.refuse(third, Refusal.EXPIRED, "too late", 3)),
        Reply(proposal=fourth, response=submissions.refuse(fourth, Refusal.CALL_ID_REUSED, "other bytes", 3)),
    ]
    submissions.reply([again, Reply(proposal=first, response=b"i7"), *refusals])
    assert [future.result(0) for future in futures[:2]] == [7, 8]
    with pytest.raises(SubmissionUnknown, match="too late"):
        futures[2].result(0)
    with pytest.raises(Refused, match="other bytes"):
        futures[3].result(0)


def test_what_is_unanswered_is_proposed_again_to_the_next_claim(submissions: Submissions) -> None:
    futures = [submissions.add([PUT]) for _ in range(2)]
    first, second = taken(submissions, 2)
    submissions.reply([Reply(proposal=first, response=b"i7")])
    assert taken(submissions.reopen(None), 1) == [second]
    submissions.abandon()
    with pytest.raises(SubmissionUnknown, match="the database was closed"):
        futures[1].result(0)
    with pytest.raises(Refused, match="the database is closed"):
        submissions.add([PUT])


def test_no_more_submissions_wait_than_the_limit_says(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 1)
    submissions.add([PUT])
    with pytest.raises(Refused, match="1 submissions are unanswered"):
        submissions.add([PUT])
