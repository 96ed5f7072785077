"""An HTTP server whose connections are bounded in number and in silence.

aiohttp takes every connection that comes, and keeps one that says nothing for an hour. Ten thousand of them take the
descriptors that the database needs. Rules:

1. A connection that has not brought a whole request FIRST_REQUEST_S after it was made is told 408, and ended.
2. At most ``most`` connections are open. For a further one the connection makes room that has been idle longest, if it
   has been so for IDLE_GRACE_S: between two requests, or before its first. So silence keeps nobody out.
3. If none makes room, the new one is told 503, OVERLOADED, once it asks. MAX_REFUSED such wait for their answer at a
   time; a further one is closed without a word.

4. The same holds for TLS: a connection counts from its beginning, and its handshake has HANDSHAKE_S. Of those that are
   refused, MAX_REFUSED may be in their handshakes at a time (``may_greet``).

A connection whose request is at work, or which was upgraded, is never ended here; one is idle again once its answer is
made.

5. What is no HTTP is answered with 400, and the log says how many such there were, every NOTE_S. aiohttp would write a
   traceback for each, with the bytes: anybody could fill the disk, and a proof in a header would be in the log.

What a peer does not read is bounded by those who answer at length: the direct door, the dashboard's events. A bound
and a deadline for all answers have their place here: ``connection_made`` sees every transport, ``_serve`` every answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from aiohttp.web_protocol import RequestHandler

from schemas.result_codes import INVALID_REQUEST, OVERLOADED

MAX_WEB_CONNECTIONS = 2048
"""Most HTTP connections of a process, those of the direct door among them."""
DESCRIPTOR_SHARE = 2
"""Of a process's descriptors at most one in so many is a connection's; the others are for files and for Kafka."""
WANTED_DESCRIPTORS = 65_536
"""So many descriptors a process asks the system for, if it may have them."""
HANDSHAKE_S = 10.0
"""How long a peer may take to agree on TLS."""
FIRST_REQUEST_S = 10.0
IDLE_GRACE_S = 1.0
IDLE_S = 75.0
"""A connection is closed that has been idle for so long after a request."""
MAX_REFUSED = 256
REFUSAL_S = 2.0
NOTE_S = 10.0
"""How often the log says that connections are refused."""

log = logging.getLogger("stratolog.web")


def raise_descriptors(wanted: int = WANTED_DESCRIPTORS) -> int:
    """Let this process have as many open files as it may, up to ``wanted``; return how many it may have now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return wanted if soft == resource.RLIM_INFINITY else soft


