"""Messages beside the log: requests, responses, rejected requests, audit reports and verdicts.

A *request body* is one of the classes in :data:`RequestBody`; its class name is the request type.
"""

from __future__ import annotations

from dataclasses import field
from typing import get_args

from schemas.records.datanode import Member
from schemas.records.identity import ChangeAcl, ProvenCaller, TokenRequest, UserRequest
from schemas.records.record import record
from schemas.records.rows import BlockLocation
from schemas.sharding import SYSTEM_SHARD, shard_of
from schemas.topics import OM_LOG

UNLIMITED = -1
"""Quota value that means no limit."""


@record
class CreateVolume:
    volume: str
    owner: str = ""
    quota_in_bytes: int = UNLIMITED
    quota_in_namespace: int = UNLIMITED


@record
class SetVolumeProperty:
    volume: str
    owner: str | None = None
    quota_in_bytes: int | None = None
    quota_in_namespace: int | None = None


@record
class DeleteVolume:
    volume: str


@record
class CreateBucket:
    volume: str
    bucket: str
    owner: str = ""
    layout: str = "OBJECT_STORE"
    quota_in_bytes: int = UNLIMITED
    quota_in_namespace: int = UNLIMITED


@record
class SetBucketProperty:
    volume: str
    bucket: str
    owner: str | None = None
    quota_in_bytes: int | None = None
    quota_in_namespace: int | None = None


@record
class DeleteBucket:
    volume: str
    bucket: str


@record
class CreateKey:
    volume: str
    bucket: str
    key: str
    size: int
    replication: str = "RATIS/THREE"
    metadata: dict[str, str] = field(default_factory=dict)


@record
class AllocateBlock:
    volume: str
    bucket: str
    key: str
    session_id: int
    excluded_pipelines: list[str] = field(default_factory=list)


@record
class CommitKey:
    volume: str
    bucket: str
    key: str
    session_id: int
    size: int
    blocks: list[BlockLocation] = field(default_factory=list)


@record
class PutKey:
    """Creates and commits a small key with all its bytes (``schemas.small_objects``)."""

    volume: str
    bucket: str
    key: str
    data: bytes
    replication: str = "RATIS/THREE"
    metadata: dict[str, str] = field(default_factory=dict)


@record
class ReserveBlocks:
    """Allocates ``count`` small blocks of one pipeline, for keys whose names are not known yet.

    It is answered with a KeySession: the reservation's.
    """

    volume: str
    bucket: str
    count: int


@record
class CommitReserved:
    """Creates and commits a key with blocks of a reservation that were written."""

    volume: str
    bucket: str
    key: str
    session_id: int
    size: int
    blocks: list[BlockLocation]
    replication: str = "RATIS/THREE"
    metadata: dict[str, str] = field(default_factory=dict)


@record
class ReleaseBlocks:
    """Gives back what is left of a reservation."""

    volume: str
    bucket: str
    session_id: int


@record
class RepairQuota:
    """Puts the usage counters of a bucket right (of a volume if ``bucket`` is empty), by what a scan has found.

    ``kept`` and ``counted``: the counters and the rows at one index. What they differ by then, they differ by now.
    """

    volume: str
    bucket: str
    update_id: int
    kept_bytes: int
    counted_bytes: int
    kept_names: int
    counted_names: int


ReservationRequest = ReserveBlocks | CommitReserved | ReleaseBlocks
"""Requests about blocks without a key (feature level BLOCK_RESERVATIONS)."""

RESERVATION_REQUESTS: tuple[type, ...] = get_args(ReservationRequest)
"""Their classes."""


@record
class DeleteKey:
    volume: str
    bucket: str
    key: str


@record
class RenameKey:
    volume: str
    bucket: str
    from_key: str
    to_key: str


OWN_DIGESTS = -1
"""As the index of a LogDigestBase without sums: the leader logs its own digests, and a base of the log with them
(``replicated_db/core/trimming/bases.py``). Leaders of older software refuse it with INDEX_MOVED.
"""


@record
class LogDigestBase:
    """Operator's command: restart the log's digest sums after a repair, or log a base to trim the log to."""

    shard: int
    index: int
    slots: list[int]
    sums: list[int]
    basis: str


@record
class AddNode:
    """Operator's command: a node becomes a member of the shard."""

    shard: int
    node: str


@record
class RemoveNode:
    """Operator's command: a node is no longer a member of the shard."""

    shard: int
    node: str


