"""The HTTP server of a process whose replicas are not all open yet.

Opening a replica may take long: it may have to install a peer's checkpoint. Two processes that each need what the other
one has open already would wait for each other in vain if they served only when all is open. So this server runs
meanwhile. It serves the checkpoints of the replicas that are open (``transfer_pages``), and says what the process is
at:

=================  ========================================================================================
GET /status        503; ``opening``: the last line about each replica that is being opened
GET /metrics       how many replicas are open, and how many there are to be
any other          503: ask again, or ask another node
=================  ========================================================================================

Afterwards the process's own server takes over the listening socket. Nobody is refused in between: who connects waits.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from aiohttp import web
from prometheus_client.core import Metric

from replicated_db.core.errors import StopProcess
from replicated_db.shell.bootstrap.transfer_pages import TransferPages
from schemas.security.tls import ProcessTls
from transport.web.http_server import HttpServer
from transport.web.listening import CannotListen, listen
from transport.web.metrics import Metrics, family
from transport.web.threaded_server import ThreadedServer

MAX_SHOWN_CHARACTERS = 500
FAMILIES = (
    ("stratolog_opening_replicas", "gauge", "Replicas that this process is to open.", ("node",)),
    ("stratolog_opening_replicas_open", "gauge", "Replicas that are open.", ("node",)),
)
"""Name, kind, meaning and labels of each metric of a process that opens its replicas."""

OPENING = "OPENING"
"""The process opens its replicas: ask again."""


class AddressRefused(StopProcess):
    """The address of the HTTP server cannot be used."""


class OpeningWeb:
    """Serves from :meth:`start` to :meth:`hand_over`, on a thread of its own."""

    def __init__(
        self, node: str, host: str, port: int, pages: TransferPages, middlewares: Sequence[Any], *, replicas: int,
        opened: Callable[[], int], tls: ProcessTls | None = None, headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """``replicas`` is how many there are to be; ``opened`` returns how many are open.

        ``headers`` are in each answer.
        """
        self._node = node
        self._address = (host, port)
        self._replicas = replicas
        self._opened = opened
        self._said: dict[int, str] = {}
        app = web.Application(middlewares=middlewares)
        pages.attach(app)
        app.router.add_get("/metrics", Metrics(self._families).page())
        app.router.add_route("*", "/{any:.*}", self._not_yet)
        context = None if tls is None else tls.server(needs_certificate=False)
        self._server = ThreadedServer(HttpServer(app, tls=context, headers=headers), "opening-web")
        self._listening: list[socket.socket] = []

    def start(self) -> Self:
        """Listen, and begin to serve. Raises AddressRefused."""
        try:
            self._listening = listen(*self._address)
        except CannotListen as error:
            raise AddressRefused(str(error)) from error
        self._server.start([one.dup() for one in self._listening])
        return self

    def say(self, shard: int, text: str) -> None:
        """Note what a replica's opening is at; for any thread."""
        self._said[shard] = text[:MAX_SHOWN_CHARACTERS]

    def is_open(self, shard: int) -> None:
        """Note that a replica is open; for any thread."""
        self._said.pop(shard, None)

    def hand_over(self) -> list[socket.socket]:
        """End, and return the sockets, which listen on. Call it once."""
        if not self._listening:
            raise RuntimeError("the server was not started, or has ended")
        listening, self._listening = self._listening, []
        self._server.close()
        return listening

    def close(self) -> None:
        """End and listen no more, if the sockets have not been handed over."""
        if self._listening:
            for one in self.hand_over():
                one.close()

    async def _not_yet(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's signature
        said = [text for _, text in sorted(self._said.copy().items())]
        message = f"{self._node} opens its replicas, {self._opened()} of {self._replicas} are open"
        return web.json_response(
            {"error": OPENING, "message": message, "node": self._node, "opening": said}, status=503
        )

    def _families(self) -> Iterable[Metric]:
        node = {"node": self._node}
        for (name, kind, text, _), figure in zip(FAMILIES, (self._replicas, self._opened()), strict=True):
            yield family(name, kind, text, [(node, figure)])
