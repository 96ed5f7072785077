"""From samples to figures; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Progress(NamedTuple):
    """What the audit had done at a moment: operations behind its verdicts, and its processes' seconds of processor time."""

    at_s: float
    operations: int
    cpu_s: float


class Rate(NamedTuple):
    """Operations audited in a second of one core, and in a second of the clock."""

    per_core_s: float
    per_s: float


def rate_of(samples: Sequence[Progress], share: float = 0.25) -> Rate:
    """Return the rate from the first sample that has ``share`` of the operations on: Spark has warmed up by then.

    >>> rate_of([Progress(0, 0, 0), Progress(5, 30, 9), Progress(7, 100, 13)])
    Rate(per_core_s=17.5, per_s=35.0)
    """
    last = samples[-1]
    first = next(one for one in samples if one.operations >= share * last.operations)
    if first.operations == last.operations:
        raise ValueError("all verdicts came at once: the backlog is too short")
    done = last.operations - first.operations
    return Rate(round(done / (last.cpu_s - first.cpu_s), 1), round(done / (last.at_s - first.at_s), 1))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of them (0..1) do not exceed.

    >>> percentile([3.0, 1.0, 2.0], 0.5), percentile([3.0, 1.0, 2.0], 0.99)
    (2.0, 3.0)
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
