"""One HTTP server: an application of aiohttp, within the limits of ``bounded_server``, on sockets that listen.

Every process's server is one of these: a node's, that of a node which is still opening, the dashboard's, that of the
audit's metrics. Whoever has an event loop awaits :meth:`HttpServer.start` and :meth:`HttpServer.close`; whoever has
none takes ``threaded_server``.

In TLS a handshake has HANDSHAKE_S. asyncio gives it a minute, and counts none: a peer that connects and says nothing
would have a descriptor of the process for so long, and so would thousands. One is begun only while
``BoundedServer.may_greet`` says so; a connection beyond it is closed without a word.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web

from schemas.security.tls import LiveContext
from transport.web.bounded_server import HANDSHAKE_S, LAST_WORDS_S, BoundedServer, most_connections
from transport.web.listening import BACKLOG

LINE_BYTES = 8190
"""Most bytes of a request's line, unless a server is told another limit; and of a header, for all."""
END_TIMEOUT_S = 5.0
"""How long answers under way may take when a server ends, unless it is told another time; then they are cut off."""


class HttpServer:
    """A server of one event loop, from :meth:`start` to :meth:`close`; it is not started again."""

    def __init__(
        self, app: web.Application, *, tls: ssl.SSLContext | None = None, most: int | None = None,
        line_bytes: int = LINE_BYTES, end_timeout_s: float = END_TIMEOUT_S, headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """``tls``: what connections are made secure with; None: they are in clear. ``headers`` are in each answer.

        ``most`` is how many connections may be open; None: as many as this process's descriptors allow.
        """
        self.most = most_connections() if most is None else most
        self.end_timeout_s = end_timeout_s
        self._tls = tls
        if headers:
            app.on_response_prepare.append(_adding(headers))
        self._runner = _Runner(app, self.most, line_bytes, end_timeout_s)
        self._listeners: list[asyncio.Server] = []

    @property
    def bounded(self) -> BoundedServer:
        """The server of the connections, once it is started."""
        if not isinstance(found := self._runner.server, BoundedServer):
            raise RuntimeError("the HTTP server was not started, or has ended")
        return found

    async def start(self, listening: Sequence[socket.socket]) -> None:
        """Serve on sockets that listen; they are closed with the server, and if it cannot start."""
        try:
            await self._runner.setup()
            if isinstance(self._tls, LiveContext):
                self._tls.may_greet = self.bounded.may_greet
            patience_s = None if self._tls is None else HANDSHAKE_S
            for one in listening:
                served = asyncio.get_running_loop().create_server(
                    self.bounded, sock=one, ssl=self._tls, backlog=BACKLOG, ssl_handshake_timeout=patience_s,
                    ssl_shutdown_timeout=None if self._tls is None else LAST_WORDS_S,
                )  # fmt: skip
                self._listeners.append(await served)
        except BaseException:
            await self.close()
            for one in listening:
                one.close()
            raise

    async def close(self) -> None:
        """Listen no more, let answers under way end in time, and end all connections."""
        for one in self._listeners:
            one.close()
        await self._runner.cleanup()


def _adding(headers: Mapping[str, str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def add(_request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update(headers)

    return add


class _Runner(web.AppRunner):
    def __init__(self, app: web.Application, most: int, line_bytes: int, end_timeout_s: float) -> None:
        super().__init__(app, access_log=None, max_line_size=line_bytes, shutdown_timeout=end_timeout_s)
        self._most = most
        self._line_bytes = line_bytes

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return BoundedServer(
            made.request_handler, request_factory=made.request_factory, most=self._most, access_log=None,
            max_line_size=self._line_bytes,
        )  # fmt: skip
