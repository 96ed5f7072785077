"""A node's web server, on Faust's driver, with room for every legal name.

A key's name has up to 4,096 bytes, each of which takes three when it is escaped; a listing has two such names. A row's
key, in hexadecimal, has up to twice 16,384. aiohttp's own limit of 8,190 bytes for a request's line refused them.

The server itself is that of all processes (``transport/web/http_server``).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import faust
from faust.web.drivers.aiohttp import Web

from transport.web.http_server import HttpServer
from transport.web.listening import listen

MAX_LINE_BYTES = 48 * 1024
"""Most bytes of an HTTP request's line."""
END_TIMEOUT_S = 60.0
"""How long answers under way may take when a node stops: a scan or a piece of a checkpoint is worth the wait."""


class NodeWeb(Web):
    """Faust's pages on the server of all processes, with lines of up to MAX_LINE_BYTES."""

    def __init__(
        self, app: faust.App, tls: ssl.SSLContext | None = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """``tls``: what connections are made secure with; None: they are in clear. ``headers`` are in each answer."""
        super().__init__(app, **more)
        self.server = HttpServer(
            self.web_app, tls=tls, line_bytes=MAX_LINE_BYTES, end_timeout_s=END_TIMEOUT_S, headers=headers
        )
        self.listening: Sequence[socket.socket] = ()
        """Sockets that listen already; without any the server makes its own."""

    async def start_server(self) -> None:
        """Start to answer, on the sockets that listen already if there are any. Raises CannotListen."""
        config = self.app.conf
        await self.server.start(self.listening or listen(config.web_bind, config.web_port))

    async def stop_server(self) -> None:
        """Listen no more, and end all connections."""
        await self.server.close()
