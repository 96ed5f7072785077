"""A node's web server, on Faust's driver, with room for every legal name.

A key's name has up to 4,096 bytes, each of which takes three when it is escaped; a listing has two such names. A row's
key, in hexadecimal, has up to twice 16,384. aiohttp's own limit of 8,190 bytes for a request's line refused them.

Its connections are bounded (``bounded_server``): half of the process's descriptors stay for its files and for Kafka.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any

import faust
from faust.web.drivers.aiohttp import Web

from replicated_db.shell.web.bounded_server import (
    DESCRIPTOR_SHARE,
    MAX_WEB_CONNECTIONS,
    BoundedRunner,
    raise_descriptors,
)
from replicated_db.shell.web.web_site import WebSite

MAX_LINE_BYTES = 48 * 1024
"""Most bytes of an HTTP request's line."""


class NodeWeb(Web):
    """Faust's web server, with lines of up to MAX_LINE_BYTES."""

    def __init__(self, app: faust.App, tls: ssl.SSLContext | None = None, **more: Any) -> None:
        """``tls``: what connections are made secure with; None: they are in clear."""
        super().__init__(app, **more)
        self._tls = tls
        most = min(MAX_WEB_CONNECTIONS, raise_descriptors() // DESCRIPTOR_SHARE)
        self._runner: BoundedRunner = BoundedRunner(self.web_app, most=most, max_line_size=MAX_LINE_BYTES)
        self.listening: Sequence[socket.socket] = ()
        """Sockets that listen already; without any the server makes its own."""

    async def start_server(self) -> None:
        """Start to answer, on the sockets that listen already if there are any."""
        if not self.listening and self._tls is None:
            await super().start_server()
            return
        await self._runner.setup()
        if not self.listening:
            config = self.app.conf
            await WebSite(self._runner, (config.web_bind, config.web_port), self._tls).start()
        for one in self.listening:
            await WebSite(self._runner, one, self._tls).start()
