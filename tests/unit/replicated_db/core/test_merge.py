from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_db.core.errors import Refused
from replicated_db.core.tables.merge import ADD_INT64, MAX_BYTES, MergeOperator, decode_int64, encode_int64, register

INT64 = st.binary(min_size=8, max_size=8)
CASES: dict[str, Any] = {
    "add_int64": (ADD_INT64, INT64, st.none() | INT64, ADD_INT64.merge),
    "max_bytes": (MAX_BYTES, st.binary(max_size=8), st.none() | st.binary(max_size=8), max),
}


@pytest.mark.parametrize("name", CASES)
@given(source=st.data())
def test_associative_in_the_operands(name: str, source: st.DataObject):
    operator, operands, row_strategy, combine = CASES[name]
    row, a, b = source.draw(row_strategy), source.draw(operands), source.draw(operands)
    assert operator.merge(operator.merge(row, a), b) == operator.merge(row, combine(a, b))


@pytest.mark.parametrize("name", CASES)
@given(source=st.data())
def test_combining_is_associative_and_commutative(name: str, source: st.DataObject):
    _, operands, _, combine = CASES[name]
    a, b, c = (source.draw(operands) for _ in range(3))
    assert combine(combine(a, b), c) == combine(a, combine(b, c))
    assert combine(a, b) == combine(b, a)


@pytest.mark.parametrize("name", CASES)
@given(source=st.data())
def test_many_operands_are_combined_as_two_are(name: str, source: st.DataObject):
    operator, operands, row_strategy, _ = CASES[name]
    row, several = source.draw(row_strategy), source.draw(st.lists(operands, min_size=2, max_size=6))
    assert operator.merge(row, operator.combine(*several)) == reduce(operator.merge, several, row)


@pytest.mark.parametrize("name", CASES)
@given(source=st.data())
def test_pure_and_total_on_legal_operands(name: str, source: st.DataObject):
    operator, operands, _, _ = CASES[name]
    row, operand = source.draw(st.none() | st.binary(max_size=20)), source.draw(operands)
    operator.check(operand)
    merged = operator.merge(row, operand)
    assert type(merged) is bytes
    assert operator.merge(row, operand) == merged


@given(a=st.integers(-(1 << 63), (1 << 63) - 1), b=st.integers(-(1 << 63), (1 << 63) - 1))
def test_add_is_addition_modulo_2_to_the_64(a: int, b: int):
    row = ADD_INT64.merge(ADD_INT64.merge(None, encode_int64(a)), encode_int64(b))
    assert (decode_int64(row) - (a + b)) % (1 << 64) == 0
    assert len(row) == 8


@pytest.mark.parametrize("operand", [b"", b"1", bytes(7), bytes(9), bytes(16)])
def test_add_refuses_other_sizes(operand: bytes):
    with pytest.raises(Refused, match=f"8 bytes, not {len(operand)}"):
        ADD_INT64.check(operand)


def test_int64_encoding():
    assert encode_int64(1) == bytes(7) + b"\x01"
    assert encode_int64(-1) == b"\xff" * 8
    assert decode_int64(None) == 0
    assert decode_int64(encode_int64(-5)) == -5
    for value in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            encode_int64(value)


def test_max_keeps_the_larger():
    assert MAX_BYTES.merge(None, b"") == b""
    assert MAX_BYTES.merge(b"b", b"a") == b"b"
    assert MAX_BYTES.merge(b"a", b"ab") == b"ab"


def test_register():
    assert dict(register([ADD_INT64, MAX_BYTES])) == {"add_int64": ADD_INT64, "max_bytes": MAX_BYTES}
    twin = MergeOperator(name="add_int64", merge=MAX_BYTES.merge, combine=max, check=MAX_BYTES.check)
    with pytest.raises(ValueError, match="two merge operators are named 'add_int64'"):
        register([ADD_INT64, twin])
