"""What a load has written, and what was acknowledged of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A key whose commit was acknowledged: at ``acknowledged_s`` of the monotonic clock, with managed index ``index``."""

    key: str
    size: int
    index: int
    acknowledged_s: float


@dataclass(slots=True)
class Journal:
    """What a load has tried (key -> size) and what was acknowledged (by key); ``failures`` say why the others were not."""

    tried: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, Write] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
