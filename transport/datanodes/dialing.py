"""Connecting to a datanode, plain or in TLS, within a deadline."""

from __future__ import annotations

import errno
import socket
import ssl

from schemas.codecs.decimals import decimal_of
from schemas.security.tls_socket import TlsSocket
from transport.datanodes.core.failures import ConnectionFault
from transport.waiting.deadline import Deadline

Connected = socket.socket | TlsSocket

KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 3
"""Keep-alive settings by which a peer whose host has vanished is noticed 25 s after its last sign of life."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process, or a host, that has run out of descriptors."""
NO_ADDRESS = "this is no address host:port"


class NoConnection(Exception):
    """No connection could be made; the text says why, and goes behind the address."""

    def __init__(self, fault: ConnectionFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port``, a host of IPv6 without its brackets; raises NoConnection (NO_ADDRESS).

    >>> split_address("[::1]:99"), split_address("dn1.example:99")
    (('::1', 99), ('dn1.example', 99))
    """
    host, _, port = address.rpartition(":")
    number = decimal_of(port, 65535)
    if not host or not number:
        raise NoConnection(ConnectionFault.NO_ADDRESS, NO_ADDRESS)
    return host.strip("[]"), number


def dial(address: str, deadline: Deadline, tls: ssl.SSLContext | None = None) -> Connected:
    """Return a connection to ``address``; with ``tls`` it is greeted, and is who the context expects.

    Raises NoConnection.
    """
    host, port = split_address(address)
    timeout_s = deadline.left_s
    try:
        sock = socket.create_connection((host, port), max(timeout_s, 0.001))
        return sock if tls is None else _secured(sock, deadline, tls, host)
    except TimeoutError as error:
        raise NoConnection(ConnectionFault.NO_ANSWER, f"cannot connect in {timeout_s:.3g} s") from error
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise NoConnection(ConnectionFault.NO_DESCRIPTOR, f"cannot connect: {error.strerror} here") from error
        raise NoConnection(ConnectionFault.UNREACHABLE, f"cannot connect: {why_not(error)}") from error
    except ValueError as error:  # an impossible host name; a certificate that is refused is an OSError, too
        raise NoConnection(ConnectionFault.NO_ADDRESS, NO_ADDRESS) from error


def _secured(sock: socket.socket, deadline: Deadline, tls: ssl.SSLContext, host: str) -> TlsSocket:
    try:
        sock.settimeout(max(deadline.left_s, 0.001))
        return TlsSocket(tls.wrap_socket(sock, server_hostname=host))
    except BaseException:
        sock.close()
        raise


def why_not(error: OSError) -> str:
    """Return in words why a connection, or its handshake, has failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return getattr(error, "verify_message", "") or str(error)
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return str(error) or type(error).__name__


def keep_alive(sock: Connected) -> None:
    """Have the kernel notice that the host on the other side has vanished."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
