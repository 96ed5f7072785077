"""Compare two views of a column family row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from replicated_db.core.ports import StoreView

CHECKED_ROWS = 1_000
"""How many rows are read between two calls of ``on_rows``."""

OnRows = Callable[[int], None]
"""Takes how many rows have been read since the last call. What it raises ends the reading."""


class RowChange(NamedTuple):
    """A row that differs: its value in the older view and in the newer one; None where it is absent."""

    key: bytes
    old: bytes | None
    new: bytes | None


def sweep(
    older: StoreView, newer: StoreView, cf: str, start: bytes, stop: bytes, on_rows: OnRows
) -> Iterator[RowChange]:
    """Iterate over the rows of [start, stop) that differ, in key order. It reads all rows of both views."""
    old_rows, new_rows = older.iterate(cf, start, stop), newer.iterate(cf, start, stop)
    old, new = next(old_rows, None), next(new_rows, None)
    read = 0
    while old is not None or new is not None:
        read += 1
        if read == CHECKED_ROWS:
            on_rows(read)
            read = 0
        if old == new:
            old, new = next(old_rows, None), next(new_rows, None)
        elif old is not None and (new is None or old[0] < new[0]):
            yield RowChange(old[0], old[1], None)
            old = next(old_rows, None)
        elif new is not None and (old is None or new[0] < old[0]):
            yield RowChange(new[0], None, new[1])
            new = next(new_rows, None)
        elif old is not None and new is not None:
            yield RowChange(new[0], old[1], new[1])
            old, new = next(old_rows, None), next(new_rows, None)
    on_rows(read)


def look_up(older: StoreView, newer: StoreView, cf: str, key: bytes) -> RowChange | None:
    """Return the row of a key if it differs."""
    old, new = older.get(cf, key), newer.get(cf, key)
    return None if old == new else RowChange(key, old, new)
