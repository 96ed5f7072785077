"""Settings of a stack that is about to start: those that its data directory has fixed, and addresses that are free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.kafka.connection import CA_FILE, CERTIFICATE_FILE
from schemas.settings.table import AUTH_SIGNED
from stratolog.brokers.at_rest import encrypt, ensure_key, key_file_of
from stratolog.brokers.identities import authority_of, operator_options
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import DECLARED, Settings
from stratolog.errors import UsageError
from stratolog.local.ports import Moved, free_datanodes, free_ports, with_free_ports
from stratolog.local.state import SETTINGS_FILE, StackState

FIXED = ("cluster", "shards", "brokers", "response_partitions", "durability")
"""Settings that are built into the data: a stack's data directory refuses others."""
_OPEN: Mapping[str, Any] = {"tls_ca_file": None, "tls_certificate_file": None, "tls_key_file": None}
"""What a stack has that speaks in clear."""
KEPT = ("auth", "block_tokens")
"""Settings that stay as the stack has them until somebody says otherwise, as ``secure`` does (decision 0107)."""


def effective_settings(settings: Settings, before: StackState) -> tuple[Settings, tuple[Moved, ...]]:
    """Return the settings with the stack's addresses, and the processes that listen elsewhere than the settings say."""
    path = settings.data_dir / SETTINGS_FILE
    stored = load_settings(path, environment={}) if path.exists() else None
    settings = _with_security(_with_kept(settings, stored, before), stored, before)
    if stored is None:
        return with_free_ports(settings)
    for name in FIXED:
        if getattr(settings, name) != getattr(stored, name):
            if name in settings.explicit:
                raise UsageError(
                    f"the stack in {settings.data_dir} was made with {name} = {getattr(stored, name)}, which stays: "
                    f"for {getattr(settings, name)} make another beside it (STRATOLOG_DATA_DIR=OTHER stratolog up "
                    "...), or delete this one first ('stratolog down --remove-data')"
                )
            settings = replace(settings, **{name: getattr(stored, name)})
    names = ", ".join(node.name for node in stored.nodes)
    if "nodes" in settings.explicit and [node.name for node in settings.nodes] != [node.name for node in stored.nodes]:
        raise UsageError(
            f"the stack in {settings.data_dir} has the nodes {names}: 'stratolog admin add-node' and 'remove-node' "
            "change them, or use another data_dir"
        )
    if "nodes" not in settings.explicit:
        settings = replace(settings, nodes=stored.nodes)
    moved: list[Moved] = []
    settings = _with_datanodes(settings, stored, moved, running=bool(before.running()))
    if before.running():
        return replace(settings, bootstrap_servers=stored.bootstrap_servers, nodes=stored.nodes), tuple(moved)
    return with_free_ports(settings)


def _with_kept(settings: Settings, stored: Settings | None, before: StackState) -> Settings:
    """Return the settings with whom nodes believe, as this stack has it; raises UsageError to change it while it runs.

    A stack that becomes secure has ``auth = signed``, unless somebody says otherwise.
    """
    was_secure = bool(stored and stored.secure)
    is_secure = was_secure if settings.secure is None else settings.secure
    for name in KEPT:
        if name in settings.explicit or getattr(settings, name) != DECLARED[name].default:
            continue
        if name == "auth" and is_secure and not was_secure:
            settings = replace(settings, auth=AUTH_SIGNED)
        elif stored is not None and (name != "block_tokens" or is_secure):  # tokens travel in TLS alone
            settings = replace(settings, **{name: getattr(stored, name)})
    if stored is not None and before.running():
        for name in KEPT:
            if getattr(settings, name) != getattr(stored, name):
                raise UsageError(
                    f"processes of the stack in {settings.data_dir} run with {name} = {getattr(stored, name)}: "
                    f"'stratolog down' first, then it can change to {getattr(settings, name)}"
                )
    return settings


