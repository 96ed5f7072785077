"""HTML from the templates beside this module, by Jinja2: whatever a stranger has written is escaped.

A template is compiled once. It gets views, and writes their words with the filters below; an unknown name in it is an
error. The page's Content-Security-Policy allows no inline style and no inline script: widths are attributes of SVG
elements.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from schemas.topics import OM_LOG
from spark_streaming.records.core.freshness import age_words
from stratolog.ui.core.words import Tone, bytes_of, count_of, partition_words, rate_of
from stratolog.ui.rendering.texts import clock_of, plain_of, shown

MARKS = {Tone.GOOD: "✓", Tone.WARN: "!", Tone.BAD: "✕", Tone.STALE: "–", Tone.PLAIN: "·"}
"""Signs beside the colours, for who does not see them."""
METER_WIDTH, METER_HEIGHT = 64, 8


def rendered(template: str, **values: Any) -> str:
    """Return the HTML of a template (``grids.html``)."""
    return _TEMPLATES.get_template(template).render(values)


def _filled(share: float) -> str:
    """Return how wide the filled part of a meter is."""
    return f"{max(0.0, min(1.0, share)) * METER_WIDTH:.1f}"


_TEMPLATES = Environment(
    loader=PackageLoader("stratolog.ui.rendering"), autoescape=True, finalize=shown, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, auto_reload=False,
)  # fmt: skip
_TEMPLATES.filters |= {
    "age": age_words, "clock": clock_of, "counted": count_of, "filled": _filled, "number": "{:,}".format,
    "plain": plain_of, "rate": rate_of, "size": bytes_of,
}  # fmt: skip
_TEMPLATES.globals |= {
    "MARKS": MARKS, "METER_HEIGHT": METER_HEIGHT, "METER_WIDTH": METER_WIDTH, "OM_LOG": OM_LOG, "Tone": Tone,
    "partition_words": partition_words,
}  # fmt: skip
