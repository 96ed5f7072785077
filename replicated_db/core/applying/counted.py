"""The last records that took effect on a replica, for readers that wait for one of these records."""

from __future__ import annotations

from collections import OrderedDict

MAX_COUNTED = 4096
"""How many records a replica remembers."""


class CountedRecords:
    """Hashes of the records that took effect since the process started, by offset."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[int, bytes] = OrderedDict()

    def add(self, offset: int, record_hash: bytes) -> None:
        """Remember a record. Beyond MAX_COUNTED records the oldest one is forgotten."""
        self._hashes[offset] = record_hash
        if len(self._hashes) > MAX_COUNTED:
            self._hashes.popitem(last=False)

    def hash_at(self, offset: int) -> bytes | None:
        """Return the hash of the record at ``offset``, None if it did not take effect or is not remembered."""
        return self._hashes.get(offset)

    def reaches(self, offset: int, read_offset: int) -> bool:
        """Whether :meth:`hash_at` knows about ``offset``, given that the log has been read up to ``read_offset``."""
        return offset >= next(iter(self._hashes), read_offset + 1)

    def __len__(self) -> int:
        """Return the number of records remembered."""
        return len(self._hashes)
