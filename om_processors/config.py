"""The settings of one Object Manager node, as one frozen object.

``stratolog.configuration.node_configs`` makes it, and so do tests. Nothing here is read from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from replicated_db.core.applying.rolling_pass import DEFAULT_SCRUB_WITHIN_MS
from replicated_db.core.bootstrap.peer_choice import DEFAULT_BOOTSTRAP_RECORDS
from replicated_db.core.trimming.trim_rule import DEFAULT_TRIM_LOG_AFTER_MS
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls
from schemas.sharding import MAX_PIPELINES
from schemas.small_objects import DEFAULT_INLINE_BYTES, MAX_INLINE_BYTES

AUTH_NONE, AUTH_SIGNED = "none", "signed"
AUTHS = (AUTH_NONE, AUTH_SIGNED)
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node of a cluster."""

    node: str
    """Name of this node, one of ``replicas``."""
    cluster: str
    """Name of the cluster; recorded in the log by Genesis."""
    address_host: str
    """Host that the node's HTTP server binds, and by which others reach it."""
    address_port: int
    """Port of the node's HTTP server."""
    bootstrap_servers: Brokers
    """Kafka's ``bootstrap.servers``."""
    shards: int
    """Number of shards, fixed when the cluster is created."""
    replicas: tuple[str, ...]
    """Names of all nodes of the cluster."""
    data_dir: Path
    """Directory of this node's databases, one per shard; no other process uses it."""
    pipelines: tuple[str, ...]
    """Names of the datanode pipelines that blocks are allocated on."""
    datanodes: tuple[str, ...]
    """Names of the datanodes. If there are any, blocks are allocated on their pipelines, and ``pipelines`` are not
    used.
    """
    datanode_timeout_ms: int
    """How long a datanode may be silent before it counts as dead."""
    open_key_expire_threshold_ms: int
    """How long an open key lasts without a request that touches it."""
    block_bytes: int
    """Size of an allocated block."""
    container_bytes: int
    """Size at which a container is closed."""
    inline_bytes: int = DEFAULT_INLINE_BYTES
    """Most bytes of a key that this node, as a leader, keeps in inlineTable."""
    session_timeout_ms: int
    """How long the leaders' group waits for a silent member before it gives the member's shards to others."""
    max_queued_requests: int
    """How many requests may wait for a shard's leader; it refuses more with OVERLOADED."""
    watchdog_ms: int
    """How long a shard's leader loop, or the event loop, may stand still before the node leaves the leaders' group."""
    barrier_interval_ms: int
    """Interval of barriers while there are writes."""
    scrub_interval_ms: int
    """Interval of barriers with a full scan; 0 = only the one at start."""
    scrub_within_ms: int = DEFAULT_SCRUB_WITHIN_MS
    """Within how long the rolling scrub finds a row that changed at rest; 0 = there is none."""
    late_flush_interval_ms: int
    """How long late validation lets rows gather in the table cache before it writes them."""
    peers: tuple[tuple[str, str], ...] = ()
    """Name and ``host:port`` of the nodes from which this one may take checkpoints."""
    bootstrap_records: int = DEFAULT_BOOTSTRAP_RECORDS
    """How long a log must be before an empty replica takes a peer's checkpoint instead of reading the log."""
    bootstrap_bytes_per_s: int = 0
    """How many bytes of checkpoints the node sends in a second at most; 0 = no bound."""
    node_addresses: tuple[tuple[str, str], ...] = ()
    """Name and ``host:port`` of the HTTP server of each node of the cluster."""
    trim_log_after_ms: int = DEFAULT_TRIM_LOG_AFTER_MS
    """For how long a leader keeps the records of its log before it trims them; 0 = until an operator trims."""
    auth: str = AUTH_NONE
    """``none``: requests and reads are anybody's. ``signed``: users sign them, and rights are judged."""
    secret: ClusterSecret
    """The cluster's secret, by which members and operators prove themselves."""
    tls: ProcessTls | None = None
    """How the node speaks TLS, on its server and to others; None: it speaks in clear."""
    block_tokens: bool = False
    """Whether the node gives block tokens with locations, and rolls their key while it leads shard 0; with ``tls``."""
    http_hosts: frozenset[str]
    """Names that HTTP requests may use for this host, besides addresses and localhost; ``*`` = any."""
    log_level: str
    """One of LOG_LEVELS."""
    log_format: str
    """``auto``, ``json`` or ``plain``: ``auto`` is plain on a terminal and JSON lines elsewhere."""
    write_audit: bool
    """Whether the leader writes a line for each request to ``write-audit.log`` in ``data_dir``."""

    def __post_init__(self) -> None:
        """Check the settings; raises ValueError naming the field."""
        if self.node not in self.replicas:
            raise ValueError(f"node {self.node!r} is not one of replicas {', '.join(self.replicas)}")
        if len(self.pipelines) > MAX_PIPELINES:
            raise ValueError(f"pipelines: {len(self.pipelines)}, more than {MAX_PIPELINES}")
        if not self.pipelines:
            raise ValueError("pipelines: at least one is needed")
        if not 0 <= self.inline_bytes <= MAX_INLINE_BYTES:
            raise ValueError(f"inline_bytes: {self.inline_bytes} is not in 0..{MAX_INLINE_BYTES}")
        if self.auth not in AUTHS:
            raise ValueError(f"auth must be one of {', '.join(AUTHS)}, not {self.auth!r}")
        if self.block_tokens and self.tls is None:
            raise ValueError("block_tokens: the keys of block tokens travel in TLS alone, and 'tls' is not given")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")

    @property
    def address(self) -> str:
        """``host:port`` of the node's HTTP server."""
        return f"{self.address_host}:{self.address_port}"
