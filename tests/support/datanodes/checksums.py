"""Checksums of whole blocks, computed at once: the truth for what datanodes compute piece by piece."""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

_CRC = Struct(">I")


def checksums_of(data: bytes | bytearray | memoryview, cell_bytes: int) -> bytes:
    """Return the packed checksums of a whole block's bytes."""
    view = memoryview(data)
    return b"".join(_CRC.pack(crc32c(view[at : at + cell_bytes])) for at in range(0, len(view), cell_bytes))
