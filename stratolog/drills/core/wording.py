"""How findings name a long list of things, and digest slots. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.column_families import BUCKETS

NAMED = 3
"""Keys, calls or slots that a finding names at most."""


def named(items: Iterable[object]) -> str:
    """Return the first few of many, and how many there are."""
    found = [str(item) for item in items]
    more = "" if len(found) <= NAMED else f" and {len(found) - NAMED} more"
    return ", ".join(found[:NAMED]) + more


def slots_named(families: Sequence[str], slots: Sequence[int]) -> str:
    """Name digest slots as column family and bucket."""
    return named(f"{families[slot // BUCKETS]} bucket {slot % BUCKETS}" for slot in slots)
