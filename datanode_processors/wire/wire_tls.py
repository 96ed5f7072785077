"""TLS of the datanodes' protocol: how a socket becomes a connection whose peer is known.

A datanode shows its certificate to whom it calls and to whom it answers. A peer of either kind that shows one is who
the certificate says: ``identity``. Rules:

1. A peer that is called must be a datanode, and the one that was meant.
2. The name in HELLO is that of the certificate, for datanodes and Object Manager nodes.
3. The handshake has a deadline, on the connection's own thread: a peer that says nothing delays nobody else.
"""

from __future__ import annotations

import socket

from datanode_processors.errors import BlockError
from schemas import stream_errors
from schemas.security.certificates import MEMBERS, ExpectedPeer, PeerIdentity, Role, WrongPeer, identity_of
from schemas.security.tls import ProcessTls
from schemas.security.tls_socket import TlsSocket

A_DATANODE = ExpectedPeer(roles=frozenset({Role.DATANODE}))


class WireTls:
    """How a datanode speaks TLS on its stream server and to others; for many threads."""

    def __init__(self, tls: ProcessTls, *, needs_certificate: bool = True) -> None:
        """``needs_certificate``: whether a peer without one is not even heard. Raises TlsUnusable."""
        self.process = tls
        self.client = tls.client(A_DATANODE, framed=True)
        """The context for connections to other datanodes."""
        self._server = tls.server(needs_certificate=needs_certificate, framed=True)

    def accept(self, sock: socket.socket, timeout_s: float) -> TlsSocket:
        """Greet a peer that has connected; raises OSError."""
        sock.settimeout(timeout_s)
        return TlsSocket(self._server.wrap_socket(sock, server_side=True))


def identity_on(sock: socket.socket | TlsSocket) -> PeerIdentity | None:
    """Return who the peer is; None on a plain connection, and for a peer that has shown no certificate.

    Raises PERMISSION_DENIED for a certificate that names nobody.
    """
    if not isinstance(sock, TlsSocket) or sock.certificate is None:
        return None
    try:
        return identity_of(sock.certificate)
    except WrongPeer as error:
        raise BlockError(stream_errors.PERMISSION_DENIED, str(error)) from error


def check_name(identity: PeerIdentity | None, hello_name: str) -> None:
    """Raise PERMISSION_DENIED if a member's HELLO has another name than its certificate."""
    if identity is not None and identity.role in MEMBERS and identity.name != hello_name:
        raise BlockError(
            stream_errors.PERMISSION_DENIED, f"HELLO is of {hello_name!r}, the certificate is that of {identity}"
        )
