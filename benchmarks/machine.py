"""What a figure was measured on: the interpreter, and how fast this machine runs it."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

LOOPS = 1_000_000
TURNS = 5


def loop_ms() -> float:
    """Return the processor milliseconds of a million additions in a Python loop, the least of TURNS turns."""

    def turn() -> float:
        begun, total = time.process_time(), 0
        for number in range(LOOPS):
            total += number
        return time.process_time() - begun

    return round(min(turn() for _ in range(TURNS)) * 1000, 1)


def machine() -> dict[str, Any]:
    """Return the version of Python, the number of cores, their load, and ``loop_ms``.

    Two builds of one version may differ by a third: a distribution's is optimised, one from sources only if its builder
    asked for it.
    """
    return {
        "python": platform.python_version(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2),
        "loop_ms": loop_ms(),
    }  # fmt: skip