@record
class Prepare:
    """Operator's command: refuse writes and take a checkpoint, for an upgrade of all nodes."""

    shard: int
    checkpoint: str


@record
class CancelPrepare:
    """Operator's command: accept writes again."""

    shard: int


@record
class Finalize:
    """Operator's command: all nodes are upgraded to software that knows ``level``."""

    shard: int
    level: int


@record
class SetRequestMode:
    """Operator's command: log requests of one type in another mode (``schemas.records.log.REQUEST_MODES``)."""

    shard: int
    request_type: str
    mode: str


ShardCommand = LogDigestBase | AddNode | RemoveNode | Prepare | CancelPrepare | Finalize | SetRequestMode
"""Operators' commands: they name their shard instead of a volume, and act on the shard's log, not on tables."""

SHARD_COMMANDS: tuple[type, ...] = get_args(ShardCommand)
"""Their classes."""


@record
class CreatePipeline:
    """Begins a pipeline on a partition of ``dn.log``, or its next generation. From the placement loop.

    ``generation`` is the one that is to begin; 0: whichever is next.
    """

    partition: int
    members: list[Member]
    generation: int = 0


@record
class RetirePipeline:
    """Ends the allocation of blocks on a pipeline; its data stays readable. From the placement loop, or an operator.

    ``generation`` is the one that is meant; 0: whichever there is.
    """

    partition: int
    reason: str
    generation: int = 0


@record
class SetDatanodeState:
    """Sets the state that an operator wants of a datanode, or (from the placement loop) that it has reached.

    ``changed_at_ms`` says when the state began that is meant to end; 0: whichever there is.
    """

    datanode: str
    state: str
    changed_at_ms: int = 0


@record
class RemoveDatanode:
    """Forgets a datanode that is decommissioned and gone. From an operator."""

    datanode: str


@record
class PurgeBlocks:
    """Forgets rows of deletedTable whose blocks have been deleted on the datanodes. From the shard's leader."""

    shard: int
    rows: list[bytes]


@record
class ExpireOpenKeys:
    """Ends sessions that were last modified before ``modified_before_ms``. From the shard's leader."""

    shard: int
    modified_before_ms: int
    rows: list[bytes]


@record
class CreateSnapshot:
    """Keeps the bucket as it is now. An empty name stands for one made of the batch's time."""

    volume: str
    bucket: str
    snapshot: str = ""


@record
class DeleteSnapshot:
    volume: str
    bucket: str
    snapshot: str


@record
class RenameSnapshot:
    volume: str
    bucket: str
    snapshot: str
    to: str


@record
class SetSnapshotProperty:
    """Sets properties by name; those that are not named stay, and an empty value removes one."""

    volume: str
    bucket: str
    snapshot: str
    properties: dict[str, str]


SnapshotRequest = CreateSnapshot | DeleteSnapshot | RenameSnapshot | SetSnapshotProperty
"""Requests of clients about the snapshots of a bucket."""

SNAPSHOT_REQUESTS: tuple[type, ...] = get_args(SnapshotRequest)
"""Their classes."""


@record
class PurgeSnapshots:
    """Forgets deleted snapshots by their rows of snapshotTable. From the shard's leader."""

    shard: int
    rows: list[bytes]


BATCH_BEGINNERS: tuple[type, ...] = (*SHARD_COMMANDS, CreateSnapshot)
"""Classes of requests that may only be the first of their batch: they act on the log, or take a checkpoint."""


LeaderRequest = PurgeBlocks | ExpireOpenKeys | PurgeSnapshots
"""Requests of a shard's own leader about the rows that it scans: they name their shard instead of a volume."""

LEADER_REQUESTS: tuple[type, ...] = get_args(LeaderRequest)
"""Their classes."""


FleetRequest = CreatePipeline | RetirePipeline | SetDatanodeState | RemoveDatanode
"""Requests without a volume: they live in the system shard (``schemas.sharding``)."""

FLEET_REQUESTS: tuple[type, ...] = get_args(FleetRequest)
"""Their classes."""

SystemRequest = FleetRequest | UserRequest | TokenRequest
"""Requests without a volume that live in the system shard."""

WITHOUT_VOLUME: frozenset[type] = frozenset(get_args(SystemRequest | LeaderRequest | ShardCommand))
"""Classes of all requests that name no volume. Looking a class up costs a thirtieth of ``isinstance`` with so many."""

