"""Feature levels: what a cluster's log may contain (design, section 3, "Encoding").

A cluster is created at the level of the software that first leads it. Upgrades do not change the level; *finalize*
does. Until then nodes of the older software can read everything, so one may go back. Rules:

1. A novelty (a record, a version of a schema, a command, a merge operator, a column family) belongs to the level that
   introduced it. A leader uses only what belongs to its shard's level or to an earlier one.
2. The rule for readers holds for FeatureLevel itself: software that does not know the record, or its level, stops
   ("upgrade this node").
3. Levels are never removed; a level's entry here never changes.

To introduce a novelty: add a level after the last, and its entry to the tables below.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.records.identity import (
    CancelDelegationToken,
    ChangeAcl,
    CreateUser,
    GetDelegationToken,
    RemoveUser,
    RenewDelegationToken,
    RotateUser,
)
from schemas.records.messages import (
    AddNode,
    CancelPrepare,
    CommitReserved,
    CreatePipeline,
    CreateSnapshot,
    DeleteSnapshot,
    ExpireOpenKeys,
    Prepare,
    PurgeBlocks,
    PurgeSnapshots,
    PutKey,
    ReleaseBlocks,
    RemoveDatanode,
    RemoveNode,
    RenameSnapshot,
    RepairQuota,
    ReserveBlocks,
    RetirePipeline,
    SetDatanodeState,
    SetRequestMode,
    SetSnapshotProperty,
)

INITIAL = 1
"""Volumes, buckets, keys; the records of the log without the operators' ones."""

OPERATIONS = 2
"""Members, Prepared, FeatureLevel, Mode and RequestBatch records, and the commands that log them.

Genesis names its level. Retry rows are removed early, with a floor for each client
(``replicated_db/core/execution/retry.py``).
"""

DATANODES = 3
"""Blocks have a committed index; states of pipelines and datanodes are rows of shard 0, with requests that change them.

Requests also purge deleted blocks. The audit's verdicts name their log. Column families pipelineTable and datanodeTable
exist; a log created before this level names fewer families (``replicated_db/core/applying/replica.py``).
"""

OPEN_KEY_EXPIRY = 4
"""A shard's leader expires the open keys of vanished clients (``om_processors/fleet/open_key_cleanup.py``)."""

SESSION_QUOTA = 5
"""AllocateBlock gives an open key no more than the quota of its bucket allows (``om_processors/namespace/quota.py``).

Rows of deletedTable have no metadata. Requests that late validation logged at a lower level are executed as before.
"""

PIPELINE_GENERATIONS = 6
"""A closed pipeline is opened again, as its next generation, once its members are back.

``om_processors/fleet/core/pipeline_making.py`` does it. Datanodes of older software refuse a second generation.
"""

SNAPSHOTS = 7
"""Snapshots of buckets: requests, rows of the column family snapshotTable, and checkpoints that they name.

Until a shard is at this level it takes no such request. Deletion of blocks spares what a snapshot needs
(``om_processors/namespace/snapshots.py``).
"""

SMALL_OBJECTS = 8
"""PutKey keeps the bytes of a small key in the column family inlineTable, under the key's object id.

Until a shard is at this level it takes no such request, and no row of a key says that the key is inline.
"""

ACCESS_CONTROL = 9
"""Users, delegation tokens and access control lists: requests, rows, the families prefixTable and identityTable.

Until a shard is at this level it takes no such request, no row has access control entries, and no signed request is
executed (``om_processors/namespace/access.py``).
"""

BLOCK_RESERVATIONS = 10
"""Blocks are reserved before their keys have names: ReserveBlocks, CommitReserved, ReleaseBlocks.

A reservation is a row of openKeyTable without a key's name (``om_processors/execution/requests/reservations.py``).
Until a shard is at this level it takes no such request.
"""

LISTED_SUMS = 11
"""A replica lists the sums of its digests that few batches have changed (``replicated_db/core/tables/digest_rows.py``).

The log is as before: what is new is in each replica's own database, and older software would not read the list.
"""

DELETION_GRACE = 12
"""A row of deletedTable says when it was put there (``retired`` in ``om_processors/namespace/tables.py``).

Until a shard is at this level such a row keeps the time of the key's own last change, as software before writes it.
RepairQuota puts usage counters right (``om_processors/execution/requests/properties.py``).
Requests of the fleet name the row that they were decided on, and rows of datanodes that are in service, or gone, are
removed (``om_processors/execution/requests/fleet.py``).
"""

LATEST = DELETION_GRACE
"""The highest level that this software knows."""

