"""Waiting in tests for what other threads and processes do."""

from __future__ import annotations

from collections.abc import Callable

from stratolog.local.processes import wait_until

TIMEOUT_S = 30.0
STEP_S = 0.005


def eventually(what: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Poll quickly; AssertionError if it never holds."""
    assert wait_until(lambda: bool(what()), timeout_s, interval_s=STEP_S), "it never held"
