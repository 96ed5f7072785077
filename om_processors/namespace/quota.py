"""Usage counters and quotas; serial execution makes admission exact (design, section 4).

A *bucket's* quotas bound its committed bytes (plain bytes, without the replication factor) and its number of keys. A
*volume's* byte quota bounds the sum of its buckets' byte quotas, and requires each of them to have one; its namespace
quota bounds the number of buckets. -1 is no limit, 0 and other negatives are illegal, as in Ozone's client.

Replacing a key counts by the difference: a replacement is admitted if the difference fits (Ozone asks for room for one
more key). AllocateBlock gives a session no more than the quota leaves beside the session's earlier blocks, so that
nobody fills disks beyond a quota: the last block is shorter, then comes QUOTA_EXCEEDED. (Ozone refuses the last one
unless a whole block fits.) As in Ozone, each session counts by itself, without the uncommitted blocks of others.
Counters are signed 64 bits: a change that would pass 2^63 - 1 is refused as if that were the quota.

What a counter should be can be counted (:func:`count`), and put right (RepairQuota: ``requests/properties.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from om_processors.errors import OMError
from om_processors.namespace import ids, tables
from om_processors.namespace.context import ReadView, RowTransaction
from replicated_db.core.tables.merge import decode_int64, encode_int64
from schemas.column_families import ADD_INT64, BUCKET_TABLE, KEY_TABLE, USAGE_TABLE
from schemas.records.messages import UNLIMITED
from schemas.records.record import record
from schemas.records.rows import BucketInfo, KeyInfo, VolumeInfo
from schemas.result_codes import INVALID_REQUEST, QUOTA_ERROR, QUOTA_EXCEEDED

MAX_COUNT = (1 << 63) - 1
PAUSE_ROWS = 200
"""A count of many rows pauses after so many (a fraction of a millisecond)."""
_ONE = encode_int64(1)
_MINUS_ONE = encode_int64(-1)
_ZERO = encode_int64(0)


def check_value(owner: str, kind: str, quota: int | None) -> None:
    """Raise OMError INVALID_REQUEST unless ``quota`` is positive, UNLIMITED, or None (unchanged)."""
    if quota is not None and quota != UNLIMITED and quota <= 0:
        raise OMError(
            INVALID_REQUEST, f"illegal {kind} {quota} for {owner}: a positive number, or {UNLIMITED} for no limit"
        )


# ---- counters


def read(view: ReadView, counter: bytes) -> int:
    """Return a counter's value; an absent one is 0."""
    return decode_int64(view.get(USAGE_TABLE, counter))


def create(tx: RowTransaction, *counters: bytes) -> None:
    """Create counters at 0."""
    for counter in counters:
        tx.put(USAGE_TABLE, counter, _ZERO)


def add(tx: RowTransaction, counter: bytes, amount: int) -> None:
    """Change a counter by ``amount``; 0 writes nothing."""
    if amount:
        operand = _ONE if amount == 1 else _MINUS_ONE if amount == -1 else encode_int64(amount)
        tx.merge(USAGE_TABLE, counter, ADD_INT64, operand)


def remove(tx: RowTransaction, *counters: bytes) -> None:
    """Delete counters with their owner."""
    for counter in counters:
        tx.delete(USAGE_TABLE, counter)


def counters(volume: str, bucket: str) -> tuple[bytes, bytes]:
    """Return the counters of bytes and of names of a bucket; of a volume if ``bucket`` is empty."""
    if bucket:
        return tables.used_bytes_key(volume, bucket), tables.used_keys_key(volume, bucket)
    return tables.allotted_bytes_key(volume), tables.used_buckets_key(volume)


@record
class UsageCount:
    """What the counters of a bucket or volume say in one view, what its rows amount to, and who wrote its row."""

    update_id: int
    kept_bytes: int
    counted_bytes: int
    kept_names: int
    counted_names: int


def count(view: ReadView, volume: str, bucket: str, pause: Callable[[], None] = lambda: None) -> UsageCount:
    """Count a bucket's keys, or a volume's buckets if ``bucket`` is empty. Calls ``pause`` after each PAUSE_ROWS rows.

    Raises OMError VOLUME_NOT_FOUND or BUCKET_NOT_FOUND.
    """
    info = tables.require_bucket(view, volume, bucket) if bucket else tables.require_volume(view, volume)
    names = size_bytes = 0
    for one in _sizes(view, volume, bucket):
        names += 1
        size_bytes += one
        if names % PAUSE_ROWS == 0:
            pause()
    bytes_counter, names_counter = counters(volume, bucket)
    return UsageCount(
        update_id=info.update_id, kept_bytes=read(view, bytes_counter), counted_bytes=size_bytes,
        kept_names=read(view, names_counter), counted_names=names,
    )  # fmt: skip


