"""A walk through a column family, a page each turn, for as long as a node leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replicated_db.core.ports import Store

StoredRow = tuple[bytes, bytes]
"""Key and value."""


class RowCursor:
    """The place of a walk through one family. After the last row it begins with the first one again.

    It reads without the apply lock: what it finds may change meanwhile, so nothing may rely on it.
    """

    def __init__(self, store: Store, cf: str) -> None:
        self._store = store
        self._cf = cf
        self._after = b""
        """The last row that was returned; empty: the next one is the first."""
        self.at_end = False
        """Whether the rows returned last were the family's last, or there were none."""

    def next_rows(
        self, limit: int, fitting: Callable[[Sequence[StoredRow]], Sequence[StoredRow]] = lambda rows: rows
    ) -> Sequence[StoredRow]:
        """Return up to ``limit`` rows behind the last one. ``fitting`` may take fewer: the first of them, at least one.

        An empty result before the end means that the next rows lie behind many removed ones; a later call returns them
        once those are compacted.
        """
        start = self._after + b"\x00" if self._after else b""
        page = self._store.page(self._cf, start, limit)
        found = fitting(page.rows)
        self.at_end = not page.more and len(found) == len(page.rows)
        if self.at_end:
            self._after = b""
        elif found:
            self._after = found[-1][0]
        return found
