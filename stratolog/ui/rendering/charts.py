"""Small charts as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from stratolog.ui.core.traffic import RatePoint
from stratolog.ui.core.words import rate_of
from stratolog.ui.rendering.markup import Markup, element

WIDTH, HEIGHT = 480, 72
GAP = 2
METER_WIDTH, METER_HEIGHT = 64, 8


def rate_chart(points: Sequence[RatePoint]) -> Markup:
    """Return bars of requests a second; refused ones stand on top in their own colour."""
    top = max((point.fine + point.refused for point in points), default=0.0) or 1.0
    step = WIDTH / max(1, len(points))
    bars = [bar for number, point in enumerate(points) for bar in _bars(point, number * step, step - GAP, top)]
    text = f"up to {rate_of(top)} requests/s" if points else "no windows"
    base = element("line", x1=0, x2=WIDTH, y1=HEIGHT - 0.5, y2=HEIGHT - 0.5, class_="axis")
    label = element("text", text, x=0, y=10, class_="axis-text")
    return element(
        "svg", element("title", f"Requests a second over time, {text}"), base, bars, label,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img", preserveAspectRatio="none",
    )  # fmt: skip


def _bars(point: RatePoint, left: float, width: float, top: float) -> list[Markup]:
    room = HEIGHT - 16
    fine, refused = point.fine / top * room, point.refused / top * room
    found = []
    if fine:
        found.append(_bar(left, HEIGHT - 1 - fine, width, fine, "fine"))
    if refused:
        found.append(_bar(left, HEIGHT - 1 - fine - refused, width, refused, "refused"))
    return found


def _bar(left: float, upper: float, width: float, height: float, kind: str) -> Markup:
    return element(
        "rect", x=f"{left:.1f}", y=f"{upper:.1f}", width=f"{width:.1f}", height=f"{max(1.0, height):.1f}", class_=kind
    )


def meter(share: float) -> Markup:
    """Return a bar that is filled by a share of 0 to 1."""
    filled = max(0.0, min(1.0, share)) * METER_WIDTH
    ground = element("rect", x=0, y=0, width=METER_WIDTH, height=METER_HEIGHT, rx=3, class_="ground")
    level = "full" if share >= 0.9 else "used"
    return element(
        "svg", element("title", f"{share:.0%}"), ground,
        element("rect", x=0, y=0, width=f"{filled:.1f}", height=METER_HEIGHT, rx=3, class_=level),
        viewBox=f"0 0 {METER_WIDTH} {METER_HEIGHT}", class_="meter", role="img",
    )  # fmt: skip