def _with_security(settings: Settings, stored: Settings | None, before: StackState) -> Settings:
    """Return the settings with how processes reach the brokers of this stack; makes the authority of a secure one.

    A stack stays secure, or open, until it is started otherwise; processes that run refuse that by a UsageError.
    """
    is_running = bool(before.running())
    if given := sorted(_OPEN.keys() & settings.explicit):
        raise UsageError(
            f"the local stack makes the settings {', '.join(_OPEN)} itself ('stratolog up --secure'): leave out "
            f"{', '.join(given)}"
        )
    wanted = (stored.secure if stored else None) if settings.secure is None else settings.secure
    key_file = key_file_of(settings, stored)
    if stored is not None and is_running and key_file != stored.key_encryption_file:
        raise UsageError(
            f"processes of the stack in {settings.data_dir} run, and they know another 'key_encryption_file': 'stratolog "
            "down' first, then it can change"
        )
    settings = replace(settings, key_encryption_file=key_file)
    if stored is not None and is_running and bool(stored.secure) != bool(wanted):
        raise UsageError(
            f"processes of the stack in {settings.data_dir} run: 'stratolog down' first, then it can change"
        )
    if not wanted:
        if "kafka" in settings.explicit or "node_bootstrap_servers" in settings.explicit:
            raise UsageError(
                "the settings 'kafka' and 'node_bootstrap_servers' are for brokers that know who asks, and the local "
                "stack's are open: give 'stratolog up --secure', or leave them out"
            )
        _encrypt(settings)
        return replace(settings, secure=wanted, kafka=(), node_bootstrap_servers=None, **_OPEN)
    if "kafka" in settings.explicit or "node_bootstrap_servers" in settings.explicit:
        raise UsageError(
            "a secure local stack makes the settings 'kafka' and 'node_bootstrap_servers' itself: leave them out"
        )
    # Nodes that run look for the brokers where they were, also for those that have to be started again.
    servers = stored.node_bootstrap_servers if stored is not None and is_running else None
    if servers is None:
        servers = ",".join(f"127.0.0.1:{port}" for port in free_ports(settings.brokers))
    _encrypt(settings)
    options = operator_options(authority_of(settings.data_dir, settings.cluster, key_file))
    return replace(
        settings, secure=True, kafka=tuple(sorted(options.items())), node_bootstrap_servers=servers,
        tls_ca_file=Path(options[CA_FILE]), tls_certificate_file=Path(options[CERTIFICATE_FILE]), tls_key_file=None,
    )  # fmt: skip


def _encrypt(settings: Settings) -> None:
    """Have keys and secrets encrypted if they are to be; ends what a killed command has begun. Raises UsageError."""
    if settings.key_encryption_file is not None:
        encrypt(settings, ensure_key(settings, settings.key_encryption_file))


def _with_datanodes(settings: Settings, stored: Settings, moved: list[Moved], *, running: bool) -> Settings:
    """Return the settings with the datanodes that the stack has, and those that are new.

    A known datanode keeps its address while the stack runs. Raises UsageError if the settings leave out a known
    datanode, or give datanodes to a stack that runs without any: its nodes allocate blocks elsewhere.
    """
    if "datanodes" not in settings.explicit:
        return replace(settings, datanodes=stored.datanodes, racks=stored.racks)
    known = {node.name: node for node in stored.datanodes}
    wanted = {node.name for node in settings.datanodes}
    if gone := [name for name in known if name not in wanted]:
        raise UsageError(
            f"the stack in {settings.data_dir} has the datanodes {', '.join(known)}: {', '.join(gone)} may hold "
            "blocks; 'stratolog admin datanode decommission' first, or use another data_dir"
        )
    if running and wanted and not known:
        raise UsageError(f"the stack in {settings.data_dir} runs without datanodes: 'stratolog down' first")
    if not running:
        return settings
    taken = {port for node in stored.datanodes for port in (node.port, node.http_port)}
    new = [node for node in settings.datanodes if node.name not in known]
    free = {node.name: node for node in free_datanodes(settings, new, taken, moved)}
    return replace(settings, datanodes=tuple(known.get(node.name) or free[node.name] for node in settings.datanodes))
