"""Rows of the Object Manager's tables, as values of RocksDB (single-object encoded)."""

from __future__ import annotations

from dataclasses import field

from schemas.records.record import record

NEVER_WRITTEN = (1 << 63) - 1
"""``bcs_id`` of a commit whose block nobody has written: the key has only metadata.

Load generators use it, and an ingest without contents. No pipeline's index ever gets so high, so no replica takes the
block for committed.
"""


NO_KEY = ""
"""The key's name in a reservation's row of openKeyTable (decision 0085)."""


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
class Acl:
    """Entry of an access control list (``schemas.access.acl``): who has which rights, a sum of bits."""

    type: str
    name: str
    rights: int
    scope: str


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
    acls: list[Acl] = field(default_factory=list)


@record
class BucketInfo:
    """Row of bucketTable. ``prefixes`` is how many rows of prefixTable the bucket has."""

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
    acls: list[Acl] = field(default_factory=list)
    prefixes: int = 0


@record
class KeyInfo:
    """Row of keyTable, openKeyTable and deletedTable.

    The bytes of an ``inline`` key are its row of inlineTable, and it has no blocks.
    """

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
    inline: bool = False
    acls: list[Acl] = field(default_factory=list)


@record
class DatanodeRow:
    """Row of datanodeTable: a datanode's wanted state (``schemas.datanode_states``), or the reached one."""

    datanode: str
    state: str
    changed_at_ms: int


ACTIVE = "ACTIVE"
"""State of a snapshot that can be read."""
DELETED = "DELETED"
"""State of a snapshot whose name is free, and whose checkpoint waits to be removed."""


@record
class SnapshotInfo:
    """Row of snapshotTable: a snapshot of a bucket.

    ``state`` is ACTIVE or DELETED. ``checkpoint`` names the checkpoint of the shard's database that holds exactly the
    rows of all managed indexes below ``index``, the one of the CreateSnapshot. ``referenced_bytes`` and
    ``referenced_keys`` are the bucket's usage then. ``deletion_time_ms`` is 0 while the snapshot is ACTIVE.
    """

    volume: str
    bucket: str
    snapshot: str
    snapshot_id: int
    bucket_object_id: int
    state: str
    checkpoint: str
    index: int
    creation_time_ms: int
    deletion_time_ms: int
    creator: str
    referenced_bytes: int
    referenced_keys: int
    properties: dict[str, str]
