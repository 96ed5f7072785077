"""Small objects, in the row or in reserved blocks: limits that clients, leaders and settings share."""

from __future__ import annotations

DEFAULT_INLINE_BYTES = 16 * 1024
"""Most bytes of a key that is kept in inlineTable, unless the setting ``inline_bytes`` says otherwise."""
MAX_INLINE_BYTES = 256 * 1024
"""Largest value of the setting ``inline_bytes``."""
SMALL_FILE_BYTES = 1024 * 1024
"""A file of at most so many bytes is small: its block may travel with others (decision 0067), and be reserved."""
MAX_RESERVED_BLOCKS = 64
"""Most blocks of a reservation: the row has them all, and is written anew with each key."""
