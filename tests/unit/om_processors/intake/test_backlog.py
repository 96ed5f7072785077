"""The leader's queue: what is refused, and when clients are told to try again."""

from __future__ import annotations

from om_processors.intake.core.backlog import (
    MAX_REFUSALS_PER_TURN,
    MAX_RETRY_AFTER_MS,
    MIN_RETRY_AFTER_MS,
    RATE_WINDOW_MS,
    Backlog,
    RecordSize,
)


def working(per_second: int) -> Backlog:
    """A leader that has executed so many requests a second, for two windows."""
    backlog = Backlog(max_queued=1000)
    for now_ms in range(1_000_000, 1_000_000 + 2 * RATE_WINDOW_MS + 1, 10):
        backlog.on_taken(per_second // 100, now_ms)
    return backlog


def test_only_the_surplus_is_refused_and_a_bounded_part_of_it_at_a_time():
    backlog = Backlog(max_queued=1000)
    assert [backlog.surplus(n) for n in (0, 1000, 1001, 1500)] == [0, 0, 1, 500]
    assert backlog.surplus(10**9) == MAX_REFUSALS_PER_TURN


def test_the_hint_is_the_time_to_work_the_queue_off():
    assert abs(working(1000).retry_after_ms(2000) - 2000) < 50
    assert working(1000).retry_after_ms(1) == MIN_RETRY_AFTER_MS
    assert working(100).retry_after_ms(10**9) == MAX_RETRY_AFTER_MS


def test_without_a_measure_the_hint_is_the_shortest():
    assert Backlog(max_queued=1000).retry_after_ms(10**6) == MIN_RETRY_AFTER_MS


def test_a_time_without_requests_is_no_measure_of_the_rate():
    backlog = working(1000)
    backlog.on_taken(5, 1_000_000 + 100 * RATE_WINDOW_MS)
    assert abs(backlog.retry_after_ms(2000) - 2000) < 50


def test_one_large_envelope_says_little_of_what_is_not_read_yet():
    """A hundred single requests behind an envelope of 500 were taken for 50,000, and refused as too many."""
    size = RecordSize()
    for _ in range(1000):
        size.on_record(1)
    size.on_record(500)
    assert size.requests_in(100) < 1000
    assert size.records_for(500) > 50


def test_a_queue_of_envelopes_is_known_for_what_it_is():
    size = RecordSize()
    for _ in range(1000):
        size.on_record(500)
    assert 49_000 < size.requests_in(100) <= 50_000
    assert size.records_for(500) == 1
    assert size.records_for(1) == 1


def test_a_record_without_requests_counts_as_one():
    size = RecordSize()
    size.on_record(0)
    assert size.mean == 1.0


def test_a_pause_of_two_windows_is_no_measure_either():
    backlog = Backlog(max_queued=1000)
    backlog.on_taken(0, 1_000_000)
    backlog.on_taken(500, 1_000_000 + 2 * RATE_WINDOW_MS)
    assert backlog.retry_after_ms(10**6) == MIN_RETRY_AFTER_MS
    backlog.on_taken(500, 1_000_000 + 4 * RATE_WINDOW_MS - 1)
    assert backlog.retry_after_ms(10**3) > MIN_RETRY_AFTER_MS