def _sizes(view: ReadView, volume: str, bucket: str) -> Iterator[int]:
    """Iterate over what each key of a bucket, or each bucket of a volume, adds to the counter of bytes."""
    if bucket:
        prefix = tables.bucket_prefix(volume, bucket)
        for _, value in view.iterate(KEY_TABLE, prefix, tables.prefix_stop(prefix)):
            yield tables.decode_key(value).size
    else:
        prefix = tables.volume_prefix(volume)
        for _, value in view.iterate(BUCKET_TABLE, prefix, tables.prefix_stop(prefix)):
            yield allotted(tables.decode_bucket(value).quota_in_bytes)


# ---- keys in a bucket


def admit_open_key(view: ReadView, bucket: BucketInfo, key: str, size_bytes: int) -> None:
    """Raise OMError QUOTA_EXCEEDED if a key of the expected size could not be committed now."""
    if bucket.quota_in_bytes != UNLIMITED or bucket.quota_in_namespace != UNLIMITED:
        replaced = tables.get_key(view, tables.key_key(bucket.volume, bucket.bucket, key))
        admit_key(view, bucket, size_bytes, replaced)


def admit_block(view: ReadView, bucket: BucketInfo, info: KeyInfo, length_bytes: int) -> int:
    """Return how many of ``length_bytes`` a further block of an open key may have; raises QUOTA_EXCEEDED if none.

    The blocks that the session already has count as if they were written. Blocks that came with CreateKey count with
    the size with which it was admitted, every later block with its whole length. If a size was declared, one more block
    is allowed: it may replace one whose datanodes failed. The figures come from the open key's row, so the room is free
    again as soon as the row is gone.
    """
    if bucket.quota_in_bytes == UNLIMITED:
        return length_bytes
    replaced = tables.get_key(view, tables.key_key(bucket.volume, bucket.bucket, info.key))
    used = read(view, tables.used_bytes_key(bucket.volume, bucket.bucket))
    first = sum(block.length for block in info.blocks if ids.came_with(info.object_id, block.local_id))
    given = sum(block.length for block in info.blocks) - first + min(info.size, first)
    spare = length_bytes if info.size else 0
    room = bucket.quota_in_bytes - used + (0 if replaced is None else replaced.size) - given + spare
    if room <= 0:
        raise OMError(
            QUOTA_EXCEEDED,
            f"bucket /{bucket.volume}/{bucket.bucket} has a quota of {bucket.quota_in_bytes} bytes and holds {used}: "
            f"this open key has been given blocks for {given}, and gets no more",
        )
    return min(length_bytes, room)


def admit_reservation(view: ReadView, bucket: BucketInfo, length_bytes: int) -> None:
    """Raise OMError QUOTA_EXCEEDED if keys of ``length_bytes`` together could not be committed now."""
    if bucket.quota_in_bytes != UNLIMITED:
        used = read(view, tables.used_bytes_key(bucket.volume, bucket.bucket))
        if used + length_bytes > bucket.quota_in_bytes:
            raise OMError(
                QUOTA_EXCEEDED,
                f"bucket /{bucket.volume}/{bucket.bucket} has a quota of {bucket.quota_in_bytes} bytes and holds {used}: "
                f"blocks of {length_bytes} are not reserved",
            )


def admit_key(view: ReadView, bucket: BucketInfo, size_bytes: int, replaced: KeyInfo | None) -> None:
    """Raise OMError QUOTA_EXCEEDED if a key of this size does not fit in the bucket, in place of ``replaced``."""
    more_bytes = size_bytes if replaced is None else size_bytes - replaced.size
    if more_bytes > 0:
        limit = MAX_COUNT if bucket.quota_in_bytes == UNLIMITED else bucket.quota_in_bytes
        used = read(view, tables.used_bytes_key(bucket.volume, bucket.bucket))
        if used + more_bytes > limit:
            raise OMError(
                QUOTA_EXCEEDED,
                f"bucket /{bucket.volume}/{bucket.bucket} has a quota of {limit} bytes and holds {used}: "
                f"{more_bytes} more do not fit",
            )
    if replaced is None and bucket.quota_in_namespace != UNLIMITED:
        used = read(view, tables.used_keys_key(bucket.volume, bucket.bucket))
        if used + 1 > bucket.quota_in_namespace:
            raise OMError(
                QUOTA_EXCEEDED,
                f"bucket /{bucket.volume}/{bucket.bucket} has a quota of {bucket.quota_in_namespace} keys and holds {used}",
            )


