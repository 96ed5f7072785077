"""An HTTP proxy before a node, which flips one bit in the body of some answers; all else passes as it is."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

HOP_HEADERS = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})
TIMEOUT_S = 120.0

Twist = Callable[[str, str, int, bytes], bytes]
"""Method, path, status and body of an answer -> the body to send: the same one, or a damaged one of the same length."""


class FlippingProxy:
    """Listens on a free port of 127.0.0.1, and passes requests on to ``target`` (``host:port``)."""

    def __init__(self, target: str, twist: Twist) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(target, twist))
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(target: str, twist: Twist) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            asked = self.rfile.read(length) if length else None
            try:
                status, headers, body = self._ask(asked)
            except (OSError, http.client.HTTPException):
                self.close_connection = True  # as a node that is gone
                return
            sent = twist(self.command, self.path, status, body)
            assert len(sent) == len(body)
            with suppress(OSError):
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

        def _ask(self, asked: bytes | None) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(target, timeout=TIMEOUT_S)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() != "connection":
                        connection.putheader(name, value)
                connection.endheaders(asked)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def log_message(self, *_: object) -> None:
            """Say nothing: a campaign says what was found."""

    return Handler
