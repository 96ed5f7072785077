"""The sockets on which a server listens: on all addresses of a host that this machine has."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any

BACKLOG = 128
"""Connections that wait while no server takes them."""

NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A name may have addresses that this machine does not."""


class CannotListen(OSError):
    """Nobody can listen at an address; the message names it."""


def listen(host: str, port: int, who: str = "the HTTP server") -> list[socket.socket]:
    """Listen on the addresses of a host; return their sockets, one at least.

    Port 0 is any free port, of the first of the addresses alone: the next one may have another process there.

    Raises CannotListen, which says that ``who`` cannot, where, and why.
    """
    made: list[socket.socket] = []
    why: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for kind, _, protocol, _, address in dict.fromkeys(found):  # a hosts file may name an address twice
            if made and port == 0:
                break
            try:
                made.append(_listening_at(kind, protocol, address))
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
                why = error
    except OSError as error:
        for one in made:
            one.close()
        why, made = error, []
    if not made:
        reason = None if why is None else why.strerror or why
        raise CannotListen(f"{who} cannot listen on {host}:{port}: {reason}") from why
    return made


def port_of(listening: Sequence[socket.socket]) -> int:
    """Return the port of sockets that :func:`listen` has made."""
    return int(listening[0].getsockname()[1])


def _listening_at(kind: int, protocol: int, address: Any) -> socket.socket:
    made = socket.socket(kind, socket.SOCK_STREAM, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == socket.AF_INET6:  # IPv4 has a socket of its own
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
