"""What a load has written, and what was acknowledged of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A key whose commit was acknowledged, at ``acknowledged_s`` of the monotonic clock; ``index`` is managed."""

    key: str
    size: int
    index: int
    acknowledged_s: float


@dataclass(slots=True)
class Journal:
    """What a load has tried (key -> size), what was acknowledged (by key), and why the rest was not (``failures``)."""

    tried: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, Write] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
