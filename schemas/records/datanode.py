"""Messages between clients and datanodes, reports of datanodes, and the rows of a pipeline's database.

``BlockRow``, ``PipelineRow`` and ``ContainerRow`` are rows. ``Heartbeat`` travels on ``dn.heartbeats``,
``BlockReport`` on ``dn.audit``. All others are payloads of frames (``schemas/records/packets.py``). Lengths, offsets
and sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import field

from schemas.records.record import record

MAX_REPORTED_CONTAINERS = 1000
"""Most containers in one heartbeat."""
MAX_CONTAINERS_IN_REPORT = 10_000
"""Most containers in one BlockReport, the lowest ids first."""
MAX_UNREADABLE = 1000
"""Most keys of damaged blocks that a BlockReport names, all containers together."""


@record
class Hello:
    """First message of each side of a connection: its name, and the versions of the framing that it speaks."""

    peer: str
    cluster: str
    min_version: int
    max_version: int
    max_payload_bytes: int


@record
class Route:
    """One datanode of the spanning tree."""

    datanode: str
    address: str
    children: list[str]


@record
class OpenStream:
    """Begins a stream of one block's bytes, and says where each datanode forwards them."""

    container_id: int
    local_id: int
    partition: int
    offset: int
    bytes_per_checksum: int
    window_bytes: int
    routes: list[Route]


@record
class PutBlock:
    """Commits a block's length through the log of its pipeline."""

    partition: int
    container_id: int
    local_id: int
    length: int
    bytes_per_checksum: int
    checksums: bytes
    wait_effective: bool


@record
class BlockCommitted:
    """Answer to PutBlock."""

    container_id: int
    local_id: int
    length: int
    bcs_id: int
    log_offset: int


@record
class WatchBlock:
    """Asks a replica whether it has a block; answered once it has applied the entry and stored the verified bytes.

    How durably the bytes are stored depends on the fsync policy.
    """

    partition: int
    container_id: int
    local_id: int
    length: int
    bcs_id: int
    timeout_ms: int


@record
class BlockWatched:
    """Answer to WatchBlock."""

    datanode: str
    bcs_id: int
    length: int
    satisfied: bool


@record
class WholeBlock:
    """A block with its length, and the packed CRC32C of each of its cells."""

    container_id: int
    local_id: int
    length: int
    checksums: bytes


@record
class OpenBlocks:
    """What WriteBlocks begins with: the blocks, and whom each datanode sends them on to."""

    partition: int
    bytes_per_checksum: int
    watch_timeout_ms: int
    blocks: list[WholeBlock]
    routes: list[Route]


@record
class WriteBlocks:
    """Whole small blocks of one pipeline: opening, bytes, end and commit of each in one message.

    ``opening`` is an encoded OpenBlocks; ``data`` has the bytes of all blocks, one after the other.
    """

    opening: bytes
    data: bytes


@record
class BlockOutcome:
    """What became of one of several blocks; ``code`` is empty if it went well."""

    code: str
    message: str
    bcs_id: int


@record
class BlocksWritten:
    """Answer to WriteBlocks; ``watched`` names the members that have applied and verified all that is committed."""

    datanode: str
    leader: str
    outcomes: list[BlockOutcome]
    watched: list[str]


@record
class PutBlocks:
    """Commits the lengths of several blocks through the log of their pipeline, in one entry."""

    partition: int
    bytes_per_checksum: int
    blocks: list[WholeBlock]


@record
class BlocksCommitted:
    """Answer to PutBlocks, by the pipeline's ``leader``."""

    leader: str
    outcomes: list[BlockOutcome]


@record
class BlockLength:
    """A block, and a committed length of it."""

    container_id: int
    local_id: int
    length: int


@record
class WatchBlocks:
    """Asks a replica whether it has several blocks, as WatchBlock asks about one."""

    partition: int
    bcs_id: int
    timeout_ms: int
    blocks: list[BlockLength]


@record
class BlocksWatched:
    """Answer to WatchBlocks: whether this replica has all of them."""

    datanode: str
    bcs_id: int
    satisfied: bool


@record
class GetBlock:
    """Asks for the committed state of a block."""

    partition: int
    container_id: int
    local_id: int


@record
class BlockInfo:
    """Committed state of a block on the replica that was asked."""

    container_id: int
    local_id: int
    length: int
    bcs_id: int
    bytes_per_checksum: int
    checksums: bytes
    deleted: bool
    stored_length: int


@record
class ReadBlock:
    """Asks for bytes of a block: data packets of whole checksum cells, then end-of-stream."""

    partition: int
    container_id: int
    local_id: int
    offset: int
    length: int
    bcs_id: int
    committed_only: bool


