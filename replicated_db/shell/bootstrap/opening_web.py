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

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from aiohttp import web
from prometheus_client.core import Metric

from replicated_db.core.errors import StopProcess
from replicated_db.shell.bootstrap.transfer_pages import TransferPages
from replicated_db.shell.web.bounded_server import BoundedRunner
from replicated_db.shell.web.metrics import CONTENT_TYPE, Metrics, family
from replicated_db.shell.web.web_site import WebSite
from schemas.security.tls import ProcessTls

BACKLOG = 128
"""Connections that wait while no server takes them."""

NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A name may have addresses that this machine does not."""

START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0
"""How long answers under way may take when the process's own server takes over; then they are cut off."""

MAX_SHOWN_CHARACTERS = 500
FAMILIES = (
    ("stratolog_opening_replicas", "gauge", "Replicas that this process is to open.", ("node",)),
    ("stratolog_opening_replicas_open", "gauge", "Replicas that are open.", ("node",)),
)
"""Name, kind, meaning and labels of each metric of a process that opens its replicas."""

OPENING = "OPENING"
"""The process opens its replicas: ask again."""


class CannotListen(StopProcess):
    """The address of the HTTP server cannot be used."""


class OpeningWeb:
    """Serves from :meth:`start` to :meth:`hand_over`, on a thread of its own."""

    def __init__(
        self, node: str, host: str, port: int, pages: TransferPages, middlewares: Sequence[Any], *, replicas: int,
        opened: Callable[[], int], tls: ProcessTls | None = None,
    ) -> None:  # fmt: skip
        """``replicas`` is how many there are to be; ``opened`` returns how many are open."""
        self._node = node
        self._tls = None if tls is None else tls.server(needs_certificate=False)
        self._address = (host, port)
        self._replicas = replicas
        self._opened = opened
        self._said: dict[int, str] = {}
        self._metrics = Metrics(self._families)
        app = web.Application(middlewares=middlewares)
        pages.attach(app)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_route("*", "/{any:.*}", self._not_yet)
        self._runner = BoundedRunner(app, shutdown_timeout=END_TIMEOUT_S)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="opening-web", daemon=True)
        self._listening: list[socket.socket] = []

    def start(self) -> Self:
        """Listen, and begin to serve. Raises CannotListen."""
        self._listening = _listening(*self._address)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_TIMEOUT_S)
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
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(END_TIMEOUT_S + START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_TIMEOUT_S)
        return listening

    def close(self) -> None:
        """End and listen no more, if the sockets have not been handed over."""
        if self._listening:
            for one in self.hand_over():
                one.close()

    async def _start(self) -> None:
        await self._runner.setup()
        for one in self._listening:
            await WebSite(self._runner, one.dup(), self._tls).start()

    async def _not_yet(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's signature
        said = [text for _, text in sorted(self._said.copy().items())]
        message = f"{self._node} opens its replicas, {self._opened()} of {self._replicas} are open"
        return web.json_response(
            {"error": OPENING, "message": message, "node": self._node, "opening": said}, status=503
        )

    async def _show_metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's signature
        return web.Response(body=self._metrics.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    def _families(self) -> Iterable[Metric]:
        node = {"node": self._node}
        for (name, kind, text, _), figure in zip(FAMILIES, (self._replicas, self._opened()), strict=True):
            yield family(name, kind, text, [(node, figure)])


def _listening(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host that this machine has, as the process's own server would.

    Raises CannotListen.
    """
    made: list[socket.socket] = []
    why: OSError | None = None
    try:
        for kind, _, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
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
        raise CannotListen(f"the HTTP server cannot listen on {host}:{port}: {why}") from why
    return made


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
