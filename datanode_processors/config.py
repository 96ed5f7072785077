"""What one datanode needs to know, as one frozen object; made by ``stratolog.configuration.node_configs`` and by tests.

Nothing here is read from the environment: the code that starts a datanode passes everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datanode_processors.blocks.fsync import CLOSE, FSYNC_POLICIES
from replicated_db.core.applying.rolling_pass import DEFAULT_SCRUB_WITHIN_MS
from replicated_db.core.bootstrap.peer_choice import DEFAULT_BOOTSTRAP_RECORDS
from replicated_db.core.trimming.trim_rule import DEFAULT_TRIM_LOG_AFTER_MS
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DEFAULT_RACK = "/default-rack"
MIN_WATCHDOG_MS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DatanodeConfig:
    """One datanode of a cluster."""

    node: str
    """Name of this datanode."""
    cluster: str
    """Name of the cluster; HELLO and the log carry it."""
    host: str
    """Host that both servers bind, and at which others reach them."""
    port: int
    """Port of the stream server."""
    http_port: int
    """Port of the HTTP server."""
    bootstrap_servers: Brokers
    """Kafka's ``bootstrap.servers``."""
    data_dir: Path
    """Directory of this datanode's blocks and databases; it is shared with nobody."""
    rack: str = DEFAULT_RACK
    """Rack in which the datanode stands, as a path."""
    fsync: str = CLOSE
    """When bytes are stored on the disk: one of FSYNC_POLICIES."""
    reserve_bytes: int = 1024 * 1024 * 1024
    """Free space that is left alone."""
    watchdog_ms: int = 3_000
    """How long a pipeline's log may be silent before the member next in the list claims its leadership."""
    heartbeat_interval_ms: int = 1_000
    """How often the datanode sends a heartbeat; a change is sent at once."""
    barrier_interval_ms: int = 1_000
    """Interval of barriers while there are writes."""
    scrub_interval_ms: int = 60_000
    """Interval of barriers with a full scan of the pipeline's rows; 0 = only at each claim."""
    scrub_within_ms: int = DEFAULT_SCRUB_WITHIN_MS
    """Within how long the rolling scrub finds a row that changed at rest; 0 = there is none."""
    block_scrub_interval_ms: int = 24 * 3600 * 1000
    """How often every block file is read again and compared with its checksums; 0 = never."""
    container_bytes: int = 5 * 1024 * 1024 * 1024
    """A container that holds more than this is closed."""
    max_streams: int = 256
    """Streams at once; further ones are refused."""
    bootstrap_records: int = DEFAULT_BOOTSTRAP_RECORDS
    """How long a pipeline's log must be before an empty replica takes a member's checkpoint instead of reading it."""
    bootstrap_bytes_per_s: int = 0
    """How many bytes of checkpoints this datanode sends in a second at most; 0 = no bound."""
    trim_log_after_ms: int = DEFAULT_TRIM_LOG_AFTER_MS
    """For how long a pipeline's leader keeps the records of its log; 0 = until an operator trims it."""
    secret: ClusterSecret | None = None
    """The cluster's secret; without it every call that changes something is refused."""
    tls: ProcessTls | None = None
    """How the datanode speaks TLS, on both servers and to others; None: it speaks in clear."""
    block_tokens: bool = False
    """Whether clients need a block token for each block that they write or read; only with ``tls``."""
    http_hosts: frozenset[str] = frozenset()
    """Host names that requests to the HTTP server may give, besides addresses and localhost; ``*`` = any."""
    log_level: str = "INFO"
    """One of LOG_LEVELS."""
    log_format: str = "auto"
    """``json``, ``plain``, or ``auto``: plain on a terminal and JSON lines elsewhere."""

    def __post_init__(self) -> None:
        """Refuse settings that no datanode can run with; raises ValueError naming the field."""
        if not self.node or "/" in self.node:
            raise ValueError(f"node {self.node!r}: a datanode's name is not empty and has no slash")
        if self.fsync not in FSYNC_POLICIES:
            raise ValueError(f"fsync must be one of {', '.join(FSYNC_POLICIES)}, not {self.fsync!r}")
        if not self.rack.startswith("/"):
            raise ValueError(f"rack {self.rack!r} is no path: it begins with /")
        if self.block_tokens and self.tls is None:
            raise ValueError("block_tokens: the keys of block tokens travel in TLS alone, and 'tls' is not given")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        if self.watchdog_ms < MIN_WATCHDOG_MS:
            raise ValueError(f"watchdog_ms: {self.watchdog_ms}, less than {MIN_WATCHDOG_MS}")
        for name in (
            "reserve_bytes",
            "barrier_interval_ms",
            "scrub_interval_ms",
            "scrub_within_ms",
            "block_scrub_interval_ms",
            "bootstrap_records",
            "bootstrap_bytes_per_s",
            "trim_log_after_ms",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")

    @property
    def address(self) -> str:
        """``host:port`` of the stream server."""
        return f"{self.host}:{self.port}"

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP server."""
        return f"{self.host}:{self.http_port}"
