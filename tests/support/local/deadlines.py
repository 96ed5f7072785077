"""Deadlines by a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from transport.waiting.deadline import Deadline


def deadlines_by(clock: Callable[[], float]) -> Any:
    """Return what a module makes its deadlines with, in place of ``Deadline``: they pass as ``clock`` says."""
    return SimpleNamespace(
        after_ms=partial(Deadline.after_ms, clock=clock), after_s=partial(Deadline.after_s, clock=clock)
    )
