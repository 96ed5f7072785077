"""A map of container ids that is a value: each change gives a new map, and leaves the old one as it was.

The fleet's picture is such a value. Threads read it while the next one is made, so the two must not share what changes.
A map has PARTS dicts, and a change copies the dicts that it touches: among 100,000 ids, one of a hundred entries.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

PARTS = 1 << 10
_MIX = 0x9E3779B97F4A7C15
"""Spreads ids that differ in a few bits only: 2^64 divided by the golden ratio (Knuth)."""


class PersistentMap(Mapping[int, Value], Generic[Value]):
    """Values by id, in no order.

    >>> one = PersistentMap().changed({5: "a"})
    >>> two = one.changed({5: None, 6: "b"})
    >>> dict(one), dict(two)
    ({5: 'a'}, {6: 'b'})
    """

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[dict[int, Value]] = [{}] * PARTS
        self._size = 0

    def changed(self, changes: Mapping[int, Value | None]) -> PersistentMap[Value]:
        """Return a map with other values for some ids; None removes an id."""
        if not changes:
            return self
        parts = self._parts.copy()
        copied: set[int] = set()
        size = self._size
        for number, value in changes.items():
            place = _part(number)
            if place not in copied:
                copied.add(place)
                parts[place] = parts[place].copy()
            part = parts[place]
            before = len(part)
            if value is None:
                part.pop(number, None)
            else:
                part[number] = value
            size += len(part) - before
        made: PersistentMap[Value] = PersistentMap.__new__(PersistentMap)
        made._parts, made._size = parts, size
        return made

    def values(self) -> ValuesView[Value]:
        """Return the values."""
        return _Values(self)

    def items(self) -> ItemsView[int, Value]:
        """Return the ids with their values."""
        return _Items(self)

    def __getitem__(self, number: int) -> Value:
        return self._parts[_part(number)][number]

    def get(self, number: int, default: Any = None) -> Any:
        """Return the value of an id, or ``default``."""
        return self._parts[_part(number)].get(number, default)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number in self._parts[_part(number)]

    def __iter__(self) -> Iterator[int]:
        for part in self._parts:
            yield from part

    def __len__(self) -> int:
        return self._size


class _Values(ValuesView[Value]):
    """Part by part: the inherited view looks each id up."""

    __slots__ = ()
    _mapping: PersistentMap[Value]

    def __iter__(self) -> Iterator[Value]:
        for part in self._mapping._parts:
            yield from part.values()


class _Items(ItemsView[int, Value]):
    """Part by part, as _Values."""

    __slots__ = ()
    _mapping: PersistentMap[Value]

    def __iter__(self) -> Iterator[tuple[int, Value]]:
        for part in self._mapping._parts:
            yield from part.items()


def _part(number: int) -> int:
    return (number * _MIX >> 54) & (PARTS - 1)
