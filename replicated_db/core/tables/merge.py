"""Merge operators: how a row and an operand become a new row.

Laws (tested for every registered operator):
    - pure: the same row and operand give the same result;
    - associative in the operands: merging a, then b equals merging ``combine(a, b)``, and so on for more of them;
    - total on legal operands: ``merge`` never raises for an operand that ``check`` accepts, whatever a legal row
      holds.

A Merge is applied as read-modify-write with in-batch visibility: two merges of one key in one batch both count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from replicated_db.core.errors import Refused

INT64_BYTES = 8
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOperator:
    """``merge(row or None, operand) -> row``; ``check(operand)`` raises Refused for an illegal operand.

    ``combine(earlier, later, ...)`` is the one operand that has the effect of all, one after the other.
    """

    name: str
    merge: Callable[[bytes | None, bytes], bytes]
    combine: Callable[..., bytes]
    check: Callable[[bytes], None]


def _check_int64(operand: bytes) -> None:
    if len(operand) != INT64_BYTES:
        raise Refused(f"add_int64 takes {INT64_BYTES} bytes, not {len(operand)}")


def _add_int64(row: bytes | None, operand: bytes) -> bytes:
    base = int.from_bytes(row, "big") if row else 0
    return ((base + int.from_bytes(operand, "big")) & _MASK).to_bytes(INT64_BYTES, "big")


def _sum_int64(*operands: bytes) -> bytes:
    total: int = sum(struct.unpack(f">{len(operands)}Q", b"".join(operands)))
    return (total & _MASK).to_bytes(INT64_BYTES, "big")


ADD_INT64 = MergeOperator(name="add_int64", merge=_add_int64, combine=_sum_int64, check=_check_int64)
"""8 bytes big-endian two's complement, merged by addition mod 2^64; an absent row counts as 0."""


def _check_any(operand: bytes) -> None:
    """Accept every operand."""


MAX_BYTES = MergeOperator(
    name="max_bytes",
    merge=lambda row, operand: operand if row is None else max(row, operand),
    combine=max,
    check=_check_any,
)
"""The bytewise larger of row and operand; an absent row is smaller than any operand."""


def encode_int64(value: int) -> bytes:
    """Encode ``value`` as the operand or row of :data:`ADD_INT64`; raises OverflowError beyond 64 bits."""
    return value.to_bytes(INT64_BYTES, "big", signed=True)


def decode_int64(row: bytes | None) -> int:
    """Decode a row of :data:`ADD_INT64`; an absent row is 0."""
    return int.from_bytes(row, "big", signed=True) if row else 0


def register(operators: Iterable[MergeOperator]) -> Mapping[str, MergeOperator]:
    """Index operators by name; raises ValueError if two share a name."""
    registry: dict[str, MergeOperator] = {}
    for operator in operators:
        if operator.name in registry:
            raise ValueError(f"two merge operators are named {operator.name!r}")
        registry[operator.name] = operator
    return registry
