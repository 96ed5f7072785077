"""Records with wild values, and bytes that are changed. Pure: a seed decides everything."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65_536, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63))
WORDS = ("", "a", "x" * 300, "/", "../../etc/passwd", "a\0b", "ä€😀", "%2e%2e", "operator", "\u202e", " ", "om1", "dn1")
BYTES = (b"", b"\0", bytes(16), bytes(40), bytes(700), b"\xff" * 33)
MOST_LISTED = 4


class Wild:
    """Makes records of any type: half of the values are ``plausible`` ones of the field's name, the others are not."""

    def __init__(self, rng: random.Random, plausible: Mapping[str, Sequence[Any]]) -> None:
        self.rng = rng
        self._plausible = plausible

    def record(self, kind: type) -> Any:
        """Return a record of a type."""
        hints = _hints(kind)
        return kind(**{one.name: self._value(one.name, hints[one.name]) for one in fields(kind)})

    def _value(self, name: str, hint: Any) -> Any:
        known = self._plausible.get(name)
        if known and self.rng.random() < 0.7:
            return self.rng.choice(known)
        if is_dataclass(hint):
            return self.record(typing.cast("type", hint))
        origin = typing.get_origin(hint)
        if origin is list:
            (inner,) = typing.get_args(hint)
            return [self._value("", inner) for _ in range(self.rng.randrange(MOST_LISTED))]
        if origin in (typing.Union, types.UnionType):
            return self._value(name, self.rng.choice(typing.get_args(hint)))
        return self._plain(hint)

    def _plain(self, hint: Any) -> Any:
        rng = self.rng
        if hint is bool:
            return rng.random() < 0.5
        if hint is int:
            return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(1000)
        if hint is str:
            return rng.choice(WORDS)
        if hint is bytes:
            return rng.choice(BYTES) if rng.random() < 0.5 else rng.randbytes(rng.randrange(80))
        return None


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
