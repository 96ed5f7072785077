"""The pause before the next try, which doubles with each failure in a row. Pure.

What fails keeps a count of its failures, and sets it to 0 when it succeeds. The law:

    pause_s(n) = min(first_s · 2^(n - 1), last_s), and pause_s(0) = 0

>>> retry = Backoff(first_s=0.5, last_s=3.0)
>>> [retry.pause_s(failures) for failures in range(5)]
[0.0, 0.5, 1.0, 2.0, 3.0]
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 60
"""A larger power of two adds nothing: the last pause has been reached."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between tries; raises ValueError unless 0 < ``first_s`` <= ``last_s``."""

    first_s: float
    last_s: float

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.last_s:
            raise ValueError(f"a back-off from {self.first_s} s to {self.last_s} s: 0 < first <= last is needed")

    def pause_s(self, failures: int) -> float:
        """Return the pause in seconds after this many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        return min(self.first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.last_s)

    def pause_ms(self, failures: int) -> float:
        """Return the same pause in milliseconds."""
        return 1000 * self.pause_s(failures)
