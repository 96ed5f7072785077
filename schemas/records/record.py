"""``@record``: the dataclass of everything that crosses a boundary.

A record is keyword-only, slotted, compared by value, and immutable *to the type checker* (mypy refuses an assignment to
a field). It has no run-time guard: ``frozen=True`` would call ``object.__setattr__`` for each field of each record,
which is a tenth of the leader's time per request (docs/performance.md). Where the package's C could be built, records
are made there (``native``, decision 0087): nothing else about them differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

try:
    from schemas.records.native import make_in_c
except ImportError:  # the package was built where there is no C compiler

    def make_in_c(cls: type, fields: Sequence[Any], positional: int) -> None:
        """Leave the class as it is."""


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Turn a class into a record: keyword-only, slotted, equal by value, immutable by contract."""
    return made_in_c(dataclass(kw_only=True, slots=True)(cls))


def made_in_c(cls: type[T]) -> type[T]:
    """Have the instances of a slotted dataclass be made in C where that is possible.

    For those that are made for each request. A class whose making is more than filling its slots is left as it is.
    """
    found: tuple[Any, ...] = fields(cls)  # type: ignore[arg-type]
    by_keyword = [one.kw_only for one in found]
    if _only_fills_slots(cls, found) and by_keyword == sorted(by_keyword):
        make_in_c(
            cls,
            tuple(
                (
                    one.name,
                    None if one.default is MISSING else (one.default,),
                    None if one.default_factory is MISSING else one.default_factory,
                )
                for one in found
            ),
            by_keyword.count(False),
        )
    return cls


def _only_fills_slots(cls: type, found: tuple[Any, ...]) -> bool:
    compiled = getattr(vars(cls).get("__init__"), "__code__", None)  # by dataclasses, unless a class brings its own
    return (
        type(cls) is type
        and compiled is not None
        and compiled.co_filename == "<string>"
        and "__new__" not in {name for one in cls.__mro__[:-1] for name in vars(one)}
        and not hasattr(cls, "__post_init__")
        and all(one.init for one in found)
    )
