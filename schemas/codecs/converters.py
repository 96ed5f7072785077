"""From fastavro's plain data to records, for values of older schema versions (``codec``).

For fastavro a record is a dict of its fields, and a record in a union is a pair (full name, dict). Other values stay
as they are.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from schemas.codecs.registry import NAMESPACE

Converter = Callable[[Any], Any]


@cache
def record_decoder(cls: type) -> Converter:
    """Return the function from a datum that fastavro has read to a record of ``cls``.

    The function is cached by class: reading a class's type hints takes a hundred times as long as reading a record.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    converters = {name: converter for name in names if (converter := _decoder_of(hints[name]))}
    if not converters:
        return lambda datum: cls(**datum)

    def decode(datum: dict[str, Any]) -> Any:
        return cls(**{name: converters[name](value) if name in converters else value for name, value in datum.items()})

    return decode


def _decoder_of(hint: Any) -> Converter | None:
    """Return the function from fastavro's value to a field of type ``hint``, None if the value needs no change."""
    if typing.get_origin(hint) is list:
        (item,) = typing.get_args(hint)
        variants = _variants(item)
        if len(variants) > 1 and all(map(_is_record, variants)):
            by_name = {_full_name(variant): record_decoder(variant) for variant in variants}
            return lambda values: [by_name[name](datum) for name, datum in values]
        decode = _decoder_of(item)
        return None if decode is None else lambda values: [decode(value) for value in values]
    variants = _variants(hint)
    if not all(map(_is_record, variants)):
        return None
    if variants == [hint]:
        return record_decoder(hint)
    # fastavro gives a record in a union as (name, datum), even if null is the only other branch.
    decoders = {_full_name(variant): record_decoder(variant) for variant in variants}
    return lambda value: None if value is None else decoders[value[0]](value[1])


def _full_name(cls: type) -> str:
    return f"{NAMESPACE}.{cls.__name__}"


def _variants(hint: Any) -> list[Any]:
    """Return the branches of a union hint without null, or the hint itself."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [branch for branch in typing.get_args(hint) if branch is not type(None)]
    return [hint]


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")