def most_connections() -> int:
    """Return how many connections this process takes: the other descriptors stay for its files and for Kafka."""
    return min(MAX_WEB_CONNECTIONS, raise_descriptors() // DESCRIPTOR_SHARE)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The log of an HTTP server: defects as they are, requests that are none by their number alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(server_logger, None)
        self._clock = clock
        self._noted_s = -NOTE_S
        self._untold = 0

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log a defect with its traceback; count a request that is none, or whose caller has gone meanwhile."""
        if not isinstance(exc_info, HttpProcessingError | ConnectionError):
            super().exception(msg, *args, exc_info=exc_info, **more)
            return
        self._untold += 1
        if (now_s := self._clock()) - self._noted_s >= NOTE_S:
            log.warning("%d requests were no HTTP, or their callers had gone", self._untold)
            self._noted_s, self._untold = now_s, 0


class BoundedServer(web.Server):
    """aiohttp's server within the rules above; for one event loop."""

    def __init__(self, handler: Any, *, most: int = MAX_WEB_CONNECTIONS, request_factory: Any, **more: Any) -> None:
        super().__init__(
            self._serve, request_factory=request_factory, keepalive_timeout=IDLE_S, logger=ServerLog(), **more
        )  # fmt: skip
        self.most = most
        self.refused = 0
        """Connections that were refused, ever."""
        self.displaced = 0
        """Connections that made room for others, ever."""
        self._inner = handler
        self._coming: dict[RequestHandler, float] = {}
        """Connections that were accepted and are not made yet (TLS may have to be agreed on first), and since when."""
        self._open: set[RequestHandler] = set()
        self._idle: dict[RequestHandler, float] = {}
        """Connections without a request, longest first, and since when."""
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}
        """Connections that have brought no request yet."""
        self._refusing: set[_Refusal] = set()
        self._refused_s: deque[float] = deque()
        """When those were refused whose handshake may go on."""
        self._noted_s = -NOTE_S

    def may_greet(self) -> bool:
        """Say whether a handshake of TLS may begin: not while too many are at it who will be refused."""
        now_s = self._loop.time()
        while self._refused_s and now_s - self._refused_s[0] > HANDSHAKE_S:
            self._refused_s.popleft()
        return len(self._refused_s) <= MAX_REFUSED

    def __call__(self) -> Any:
        """Return what serves a new connection."""
        if self._are_there() >= self.most and not self._make_room():
            self.refused += 1
            if len(self._refused_s) <= MAX_REFUSED:
                self._refused_s.append(self._loop.time())
            self._note()
            return _Refusal(self._refusing, self.most)
        made = super().__call__()
        self._coming[made] = self._loop.time()
        return made

    def _are_there(self) -> int:
        """Return how many connections there are. One that was not made in time never will be."""
        now_s = self._loop.time()
        while self._coming and now_s - next(iter(self._coming.values())) > HANDSHAKE_S:
            del self._coming[next(iter(self._coming))]
        return len(self._open) + len(self._coming)

    def _make_room(self) -> bool:
        for one, since_s in self._idle.items():
            if self._loop.time() - since_s < IDLE_GRACE_S:
                return False
            self._forget(one)
            one.force_close()
            self.displaced += 1
            return True
        return False

    def _note(self) -> None:
        if (now_s := self._loop.time()) - self._noted_s >= NOTE_S:
            self._noted_s = now_s
            log.warning("%d connections are open, and no more are taken; refused so far: %d", self.most, self.refused)

    # -- what aiohttp says of its connections ----------------------------------------------------------------------

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection."""
        super().connection_made(handler, transport)
        self._coming.pop(handler, None)
        self._open.add(handler)
        self._idle[handler] = self._loop.time()
        self._silent[handler] = self._loop.call_later(FIRST_REQUEST_S, self._end_silent, handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        self._forget(handler)
        super().connection_lost(handler, exc)

    def _forget(self, handler: RequestHandler) -> None:
        self._open.discard(handler)
        self._idle.pop(handler, None)
        self._heard(handler)

    def _heard(self, handler: RequestHandler) -> None:
        if (timer := self._silent.pop(handler, None)) is not None:
            timer.cancel()

    def _end_silent(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write(_answer(408, INVALID_REQUEST, f"no whole request within {FIRST_REQUEST_S:.0f} s"))
        self._forget(handler)
        handler.force_close()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's signature
        """End all connections, those that wait to be refused among them."""
        for one in tuple(self._refusing):
            one.end()
        await super().shutdown(timeout)

    async def _serve(self, request: web.BaseRequest) -> Any:
        handler = request.protocol
        self._heard(handler)
        self._idle.pop(handler, None)
        try:
            return await self._inner(request)
        finally:
            if handler in self._open:
                self._idle[handler] = self._loop.time()


class _Refusal(asyncio.Protocol):
    """A connection that gets 503 as the answer to whatever it sends first."""

    def __init__(self, all_: set[_Refusal], most: int) -> None:
        self._all = all_
        self._most = most
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._all) >= MAX_REFUSED:
            self._transport.abort()
            return
        self._all.add(self)
        self._timer = asyncio.get_running_loop().call_later(REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - asyncio's signature
        if self._transport is not None and not self._transport.is_closing():
            what = f"{self._most} connections are open here, and no more are taken"
            self._transport.write(_answer(503, OVERLOADED, what))
            self._transport.close()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._all.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def _answer(status: int, code: str, message: str) -> bytes:
    """Return a whole answer, as aiohttp would send it, after which the connection is closed."""
    body = json.dumps({"error": code, "message": message}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
