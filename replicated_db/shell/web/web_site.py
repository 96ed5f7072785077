"""Where an HTTP server listens: as aiohttp's sites do, with a limit on the time and the number of TLS handshakes.

asyncio gives a handshake a minute, and counts none. A peer that connects and says nothing would have a descriptor of
the process for so long, and so would thousands. Here a handshake has HANDSHAKE_S, and one is begun only while
``may_greet`` of the server says so (``BoundedServer``); a connection beyond it is closed without a word.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from aiohttp import web

from schemas.security.tls import LiveContext

HANDSHAKE_S = 10.0
"""How long a peer may take to agree on TLS."""


class WebSite(web.BaseSite):
    """Where a runner's server listens: at a host's port, or on a socket."""

    __slots__ = ("_at",)

    def __init__(
        self, runner: web.BaseRunner, at: tuple[str, int] | socket.socket, tls: ssl.SSLContext | None
    ) -> None:  # fmt: skip
        """``tls``: what connections are made secure with; None: they are in clear."""
        super().__init__(runner, ssl_context=tls)
        self._at = at

    @property
    def name(self) -> str:
        """Where it listens."""
        host, port = (self._at if isinstance(self._at, tuple) else self._at.getsockname())[:2]
        return f"{'http' if self._ssl_context is None else 'https'}://{host}:{port}"

    async def start(self) -> None:
        """Listen; raises OSError if the address is taken."""
        await super().start()
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner has not been set up")
        tls, loop = self._ssl_context, asyncio.get_running_loop()
        may_greet: Callable[[], bool] | None = getattr(server, "may_greet", None)
        if isinstance(tls, LiveContext) and may_greet is not None:
            tls.may_greet = may_greet
        patience_s = None if tls is None else HANDSHAKE_S
        if isinstance(self._at, tuple):
            self._server = await loop.create_server(
                server, *self._at, ssl=tls, backlog=self._backlog, ssl_handshake_timeout=patience_s
            )
        else:
            self._server = await loop.create_server(
                server, sock=self._at, ssl=tls, backlog=self._backlog, ssl_handshake_timeout=patience_s
            )