RequestBody = (
    CreateVolume
    | SetVolumeProperty
    | DeleteVolume
    | CreateBucket
    | SetBucketProperty
    | DeleteBucket
    | CreateKey
    | AllocateBlock
    | CommitKey
    | PutKey
    | ReservationRequest
    | DeleteKey
    | RenameKey
    | SnapshotRequest
    | ShardCommand
    | FleetRequest
    | LeaderRequest
    | UserRequest
    | TokenRequest
    | ChangeAcl
    | RepairQuota
)


def shard_of_request(body: RequestBody, shards: int) -> int:
    """Return the shard of a request, out of ``shards``: its volume's, the one that it names, or the system shard.

    >>> shard_of_request(SetDatanodeState(datanode="dn1", state="IN_SERVICE"), 4)
    0
    """
    if type(body) not in WITHOUT_VOLUME:
        return shard_of(body.volume, shards)  # type: ignore[union-attr]  # all others have one
    return body.shard if isinstance(body, ShardCommand | LeaderRequest) else SYSTEM_SHARD


@record
class Request:
    """A write request. A retry is the same bytes again."""

    client_id: bytes
    call_id: int
    first_sent_at_ms: int
    answered_below: int
    reply_partition: int
    caller: str
    body: RequestBody


@record
class PreparedRequest:
    """A request after preExecute, as in a RequestBatch. A ``status`` other than OK is the leader's refusal."""

    request: bytes
    object_id: int
    session_id: int
    blocks: list[BlockLocation]
    status: str
    message: str
    standing: ProvenCaller | None = None
    """What the leader knows of the caller; None if rights are not judged."""


@record
class KeySession:
    """An open key, as CreateKey returns it, or a reservation, as ReserveBlocks does."""

    session_id: int
    object_id: int
    blocks: list[BlockLocation]


@record
class AllocatedBlock:
    block: BlockLocation


@record
class CreatedSnapshot:
    """A snapshot, as CreateSnapshot made it."""

    snapshot: str
    snapshot_id: int


@record
class Response:
    """The answer to a request: ``status`` is OK or a code of ``schemas/result_codes.py``."""

    client_id: bytes
    call_id: int
    shard: int
    index: int
    status: str
    message: str
    result: KeySession | AllocatedBlock | CreatedSnapshot | None


@record
class Requests:
    """Encoded requests of one client for one shard that were sent together, in order."""

    requests: list[bytes]


@record
class Responses:
    """Encoded responses to one client that were sent together, in order."""

    responses: list[bytes]


@record
class Rejected:
    """A record of ``om.requests`` without a client that could be answered."""

    shard: int
    offset: int
    node: str
    reason: str
    message: str
    value: bytes
    value_size_bytes: int
    rejected_at_ms: int


@record
class WindowRow:
    """Sum of the samples of one metric, kind and status in a window."""

    metric: str
    kind: str
    status: str
    count: int
    total: int
    greatest: int
    p50: int
    p99: int


@record
class WindowStats:
    """What the records of one window of time of a partition add up to; ``source`` is 'log' or 'reports'."""

    cluster: str
    log: str
    shard: int
    source: str
    start_ms: int
    seconds: int
    rows: list[WindowRow]
    late: int
    counted_at_ms: int


@record
class Evidence:
    """Proof of a divergence: the key whose row is not what a batch claims."""

    index: int
    offset: int
    term: int
    leader: str
    operation: int
    cf: str
    key: bytes
    claim: str
    claimed: int | None
    own: int | None


@record
class AuditReport:
    """A replica's digests at a barrier, or evidence of a divergence."""

    cluster: str
    node: str
    shard: int
    basis: str
    barrier_offset: int
    index: int
    chain: bytes
    slots: list[int]
    sums: list[int]
    flagged: bool
    evidence: Evidence | None
    reported_at_ms: int


@record
class Difference:
    cf: str
    bucket: int
    log_sum: int
    replica_sum: int


@record
class ContainerDifference:
    """A container whose stored bytes are not what they should be; null for an absent digest."""

    container_id: int
    expected: int | None
    found: int | None
    blocks: list[bytes]


@record
class Verdict:
    """The audit's judgement of one replica at one barrier of ``log``."""

    cluster: str
    shard: int
    node: str
    barrier_offset: int
    index: int
    verdict: str
    basis: str
    differences: list[Difference]
    differing_slots: int
    evidence: Evidence | None
    reason: str
    decided_at_ms: int
    log: str = OM_LOG
    containers: list[ContainerDifference] = field(default_factory=list)
