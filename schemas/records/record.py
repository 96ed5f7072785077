"""``@record``: the dataclass of everything that crosses a boundary.

A record is keyword-only, slotted, compared by value, and immutable *to the type checker* (mypy refuses an assignment to
a field). It has no run-time guard: ``frozen=True`` would call ``object.__setattr__`` for each field of each record,
which is a tenth of the leader's time per request (docs/performance.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Turn a class into a record: keyword-only, slotted, equal by value, immutable by contract."""
    return dataclass(kw_only=True, slots=True)(cls)
