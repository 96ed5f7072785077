"""When a process that has died is started again, and what is told of it. Pure.

Rules:

1. What dies is started again at once, the first time.
2. Each further death within STEADY_S of a start is a failure in a row: the pause before the next start doubles, up to
   the last one of PAUSES. A process that has run for longer begins anew.
3. How often, when last and why is remembered for each process until the stack is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transport.waiting.core.backoff import Backoff

STEADY_S = 120.0
"""A process that has run for so long has not failed to start."""
PAUSES = Backoff(first_s=1.0, last_s=300.0)
MAX_WHY_CHARACTERS = 300
LAST_S = 1e11
"""No moment of a book is later: calendars end soon after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """What is remembered of one process; times are seconds since 1970."""

    times: int = 0
    """How often it was started again."""
    failures: int = 0
    """Deaths in a row, each soon after a start."""
    died_s: float = 0.0
    """When its last death was seen."""
    started_s: float = 0.0
    """When it was started again last."""
    why: str = ""
    """How it ended, and the last line of its log."""

    @property
    def is_dead(self) -> bool:
        """Whether it has not been started again since its last death."""
        return self.died_s > self.started_s

    @property
    def due_s(self) -> float:
        """When a dead process is due."""
        return self.died_s + PAUSES.pause_s(self.failures)

    def on_death(self, now_s: float, why: str) -> Restarts:
        """Note a death, once: a process that is known to be dead stays as it is."""
        if self.is_dead:
            return self
        failures = self.failures + 1 if self.started_s and now_s - self.started_s < STEADY_S else 0
        # A clock that goes back must not make a death look older than the start.
        died_s = max(now_s, self.started_s + 0.001)
        return replace(self, died_s=died_s, failures=failures, why=why[:MAX_WHY_CHARACTERS])

    def on_start(self, now_s: float) -> Restarts:
        """Note that it was started again."""
        return replace(self, times=self.times + 1, started_s=max(now_s, self.died_s))

    def on_failed_start(self, now_s: float, why: str) -> Restarts:
        """Note that it could not be started."""
        return replace(self, died_s=now_s, failures=self.failures + 1, why=why[:MAX_WHY_CHARACTERS])

    def on_life(self) -> Restarts:
        """Note that it runs; another process may have started it."""
        return replace(self, started_s=max(self.started_s, self.died_s)) if self.is_dead else self


def as_json(book: Mapping[str, Restarts]) -> dict[str, dict[str, Any]]:
    """Return what is remembered of processes, by name, as plain values."""
    return {
        name: {"times": one.times, "failures": one.failures, "died_s": one.died_s, "started_s": one.started_s, "why": one.why}
        for name, one in book.items()
    }  # fmt: skip


def from_json(found: Any) -> dict[str, Restarts]:
    """Return what :func:`as_json` returned; raises ValueError for anything else."""
    try:
        book = {name: Restarts(**one) for name, one in found.items()}
        if all(_is_sound(one) for one in book.values()):
            return book
    except (AttributeError, TypeError) as error:
        raise ValueError(f"no book of restarts: {error}") from error
    raise ValueError("no book of restarts")


def _is_sound(one: Restarts) -> bool:
    numbers: tuple[object, ...] = (one.times, one.failures, one.died_s, one.started_s)
    why: object = one.why
    return all(isinstance(number, int | float) and 0 <= number < LAST_S for number in numbers) and isinstance(why, str)
