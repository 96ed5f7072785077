"""The Object Manager's tables: the layout of their keys, and typed access to their rows.

Keys, UTF-8 (session and object ids in decimal), except pipelineTable's::

    volumeTable    /volume                          VolumeInfo
    bucketTable    /volume/bucket                   BucketInfo
    keyTable       /volume/bucket/key               KeyInfo
    openKeyTable   /volume/bucket/key/SESSION       KeyInfo
    deletedTable   /volume/bucket/key/OBJECT        KeyInfo
    pipelineTable  partition, 4 bytes big-endian    PipelineRow   (shard 0)
    datanodeTable  name                             DatanodeRow   (shard 0)
    snapshotTable  ``snapshots`` has its rows       SnapshotInfo
    inlineTable    object id                        the bytes of an inline key
    prefixTable    ``prefixes`` has its rows        PrefixInfo
    identityTable  ``users`` has its rows           UserRow, TokenRow (shard 0)
    usageTable     /volume/#usedNamespace           buckets in the volume
                   /volume/#allottedBytes           sum of their quotas in bytes
                   /volume/bucket/#usedBytes        committed bytes
                   /volume/bucket/#usedNamespace    committed keys

A volume's or bucket's name has neither ``/`` nor ``#``, so no two rows share a key.

Two memos of the pure function *decode* save time on the hot path; a record is immutable by contract. The rows of
volumes and buckets, which every request reads, are decoded once per value (:data:`HOT_ROWS`), and their keys are made
once. An open key is remembered when it is written (:data:`OPEN_KEYS`): its commit reads it soon, and decoding it costs
as much as the rest of a commit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from om_processors.errors import OMError
from om_processors.namespace.context import ReadView, RowTransaction
from schemas.codecs.codec import decode_as, encode, encode_at
from schemas.column_families import (
    BUCKET_TABLE,
    DATANODE_TABLE,
    DELETED_TABLE,
    INLINE_TABLE,
    KEY_TABLE,
    OPEN_KEY_TABLE,
    PIPELINE_TABLE,
    VOLUME_TABLE,
)
from schemas.features import VERSIONS
from schemas.records.datanode import PipelineRow
from schemas.records.rows import BucketInfo, DatanodeRow, KeyInfo, VolumeInfo
from schemas.result_codes import BUCKET_NOT_FOUND, VOLUME_NOT_FOUND

HOT_ROWS = 4096
"""Most decoded rows that are kept, of volumes, of buckets and of snapshots each; about 1 KiB a row. Likewise keys."""
OPEN_KEYS = 8192
"""Most open keys that are remembered; about 1 KiB each."""
OPEN_KEY_BYTES = 2048
"""Longer rows (keys of many blocks) are not remembered."""
KEY_INFO_LEVEL = VERSIONS["KeyInfo"][-1]
"""Feature level from which on a key's row holds all fields of its record."""


@lru_cache(maxsize=HOT_ROWS)
def volume_key(volume: str) -> bytes:
    """Return a volume's key in volumeTable."""
    return f"/{volume}".encode()


@lru_cache(maxsize=HOT_ROWS)
def bucket_key(volume: str, bucket: str) -> bytes:
    """Return a bucket's key in bucketTable."""
    return f"/{volume}/{bucket}".encode()


def key_key(volume: str, bucket: str, key: str) -> bytes:
    """Return a key's key in keyTable."""
    return f"/{volume}/{bucket}/{key}".encode()


def open_key_key(volume: str, bucket: str, key: str, session_id: int) -> bytes:
    """Return an open key's key in openKeyTable."""
    return f"/{volume}/{bucket}/{key}/{session_id}".encode()


def deleted_key(volume: str, bucket: str, key: str, object_id: int) -> bytes:
    """Return a deleted key's key in deletedTable."""
    return f"/{volume}/{bucket}/{key}/{object_id}".encode()


def inline_key(object_id: int) -> bytes:
    """Return the key in inlineTable of the bytes of the key with this object id.

    >>> inline_key(1280)
    b'1280'
    """
    return b"%d" % object_id


def used_buckets_key(volume: str) -> bytes:
    """Return the usageTable key of a volume's number of buckets."""
    return f"/{volume}/#usedNamespace".encode()


