"""Small objects in the row: limits that clients, leaders and settings share (docs/small-objects.md)."""

from __future__ import annotations

DEFAULT_INLINE_BYTES = 16 * 1024
"""Most bytes of a key that is kept in inlineTable, unless the setting ``inline_bytes`` says otherwise."""
MAX_INLINE_BYTES = 256 * 1024
"""Largest value of the setting ``inline_bytes``."""
