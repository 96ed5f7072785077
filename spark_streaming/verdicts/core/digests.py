"""Digest sums as NumPy arrays: one unsigned 64-bit sum for each slot, all arithmetic mod 2^64.

slot = position of the column family * 256 + (``xxhash64(cf, key) & 255``). On the wire a digest is sparse: ``slots``
ascending with sums other than 0, ``sums`` as signed 64 bits. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.column_families import BUCKETS

Sums = NDArray[np.uint64]
Hashes = NDArray[np.int64]


MAX_DIFFERENCES = 64
"""Most differing slots that a verdict names; it counts them all."""

CONDENSED = 256
"""Changes of one record beyond which they are added up by slot: a record of 8 MiB may have hundreds of thousands."""


def zeros(families: int) -> Sums:
    """Return the digest of no rows for ``families`` column families."""
    return np.zeros(families * BUCKETS, dtype=np.uint64)


def add_changes(sums: Sums, slot: Hashes, new: Hashes, prev: Hashes) -> None:
    """Add ``new - prev`` to each row's slot, in place; 0 stands for an absent row."""
    if len(slot):
        np.add.at(sums, slot, new.view(np.uint64) - prev.view(np.uint64))


def condensed(slot: Hashes, new: Hashes, prev: Hashes) -> tuple[Hashes, Hashes, Hashes]:
    """Return the changes of one record with the same effect, at most one for each slot if there are many.

    So a record takes no more memory than all slots do, whatever its size is.
    """
    if len(slot) <= CONDENSED:
        return slot, new, prev
    named, positions = np.unique(slot, return_inverse=True)
    net = np.zeros(len(named), dtype=np.uint64)
    np.add.at(net, positions, new.view(np.uint64) - prev.view(np.uint64))
    return named, net.view(np.int64), np.zeros(len(named), dtype=np.int64)


def from_sparse(families: int, slots: Sequence[int] | Hashes, sums: Sequence[int] | Hashes) -> Sums:
    """Return the dense digest of a sparse one.

    Raises ValueError if the two differ in length or a slot is out of range or named twice.
    """
    dense = zeros(families)
    positions = np.asarray(slots, dtype=np.int64)
    values = np.asarray(sums, dtype=np.int64)
    if len(positions) != len(values):
        raise ValueError(f"{len(positions)} slots with {len(values)} sums")
    if len(positions) and (positions.min() < 0 or positions.max() >= len(dense)):
        raise ValueError(f"a slot is not in 0..{len(dense) - 1}")
    if len(np.unique(positions)) != len(positions):
        raise ValueError("a slot is named twice")
    dense[positions] = values.view(np.uint64)
    return dense


def to_sparse(sums: Sums) -> tuple[list[int], list[int]]:
    """Return (slots, signed sums) of the sums other than 0."""
    slots = np.flatnonzero(sums)
    return slots.tolist(), sums[slots].view(np.int64).tolist()


def to_bytes(sums: Sums) -> bytes:
    """Return sums as little-endian unsigned 64-bit integers."""
    return sums.astype("<u8").tobytes()


def from_bytes(data: bytes) -> Sums:
    """Restore sums; the array may be written to."""
    return np.frombuffer(bytes(data), dtype="<u8").astype(np.uint64)


def total(sums: Sums) -> str:
    """Return the digest of the whole state: the sum of all slots mod 2^64, as 16 hex digits."""
    return f"{int(sums.sum(dtype=np.uint64)):016x}"


def signed(value: np.uint64) -> int:
    """Return an unsigned sum as the signed 64-bit integer of the same bits."""
    return int(np.asarray(value).view(np.int64))


def slot_name(slot: int, families: Iterable[str]) -> tuple[str, int]:
    """Return (column family, bucket) of a slot."""
    return list(families)[slot // BUCKETS], slot % BUCKETS
