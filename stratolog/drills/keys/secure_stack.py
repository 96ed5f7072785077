"""A small secure stack of a drill's own: one broker, two nodes, three datanodes, ``auth = signed``.

It lies in a directory below the running stack's, uses free ports, and is stopped and deleted however the drill ends.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from schemas.security.certificates import PeerIdentity, Role
from schemas.security.tls import ProcessTls, TlsFiles
from schemas.settings.values import DatanodeAddress, NodeAddress
from stratolog.brokers.identities import authority_of
from stratolog.configuration.settings import Settings
from stratolog.drills.core.report import StepFailed
from stratolog.drills.kit.own_stack import started
from stratolog.drills.kit.rebuild import scratch
from stratolog.drills.kit.session import Session
from stratolog.local.ports import free_ports
from stratolog.security.authority import Authority

NODES, DATANODES = 2, 3
CONNECT_S = 10.0


@contextmanager
def secure_stack(session: Session, settings: Settings, drill: str, *, detached: bool) -> Iterator[Settings]:
    """Start a secure stack, and yield the settings that reach it as its operator; stop and delete it at the end."""
    with scratch(session, settings, drill) as folder:
        text = f"start a secure stack in {folder}"
        with started(session, _settings(settings, folder), text, detached=detached) as own:
            yield own


def _settings(settings: Settings, folder: Path) -> Settings:
    kafka, *ports = free_ports(1 + NODES + 2 * DATANODES)
    spare = iter(ports[NODES:])
    return replace(
        Settings(cache_dir=settings.cache_dir, data_dir=folder / "stack"), bootstrap_servers=f"127.0.0.1:{kafka}", brokers=1,
        shards=1, audit=False, ui=False, secure=True, auth="signed", datanode_reserve_bytes=0,
        nodes=tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=ports[n - 1]) for n in range(1, NODES + 1)),
        datanodes=tuple(
            DatanodeAddress(name=f"dn{n}", host="127.0.0.1", port=next(spare), http_port=next(spare))
            for n in range(1, DATANODES + 1)
        ),
    )  # fmt: skip


def authority(settings: Settings) -> Authority:
    """Return the authority of a stack."""
    return authority_of(settings.data_dir, settings.cluster)


def tls_of(settings: Settings, name: str) -> TlsFiles:
    """Return the files by which a client proves itself; its certificate is made if there is none."""
    own = authority(settings)
    issued = own.certify(PeerIdentity(name=name, role=Role.CLIENT), now_s=int(time.time()))
    return TlsFiles(ca=own.ca_file, certificate=issued.path)


def renew_all(settings: Settings) -> int:
    """Make every certificate of the cluster anew, whatever time it has left; return how many there are."""
    own, now_s = authority(settings), int(time.time())
    return len([own.certify(holder, hosts, now_s=now_s, anew=True) for holder, hosts in own.holders()])


def shown_certificates(settings: Settings, files: TlsFiles) -> dict[str, str]:
    """Return the serial numbers that nodes and datanodes show to a new connection, by server; raises StepFailed."""
    context = ProcessTls(files).client()
    servers = {one.name: one.address for one in settings.nodes}
    servers |= {f"{one.name} (streams)": one.address for one in settings.datanodes}
    servers |= {f"{one.name} (HTTP)": one.http_address for one in settings.datanodes}
    found: dict[str, str] = {}
    for name, address in servers.items():
        host, _, port = address.rpartition(":")
        try:
            with (
                socket.create_connection((host, int(port)), CONNECT_S) as sock,
                context.wrap_socket(sock, server_hostname=host) as tls,
            ):
                found[name] = str((tls.getpeercert() or {}).get("serialNumber"))
        except OSError as error:
            raise StepFailed(f"{name} at {address}: {error}") from error
    return found
