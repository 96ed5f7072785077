"""Records with wild values, and bytes that are changed. Pure: a seed decides everything."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65_536, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63))
WORDS = ("", "a", "x" * 300, "/", "../../etc/passwd", "a\0b", "ä€😀", "%2e%2e", "operator", "\u202e", " ", "om1", "dn1")
BYTES = (b"", b"\0", bytes(16), bytes(40), bytes(700), b"\xff" * 33)
MOST_LISTED = 4


Maker = Callable[[], Any]
"""Makes a value."""


class Wild:
    """Makes records of any type: half of the values are ``plausible`` ones of the field's name, the others are not.

    What makes a field's values is found out once for each type: a campaign makes millions of records.
    """

    def __init__(self, rng: random.Random, plausible: Mapping[str, Sequence[Any]]) -> None:
        self.rng = rng
        self._plausible = plausible
        self._records: dict[type, Maker] = {}

    def record(self, kind: type) -> Any:
        """Return a record of a type."""
        return self._record_maker(kind)()

    def number(self) -> int:
        """Return a number: a wild one half of the time."""
        rng = self.rng
        return _one_of(rng, NUMBERS) if rng.random() < 0.5 else int(rng.random() * 1000)

    def _record_maker(self, kind: type) -> Maker:
        found = self._records.get(kind)
        if found is None:
            hints = _hints(kind)
            makers: list[tuple[str, Maker]] = []
            found = self._records[kind] = lambda: kind(**{name: make() for name, make in makers})
            makers += [(one.name, self._maker(one.name, hints[one.name])) for one in fields(kind)]
        return found

    def _maker(self, name: str, hint: Any) -> Maker:
        rng, known, other = self.rng, self._plausible.get(name), self._other_maker(name, hint)
        if not known:
            return other
        return lambda: _one_of(rng, known) if rng.random() < 0.7 else other()

    def _other_maker(self, name: str, hint: Any) -> Maker:
        rng = self.rng
        if is_dataclass(hint):
            return self._record_maker(typing.cast("type", hint))
        origin = typing.get_origin(hint)
        if origin is list:
            (inner,) = typing.get_args(hint)
            make = self._maker("", inner)
            return lambda: [make() for _ in range(int(rng.random() * MOST_LISTED))]
        if origin in (typing.Union, types.UnionType):
            makers = [self._maker(name, one) for one in typing.get_args(hint)]
            return lambda: _one_of(rng, makers)()  # noqa: PLW0108 - another one each time
        return self._plain_maker(hint)

    def _plain_maker(self, hint: Any) -> Maker:
        rng = self.rng
        if hint is bool:
            return lambda: rng.random() < 0.5
        if hint is int:
            return self.number
        if hint is str:
            return lambda: _one_of(rng, WORDS)
        if hint is bytes:
            return lambda: _one_of(rng, BYTES) if rng.random() < 0.5 else rng.randbytes(int(rng.random() * 80))
        return lambda: None


def _one_of(rng: random.Random, choices: Sequence[Any]) -> Any:
    """Return one; ``random.choice`` takes five times as long."""
    return choices[int(rng.random() * len(choices))]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def changed(rng: random.Random, data: bytes) -> bytes:
    """Return bytes of which some are turned, cut out, put in or repeated."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(found)) if found else 0
        match rng.randrange(5):
            case 0 | 1 if found:
                found[place] ^= 1 << rng.randrange(8)
            case 2:
                del found[place : place + rng.randrange(1, 20)]
            case 3:
                found[place:place] = rng.randbytes(rng.randrange(1, 20))
            case _:
                found[place:place] = found[place : place + 30]
    return bytes(found)