def allotted_bytes_key(volume: str) -> bytes:
    """Return the usageTable key of the sum of a volume's buckets' quotas in bytes."""
    return f"/{volume}/#allottedBytes".encode()


@lru_cache(maxsize=HOT_ROWS)
def used_bytes_key(volume: str, bucket: str) -> bytes:
    """Return the usageTable key of a bucket's committed bytes."""
    return f"/{volume}/{bucket}/#usedBytes".encode()


@lru_cache(maxsize=HOT_ROWS)
def used_keys_key(volume: str, bucket: str) -> bytes:
    """Return the usageTable key of a bucket's number of committed keys."""
    return f"/{volume}/{bucket}/#usedNamespace".encode()


def volume_prefix(volume: str) -> bytes:
    """Return the prefix of everything in a volume, in every table but volumeTable."""
    return f"/{volume}/".encode()


def bucket_prefix(volume: str, bucket: str) -> bytes:
    """Return the prefix of everything in a bucket, in every table but bucketTable."""
    return f"/{volume}/{bucket}/".encode()


def prefix_stop(prefix: bytes) -> bytes:
    """Return the smallest key above all keys that start with ``prefix``, which is UTF-8 and not empty.

    UTF-8 has no byte 0xff, so the last byte can be incremented.
    """
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def is_empty(view: ReadView, cf: str, prefix: bytes) -> bool:
    """Say whether no row of the table starts with ``prefix``."""
    return next(iter(view.iterate(cf, prefix, prefix_stop(prefix))), None) is None


@lru_cache(maxsize=HOT_ROWS)
def decode_volume(value: bytes) -> VolumeInfo:
    """Decode a row of volumeTable."""
    return decode_as(VolumeInfo, value)


@lru_cache(maxsize=HOT_ROWS)
def decode_bucket(value: bytes) -> BucketInfo:
    """Decode a row of bucketTable."""
    return decode_as(BucketInfo, value)


class _OpenKeys:
    """Records by their encoded value: at least the last OPEN_KEYS / 2 of legal length.

    There are two generations: when the younger is full it becomes the older, and the older is dropped whole. No step
    iterates or removes single entries, so the shards' threads can share it.
    """

    def __init__(self) -> None:
        self._younger: dict[bytes, KeyInfo] = {}
        self._older: dict[bytes, KeyInfo] = {}

    def remember(self, value: bytes, info: KeyInfo) -> None:
        if len(value) > OPEN_KEY_BYTES:
            return
        younger = self._younger
        if len(younger) >= OPEN_KEYS // 2:
            self._older = younger
            self._younger = younger = {}
        younger[value] = info

    def recall(self, value: bytes) -> KeyInfo | None:
        return self._younger.get(value) or self._older.get(value)


_open_keys = _OpenKeys()


def decode_key(value: bytes) -> KeyInfo:
    """Decode a row of keyTable, openKeyTable or deletedTable."""
    return decode_as(KeyInfo, value)


def get_key(view: ReadView, key: bytes) -> KeyInfo | None:
    """Return a row of keyTable, or None."""
    value = view.get(KEY_TABLE, key)
    return None if value is None else decode_as(KeyInfo, value)


def get_inline(view: ReadView, info: KeyInfo) -> bytes | None:
    """Return the bytes of a key of the same view; None if the key is not inline, or if its row is lost."""
    return view.get(INLINE_TABLE, inline_key(info.object_id)) if info.inline else None


def get_open_key(view: ReadView, key: bytes) -> KeyInfo | None:
    """Return a row of openKeyTable, or None."""
    value = view.get(OPEN_KEY_TABLE, key)
    return None if value is None else _open_keys.recall(value) or decode_as(KeyInfo, value)


def require_volume(view: ReadView, volume: str) -> VolumeInfo:
    """Return the volume's row; raises OMError VOLUME_NOT_FOUND."""
    value = view.get(VOLUME_TABLE, volume_key(volume))
    if value is None:
        raise OMError(VOLUME_NOT_FOUND, f"no volume /{volume}")
    return decode_volume(value)


def require_bucket(view: ReadView, volume: str, bucket: str) -> BucketInfo:
    """Return the bucket's row; raises OMError VOLUME_NOT_FOUND or BUCKET_NOT_FOUND."""
    value = view.get(BUCKET_TABLE, bucket_key(volume, bucket))
    if value is None:
        require_volume(view, volume)
        raise OMError(BUCKET_NOT_FOUND, f"no bucket /{volume}/{bucket}")
    return decode_bucket(value)


