"""The configurations of nodes and datanodes, made from the settings."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from schemas.small_objects import DEFAULT_INLINE_BYTES
from stratolog.configuration.settings import Settings
from stratolog.configuration.settings_values import NodeAddress
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from datanode_processors.config import DatanodeConfig
    from om_processors.config import NodeConfig
    from schemas.security.tls import ProcessTls


def node_config(settings: Settings, name: str) -> NodeConfig:
    """Return the configuration of the node ``name``.

    Raises UsageError for an unknown name, and without the cluster's secret.
    """
    from om_processors.config import NodeConfig

    own = settings.node(name)
    return NodeConfig(
        node=own.name,
        cluster=settings.cluster,
        address_host=own.host,
        address_port=own.port,
        bootstrap_servers=settings.connection,
        shards=settings.shards,
        replicas=tuple(node.name for node in settings.nodes),
        data_dir=settings.node_folder(own.name),
        pipelines=settings.pipelines,
        datanodes=tuple(node.name for node in settings.datanodes),
        datanode_timeout_ms=settings.datanode_timeout_ms,
        open_key_expire_threshold_ms=settings.open_key_expire_threshold_ms,
        block_bytes=settings.block_bytes,
        container_bytes=settings.container_bytes,
        inline_bytes=inline_bytes(settings),
        session_timeout_ms=settings.session_timeout_ms,
        max_queued_requests=settings.max_queued_requests,
        watchdog_ms=settings.watchdog_ms,
        barrier_interval_ms=settings.barrier_interval_ms,
        scrub_interval_ms=settings.scrub_interval_ms,
        scrub_within_ms=settings.scrub_within_ms,
        late_flush_interval_ms=settings.late_flush_interval_ms,
        peers=_peers(settings, own.name),
        node_addresses=tuple((node.name, node.address) for node in settings.nodes),
        **_log_keeping(settings),
        auth=_auth(settings, own),
        secret=settings.secret(),
        tls=server_tls(settings),
        block_tokens=has_block_tokens(settings),
        http_hosts=settings.own_hosts(),
        log_level=settings.log_level,
        log_format=settings.log_format,
        write_audit=settings.write_audit,
    )


def server_tls(settings: Settings) -> ProcessTls | None:
    """Return how a process that others call speaks TLS; raises UsageError without a certificate of its own."""
    if settings.tls_ca_file is not None and settings.tls_certificate_file is None:
        raise UsageError("setting 'tls_ca_file' is given, and a node or datanode needs 'tls_certificate_file' with it")
    return settings.tls()


def has_block_tokens(settings: Settings) -> bool:
    """Return whether nodes give block tokens and datanodes demand them; raises UsageError for that without TLS."""
    speaks_tls = settings.tls_ca_file is not None
    if settings.block_tokens and not speaks_tls:
        raise UsageError(
            "setting 'block_tokens' is true, and 'tls_ca_file' is not given: keys of block tokens travel in TLS alone, "
            "and who listens to a plain connection has the tokens"
        )
    if settings.block_tokens is not None:
        return settings.block_tokens
    return speaks_tls and (bool(settings.secure) or settings.auth == "signed")


def _auth(settings: Settings, own: NodeAddress) -> str:
    """Return whom a node believes; raises UsageError for ``none`` where other machines reach the node."""
    auth = settings.auth or "none"
    if auth == "none" and not settings.auth_none_anywhere and not is_loopback(own.host):
        raise UsageError(
            f"setting 'auth' is none, and node {own.name} listens at {own.host}, where other machines reach it: "
            "'auth = \"signed\"' has users sign, 'auth_none_anywhere = true' lets anybody do everything"
        )
    return auth


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("om1")
    (True, True, False, False)
    """
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def inline_bytes(settings: Settings) -> int:
    """Return how many bytes a key may have that is kept in the tables; 0 = none is."""
    return DEFAULT_INLINE_BYTES if settings.inline_bytes is None else settings.inline_bytes


def _log_keeping(settings: Settings) -> dict[str, Any]:
    """Return how replicas of both logs catch up, and for how long the logs are kept."""
    from replicated_db.core.bootstrap.peer_choice import DEFAULT_BOOTSTRAP_RECORDS
    from replicated_db.core.trimming.trim_rule import DEFAULT_TRIM_LOG_AFTER_MS

    trim_ms = settings.trim_log_after_ms
    return {
        "bootstrap_records": settings.bootstrap_records or DEFAULT_BOOTSTRAP_RECORDS,
        "bootstrap_bytes_per_s": settings.bootstrap_bytes_per_s or 0,
        "trim_log_after_ms": DEFAULT_TRIM_LOG_AFTER_MS if trim_ms is None else trim_ms,
    }


def _peers(settings: Settings, own: str) -> tuple[tuple[str, str], ...]:
    """Return name and address of the nodes from which node ``own`` may take checkpoints."""
    if not settings.bootstrap_peers:
        return tuple((node.name, node.address) for node in settings.nodes if node.name != own)
    named = (peer.partition("=") for peer in settings.bootstrap_peers)
    return tuple((name, address) for name, _, address in named if name != own)


def datanode_config(settings: Settings, name: str) -> DatanodeConfig:
    """Return the configuration of the datanode ``name``.

    Raises UsageError for an unknown name, and without the cluster's secret.
    """
    from datanode_processors.config import DatanodeConfig

    own = settings.datanode(name)
    return DatanodeConfig(
        node=own.name,
        cluster=settings.cluster,
        host=own.host,
        port=own.port,
        http_port=own.http_port,
        bootstrap_servers=settings.connection,
        data_dir=settings.data_dir / "datanodes" / own.name,
        rack=settings.rack_of(own.name),
        fsync=settings.datanode_fsync,
        reserve_bytes=settings.datanode_reserve_bytes,
        barrier_interval_ms=settings.barrier_interval_ms,
        scrub_interval_ms=settings.datanode_scrub_interval_ms,
        scrub_within_ms=settings.scrub_within_ms,
        container_bytes=settings.container_bytes,
        **_log_keeping(settings),
        secret=settings.secret(),
        tls=server_tls(settings),
        block_tokens=has_block_tokens(settings),
        http_hosts=settings.own_hosts(),
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
