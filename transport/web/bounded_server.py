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

6. A peer that reads nothing for UNREAD_S though an answer waits for it is cut off. All peers together leave at most
   MAX_UNSENT_BYTES unread: beyond, those are cut off that have left most for longest (bytes times seconds), so a peer
   that reads is not. What has been upgraded bounds itself (the direct door).
   A large answer is written in pieces: TLS takes a whole one, and says nothing of what its peer has not read.
7. A connection that makes room is gone at once, and one that is ended otherwise LAST_WORDS_S later, whatever its peer
   does: a transport that is closed waits for its peer to read, without an end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import ioctl
from http import HTTPStatus
from termios import TIOCOUTQ
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from aiohttp.payload import Payload
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
UNREAD_S = 60.0
"""How long a peer may read nothing of an answer."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Most bytes of answers that peers have not read, of all connections together; each may have one answer more."""
PIECE_BYTES = 64 * 1024
"""A larger answer is written in pieces."""
LAST_WORDS_S = 5.0
"""How long a connection that is being closed waits for its peer to read what was said."""
LOOK_S = 1.0
"""How often it is looked what peers have read, while some have not read all."""
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


class _Handler(RequestHandler):
    """aiohttp's connection, which tells its server when its peer does not keep up with an answer."""

    __slots__ = ("_server",)

    def __init__(self, server: BoundedServer, **more: Any) -> None:
        super().__init__(server, **more)
        self._server = server

    def pause_writing(self) -> None:
        super().pause_writing()
        self._server.on_unread(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._server.on_read(self)

    def force_close(self) -> None:
        if (transport := self.transport) is not None:
            self._loop.call_later(LAST_WORDS_S, transport.abort)
        super().force_close()


class _Pieces(Payload):
    """The bytes of a large answer, written as the peer reads, and forgotten then.

    aiohttp keeps the last answer of a connection until the next request: idle connections would keep megabytes each.
    """

    _value: bytes

    def __init__(self, body: bytes, *, is_sent: bool) -> None:
        """Without ``is_sent`` the answer names its size alone."""
        super().__init__(body if is_sent else b"")
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        body, self._value = self._value, b""
        for start in range(0, len(body), PIECE_BYTES):
            await writer.write(body[start : start + PIECE_BYTES])
            await writer.drain()


@dataclass(slots=True)
class _Unread:
    """What a peer has not read of its answers: since when, how much, and when it last read some.

    ``answer_bytes`` are those of an answer that is written in pieces: the process has it until the last piece is sent.
    """

    transport: asyncio.Transport
    answer_bytes: int
    since_s: float
    read_s: float
    waiting_bytes: int = 0
    kernel_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self.answer_bytes + self.waiting_bytes

    def look(self, now_s: float) -> None:
        """See how much is left. A slow peer is seen in the kernel, which takes more from here in large steps."""
        before_bytes = self.waiting_bytes + self.kernel_bytes
        self.waiting_bytes = self.transport.get_write_buffer_size()
        self.kernel_bytes = _kernel_bytes(self.transport)
        if self.waiting_bytes + self.kernel_bytes < before_bytes:
            self.read_s = now_s

    def burden(self, now_s: float) -> float:
        """Return what it costs others: bytes times seconds."""
        return self.size_bytes * (now_s - self.since_s)


def _kernel_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the kernel has that the peer has not acknowledged; 0 where it does not say."""
    try:
        return int.from_bytes(ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, OSError, ValueError):
        return 0


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
        self._answers: dict[RequestHandler, int] = {}
        """Sizes of the last answers that were written in pieces."""
        self._unread: dict[RequestHandler, _Unread] = {}
        """Connections whose peers do not keep up with their answers."""
        self._unread_bytes = 0
        """What they had not read when that was last looked at; it shrinks without a word."""
        self._looking: asyncio.TimerHandle | None = None
        self.cut_off = 0
        """Connections that were ended because their peers did not read, ever."""
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
        made = _Handler(self, loop=self._loop, **self._kwargs)
        self._coming[made] = self._loop.time()
        return made

    def _are_there(self) -> int:
        """Return how many connections there are. One that was not made in time never will be."""
        now_s = self._loop.time()
        while self._coming and now_s - next(iter(self._coming.values())) > HANDSHAKE_S:
            del self._coming[next(iter(self._coming))]
        return len(self._open) + len(self._coming)

    def _make_room(self) -> bool:
        now_s = self._loop.time()
        for one, since_s in self._idle.items():
            if now_s - since_s < IDLE_GRACE_S:
                return False
            if (unread := self._unread.get(one)) is not None:
                unread.look(now_s)
                if now_s - unread.read_s < IDLE_GRACE_S:
                    continue
            transport = one.transport
            self._forget(one)
            one.force_close()
            if transport is not None:
                transport.abort()
            self.displaced += 1
            return True
        return False

    # -- what peers have not read ----------------------------------------------------------------------------------

    def on_unread(self, handler: RequestHandler) -> None:
        """Hear that a connection's answer waits for its peer (rule 6)."""
        if (transport := handler.transport) is None:
            return
        now_s = self._loop.time()
        unread = self._unread[handler] = _Unread(transport, self._answers.get(handler, 0), now_s, now_s)
        unread.look(now_s)
        self._unread_bytes += unread.size_bytes
        if self._unread_bytes > MAX_UNSENT_BYTES:
            self._cut_greediest(now_s)
        self._look_soon()

    def on_read(self, handler: RequestHandler) -> None:
        """Hear that a peer has read nearly all, or that its connection is gone."""
        if (unread := self._unread.pop(handler, None)) is not None:
            self._unread_bytes -= unread.size_bytes

    def _look_soon(self) -> None:
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        now_s = self._loop.time()
        self._count_unread(now_s)
        for handler, unread in list(self._unread.items()):
            if now_s - unread.read_s > UNREAD_S:
                self._cut_off(handler, unread)
        if self._unread:
            self._look_soon()

    def _count_unread(self, now_s: float) -> None:
        for unread in self._unread.values():
            unread.look(now_s)
        self._unread_bytes = sum(unread.size_bytes for unread in self._unread.values())

    def _cut_greediest(self, now_s: float) -> None:
        # The kernel takes answers without a word: look at all before one is cut off.
        self._count_unread(now_s)
        for handler, unread in sorted(self._unread.items(), key=lambda one: -one[1].burden(now_s)):
            if self._unread_bytes <= MAX_UNSENT_BYTES:
                return
            self._cut_off(handler, unread)

    def _cut_off(self, handler: RequestHandler, unread: _Unread) -> None:
        self.on_read(handler)
        self.cut_off += 1
        unread.transport.abort()

    def _note(self) -> None:
        if (now_s := self._loop.time()) - self._noted_s >= NOTE_S:
            self._noted_s = now_s
            log.warning("%d connections are open, and no more are taken; refused so far: %d", self.most, self.refused)

    # -- what aiohttp says of its connections ----------------------------------------------------------------------

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection."""
        super().connection_made(handler, transport)
        transport.set_write_buffer_limits(high=PIECE_BYTES)  # TLS would take half a megabyte before it says a word
        self._coming.pop(handler, None)
        self._open.add(handler)
        self._idle[handler] = self._loop.time()
        self._silent[handler] = self._loop.call_later(FIRST_REQUEST_S, self._end_silent, handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        self._forget(handler)
        self._answers.pop(handler, None)
        self.on_read(handler)
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
        if self._looking is not None:
            self._looking.cancel()
        await super().shutdown(timeout)

    async def _serve(self, request: web.BaseRequest) -> Any:
        handler = request.protocol
        self._heard(handler)
        self._idle.pop(handler, None)
        self._answers.pop(handler, None)
        try:
            answer = await self._inner(request)
            self._cut_in_pieces(handler, request, answer)
            return answer
        finally:
            if handler in self._open:
                self._idle[handler] = self._loop.time()

    def _cut_in_pieces(self, handler: RequestHandler, request: web.BaseRequest, answer: Any) -> None:
        if not isinstance(answer, web.Response) or answer.prepared:
            return
        if isinstance(body := answer.body, bytes) and len(body) > PIECE_BYTES:
            self._answers[handler] = len(body)
            answer.body = _Pieces(body, is_sent=request.method != "HEAD")


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
