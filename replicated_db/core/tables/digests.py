"""Row hashes and state digests (design, section 3, "Chain and digests").

*Row hash* = XXH64 chained over column family, key, value; seed 42 first, each hash the next one's seed. It equals Spark
SQL's built-in ``xxhash64(cf, key, value)``. Here and in the log it is a signed 64-bit integer; ``None`` = absent row.

*State digest* = for each slot (family position * 256 + bucket) the sum mod 2^64 of the row hashes of its live rows,
where bucket = ``xxhash64(cf, key) & 255``. Sums make it incremental and independent of order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

from xxhash import xxh64_intdigest

from replicated_db.core.tables.column_families import Families
from schemas.column_families import BUCKETS

MASK = (1 << 64) - 1
SIGN = 1 << 63
FIRST_CHAIN = bytes(32)
"""Chain before the first record of a log."""

_ROW = struct.Struct(f">{BUCKETS}Q")
_SUM = struct.Struct(">Q")
_FEW = BUCKETS // 8
"""Up to so many changed sums are packed one by one; that is sooner done than packing them all."""


def row_hash(families: Families, cf: str, key: bytes, value: bytes | None) -> int | None:
    """Return the signed 64-bit row hash; None for an absent row."""
    if value is None:
        return None
    return (xxh64_intdigest(value, xxh64_intdigest(key, families.seeds[cf])) ^ SIGN) - SIGN


def row_hash_in(families: Families, cf: str, key: bytes, value: bytes, bucket: int) -> int | None:
    """Return the signed hash of a row if it lies in digest bucket ``bucket``, else None."""
    if xxh64_intdigest(key, families.seeds[cf]) % BUCKETS != bucket:
        return None
    return row_hash(families, cf, key, value)


def next_chain(chain: bytes, value: bytes) -> bytes:
    """Return the chain after a valid claim or counting record: SHA-256(chain before + its value bytes)."""
    chained = sha256(chain)
    chained.update(value)  # no concatenation: a record may be megabytes long
    return chained.digest()


class DigestSlots(NamedTuple):
    """A digest as on the wire: the slots whose sum is not 0, ascending, and their sums as signed 64 bits."""

    numbers: list[int]
    sums: list[int]


class Digests:
    """Sums per family and bucket, as unsigned 64-bit integers; one list of 256 for each family.

    Each batch writes some families' sums, and changes few of them if it is small. So each family's packed sums are
    kept, and the buckets that have changed since they were packed. Others only read :attr:`sums`.
    """

    __slots__ = ("_changed", "_families", "_packed", "sums")

    def __init__(self, families: Families) -> None:
        self._families = families
        self.sums: list[list[int]] = [[0] * BUCKETS for _ in families.names]
        self._packed = [bytearray(_ROW.size) for _ in families.names]
        self._changed: list[set[int]] = [set() for _ in families.names]

    def add(self, cf: str, key: bytes, value: bytes) -> None:
        """Add a live row to the sums. Scans use this; apply adds differences itself."""
        key_hash = xxh64_intdigest(key, self._families.seeds[cf])
        position, bucket = self._families.positions[cf], key_hash % BUCKETS
        row = self.sums[position]
        row[bucket] = (row[bucket] + xxh64_intdigest(value, key_hash)) & MASK
        self._changed[position].add(bucket)

    def change(self, deltas: Mapping[int, int]) -> set[int]:
        """Add to slots; return the positions of the families that changed."""
        sums, changed = self.sums, self._changed
        for slot, delta in deltas.items():
            family, bucket = slot // BUCKETS, slot % BUCKETS
            row = sums[family]
            row[bucket] = (row[bucket] + delta) & MASK
            changed[family].add(bucket)
        return {slot // BUCKETS for slot in deltas}

    def set(self, slot: int, value: int) -> None:
        """Set the sum of a slot, as one that was kept elsewhere."""
        family, bucket = slot // BUCKETS, slot % BUCKETS
        self.sums[family][bucket] = value
        self._changed[family].add(bucket)

    def copy(self) -> Digests:
        """Return an independent copy."""
        copied = Digests(self._families)
        copied.sums = [row.copy() for row in self.sums]
        copied._packed = [packed.copy() for packed in self._packed]
        copied._changed = [changed.copy() for changed in self._changed]
        return copied

    def pack(self, position: int) -> bytes:
        """Return a family's 256 sums as 2,048 bytes big-endian."""
        row, packed, changed = self.sums[position], self._packed[position], self._changed[position]
        if len(changed) > _FEW:
            _ROW.pack_into(packed, 0, *row)
        else:
            for bucket in changed:
                _SUM.pack_into(packed, bucket * _SUM.size, row[bucket])
        changed.clear()
        return bytes(packed)

    def unpack(self, position: int, data: bytes) -> None:
        """Restore a family's sums from :meth:`pack`'s bytes."""
        self.sums[position] = list(_ROW.unpack(data))
        self._packed[position] = bytearray(data)
        self._changed[position].clear()

    def slots(self) -> DigestSlots:
        """Return the slots whose sum is not 0, ascending, and their sums as signed 64 bits."""
        numbers: list[int] = []
        sums: list[int] = []
        for position, row in enumerate(self.sums):
            for bucket, value in enumerate(row):
                if value:
                    numbers.append(position * BUCKETS + bucket)
                    sums.append((value ^ SIGN) - SIGN)
        return DigestSlots(numbers, sums)

    def off(self, kept: Digests) -> dict[int, int]:
        """Return by how much these sums are off ``kept`` mod 2^64, by slot; {} if they are equal."""
        return {
            position * BUCKETS + bucket: (found - known) & MASK
            for position, (row, other) in enumerate(zip(self.sums, kept.sums, strict=True))
            for bucket, (found, known) in enumerate(zip(row, other, strict=True))
            if found != known
        }

    def total(self) -> int:
        """Return the sum over all slots mod 2^64: the one number that people compare."""
        return sum(map(sum, self.sums)) & MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digests) and self.sums == other.sums

    __hash__ = None  # type: ignore[assignment]


def digest_of_rows(families: Families, rows: Iterable[tuple[str, bytes, bytes]]) -> Digests:
    """Return the digest of (column family, key, value) rows: the full scan's, or a test's."""
    digests = Digests(families)
    for cf, key, value in rows:
        digests.add(cf, key, value)
    return digests