NAMES: Mapping[int, str] = {
    INITIAL: "INITIAL", OPERATIONS: "OPERATIONS", DATANODES: "DATANODES", OPEN_KEY_EXPIRY: "OPEN_KEY_EXPIRY",
    SESSION_QUOTA: "SESSION_QUOTA",
    PIPELINE_GENERATIONS: "PIPELINE_GENERATIONS",
    SNAPSHOTS: "SNAPSHOTS",
    SMALL_OBJECTS: "SMALL_OBJECTS",
    ACCESS_CONTROL: "ACCESS_CONTROL",
    BLOCK_RESERVATIONS: "BLOCK_RESERVATIONS",
    LISTED_SUMS: "LISTED_SUMS",
    DELETION_GRACE: "DELETION_GRACE",
}  # fmt: skip

VERSIONS: Mapping[str, tuple[int, ...]] = {
    "Genesis": (INITIAL, OPERATIONS),
    "Request": (
        INITIAL,
        OPERATIONS,
        DATANODES,
        OPEN_KEY_EXPIRY,
        SNAPSHOTS,
        SMALL_OBJECTS,
        ACCESS_CONTROL,
        BLOCK_RESERVATIONS,
        DELETION_GRACE,
    ),
    "VolumeInfo": (INITIAL, ACCESS_CONTROL),
    "BucketInfo": (INITIAL, ACCESS_CONTROL),
    "KeyInfo": (INITIAL, DATANODES, SMALL_OBJECTS, ACCESS_CONTROL),
    "PrefixInfo": (ACCESS_CONTROL,),
    "UserRow": (ACCESS_CONTROL,),
    "TokenRow": (ACCESS_CONTROL,),
    "PreparedRequest": (INITIAL, DATANODES, ACCESS_CONTROL),
    "Response": (INITIAL, DATANODES, SNAPSHOTS),
    "SnapshotInfo": (SNAPSHOTS,),
    "Verdict": (INITIAL, DATANODES),
}
"""For each schema with several versions, the level of each version, in their order; others: INITIAL."""

COMMANDS: Mapping[type, int] = {
    AddNode: OPERATIONS, RemoveNode: OPERATIONS, Prepare: OPERATIONS, CancelPrepare: OPERATIONS,
    SetRequestMode: OPERATIONS,
    CreatePipeline: DATANODES, RetirePipeline: DATANODES, SetDatanodeState: DATANODES, PurgeBlocks: DATANODES,
    ExpireOpenKeys: OPEN_KEY_EXPIRY,
    CreateSnapshot: SNAPSHOTS, DeleteSnapshot: SNAPSHOTS, RenameSnapshot: SNAPSHOTS, SetSnapshotProperty: SNAPSHOTS,
    PurgeSnapshots: SNAPSHOTS,
    PutKey: SMALL_OBJECTS,
    CreateUser: ACCESS_CONTROL, RotateUser: ACCESS_CONTROL, RemoveUser: ACCESS_CONTROL,
    GetDelegationToken: ACCESS_CONTROL, RenewDelegationToken: ACCESS_CONTROL, CancelDelegationToken: ACCESS_CONTROL,
    ChangeAcl: ACCESS_CONTROL,
    ReserveBlocks: BLOCK_RESERVATIONS, CommitReserved: BLOCK_RESERVATIONS, ReleaseBlocks: BLOCK_RESERVATIONS,
    RepairQuota: DELETION_GRACE,
    RemoveDatanode: DELETION_GRACE,
}  # fmt: skip
"""Request types that need a level above INITIAL. Finalize needs none: it is what raises the level."""

NAMING: Mapping[type, str] = {
    CreatePipeline: "generation", RetirePipeline: "generation", SetDatanodeState: "changed_at_ms",
}  # fmt: skip
"""Fields that earlier versions of a request do not have: a request that gives one needs DELETION_GRACE."""


def version_at(schema: str, level: int) -> int:
    """Return the number of the newest version of ``schema`` that may be written at ``level``, from 1.

    >>> version_at("Genesis", INITIAL), version_at("Genesis", LATEST), version_at("Tick", LATEST)
    (1, 2, 1)
    """
    return max((n for n, since in enumerate(VERSIONS.get(schema, (INITIAL,)), 1) if since <= level), default=1)


def level_of_command(body: object) -> int:
    """Return the level that a request needs, with all that it says."""
    if getattr(body, NAMING.get(type(body), ""), 0):
        return DELETION_GRACE
    return COMMANDS.get(type(body), INITIAL)


def level_of_type(request_type: str) -> int:
    """Return the level that requests of a type need, by the type's name.

    >>> level_of_type("CreateKey"), level_of_type("CreatePipeline")
    (1, 3)
    """
    return next((level for body, level in COMMANDS.items() if body.__name__ == request_type), INITIAL)