def put_volume(tx: RowTransaction, info: VolumeInfo) -> None:
    """Write a volume's row."""
    tx.put(VOLUME_TABLE, volume_key(info.volume), encode_at(info, tx.feature_level))


def put_bucket(tx: RowTransaction, info: BucketInfo) -> None:
    """Write a bucket's row."""
    tx.put(BUCKET_TABLE, bucket_key(info.volume, info.bucket), encode_at(info, tx.feature_level))


def put_key(tx: RowTransaction, key: bytes, info: KeyInfo) -> None:
    """Write a row of keyTable."""
    tx.put(KEY_TABLE, key, encode_at(info, tx.feature_level))


def put_open_key(tx: RowTransaction, key: bytes, info: KeyInfo) -> None:
    """Write a row of openKeyTable."""
    level = tx.feature_level
    value = encode_at(info, level)
    if level >= KEY_INFO_LEVEL:  # below it, the row may hold less than the record
        _open_keys.remember(value, info)
    tx.put(OPEN_KEY_TABLE, key, value)


def put_inline(tx: RowTransaction, object_id: int, data: bytes) -> None:
    """Write the bytes of an inline key."""
    tx.put(INLINE_TABLE, inline_key(object_id), data)


def delete_inline(tx: RowTransaction, object_id: int) -> None:
    """Remove the bytes of an inline key."""
    tx.delete(INLINE_TABLE, inline_key(object_id))


def retired(info: KeyInfo, now_ms: int) -> KeyInfo:
    """Return a row of deletedTable as it is from the feature level DELETION_GRACE on: it says when it was put there.

    Its time of modification is that time; its time of creation is 0, by which :func:`retired_ms` knows such rows.
    """
    return replace(info, creation_time_ms=0, modification_time_ms=now_ms)


def retired_ms(info: KeyInfo) -> int | None:
    """Return when a row of deletedTable was put there, by the time of the batch; None if a lower level has put it."""
    return None if info.creation_time_ms else info.modification_time_ms


def put_deleted(tx: RowTransaction, info: KeyInfo) -> None:
    """Write a row of deletedTable: blocks that no key refers to any more."""
    tx.put(
        DELETED_TABLE,
        deleted_key(info.volume, info.bucket, info.key, info.object_id),
        encode_at(info, tx.feature_level),
    )


def pipeline_key(partition: int) -> bytes:
    """Return a pipeline's key in pipelineTable."""
    return partition.to_bytes(4, "big")


def pipelines(view: ReadView) -> list[PipelineRow]:
    """Return all pipelines, by partition; at most MAX_PIPELINES. Only shard 0 has any."""
    return [decode_as(PipelineRow, value) for _, value in view.iterate(PIPELINE_TABLE, b"")]


def get_pipeline(view: ReadView, partition: int) -> PipelineRow | None:
    """Return a row of pipelineTable, or None."""
    value = view.get(PIPELINE_TABLE, pipeline_key(partition))
    return None if value is None else decode_as(PipelineRow, value)


def put_pipeline(tx: RowTransaction, row: PipelineRow) -> None:
    """Write a pipeline's row."""
    tx.put(PIPELINE_TABLE, pipeline_key(row.partition), encode(row))


def datanodes(view: ReadView) -> list[DatanodeRow]:
    """Return the rows of datanodeTable: the datanodes to which an operator has given a state. Only shard 0 has any."""
    return [decode_as(DatanodeRow, value) for _, value in view.iterate(DATANODE_TABLE, b"")]


def get_datanode(view: ReadView, datanode: str) -> DatanodeRow | None:
    """Return a row of datanodeTable; None means in service."""
    value = view.get(DATANODE_TABLE, datanode.encode())
    return None if value is None else decode_as(DatanodeRow, value)


def put_datanode(tx: RowTransaction, row: DatanodeRow) -> None:
    """Write a datanode's row."""
    tx.put(DATANODE_TABLE, row.datanode.encode(), encode(row))


def delete_datanode(tx: RowTransaction, datanode: str) -> None:
    """Remove a datanode's row: it is in service, if it comes back."""
    tx.delete(DATANODE_TABLE, datanode.encode())
