"""The rows in which a replica keeps its incremental digests; some are written with every batch.

A family's 256 sums are one row of 2,048 bytes. A batch of one request changes five of them, in three families: the rows
of these would be three quarters of all that its write puts into the store. So sums that have changed since are *listed*
in one row, slot by slot, and the list is replaced as it grows. Once it might hold more than MAX_LISTED_SUMS, the rows
of all families in it are written, and an empty list with them.

Software from before the feature level LISTED_SUMS does not know the list, and would take older sums for the present
ones. So nothing is listed below that level (``schemas/features.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from replicated_db.core.ports import StoreView, Write
from replicated_db.core.tables.column_families import TRANSACTION_INFO, Families
from replicated_db.core.tables.digests import Digests
from schemas.column_families import BUCKETS

DIGEST_PREFIX = b"#DIGEST/"
LISTED_SUMS_KEY = b"#LISTEDSUMS"
MAX_LISTED_SUMS = 128
"""Longest list: 1,536 bytes, three quarters of one family's row."""

_SUM = struct.Struct(">IQ")
"""A slot (family position * 256 + bucket) and its sum."""


class DigestRows:
    """What is kept of one replica's digests, and what of it is listed. Callers hold the replica's lock."""

    __slots__ = ("_keys", "_list", "_places")

    def __init__(self, families: Families) -> None:
        self._keys = tuple(DIGEST_PREFIX + name.encode() for name in families.names)
        self._list = bytearray()
        self._places: dict[int, int] = {}
        """Where in the list each listed slot is."""

    def read(self, store: StoreView, digests: Digests) -> None:
        """Restore the digests from a store. Raises struct.error or ValueError for rows that no replica has written."""
        for family, key in enumerate(self._keys):
            if (sums := store.get(TRANSACTION_INFO, key)) is not None:
                digests.unpack(family, sums)
        self._empty()
        for slot, value in _SUM.iter_unpack(store.get(TRANSACTION_INFO, LISTED_SUMS_KEY) or b""):
            if slot >= len(self._keys) * BUCKETS:
                raise ValueError(f"{LISTED_SUMS_KEY.decode()} lists the sum of slot {slot}, which no family has")
            digests.set(slot, value)
            self._note(slot, value)

    def after(self, digests: Digests, deltas: Mapping[int, int], *, lists: bool) -> list[Write]:
        """Add ``deltas`` to the digests' slots, and return the rows to write. ``lists``: whether sums may be listed."""
        families = digests.change(deltas)
        if lists and len(self._places) + len(deltas) <= MAX_LISTED_SUMS:
            sums = digests.sums
            for slot in deltas:
                self._note(slot, sums[slot // BUCKETS][slot % BUCKETS])
            return [(TRANSACTION_INFO, LISTED_SUMS_KEY, bytes(self._list))] if deltas else []
        families.update(slot // BUCKETS for slot in self._places)
        return [
            *((TRANSACTION_INFO, self._keys[family], digests.pack(family)) for family in families),
            *self._emptied(),
        ]

    def whole(self, digests: Digests) -> list[Write]:
        """Return the rows of all families, with nothing listed."""
        return [
            *((TRANSACTION_INFO, key, digests.pack(family)) for family, key in enumerate(self._keys)),
            *self._emptied(),
        ]

    def _note(self, slot: int, value: int) -> None:
        if (place := self._places.get(slot)) is None:
            self._places[slot] = len(self._list)
            self._list += _SUM.pack(slot, value)
        else:
            _SUM.pack_into(self._list, place, slot, value)

    def _emptied(self) -> list[Write]:
        if not self._places:
            return []
        self._empty()
        return [(TRANSACTION_INFO, LISTED_SUMS_KEY, b"")]

    def _empty(self) -> None:
        self._list.clear()
        self._places.clear()
