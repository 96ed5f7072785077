"""A deadline: the moment after which a caller no longer waits.

The caller of a public function makes one, and every wait below it takes what is left of it. So a call that waits in
five places ends when its caller said, not five times later.

>>> deadline = Deadline.after_ms(200)
>>> deadline.has_passed, deadline.left_s <= 0.2, deadline.sooner(0.05).left_s <= 0.05
(False, True, True)
>>> Deadline.never().left_s
inf
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
"""Returns seconds that never go back, as ``time.monotonic`` does."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock of this process; never sent to another one."""

    at_s: float
    """The moment, in seconds of ``clock``; infinite: there is none."""
    clock: Clock = time.monotonic

    @classmethod
    def after_s(cls, timeout_s: float, clock: Clock = time.monotonic) -> Deadline:
        """Return the deadline ``timeout_s`` seconds from now."""
        return cls(clock() + timeout_s, clock)

    @classmethod
    def after_ms(cls, timeout_ms: float, clock: Clock = time.monotonic) -> Deadline:
        """Return the deadline ``timeout_ms`` milliseconds from now."""
        return cls(clock() + timeout_ms / 1000, clock)

    @classmethod
    def never(cls) -> Deadline:
        """Return a deadline that never passes."""
        return cls(math.inf)

    def sooner(self, timeout_s: float) -> Deadline:
        """Return the earlier of this deadline and ``timeout_s`` seconds from now: the limit of one step."""
        return Deadline(min(self.at_s, self.clock() + timeout_s), self.clock)

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 once it has passed."""
        return max(self.at_s - self.clock(), 0.0)

    @property
    def left_ms(self) -> int:
        """Milliseconds that are left, rounded up to whole ones; raises OverflowError for :meth:`never`."""
        return math.ceil(1000 * self.left_s)

    @property
    def has_passed(self) -> bool:
        """Whether nothing is left."""
        return self.clock() >= self.at_s

    def has_room_for(self, pause_s: float) -> bool:
        """Whether a pause of ``pause_s`` seconds ends before the deadline."""
        return self.clock() + pause_s < self.at_s
