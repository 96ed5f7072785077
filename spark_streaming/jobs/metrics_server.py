"""The HTTP server of the audit's metrics: ``GET /metrics``, by prometheus_client, for a bounded number of peers.

The library's own server takes as many connections as come, and waits for ever for a peer that says nothing.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

MAX_PEERS = 8
"""Peers that are served at once; a further one is closed."""

SILENCE_S = 5.0
"""A peer that is silent for so long is closed."""

DEADLINE_S = 15.0
"""A peer that asks a byte at a time is closed after so long."""


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing: each look would be a line."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry from its making to :meth:`close`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Port 0 is any free one. Raises OSError, naming the address, if nobody can listen there."""
        self._room = threading.BoundedSemaphore(MAX_PEERS)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(address[0]), int(address[1])), _Handler)
        except OSError as error:
            raise OSError(f"the metrics cannot be served at {host}:{port}: {error}") from error
        self.set_app(make_wsgi_app(registry))
        self.address = f"{host}:{self.server_port}"
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def server_bind(self) -> None:
        """Listen; a WSGI server would ask for the host's name, which may take as long as the resolver likes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a peer on a thread of its own, if there is room."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be had
            self._room.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a peer, and make room again."""
        deadline = threading.Timer(DEADLINE_S, _end, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a peer that went away."""

    def close(self) -> None:
        """End; the port is free again."""
        self.shutdown()
        self.server_close()


def _end(peer: socket.socket) -> None:
    """End a connection, whatever its thread waits for."""
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
