"""Rows of blockTable: a length, then a BlockRow; the larger row wins, so a committed length never shrinks.

Layout::

    length, 8 bytes big-endian (a tombstone's: 2^64 - 1) | BlockRow, single-object encoded

Rows are written with the merge operator ``max_bytes``, which keeps the bytewise larger row. So the longer PutBlock
replaces the whole row, a shorter one changes nothing, and a tombstone voids all later ones. Key: container id and
local id, 8 bytes big-endian each.

Digest of a container (``BlockReport``): a chain of XXH64 over its blocks, without tombstones, in the order of their
keys. Each block adds three links: its key, its length (8 bytes big-endian) and its checksums (CRC32C of each cell of
the committed length, 4 bytes big-endian each, as in BlockRow). A link's seed is the hash before it; the first seed is
42, and so is the digest of a container without blocks. The expected digest follows from the rows alone. A member
computes its own from the bytes on its disk (``datanode_processors/blocks/core/digests.py``), at the rows of the
report's index. For a block that cannot be read whole, it takes length and checksums of the readable part and names the
block's key. For a block that the log has deleted since then, it takes what the row says.
"""

from __future__ import annotations

from schemas.codecs.codec import decode_as, encode
from schemas.records.datanode import BlockRow

MAX_BYTES = "max_bytes"
"""Merge operator of blockTable."""

_LENGTH_BYTES = 8
_TOMBSTONE = b"\xff" * _LENGTH_BYTES


def block_key(container_id: int, local_id: int) -> bytes:
    """Return a block's key in blockTable; ids are not negative, so the keys of a container lie together, in order."""
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
