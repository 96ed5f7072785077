"""The HTTP server of the audit's metrics: ``GET /metrics``.

In clear it is for all who reach it. Where the cluster speaks TLS, so does this server, and it answers those alone who
show a certificate of the cluster's authority.
"""

from __future__ import annotations

from aiohttp import web

from schemas.security.tls import ProcessTls
from transport.web.http_guard import ANY_HOST, HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of
from transport.web.metrics import Metrics
from transport.web.threaded_server import ThreadedServer

MAX_PEERS = 8
"""Connections that are open at once; for a further one the one makes room that has been idle longest."""


class MetricsServer:
    """Serves a process's metrics from its making to :meth:`close`."""

    def __init__(self, host: str, port: int, metrics: Metrics, tls: ProcessTls | None = None) -> None:
        """Port 0 is any free one; ``tls`` None: in clear.

        Raises CannotListen, naming the address, if nobody can listen there; TlsUnusable without a certificate.
        """
        # Prometheus may know this process by any name: only what pages of other origins ask is refused.
        app = web.Application(middlewares=[HttpGuard(None, [ANY_HOST], secure=tls is not None).middleware()])
        app.router.add_get("/metrics", metrics.page())
        context = None if tls is None else tls.server(needs_certificate=False)
        listening = listen(host, port, "the server of the audit's metrics")
        self.address = f"{host}:{port_of(listening)}"
        self._server = ThreadedServer(HttpServer(app, tls=context, most=MAX_PEERS), "metrics").start(listening)

    def close(self) -> None:
        """End; the port is free again."""
        self._server.close()
