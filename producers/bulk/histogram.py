"""A histogram of latencies in bounded memory, precise to about 3 %.

What belongs here: :class:`Histogram`. Values are counted in buckets of logarithmic width: each power of two of
microseconds is divided into :data:`STEPS`, so a percentile is at most 1/:data:`STEPS` too high. Pure.
"""

from __future__ import annotations

STEPS = 32
_STEP_BITS = STEPS.bit_length() - 1
MAX_US = 1 << 40
"""Larger values (more than twelve days) count as this one."""
BUCKETS = (MAX_US.bit_length() + 1) * STEPS
"""Number of a histogram's buckets: its memory is the same for ten values and for ten million."""


class Histogram:
    """Counts of latencies; not safe to share between threads.

    >>> histogram = Histogram()
    >>> for latency_ms in (1.0, 2.0, 100.0):
    ...     histogram.add(latency_ms)
    >>> histogram.count, round(histogram.percentile_ms(50)), round(histogram.max_ms)
    (3, 2, 100)
    """

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = 0.0
        self._counts = [0] * BUCKETS

    def add(self, latency_ms: float) -> None:
        """Count one latency, in ms; a negative one counts as 0."""
        self.count += 1
        self.max_ms = max(self.max_ms, latency_ms)
        self._counts[bucket_of(int(latency_ms * 1000))] += 1

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts to this one."""
        self.count += other.count
        self.max_ms = max(self.max_ms, other.max_ms)
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]

    def percentile_ms(self, percent: float) -> float:
        """Return the latency in ms that ``percent`` of the values do not exceed; 0 if there are none.

        Raises ValueError if ``percent`` is not in 0..100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile is in 0..100, not {percent}")
        wanted = self.count * percent / 100
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(upper_us(bucket) / 1000, self.max_ms)
        return self.max_ms


def bucket_of(value_us: int) -> int:
    value_us = min(max(value_us, 0), MAX_US)
    shift = max(value_us.bit_length() - 1 - _STEP_BITS, 0)
    return (shift << _STEP_BITS) + (value_us >> shift)


def upper_us(bucket: int) -> int:
    """Return the first value above a bucket."""
    shift = max((bucket >> _STEP_BITS) - 1, 0)
    return (bucket - (shift << _STEP_BITS) + 1) << shift