def add_key_usage(tx: RowTransaction, volume: str, bucket: str, more_bytes: int, more_keys: int) -> None:
    """Change a bucket's usage by committed bytes and keys."""
    add(tx, tables.used_bytes_key(volume, bucket), more_bytes)
    add(tx, tables.used_keys_key(volume, bucket), more_keys)


# ---- buckets in a volume


def allotted(quota_in_bytes: int) -> int:
    """Return the share of a bucket's byte quota in its volume's sum."""
    return max(quota_in_bytes, 0)


def check_bucket_bytes(view: ReadView, volume: VolumeInfo, bucket: str, old_quota: int, new_quota: int) -> None:
    """Raise OMError unless the volume allows the bucket this byte quota in place of ``old_quota``.

    QUOTA_ERROR: the volume has a byte quota, hence the bucket needs one. QUOTA_EXCEEDED: the sum would pass it.
    """
    if new_quota == UNLIMITED:
        if volume.quota_in_bytes != UNLIMITED:
            raise OMError(
                QUOTA_ERROR,
                f"bucket /{volume.volume}/{bucket} needs a quota in bytes, because its volume has one",
            )
        return
    limit = MAX_COUNT if volume.quota_in_bytes == UNLIMITED else volume.quota_in_bytes
    total = read(view, tables.allotted_bytes_key(volume.volume)) - allotted(old_quota) + new_quota
    if new_quota > old_quota and total > limit:
        raise OMError(
            QUOTA_EXCEEDED,
            f"with {new_quota} bytes for bucket {bucket}, the quotas of the buckets of /{volume.volume} "
            f"would sum to {total} bytes, more than the volume's {limit}",
        )


def admit_bucket(view: ReadView, volume: VolumeInfo) -> None:
    """Raise OMError QUOTA_EXCEEDED if the volume's namespace quota has no room for one more bucket."""
    if volume.quota_in_namespace != UNLIMITED:
        used = read(view, tables.used_buckets_key(volume.volume))
        if used + 1 > volume.quota_in_namespace:
            raise OMError(
                QUOTA_EXCEEDED,
                f"volume /{volume.volume} has a quota of {volume.quota_in_namespace} buckets and holds {used}",
            )


def check_bucket_usage(view: ReadView, info: BucketInfo, bytes_quota: int, namespace_quota: int) -> None:
    """Raise OMError QUOTA_ERROR if a bucket's new quotas lie below its usage."""
    where = f"/{info.volume}/{info.bucket}"
    for quota, counter, unit in (
        (bytes_quota, tables.used_bytes_key(info.volume, info.bucket), "bytes"),
        (namespace_quota, tables.used_keys_key(info.volume, info.bucket), "keys"),
    ):
        if quota != UNLIMITED and (used := read(view, counter)) > quota:
            raise OMError(QUOTA_ERROR, f"a quota of {quota} {unit} for bucket {where}, which holds {used}")


def check_volume_bytes(view: ReadView, info: VolumeInfo, quota: int) -> None:
    """Raise OMError unless the volume can have this byte quota.

    QUOTA_ERROR: a bucket has none. QUOTA_EXCEEDED: the buckets' quotas sum to more.
    """
    if quota == UNLIMITED:
        return
    if info.quota_in_bytes == UNLIMITED and (bucket := _bucket_without_quota(view, info.volume)) is not None:
        raise OMError(
            QUOTA_ERROR, f"volume /{info.volume} cannot have a quota in bytes, because its bucket {bucket} has none"
        )
    if (total := read(view, tables.allotted_bytes_key(info.volume))) > quota:
        raise OMError(
            QUOTA_EXCEEDED,
            f"the quotas of the buckets of /{info.volume} sum to {total} bytes, more than {quota}",
        )


def check_volume_buckets(view: ReadView, info: VolumeInfo, quota: int) -> None:
    """Raise OMError QUOTA_EXCEEDED if the volume holds more buckets than its new namespace quota."""
    if quota != UNLIMITED and (used := read(view, tables.used_buckets_key(info.volume))) > quota:
        raise OMError(QUOTA_EXCEEDED, f"volume /{info.volume} holds {used} buckets, more than {quota}")


def _bucket_without_quota(view: ReadView, volume: str) -> str | None:
    """Return a bucket without byte quota, or None. A volume with a quota has none, so only the first quota scans."""
    prefix = tables.volume_prefix(volume)
    for _, value in view.iterate(BUCKET_TABLE, prefix, tables.prefix_stop(prefix)):
        info = tables.decode_bucket(value)
        if info.quota_in_bytes == UNLIMITED:
            return info.bucket
    return None
