"""Requests a second: over time, by type and result, from the audit's windows; and as indexes grow. Pure.

Percentiles of several shards cannot be joined, so the table shows those of the slowest shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from schemas.records.messages import WindowStats
from schemas.result_codes import OK
from schemas.topics import OM_LOG
from spark_streaming.windows.core.reading_windows import rows_of
from stratolog.ui.core.observed import IndexSample, Observed

SHOWN_WINDOWS = 36
"""Windows in the chart: six minutes of ten seconds each."""
QUIET_MS = 60_000
"""Without a window for so long, nothing is written, or nothing counted."""
LIVE_MS = 10_000
"""Over how long the growth of the indexes is measured."""


class RatePoint(NamedTuple):
    """A window: its start, and requests a second that were answered OK, and others."""

    start_ms: int
    fine: float
    refused: float


class RequestRate(NamedTuple):
    """One type and result in the newest full window; times in ms, None if nothing is known of them."""

    kind: str
    status: str
    per_second: float
    p50_ms: int
    p99_ms: int


class Traffic(NamedTuple):
    """The chart, the table, the age of the table's window in ms, and the indexes that were added a second just now."""

    points: Sequence[RatePoint]
    rates: Sequence[RequestRate]
    age_ms: int | None
    seconds: int
    live_per_second: float | None


def traffic_of(seen: Observed) -> Traffic:
    """Return the traffic; the chart ends with the present window and has zeros where nothing was counted."""
    windows = [one for one in seen.windows if one.log == OM_LOG and one.source == "log"]
    live = live_rate(seen.samples, seen.now_ms)
    if not windows:
        return Traffic((), (), None, 0, live)
    seconds = windows[-1].seconds
    full = _newest_full(windows)
    start_ms = max(one.start_ms for one in full)
    end_ms = start_ms + seconds * 1000
    return Traffic(_points(windows, seen.now_ms, seconds), _rates(full), max(0, seen.now_ms - end_ms), seconds, live)


def _newest_full(windows: Sequence[WindowStats]) -> list[WindowStats]:
    """Return the windows of the newest start that is not being counted any more; of the only one, if there is one."""
    starts = sorted({one.start_ms for one in windows})
    start_ms = starts[-2] if len(starts) > 1 else starts[-1]
    return [one for one in windows if one.start_ms == start_ms]


def _points(windows: Sequence[WindowStats], now_ms: int, seconds: int) -> list[RatePoint]:
    step_ms = seconds * 1000
    # The window that is being counted would look like a fall.
    newest = now_ms // step_ms - 1
    fine: dict[int, int] = {}
    refused: dict[int, int] = {}
    for one in windows:
        for row in rows_of(one, "request"):
            kept = fine if row.status in (OK, "LOGGED") else refused
            kept[one.start_ms // step_ms] = kept.get(one.start_ms // step_ms, 0) + row.count
    return [
        RatePoint(number * step_ms, fine.get(number, 0) / seconds, refused.get(number, 0) / seconds)
        for number in range(newest - SHOWN_WINDOWS + 1, newest + 1)
    ]


def _rates(windows: Sequence[WindowStats]) -> list[RequestRate]:
    found: dict[tuple[str, str], RequestRate] = {}
    for one in windows:
        for row in rows_of(one, "request"):
            known = found.get((row.kind, row.status), RequestRate(row.kind, row.status, 0.0, 0, 0))
            found[row.kind, row.status] = known._replace(
                per_second=known.per_second + row.count / one.seconds,
                p50_ms=max(known.p50_ms, row.p50), p99_ms=max(known.p99_ms, row.p99),
            )  # fmt: skip
    return sorted(found.values(), key=lambda rate: (-rate.per_second, rate.kind, rate.status))


def live_rate(samples: Sequence[IndexSample], now_ms: int) -> float | None:
    """Return how fast the indexes grew in the last LIVE_MS, a second; None if they were not looked at twice."""
    recent = [one for one in samples if now_ms - one.at_ms <= LIVE_MS]
    if len(recent) < 2 or recent[-1].at_ms <= recent[0].at_ms:
        return None
    return max(0, recent[-1].indexes - recent[0].indexes) * 1000 / (recent[-1].at_ms - recent[0].at_ms)
