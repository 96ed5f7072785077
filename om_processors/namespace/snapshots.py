"""Snapshots of buckets: their rows, the names of their checkpoints, and which retired versions they need. Pure.

Rows of snapshotTable, UTF-8 keys::

    /volume/bucket/name          an ACTIVE snapshot
    /volume/bucket/#SNAPSHOT_ID  a DELETED one, whose name is free again

Names of volumes, buckets and snapshots have neither ``/`` nor ``#``, so no two rows share a key. A bucket with a row
here cannot be deleted, so all rows under its prefix belong to the bucket of that name.

**Which versions a snapshot needs** (decision 0040). A row of deletedTable is a version of a key: its blocks wait to be
deleted. Let c be the managed index of the CreateKey that made the version (it is in the object id), d the index of the
request that retired it (its update id), and s the index of a snapshot. The snapshot's checkpoint holds the rows of all
indexes below s. So it names the version only if the version's commit was below s and its end was not:

    c < commit < s <= d,    hence    c < s <= d    (*)

The index of the commit is not kept, so (*) may hold for a version that was opened before the snapshot and committed
after it. Then its blocks wait until the snapshot is purged; nothing is ever lost by (*). A row of size 0 with blocks
was never a committed key (a commit of size 0 has no blocks): it is an expired session or what a commit did not use, and
no snapshot needs it.

Whether a version is needed only ever turns from yes to no: d is settled before anybody asks, and a later snapshot has
s > d. So whoever reads the version first and the snapshots afterwards may act on the answer at any later time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from om_processors.errors import OMError
from om_processors.namespace import ids
from om_processors.namespace.context import ReadView, RowTransaction
from om_processors.namespace.tables import HOT_ROWS, bucket_prefix, prefix_stop
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import SNAPSHOT_TABLE
from schemas.records.rows import ACTIVE, KeyInfo, SnapshotInfo
from schemas.result_codes import FILE_NOT_FOUND

CHECKPOINT_PREFIX = "snapshot-"
"""Checkpoints whose names begin so belong to snapshots, and stay until their rows are gone."""

DELETED_MARK = b"/#"
"""Part of the key of every deleted snapshot's row, and of no other."""


def checkpoint_name(snapshot_id: int) -> str:
    """Return the name of a snapshot's checkpoint.

    >>> checkpoint_name(1280)
    'snapshot-1280'
    """
    return f"{CHECKPOINT_PREFIX}{snapshot_id}"


def is_checkpoint_of_snapshot(name: str) -> bool:
    """Say whether a checkpoint is a snapshot's. Operators of older software may have given others the same prefix.

    >>> is_checkpoint_of_snapshot("snapshot-1280"), is_checkpoint_of_snapshot("snapshot-before-upgrade")
    (True, False)
    """
    number = name.removeprefix(CHECKPOINT_PREFIX)
    return number != name and number.isascii() and number.isdecimal()


def snapshot_key(volume: str, bucket: str, snapshot: str) -> bytes:
    """Return an active snapshot's key in snapshotTable."""
    return f"/{volume}/{bucket}/{snapshot}".encode()


def deleted_snapshot_key(volume: str, bucket: str, snapshot_id: int) -> bytes:
    """Return a deleted snapshot's key in snapshotTable."""
    return f"/{volume}/{bucket}/#{snapshot_id}".encode()


def key_of(info: SnapshotInfo) -> bytes:
    """Return the key of a snapshot's row, by its state."""
    if info.state == ACTIVE:
        return snapshot_key(info.volume, info.bucket, info.snapshot)
    return deleted_snapshot_key(info.volume, info.bucket, info.snapshot_id)


@lru_cache(maxsize=HOT_ROWS)
def decode_snapshot(value: bytes) -> SnapshotInfo:
    """Decode a row of snapshotTable, once per value: the walk through deletedTable asks for the same rows each turn."""
    return decode_as(SnapshotInfo, value)


def get_snapshot(view: ReadView, volume: str, bucket: str, snapshot: str) -> SnapshotInfo | None:
    """Return an active snapshot's row, or None."""
    value = view.get(SNAPSHOT_TABLE, snapshot_key(volume, bucket, snapshot))
    return None if value is None else decode_snapshot(value)


def require_snapshot(view: ReadView, volume: str, bucket: str, snapshot: str) -> SnapshotInfo:
    """Return an active snapshot's row; raises OMError FILE_NOT_FOUND."""
    info = get_snapshot(view, volume, bucket, snapshot)
    if info is None:
        raise OMError(FILE_NOT_FOUND, f"no snapshot {snapshot} of bucket /{volume}/{bucket}")
    return info


def put_snapshot(tx: RowTransaction, info: SnapshotInfo) -> None:
    """Write a snapshot's row, under the key of its state."""
    tx.put(SNAPSHOT_TABLE, key_of(info), encode(info))


class _Rows(Protocol):
    """What can be iterated: a transaction, a view of the tables, or a store."""

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over rows in key order."""
        ...


def snapshots_of(view: _Rows, volume: str, bucket: str) -> list[SnapshotInfo]:
    """Return the rows of a bucket's snapshots, deleted ones too, in key order.

    It is one iteration, hence one state: a snapshot that is renamed meanwhile is there once.
    """
    prefix = bucket_prefix(volume, bucket)
    return [decode_snapshot(value) for _, value in view.iterate(SNAPSHOT_TABLE, prefix, prefix_stop(prefix))]


def needed_by(indexes: Sequence[int], info: KeyInfo) -> bool:
    """Say whether one of a bucket's snapshots, given by their ascending ``indexes``, needs a row of deletedTable.

    The module's rule (*).
    """
    if not info.size:
        return False
    first_after = bisect_right(indexes, ids.index_of(info.object_id))
    return first_after < len(indexes) and indexes[first_after] <= info.update_id


class NeededVersions:
    """Says which rows of deletedTable snapshots need. The snapshots of each bucket are read once, when first asked for.

    Whoever reads a store that changes must have read the rows of deletedTable before.
    """

    def __init__(self, view: _Rows) -> None:
        self._view = view
        self._indexes: dict[tuple[str, str], list[int]] = {}

    def include(self, info: KeyInfo) -> bool:
        """Say whether a snapshot needs this row."""
        bucket = (info.volume, info.bucket)
        indexes = self._indexes.get(bucket)
        if indexes is None:
            self._indexes[bucket] = indexes = sorted(found.index for found in snapshots_of(self._view, *bucket))
        return needed_by(indexes, info)
