"""Python threads that outlive what began them: what they log and do then lands in tests that know nothing of them."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial
from typing import Any

from stratolog.local.processes import wait_until

STEP_S = 0.005
LASTING = ("py4j", "pyspark", "execnet", "xdist")
"""Packages whose threads live as long as the process: tests share Spark's session, and the line to xdist stays."""
GUARDS = "spark_streaming.records.callbacks"
"""The module whose servers are those of Spark's session, in place of PySpark's and Py4J's own."""
TIMER = "pytest_timeout"
"""How the name of the thread begins that ends a test which hangs: it still waits when the last fixtures end."""


def threads_left(before: Collection[threading.Thread], patience_s: float) -> list[threading.Thread]:
    """Return the threads that were begun since ``before`` was listed, and do not end within ``patience_s``."""
    wait_until(lambda: not _begun_since(before), patience_s, interval_s=STEP_S)
    return _begun_since(before)


def described(thread: threading.Thread) -> str:
    """Return a thread's name and its target: many threads have a number for a name."""
    target = _target(thread)
    return f"{thread.name}: {_origin(target)}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def _begun_since(before: Collection[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before and not _lasts(thread)]


def _lasts(thread: threading.Thread) -> bool:
    """Return whether a thread is not the tests' to end."""
    # A thread of C code that calls back, as librdkafka's do, gets such an entry, which nobody takes out again.
    foreign = isinstance(thread, threading._DummyThread)
    origin = _origin(_target(thread))
    return foreign or thread.name.startswith(TIMER) or origin == GUARDS or origin.partition(".")[0] in LASTING


def _target(thread: threading.Thread) -> Any:
    """Return what a thread runs: the function that it was given, or the thread itself if its class has the code."""
    given: Any = getattr(thread, "_target", None) or getattr(thread, "function", None) or thread
    while isinstance(given, partial):
        given = given.func
    return given


def _origin(target: Any) -> str:
    """Return the module of a target. A method's is that of its object's class, not of the base that has the code."""
    owner = getattr(target, "__self__", None)
    found = target if owner is None else type(owner)
    return str(getattr(found, "__module__", ""))
