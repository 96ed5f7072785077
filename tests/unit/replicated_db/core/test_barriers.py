"""When a leader's barriers are due."""

import pytest

from replicated_db.core.leading.barriers import Barriers

INTERVAL_MS, SCRUB_MS, BEGAN_MS = 10, 100, 1_000


def take(found, elapsed_ms, *, timestamp_ms=None):
    return found.take(elapsed_ms, elapsed_ms if timestamp_ms is None else timestamp_ms)


def barriers(*, scrub_interval_ms=SCRUB_MS):
    return Barriers(interval_ms=INTERVAL_MS, scrub_interval_ms=scrub_interval_ms, elapsed_ms=BEGAN_MS)


def test_a_claim_begins_with_a_scrub():
    found = barriers()
    assert found.is_due(BEGAN_MS)
    assert take(found, BEGAN_MS) is True
    assert not found.is_due(BEGAN_MS + INTERVAL_MS)


def test_there_is_one_in_each_interval_with_writes_and_none_without():
    found = barriers()
    take(found, BEGAN_MS)
    found.written = True
    assert not found.is_due(BEGAN_MS + INTERVAL_MS - 1)
    assert found.is_due(BEGAN_MS + INTERVAL_MS)
    assert take(found, BEGAN_MS + INTERVAL_MS) is False
    assert found.written is False
    assert not found.is_due(BEGAN_MS + 5 * INTERVAL_MS)
    found.written = True
    assert found.is_due(BEGAN_MS + 5 * INTERVAL_MS), "writes that come late are followed at once"


@pytest.mark.parametrize("written", [True, False])
def test_a_scrub_comes_in_each_of_its_intervals_with_or_without_writes(written):
    found = barriers()
    take(found, BEGAN_MS)
    assert not found.is_due(BEGAN_MS + SCRUB_MS - 1)
    found.written = written
    assert found.is_due(BEGAN_MS + SCRUB_MS)
    assert take(found, BEGAN_MS + SCRUB_MS) is True
    assert not found.is_due(BEGAN_MS + SCRUB_MS + INTERVAL_MS)
    assert found.is_due(BEGAN_MS + 2 * SCRUB_MS)


def test_it_is_told_how_long_there_is_nothing_to_do():
    found = barriers()
    assert found.due_in_ms(BEGAN_MS) == 0
    take(found, BEGAN_MS)
    assert found.due_in_ms(BEGAN_MS + 1) == SCRUB_MS - 1, "without writes only the scrub comes"
    found.written = True
    assert found.due_in_ms(BEGAN_MS + 1) == INTERVAL_MS - 1
    assert found.due_in_ms(BEGAN_MS + INTERVAL_MS + 5) == 0, "what is late is due now"
    take(found, BEGAN_MS + SCRUB_MS - 1)
    found.written = True
    assert found.due_in_ms(BEGAN_MS + SCRUB_MS - 1) == 1, "the scrub comes before the next interval has passed"


def test_without_an_interval_the_first_scrub_is_the_last():
    found = barriers(scrub_interval_ms=0)
    assert take(found, BEGAN_MS) is True
    assert not found.is_due(BEGAN_MS + 10**12)
    found.written = True
    assert take(found, BEGAN_MS + 10**12) is False


def next_scrub_ms(found, elapsed_ms, timestamp_ms):
    """Take the scrub that is due now; return how many milliseconds later the next one is due."""
    assert take(found, elapsed_ms, timestamp_ms=timestamp_ms) is True
    return next(later for later in range(10 * SCRUB_MS) if found.is_due(elapsed_ms + later))


@pytest.mark.parametrize(("past", "later"), [(0, 100), (1, 99), (49, 51), (50, 150), (99, 101)])
def test_logs_at_rest_have_their_scrubs_at_one_time(past, later):
    found = barriers()
    assert next_scrub_ms(found, BEGAN_MS, 7_000 + past) == SCRUB_MS, "nobody knows yet that nothing is written"
    assert next_scrub_ms(found, BEGAN_MS + SCRUB_MS, 7_000 + past) == later
    again_ms = BEGAN_MS + SCRUB_MS + later
    assert next_scrub_ms(found, again_ms, 7_000 + past + later) == SCRUB_MS


@pytest.mark.parametrize("is_followed", [True, False], ids=["a barrier since", "none yet"])
def test_the_scrub_of_a_log_that_was_written_to_comes_an_interval_later(is_followed):
    found = barriers()
    take(found, BEGAN_MS)
    found.written = True
    if is_followed:
        assert take(found, BEGAN_MS + INTERVAL_MS) is False
    assert next_scrub_ms(found, BEGAN_MS + SCRUB_MS, 7_033) == SCRUB_MS


@pytest.mark.parametrize("standing_ms", range(7_000, 7_100))
def test_a_log_whose_time_stands_still_has_no_more_scrubs_than_twice_the_usual(standing_ms):
    found, elapsed_ms = barriers(), BEGAN_MS
    for _ in range(5):
        later = next_scrub_ms(found, elapsed_ms, standing_ms)
        assert SCRUB_MS / 2 < later <= 1.5 * SCRUB_MS
        elapsed_ms += later
