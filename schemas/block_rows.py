"""Rows of blockTable: a length, then a BlockRow; the larger row wins, so a committed length never shrinks.

Layout::

    length, 8 bytes big-endian (a tombstone's: 2^64 - 1) | BlockRow, single-object encoded

Rows are written with the merge operator ``max_bytes`` (the bytewise larger one stays), so the longer PutBlock replaces the whole row, a
shorter one changes nothing, and a tombstone voids all that come after it. Key: container id and local id, 8 bytes big-endian each.
"""

from __future__ import annotations

from schemas.codec import decode_as, encode
from schemas.datanode import BlockRow

MAX_BYTES = "max_bytes"
"""Merge operator of blockTable."""

_LENGTH_BYTES = 8
_TOMBSTONE = b"\xff" * _LENGTH_BYTES


def block_key(container_id: int, local_id: int) -> bytes:
    """Return a block's key in blockTable; ids are positive, so keys of a container lie together in order."""
    return container_id.to_bytes(8, "big") + local_id.to_bytes(8, "big")


def block_of_key(key: bytes) -> tuple[int, int]:
    """Return (container id, local id)."""
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def encode_block_row(row: BlockRow) -> bytes:
    """Return the row's bytes."""
    return (_TOMBSTONE if row.deleted else row.length.to_bytes(_LENGTH_BYTES, "big")) + encode(row)


def decode_block_row(value: bytes) -> BlockRow:
    """Return the row; raises Undecodable."""
    return decode_as(BlockRow, value[_LENGTH_BYTES:])
