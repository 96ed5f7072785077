"""Records of the log topics (design, section 3). One Kafka record holds exactly one of them.

All but :class:`LeaderClaim` start with the same four fields, the *header*: ``term``, ``nonce``, ``seq``,
``prev_chain``. The reading rule (``replicated_db/core/log/reading.py``) needs the header alone.

Row hashes are signed 64-bit integers, as Spark's ``xxhash64`` returns them; ``None`` means an absent row.
"""

from __future__ import annotations

from schemas.records.record import record

NONCE_BYTES = 16
CHAIN_BYTES = 32
LEADER_MODE = "leader"
"""The leader executes the request, once; the log holds results (:class:`Batch`). The default of every request type."""

LATE_MODE = "late"
"""Every replica validates and executes the request as it applies the record; the log holds a :class:`RequestBatch`."""

REQUEST_MODES = (LEADER_MODE, LATE_MODE)

FORCED = "forced: "
"""Prefix of a digest base's basis if an operator has forced it, whatever the rows of the shard's leader."""


@record
class LeaderClaim:
    """A candidate asks to lead; valid iff ``term`` is the current term + 1."""

    term: int
    nonce: bytes
    node: str
    address: str
    claimed_at_ms: int


@record
class Genesis:
    """First counting record of a shard: what is fixed at its creation."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    cluster: str
    shard: int
    shards: int
    replicas: list[str]
    column_families: list[str]
    feature_level: int = 1


@record
class Members:
    """The nodes that hold a replica from here on."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    index: int
    replicas: list[str]


@record
class FeatureLevel:
    """An upgrade is finalized: the leader may write what came with ``level``."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    index: int
    level: int


@record
class Prepared:
    """The shard refuses writes from here on (``prepared``), or takes them again."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    index: int
    prepared: bool
    checkpoint: str


@record
class Mode:
    """From here on the leader logs requests of one type in this mode: LEADER_MODE or LATE_MODE."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    index: int
    request_type: str
    mode: str


@record
class Barrier:
    """Publish your digests exactly here; with ``scrub``, a full scan's too."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    index: int
    scrub: bool


@record
class Tick:
    """Empty: proves to a reader that the leader still leads."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes


@record
class DigestBase:
    """The log's digest sums restart from ``slots``/``sums``, which hold at ``index``."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    index: int
    slots: list[int]
    sums: list[int]
    basis: str


@record
class Put:
    """Insert or replace a row with final bytes."""

    cf: str
    key: bytes
    value: bytes
    prev: int | None


@record
class Delete:
    """Remove a row; removing an absent one changes nothing."""

    cf: str
    key: bytes
    prev: int | None


@record
class Merge:
    """Combine a row with an operand by a registered, associative operator."""

    cf: str
    key: bytes
    operator: str
    operand: bytes
    prev: int | None
    next: int


@record
class Checkpoint:
    """Take a checkpoint of everything before this batch; first operation of its batch."""

    name: str


Operation = Put | Delete | Merge | Checkpoint


@record
class RequestPosition:
    """Where the next leader may resume reading requests; a hint."""

    offset: int
    leader_epoch: int
    hash: bytes


@record
class Result:
    """The answer to one request; if ``recorded``, it derives a retry row."""

    client_id: bytes
    call_id: bytes
    request_hash: bytes
    first_sent_at_ms: int
    request_type: str
    index: int
    recorded: bool
    response: bytes


@record
class Batch:
    """Operations of many requests, and one result per request; atomic."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    first_index: int
    last_index: int
    timestamp_ms: int
    request_position: RequestPosition | None
    operations: list[Operation]
    results: list[Result]


@record
class LateRequest:
    """A request that each replica executes itself. ``prepared``: the service's own encoding of it after preExecute."""

    client_id: bytes
    call_id: bytes
    request_hash: bytes
    first_sent_at_ms: int
    request_type: str
    index: int
    prepared: bytes


@record
class RequestBatch:
    """Pre-executed requests, one index each: late validation."""

    term: int
    nonce: bytes
    seq: int
    prev_chain: bytes
    first_index: int
    last_index: int
    timestamp_ms: int
    request_position: RequestPosition | None
    requests: list[LateRequest]


ControlRecord = Members | FeatureLevel | Prepared | Mode
"""Records that change how the shard is run, never its rows."""

CountingRecord = Batch | RequestBatch | Barrier | Tick | Genesis | DigestBase | ControlRecord
LogRecord = LeaderClaim | CountingRecord
