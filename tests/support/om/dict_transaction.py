"""A transaction on plain dicts: the twin of ``replicated_db``'s for tests of pure execution.

``DictTables`` are the committed rows; a ``DictTransaction`` sees them and its own writes, notes its operations, and
changes the tables only on ``commit``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from replicated_db.core.execution.transaction import CHECKPOINT_NAME
from replicated_db.core.ports import RowPage
from replicated_db.core.tables.merge import ADD_INT64
from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.features import LATEST

Row = tuple[str, bytes]
Write = tuple[str, str, bytes]
"""Kind of operation, column family, key."""


class DictTables:
    """Committed rows of all column families."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {cf: {} for cf in OM_COLUMN_FAMILIES}

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self.tables[cf].get(key)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        rows = self.tables[cf]
        for key in sorted(key for key in rows if key >= start and (stop is None or key < stop)):
            yield key, rows[key]

    def page(self, cf: str, start: bytes, limit: int) -> RowPage:
        rows = list(islice(self.iterate(cf, start), limit + 1))
        return RowPage(rows=rows[:limit], more=len(rows) > limit)

    def rows(self) -> dict[Row, bytes]:
        return {(cf, key): value for cf, rows in self.tables.items() for key, value in rows.items()}


class DictTransaction:
    """One request's reads and writes over ``base``."""

    def __init__(self, base: DictTables, index: int) -> None:
        self.index = index
        self.feature_level = LATEST
        self.writes: list[Write] = []
        self.checkpoint_name: str | None = None
        self._base = base
        self._own: dict[str, dict[bytes, bytes | None]] = defaultdict(dict)

    def get(self, cf: str, key: bytes) -> bytes | None:
        own = self._own[cf]
        return own[key] if key in own else self._base.get(cf, key)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        rows: dict[bytes, bytes | None] = {**self._base.tables[cf], **self._own[cf]}
        for key in sorted(rows):
            value = rows[key]
            if value is not None and key >= start and (stop is None or key < stop):
                yield key, value

    def put(self, cf: str, key: bytes, value: bytes) -> None:
        assert cf in self._base.tables, cf
        self._own[cf][key] = value
        self.writes.append(("put", cf, key))

    def delete(self, cf: str, key: bytes) -> None:
        assert self.get(cf, key) is not None, f"deleting an absent row {key!r} of {cf}"
        self._own[cf][key] = None
        self.writes.append(("delete", cf, key))

    def merge(self, cf: str, key: bytes, operator: str, operand: bytes) -> None:
        assert operator == ADD_INT64.name, operator
        ADD_INT64.check(operand)
        self._own[cf][key] = ADD_INT64.merge(self.get(cf, key), operand)
        self.writes.append(("merge", cf, key))

    def checkpoint(self, name: str) -> None:
        assert CHECKPOINT_NAME.fullmatch(name), name
        assert self.checkpoint_name is None, name
        self.checkpoint_name = name

    def commit(self) -> None:
        for cf, rows in self._own.items():
            for key, value in rows.items():
                if value is None:
                    self._base.tables[cf].pop(key, None)
                else:
                    self._base.tables[cf][key] = value
