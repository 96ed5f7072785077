"""The configuration of one datanode: who it is, beside its slice of the settings.

``stratolog.configuration.node_configs`` makes it, and so do tests. Nothing here is read from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls
from schemas.settings.declaring import with_old_names
from schemas.settings.table import DatanodeSettings, ReplicaSettings
from schemas.settings.values import DEFAULT_RACK

OLD_NAMES = {
    "fsync": "datanode_fsync",
    "reserve_bytes": "datanode_reserve_bytes",
    "watchdog_ms": "pipeline_watchdog_ms",
    "heartbeat_interval_ms": "datanode_heartbeat_interval_ms",
    "scrub_interval_ms": "datanode_scrub_interval_ms",
    "max_streams": "datanode_max_streams",
}


@with_old_names(OLD_NAMES)
@dataclass(frozen=True, slots=True, kw_only=True)
class DatanodeConfig(ReplicaSettings, DatanodeSettings):
    """One datanode of a cluster; raises ValueError naming the field that is wrong."""

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
    secret: ClusterSecret | None = None
    """The cluster's secret; without it every call that changes something is refused."""
    tls: ProcessTls | None = None
    """How the datanode speaks TLS, on both servers and to others; None: it speaks in clear."""
    block_tokens: bool = False
    """Whether clients need a block token for each block that they write or read; only with ``tls``."""
    http_hosts: frozenset[str] = frozenset()
    """Host names that requests to the HTTP server may give, besides addresses and localhost; ``*`` = any."""
    named_hosts: frozenset[str] = frozenset()
    """Those of them that a person gave: calls may be signed for them, besides the datanode's own address."""

    def __post_init__(self) -> None:
        """Check the settings, and what must go together."""
        self.check_settings()
        if not self.node or "/" in self.node:
            raise ValueError(f"node {self.node!r}: a datanode's name is not empty and has no slash")
        if not self.rack.startswith("/"):
            raise ValueError(f"rack {self.rack!r} is no path: it begins with /")
        if self.block_tokens and self.tls is None:
            raise ValueError("block_tokens: the keys of block tokens travel in TLS alone, and 'tls' is not given")

    @property
    def address(self) -> str:
        """``host:port`` of the stream server."""
        return f"{self.host}:{self.port}"

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP server."""
        return f"{self.host}:{self.http_port}"
