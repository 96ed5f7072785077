"""The histogram: bounded memory, bounded error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.bulk.histogram import BUCKETS, MAX_US, STEPS, Histogram, bucket_of, upper_us

LATENCIES_MS = st.floats(0, MAX_US / 1000, allow_nan=False)


def filled(latencies_ms):
    histogram = Histogram()
    for latency_ms in latencies_ms:
        histogram.add(latency_ms)
    return histogram


def test_an_empty_histogram_has_no_latency():
    assert Histogram().percentile_ms(50) == 0.0


@given(value_us=st.integers(0, MAX_US))
def test_a_bucket_holds_its_value_and_is_narrow(value_us):
    bucket = bucket_of(value_us)
    assert 0 <= bucket < BUCKETS
    above_us = upper_us(bucket)
    assert value_us < above_us <= value_us + 1 + value_us / STEPS


@given(first=st.integers(0, MAX_US), second=st.integers(0, MAX_US))
def test_buckets_are_in_the_order_of_their_values(first, second):
    low, high = sorted((first, second))
    assert bucket_of(low) <= bucket_of(high)


@given(latencies_ms=st.lists(LATENCIES_MS, min_size=1), percent=st.sampled_from([0, 1, 50, 90, 99, 100]))
def test_a_percentile_is_at_most_a_step_too_high(latencies_ms, percent):
    ordered = sorted(latencies_ms)
    rank = max(-(-len(ordered) * percent // 100), 1)
    exact_ms = ordered[rank - 1]
    found_ms = filled(latencies_ms).percentile_ms(percent)
    assert exact_ms - 0.001 <= found_ms <= exact_ms * (1 + 1 / STEPS) + 0.002


@given(left=st.lists(LATENCIES_MS), right=st.lists(LATENCIES_MS))
def test_merging_is_counting_both(left, right):
    merged, both = filled(left), filled(left + right)
    merged.merge(filled(right))
    assert merged.count == both.count
    assert merged.max_ms == both.max_ms
    assert merged.percentile_ms(50) == both.percentile_ms(50)


def test_values_out_of_range_are_counted_at_the_ends():
    histogram = filled([-5.0, 1e15])
    assert histogram.count == 2
    assert histogram.percentile_ms(0) == 0.001


@pytest.mark.parametrize("percent", [-1, 101])
def test_a_percentile_out_of_range_is_refused(percent):
    with pytest.raises(ValueError, match=str(percent)):
        Histogram().percentile_ms(percent)
