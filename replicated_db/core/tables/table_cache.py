"""The table cache: rows that are applied and not yet in the store, as a double buffer (design, section 6).

Late validation applies into the *current* buffer and answers from it. :meth:`TableCache.swap` closes that buffer and
hands it over to be written as one group, while a new buffer fills. The closed buffer's entries are dropped only after
the group's write is visible. A read sees the newest value: current buffer, group being written, store.

A crash loses only rows that were never written: the store has the position of the last group, and the log is applied
again from there. A value of ``None`` is a removed row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from replicated_db.core.ports import StoreView, Write
from replicated_db.core.tables.overlay import merge_ordered

Row = tuple[str, bytes]
"""Column family and key."""

_Rows = dict[bytes, tuple[bytes | None, int]]
_NOTHING: _Rows = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows to write as one group. Once they are written, buffers up to ``number`` are to be dropped."""

    number: int
    writes: list[Write]


class TableCache:
    """Two buffers over ``store``. Each entry carries the number of the buffer that last wrote it.

    Call every method but :meth:`get` under the replica's lock.
    """

    def __init__(self, store: StoreView) -> None:
        self._store = store
        self._families: defaultdict[str, _Rows] = defaultdict(dict)
        self._buffers: dict[int, dict[Row, bytes | None]] = {1: {}}
        self._sizes = {1: 0}
        self._number = 1

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's newest value, or None."""
        found = self._families.get(cf, _NOTHING).get(key)
        return self._store.get(cf, key) if found is None else found[0]

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop); cached rows hide the store's."""
        above = {
            key: value
            for key, (value, _) in self._families.get(cf, _NOTHING).items()
            if key >= start and (stop is None or key < stop)
        }
        return merge_ordered(self._store.iterate(cf, start, stop), above)

    def put(self, rows: Mapping[Row, bytes | None]) -> None:
        """Apply rows into the current buffer."""
        number, size = self._number, 0
        for (cf, key), value in rows.items():
            self._families[cf][key] = (value, number)
            size += len(key) + (0 if value is None else len(value))
        self._buffers[number].update(rows)
        self._sizes[number] += size

    def swap(self) -> Group:
        """Close the current buffer and begin another; return what to write."""
        number, writes = self._number, self._buffers[self._number]
        self._number += 1
        self._buffers[self._number] = {}
        self._sizes[self._number] = 0
        return Group(number=number, writes=[(cf, key, value) for (cf, key), value in writes.items()])

    def drop(self, number: int) -> None:
        """Forget the closed buffers up to ``number``, whose writes are visible. Buffers already dropped are ignored."""
        for old in [old for old in self._buffers if old <= number < self._number]:
            del self._sizes[old]
            for cf, key in self._buffers.pop(old):
                family = self._families[cf]
                if (found := family.get(key)) is not None and found[1] == old:
                    del family[key]

    @property
    def writing(self) -> bool:
        """Whether a buffer has been handed over and not been dropped yet."""
        return len(self._buffers) > 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all that was put into the buffers; a row that was put twice counts twice."""
        return sum(self._sizes.values())

    def __len__(self) -> int:
        """Return the number of rows held over the store."""
        return sum(map(len, self._families.values()))
