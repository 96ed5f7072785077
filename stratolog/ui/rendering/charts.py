"""Small charts as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from stratolog.ui.core.storage_rows import SizeClass
from stratolog.ui.core.traffic import RatePoint
from stratolog.ui.core.words import bytes_of, rate_of
from stratolog.ui.rendering.markup import Markup, element, joined, table

WIDTH, HEIGHT = 480, 72
GAP = 2
METER_WIDTH, METER_HEIGHT = 64, 8
BAR_WIDTH, BAR_HEIGHT = 400, 12


def rate_chart(points: Sequence[RatePoint]) -> Markup:
    """Return bars of requests a second; refused ones stand on top in their own colour."""
    top = max((point.fine + point.refused for point in points), default=0.0) or 1.0
    step = WIDTH / max(1, len(points))
    bars = [bar for number, point in enumerate(points) for bar in _bars(point, number * step, step - GAP, top)]
    text = f"up to {rate_of(top)} requests/s" if points else "no windows"
    base = element("line", x1=0, x2=WIDTH, y1=HEIGHT - 0.5, y2=HEIGHT - 0.5, class_="axis")
    drawing = element(
        "svg", element("title", f"Requests a second over time, {text}"), base, bars,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img", preserveAspectRatio="none",
    )  # fmt: skip
    marks = [
        element("span", element("i", class_=kind), name) for kind, name in (("fine", "OK"), ("refused", "refused"))
    ]
    # Words stand beside the drawing, which is stretched to the room that there is.
    above = element("p", element("span", text), marks, class_="legend")
    return joined([above, drawing, element("p", element("span", _past(points)), element("span", "now"), class_="span")])


def _past(points: Sequence[RatePoint]) -> str:
    minutes = round((points[-1].start_ms - points[0].start_ms) / 60_000) if points else 0
    return f"{minutes} min ago" if minutes else ""


def _bars(point: RatePoint, left: float, width: float, top: float) -> list[Markup]:
    room = HEIGHT - 4
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


def size_bars(classes: Sequence[SizeClass]) -> Markup:
    """Return a bar for each class of sizes, from small to large."""
    top = max((one.keys for one in classes), default=0) or 1
    rows = [(f"up to {bytes_of(one.up_to)}", _bar_of(one.keys / top), f"{one.keys:,}") for one in classes]
    return table(("size", "", "keys"), rows, numbers=(2,), caption="Keys by size")


def _bar_of(share: float) -> Markup:
    width = f"{max(1.0, share * BAR_WIDTH):.1f}" if share else "0"
    return element(
        "svg", element("rect", x=0, y=0, width=width, height=BAR_HEIGHT, rx=2, class_="used"),
        viewBox=f"0 0 {BAR_WIDTH} {BAR_HEIGHT}", class_="size-bar", aria_hidden="true", preserveAspectRatio="none",
    )  # fmt: skip
