"""The configurations of nodes and datanodes: their slices of the settings, and who they are."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from schemas.settings.declaring import slice_of
from schemas.settings.table import AUTH_NONE, AUTH_SIGNED
from schemas.settings.values import NodeAddress
from stratolog.configuration.settings import Settings
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
    _check_auth(settings, own)
    return NodeConfig(
        **slice_of(NodeConfig, settings),
        node=own.name,
        cluster=settings.cluster,
        address_host=own.host,
        address_port=own.port,
        bootstrap_servers=settings.connection,
        replicas=tuple(node.name for node in settings.nodes),
        data_dir=settings.node_folder(own.name),
        datanodes=tuple(node.name for node in settings.datanodes),
        peers=_peers(settings, own.name),
        node_addresses=tuple((node.name, node.address) for node in settings.nodes),
        secret=settings.secret(),
        tls=server_tls(settings),
        block_tokens=has_block_tokens(settings),
        http_hosts=settings.own_hosts(),
        named_hosts=frozenset(settings.http_hosts),
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
    return speaks_tls and (bool(settings.secure) or settings.auth == AUTH_SIGNED)


def _check_auth(settings: Settings, own: NodeAddress) -> None:
    """Raise UsageError if a node believes anybody where other machines reach it."""
    if settings.auth == AUTH_NONE and not settings.auth_none_anywhere and not is_loopback(own.host):
        raise UsageError(
            f"setting 'auth' is none, and node {own.name} listens at {own.host}, where other machines reach it: "
            "'auth = \"signed\"' has users sign, 'auth_none_anywhere = true' lets anybody do everything"
        )


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("om1")
    (True, True, False, False)
    """
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


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
        **slice_of(DatanodeConfig, settings),
        node=own.name,
        cluster=settings.cluster,
        host=own.host,
        port=own.port,
        http_port=own.http_port,
        bootstrap_servers=settings.connection,
        data_dir=settings.data_dir / "datanodes" / own.name,
        rack=settings.rack_of(own.name),
        secret=settings.secret(),
        tls=server_tls(settings),
        block_tokens=has_block_tokens(settings),
        http_hosts=settings.own_hosts(),
        named_hosts=frozenset(settings.http_hosts),
    )
