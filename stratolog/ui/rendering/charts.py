"""What the small charts draw: bars of SVG, as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratolog.ui.core.storage_rows import SizeClass, SizeHistogram
from stratolog.ui.core.traffic import RatePoint
from stratolog.ui.core.words import rate_of

WIDTH, HEIGHT = 480, 72
GAP = 2
BAR_WIDTH, BAR_HEIGHT = 400, 12


class RateBar(NamedTuple):
    """A rectangle of the chart of rates."""

    left: str
    upper: str
    width: str
    height: str
    kind: str


class RateChart(NamedTuple):
    """Bars of requests a second; refused ones stand on top in their own colour."""

    bars: Sequence[RateBar]
    text: str
    past: str
    """How long ago the first bar was."""


def rate_chart(points: Sequence[RatePoint]) -> RateChart:
    """Return the chart of windows, the oldest first."""
    top = max((point.fine + point.refused for point in points), default=0.0) or 1.0
    step = WIDTH / max(1, len(points))
    bars = [bar for number, point in enumerate(points) for bar in _bars(point, number * step, step - GAP, top)]
    return RateChart(bars, f"up to {rate_of(top)} requests/s" if points else "no windows", _past(points))


def _past(points: Sequence[RatePoint]) -> str:
    minutes = round((points[-1].start_ms - points[0].start_ms) / 60_000) if points else 0
    return f"{minutes} min ago" if minutes else ""


def _bars(point: RatePoint, left: float, width: float, top: float) -> Iterator[RateBar]:
    room = HEIGHT - 4
    fine, refused = point.fine / top * room, point.refused / top * room
    if fine:
        yield _bar(left, HEIGHT - 1 - fine, width, fine, "fine")
    if refused:
        yield _bar(left, HEIGHT - 1 - fine - refused, width, refused, "refused")


def _bar(left: float, upper: float, width: float, height: float, kind: str) -> RateBar:
    return RateBar(f"{left:.1f}", f"{upper:.1f}", f"{width:.1f}", f"{max(1.0, height):.1f}", kind)


def size_bar(one: SizeClass, found: SizeHistogram) -> str:
    """Return how wide the bar of a class of sizes is, beside the others of its bucket."""
    share = one.keys / (max(other.keys for other in found.classes) or 1)
    return f"{max(1.0, share * BAR_WIDTH):.1f}" if share else "0"
