"""Waiting in tests for what other threads and processes do, and deadlines by a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from stratolog.local.processes import wait_until
from transport.waiting.deadline import Deadline

TIMEOUT_S = 30.0
STEP_S = 0.005


def eventually(what: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Poll quickly; AssertionError if it never holds."""
    assert wait_until(lambda: bool(what()), timeout_s, interval_s=STEP_S), "it never held"


def deadlines_by(clock: Callable[[], float]) -> Any:
    """Return what a module makes its deadlines with, in place of ``Deadline``: they pass as ``clock`` says."""
    return SimpleNamespace(
        after_ms=partial(Deadline.after_ms, clock=clock), after_s=partial(Deadline.after_s, clock=clock)
    )
