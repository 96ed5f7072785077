"""Numbers as Avro writes them: seven bits a byte, the low ones first; a set high bit announces another byte.

Signed numbers are made unsigned before (zigzag): 0, -1, 1, -2 … become 0, 1, 2, 3 …
"""

from __future__ import annotations

MAX_VARINT_BYTES = 10


def write_long(number: int, out: bytearray) -> None:
    """Append a ``long`` of up to 64 bits, which the caller has checked."""
    unsigned = number << 1 ^ number >> 63
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)


def encode_long(number: int) -> bytes:
    """Encode a ``long``; raises ValueError beyond 64 bits.

    >>> encode_long(-1).hex(), encode_long(64).hex()
    ('01', '8001')
    """
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit in 64 bits")
    out = bytearray()
    write_long(number, out)
    return bytes(out)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned number at ``position``, and the position behind it.

    Raises ValueError beyond 64 bits, IndexError at the end of the data.
    """
    number = data[position]
    position += 1
    if number < 0x80:
        return number, position
    number &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift == 7 * MAX_VARINT_BYTES:
            raise ValueError("a number of more than 64 bits")
    if number >> 64:
        raise ValueError("a number of more than 64 bits")
    return number, position


def read_long(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the ``long`` at ``position``, and the position behind it; raises as :func:`read_varint`."""
    number, position = read_varint(data, position)
    return number >> 1 ^ -(number & 1), position


def read_length(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a length at ``position``, and the position behind it: so many bytes follow.

    Raises ValueError for a negative length, IndexError if fewer bytes follow.
    """
    length, position = read_long(data, position)
    if length < 0:
        raise ValueError("a negative length")
    if length > len(data) - position:
        raise IndexError(f"{length} bytes where {len(data) - position} are left")
    return length, position