@record
class SalvageBlock:
    """Asks for bytes of a block that no replica has whole. Unhealthy ones answer too, up to the first bad cell."""

    partition: int
    container_id: int
    local_id: int
    offset: int
    length: int
    bcs_id: int


@record
class WriteChunk:
    """The old way: a chunk's bytes through the log."""

    partition: int
    container_id: int
    local_id: int
    offset: int
    data: bytes
    checksum: int


@record
class ChunkWritten:
    """Answer to WriteChunk."""

    bcs_id: int


@record
class BlockId:
    """Names a block."""

    container_id: int
    local_id: int


@record
class DeleteBlocks:
    """Deletes blocks of a pipeline through its log; each leaves a tombstone."""

    partition: int
    blocks: list[BlockId]


@record
class BlocksDeleted:
    """Answer to DeleteBlocks."""

    bcs_id: int


@record
class Member:
    """A datanode of a pipeline."""

    datanode: str
    address: str
    http_address: str
    rack: str


@record
class OpenPipeline:
    """From the Object Manager to each member: the pipeline exists, follow its partition from now on."""

    pipeline: str
    partition: int
    generation: int
    members: list[Member]


@record
class ClosePipeline:
    """From the Object Manager to each member: take no more blocks; close its containers."""

    partition: int
    generation: int


@record
class CloseContainer:
    """Closes a container through the log of its pipeline: its blocks will not grow."""

    partition: int
    container_id: int


@record
class FetchContainer:
    """From the Object Manager: copy a closed container from a peer that has it (re-replication)."""

    partition: int
    container_id: int
    sources: list[str]


@record
class ListContainer:
    """Asks for the blocks of a container as this datanode has them committed."""

    partition: int
    container_id: int


@record
class ContainerBlocks:
    """Answer to ListContainer."""

    container_id: int
    closed: bool
    blocks: list[bytes]


@record
class Forwarded:
    """A request that a member which does not lead forwards to the leader, once."""

    by: str
    request: bytes


@record
class TokenedRequest:
    """A request, or an opening, with the block tokens that allow it (``schemas.access.block_tokens``)."""

    tokens: bytes
    request: bytes


@record
class BlockTokenKey:
    """A key of block tokens, with its id and its last moment in ms since the epoch."""

    key_id: int
    key: bytes = field(repr=False)
    until_ms: int


@record
class BlockTokenKeys:
    """From the Object Manager: the keys of block tokens that are valid; without any, no tokens are issued yet.

    ``newest`` is the id of the newest one, 0 without any. It travels in TLS alone.
    """

    newest: int
    keys: list[BlockTokenKey]


@record
class Accepted:
    """Answer to a message that only asks for an action."""

    detail: str


@record
class StreamError:
    """A refusal or a failure: ends the stream or answers the request."""

    code: str
    message: str
    datanode: str
    offset: int
    hint: str


@record
class PipelineReport:
    """A pipeline as a member sees it."""

    partition: int
    generation: int
    leading: bool
    applied_index: int
    healthy: bool
    fault: str


@record
class ContainerReport:
    """A container on a datanode."""

    container_id: int
    partition: int
    closed: bool
    blocks: int
    used_bytes: int
    healthy: bool


@record
class Heartbeat:
    """A datanode's report of its own state, on dn.heartbeats."""

    cluster: str
    datanode: str
    incarnation: bytes
    address: str
    http_address: str
    rack: str
    capacity_bytes: int
    free_bytes: int
    active_streams: int
    layout_version: int
    upgrade_prepared: bool
    pipelines: list[PipelineReport]
    containers: list[ContainerReport]
    sent_at_ms: int


@record
class ContainerDigest:
    """Digest of one container on a member's disk; ``digest`` is signed (schemas.codecs.block_rows)."""

    container_id: int
    blocks: int
    used_bytes: int
    digest: int
    unreadable: list[bytes]


@record
class BlockReport:
    """Digests of the bytes that a member has read from its disk, on dn.audit; ``index`` is that of a barrier."""

    cluster: str
    datanode: str
    partition: int
    index: int
    log_offset: int
    containers: list[ContainerDigest]
    complete: bool
    reported_at_ms: int


@record
class BlockRow:
    """Row of blockTable in a pipeline's database, behind an 8-byte big-endian length (schemas.codecs.block_rows)."""

    bcs_id: int
    length: int
    bytes_per_checksum: int
    checksums: bytes
    deleted: bool


@record
class PipelineRow:
    """Row of pipelineTable: in a pipeline's own database (PipelineOpened), and in the Object Manager's shard 0."""

    pipeline: str
    partition: int
    generation: int
    members: list[Member]
    state: str
    opened_at_ms: int


@record
class ContainerRow:
    """Row of containerTable in a pipeline's database."""

    container_id: int
    closed: bool
