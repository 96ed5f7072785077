"""When a leader's barriers are due."""

import pytest

from replicated_db.core.leading.barriers import Barriers

INTERVAL_MS, SCRUB_MS, BEGAN_MS = 10, 100, 1_000


def barriers(*, scrub_interval_ms=SCRUB_MS):
    return Barriers(interval_ms=INTERVAL_MS, scrub_interval_ms=scrub_interval_ms, elapsed_ms=BEGAN_MS)


def test_a_claim_begins_with_a_scrub():
    found = barriers()
    assert found.is_due(BEGAN_MS)
    assert found.take(BEGAN_MS) is True
    assert not found.is_due(BEGAN_MS + INTERVAL_MS)


def test_there_is_one_in_each_interval_with_writes_and_none_without():
    found = barriers()
    found.take(BEGAN_MS)
    found.written = True
    assert not found.is_due(BEGAN_MS + INTERVAL_MS - 1)
    assert found.is_due(BEGAN_MS + INTERVAL_MS)
    assert found.take(BEGAN_MS + INTERVAL_MS) is False
    assert found.written is False
    assert not found.is_due(BEGAN_MS + 5 * INTERVAL_MS)
    found.written = True
    assert found.is_due(BEGAN_MS + 5 * INTERVAL_MS), "writes that come late are followed at once"


@pytest.mark.parametrize("written", [True, False])
def test_a_scrub_comes_in_each_of_its_intervals_with_or_without_writes(written):
    found = barriers()
    found.take(BEGAN_MS)
    assert not found.is_due(BEGAN_MS + SCRUB_MS - 1)
    found.written = written
    assert found.is_due(BEGAN_MS + SCRUB_MS)
    assert found.take(BEGAN_MS + SCRUB_MS) is True
    assert not found.is_due(BEGAN_MS + SCRUB_MS + INTERVAL_MS)
    assert found.is_due(BEGAN_MS + 2 * SCRUB_MS)


def test_without_an_interval_the_first_scrub_is_the_last():
    found = barriers(scrub_interval_ms=0)
    assert found.take(BEGAN_MS) is True
    assert not found.is_due(BEGAN_MS + 10**12)
    found.written = True
    assert found.take(BEGAN_MS + 10**12) is False
