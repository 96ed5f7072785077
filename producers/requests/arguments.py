"""Checks of arguments: a wrong type is a TypeError, a wrong value InvalidArgument (a ValueError).

Both name the argument.

What belongs here: checks of one argument each, which return the argument. The server decides whether a name is legal,
and whether a quota fits: it answers with Ozone's codes.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from producers.errors import InvalidArgument
from schemas.records.messages import UNLIMITED

T = TypeVar("T")

MAX_LONG = (1 << 63) - 1
"""Largest value of an Avro ``long``."""
SHOWN_CHARACTERS = 100
"""How many characters of a wrong value an error repeats."""


def shown(value: object) -> str:
    """Return a value for an error message, cut to SHOWN_CHARACTERS."""
    whole = repr(value)
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}…"


def typed(name: str, value: Any, kind: type[T], words: str) -> T:
    """Return ``value`` if it has the type ``kind``; raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {words}, not {type(value).__name__}")
    return value


def optional(name: str, value: Any, kind: type[T]) -> T | None:
    """Return ``value`` if it is None or has the type ``kind``; raises TypeError."""
    return None if value is None else typed(name, value, kind, f"of type {kind.__name__}, or None")


def text(name: str, value: Any) -> str:
    """Return a string that can be encoded in UTF-8; raises TypeError, InvalidArgument."""
    found = typed(name, value, str, "a str")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(name, f"must be Unicode text, not {shown(found)}: {error.reason}") from error
    return found


def optional_text(name: str, value: Any) -> str | None:
    """Return a string or None; raises as :func:`text`."""
    return None if value is None else text(name, value)


def whole(name: str, value: Any) -> int:
    """Return a whole number, also one of NumPy's; a bool is none. Raises TypeError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return operator.index(value)


def number(name: str, value: Any, low: int, high: int = MAX_LONG) -> int:
    """Return a whole number in ``low..high``; raises TypeError, InvalidArgument."""
    found = whole(name, value)
    if not low <= found <= high:
        wanted = f"at least {low}" if found < low and high == MAX_LONG else f"in {low}..{high}"
        raise InvalidArgument(name, f"must be {wanted}, not {shown(found)}")
    return found


def quota(name: str, value: Any) -> int:
    """Return a quota: a number from 1 on, or -1 for none; raises TypeError, InvalidArgument."""
    found = whole(name, value)
    if found != UNLIMITED and not 1 <= found <= MAX_LONG:
        raise InvalidArgument(name, f"must be in 1..{MAX_LONG}, or {UNLIMITED} for no limit, not {shown(found)}")
    return found


def optional_quota(name: str, value: Any) -> int | None:
    """Return a quota or None; raises as :func:`quota`."""
    return None if value is None else quota(name, value)


def measure(name: str, value: Any, low: float, high: float) -> float:
    """Return a number, whole or not, in ``low..high``; raises TypeError, InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidArgument(name, f"must be in {low:g}..{high:g}, not {value}")
    return value


def limit(name: str, value: Any, high: int = MAX_LONG) -> int | None:
    """Return the highest number of entries wanted, None for all; raises TypeError, InvalidArgument."""
    return None if value is None else number(name, value, 1, high)


def choice(name: str, value: Any, allowed: Collection[str]) -> str:
    """Return one of the ``allowed`` words; raises TypeError, InvalidArgument."""
    found = typed(name, value, str, "a str")
    if found not in allowed:
        raise InvalidArgument(name, f"must be one of {', '.join(map(repr, allowed))}, not {shown(found)}")
    return found


def metadata(name: str, value: Any) -> dict[str, str]:
    """Return metadata, whose names and values are text; None means no metadata. Raises TypeError, InvalidArgument."""
    return {} if value is None else texts_by_name(name, value)


def texts_by_name(name: str, value: Any) -> dict[str, str]:
    """Return text by names that are text; raises TypeError, InvalidArgument."""
    found: Mapping[Any, Any] = typed(name, value, Mapping, "a mapping of str to str")  # type: ignore[type-abstract]
    return {text(f"{name} (a name)", key): text(f"{name}[{shown(key)}]", item) for key, item in found.items()}


def sequence(name: str, value: Any, kind: type[T], words: str) -> list[T]:
    """Return a list of values of one type; a string is no list. Raises TypeError."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of {words}, not {type(value).__name__}")
    return [typed(f"{name}[{place}]", item, kind, f"of type {words}") for place, item in enumerate(value)]


def texts(name: str, value: Any) -> list[str]:
    """Return a list of strings; raises TypeError, InvalidArgument."""
    return [text(f"{name}[{place}]", item) for place, item in enumerate(sequence(name, value, str, "str"))]


def numbers(name: str, value: Any, low: int, high: int) -> list[int]:
    """Return a list of whole numbers in ``low..high``; raises TypeError, InvalidArgument."""
    return [
        number(f"{name}[{place}]", item, low, high) for place, item in enumerate(sequence(name, value, object, "int"))
    ]
