"""Loans of shards: when the owner takes one back, when the borrower gives it up."""

from __future__ import annotations

import pytest

from om_processors.leading.core.lending import RENEW_INTERVAL_S, Answer, Borrowed, Loan, gives_up, takes_back

SESSION_S = 3.0
LOAN = Loan(shard=1, node="om2", address="h:1", heard_s=100.0)
BORROWED = Borrowed(shard=1, owner="om1", renewed_s=100.0)


@pytest.mark.parametrize("now_s", [100.0, 103.0, 200.0])
def test_a_borrower_that_leads_keeps_the_loan(now_s: float):
    assert takes_back(LOAN, Answer.LEADS, now_s, SESSION_S) is None


@pytest.mark.parametrize(
    ("answer", "reason"), [(Answer.DOES_NOT_LEAD, "om2 does not lead it any more"), (Answer.GONE, "om2 is gone")]
)
def test_one_that_does_not_lead_loses_it_at_once(answer: Answer, reason: str):
    assert takes_back(LOAN, answer, 100.0, SESSION_S) == reason


def test_a_silent_one_loses_it_after_a_session_time_out():
    assert takes_back(LOAN, Answer.SILENT, 103.0, SESSION_S) is None
    assert takes_back(LOAN, Answer.SILENT, 103.1, SESSION_S) == "om2 has been silent for 3.1 s"


def test_the_borrower_gives_up_what_is_not_renewed():
    assert gives_up(BORROWED, 103.0, SESSION_S) is None
    assert gives_up(BORROWED, 103.1, SESSION_S) == "om1 has not renewed the loan for 3.1 s"
    assert SESSION_S > 3 * RENEW_INTERVAL_S, "a renewal may be lost"
