"""The configuration of one Object Manager node: who it is, beside its slice of the settings.

``stratolog.configuration.node_configs`` makes it, and so do tests. Nothing here is read from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls
from schemas.settings.declaring import with_old_names
from schemas.settings.table import OLD_NAMES, BlockSettings, ClusterSettings, NodeSettings, ReplicaSettings


@with_old_names(OLD_NAMES)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(ClusterSettings, NodeSettings, ReplicaSettings, BlockSettings):
    """One node of a cluster; raises ValueError naming the field that is wrong."""

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
    replicas: tuple[str, ...]
    """Names of all nodes of the cluster."""
    data_dir: Path
    """Directory of this node's databases, one per shard; no other process uses it."""
    datanodes: tuple[str, ...]
    """Names of the datanodes. If there are any, blocks are allocated on their pipelines, and ``pipelines`` are not
    used.
    """
    peers: tuple[tuple[str, str], ...] = ()
    """Name and ``host:port`` of the nodes from which this one may take checkpoints."""
    node_addresses: tuple[tuple[str, str], ...] = ()
    """Name and ``host:port`` of the HTTP server of each node of the cluster."""
    secret: ClusterSecret
    """The cluster's secret, by which members and operators prove themselves."""
    tls: ProcessTls | None = None
    """How the node speaks TLS, on its server and to others; None: it speaks in clear."""
    block_tokens: bool = False
    """Whether the node gives block tokens with locations, and rolls their key while it leads shard 0; with ``tls``."""
    http_hosts: frozenset[str]
    """Names that HTTP requests may use for this host, besides addresses and localhost; ``*`` = any."""
    named_hosts: frozenset[str] = frozenset()
    """Those of them that a person gave: calls may be signed for them, besides the node's own address."""

    def __post_init__(self) -> None:
        """Check the settings, and what must go together."""
        self.check_settings()
        if self.node not in self.replicas:
            raise ValueError(f"node {self.node!r} is not one of replicas {', '.join(self.replicas)}")
        if self.block_tokens and self.tls is None:
            raise ValueError("block_tokens: the keys of block tokens travel in TLS alone, and 'tls' is not given")

    @property
    def address(self) -> str:
        """``host:port`` of the node's HTTP server."""
        return f"{self.address_host}:{self.address_port}"
