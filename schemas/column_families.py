"""Column families of the Object Manager, and how a digest slot is numbered.

The order is part of the contract (Genesis records it, ``slot = position * 256 + bucket``): append only.
``retryTable`` belongs to ``replicated_db`` and comes first. The others are Ozone's tables of the same names, and
``usageTable`` for the quota counters. ``pipelineTable`` and ``datanodeTable`` (feature level DATANODES) hold what SCM
keeps in Ozone. ``snapshotTable`` (feature level SNAPSHOTS) is Ozone's snapshotInfoTable. ``inlineTable`` (feature level
SMALL_OBJECTS) has the bytes of small keys; Ozone has nothing like it. ``prefixTable`` and ``identityTable`` (feature
level ACCESS_CONTROL) have the access control lists of prefixes, as in Ozone, and users and delegation tokens.
"""

from __future__ import annotations

RETRY_TABLE = "retryTable"
VOLUME_TABLE = "volumeTable"
BUCKET_TABLE = "bucketTable"
KEY_TABLE = "keyTable"
OPEN_KEY_TABLE = "openKeyTable"
DELETED_TABLE = "deletedTable"
USAGE_TABLE = "usageTable"
PIPELINE_TABLE = "pipelineTable"
DATANODE_TABLE = "datanodeTable"
"""Both have rows only in shard 0."""
SNAPSHOT_TABLE = "snapshotTable"
INLINE_TABLE = "inlineTable"
PREFIX_TABLE = "prefixTable"
IDENTITY_TABLE = "identityTable"
"""Has rows only in shard 0."""

OM_COLUMN_FAMILIES = (
    RETRY_TABLE,
    VOLUME_TABLE,
    BUCKET_TABLE,
    KEY_TABLE,
    OPEN_KEY_TABLE,
    DELETED_TABLE,
    USAGE_TABLE,
    PIPELINE_TABLE,
    DATANODE_TABLE,
    SNAPSHOT_TABLE,
    INLINE_TABLE,
    PREFIX_TABLE,
    IDENTITY_TABLE,
)

BLOCK_TABLE = "blockTable"
CONTAINER_TABLE = "containerTable"
CHUNK_TABLE = "chunkTable"

DN_COLUMN_FAMILIES = (
    RETRY_TABLE,
    PIPELINE_TABLE,
    CONTAINER_TABLE,
    BLOCK_TABLE,
    CHUNK_TABLE,
)
"""Column families of a pipeline's database on the datanodes."""

BUCKETS = 256
"""Digest buckets per column family: ``xxhash64(cf, key) & 255``."""

ADD_INT64 = "add_int64"
"""Merge operator: 8 bytes big-endian two's complement, merged by addition mod 2^64."""
