"""Rows of the Object Manager's tables, as values of RocksDB (single-object encoded)."""

from __future__ import annotations

from schemas.records.record import record

NEVER_WRITTEN = (1 << 63) - 1
"""``bcs_id`` of a commit whose block nobody has written: the key has only metadata.

Load generators use it, and an ingest without contents. No pipeline's index ever gets so high, so no replica takes the
block for committed.
"""


@record
class BlockLocation:
    """A block of a key; offsets and lengths in bytes.

    ``bcs_id`` is 0 until a datanode pipeline has committed the block's length; NEVER_WRITTEN means no bytes.
    """

    container_id: int
    local_id: int
    offset: int
    length: int
    pipeline: str
    bcs_id: int = 0


@record
class VolumeInfo:
    """Row of volumeTable."""

    volume: str
    owner: str
    creator: str
    object_id: int
    update_id: int
    quota_in_bytes: int
    quota_in_namespace: int
    creation_time_ms: int
    modification_time_ms: int


@record
class BucketInfo:
    """Row of bucketTable."""

    volume: str
    bucket: str
    owner: str
    layout: str
    object_id: int
    update_id: int
    quota_in_bytes: int
    quota_in_namespace: int
    creation_time_ms: int
    modification_time_ms: int


@record
class KeyInfo:
    """Row of keyTable, openKeyTable and deletedTable."""

    volume: str
    bucket: str
    key: str
    owner: str
    object_id: int
    update_id: int
    size: int
    replication: str
    blocks: list[BlockLocation]
    metadata: dict[str, str]
    creation_time_ms: int
    modification_time_ms: int


@record
class DatanodeRow:
    """Row of datanodeTable: a datanode's wanted state (``schemas.datanode_states``), or the reached one."""

    datanode: str
    state: str
    changed_at_ms: int
