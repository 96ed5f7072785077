"""One answer about a cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A question, whether the answer is yes, and what was seen."""

    question: str
    holds: bool
    seen: str
