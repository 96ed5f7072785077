from __future__ import annotations

import pytest

from schemas.codecs.varints import encode_long, read_length, read_long, read_varint

EDGES = [0, -1, 63, 64, -64, -65, 1 << 31, -(1 << 31) - 1, (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("number", EDGES)
def test_what_is_written_is_read(number: int):
    encoded = encode_long(number)
    assert read_long(b"ahead" + encoded + b"more", 5) == (number, 5 + len(encoded))
    assert read_long(memoryview(encoded), 0) == (number, len(encoded))


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_numbers_beyond_64_bits_are_not_written(number: int):
    with pytest.raises(ValueError, match=f"{number} does not fit in 64 bits"):
        encode_long(number)


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\x80" * 10, b"\x80" * 10 + b"\x00", b"\xff" * 100])
def test_numbers_beyond_64_bits_are_not_read(data: bytes):
    with pytest.raises(ValueError, match="64 bits"):
        read_varint(data, 0)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9])
def test_numbers_that_end_too_early(data: bytes):
    with pytest.raises(IndexError):
        read_varint(data, 0)


def test_zeros_ahead_are_legal():
    assert read_varint(b"\x85\x80\x00", 0) == (5, 3)


def test_a_length_is_that_of_bytes_that_follow():
    assert read_length(b"\x04ab", 0) == (2, 1)
    with pytest.raises(IndexError, match="3 bytes where 2 are left"):
        read_length(b"\x06ab", 0)
    with pytest.raises(ValueError, match="negative"):
        read_length(b"\x03ab", 0)
