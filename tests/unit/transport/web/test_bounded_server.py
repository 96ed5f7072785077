"""How many descriptors a process asks for, and how many of them are for connections; which connections are ended when.

The servers are real, on sockets of the loopback. The event loop's clock is set forward, so nobody waits.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.payload import Payload

from transport.web import bounded_server
from transport.web.bounded_server import (
    FIRST_REQUEST_S,
    HANDSHAKE_S,
    IDLE_GRACE_S,
    IDLE_S,
    MAX_WEB_CONNECTIONS,
    NOTE_S,
    REFUSAL_S,
    UNREAD_S,
    BoundedServer,
    ServerLog,
    raise_descriptors,
)
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of


def test_what_is_no_http_is_told_by_its_number_alone(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    kept = ServerLog(lambda: now_s)
    for number in range(50):
        kept.exception(
            "Error handling request from %s", "somebody", exc_info=BadHttpMessage(f"Authorization: x{number}")
        )
    assert [one.getMessage() for one in caplog.records] == ["1 requests were no HTTP, or their callers had gone"]
    now_s += NOTE_S
    kept.exception("Error handling request from %s", "somebody", exc_info=BadHttpMessage("Authorization: x"))
    assert caplog.records[-1].getMessage() == "50 requests were no HTTP, or their callers had gone"
    assert "Authorization" not in caplog.text
    kept.exception("Error handling request from %s", "somebody", exc_info=ConnectionResetError("gone"))
    assert "gone" not in caplog.text.replace("callers had gone", "")
    kept.exception("Error handling request from %s", "somebody", exc_info=ValueError("a defect"))
    assert "ValueError: a defect" in caplog.text


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_takes_the_descriptors_that_it_may_have(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    assert raise_descriptors(1000) == 1000
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1000, hard)
    assert raise_descriptors(600) == 1000, "never fewer than before"


def test_half_of_the_descriptors_are_for_connections(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, hard))
    for most, expected in ((900, 450), (100_000, MAX_WEB_CONNECTIONS)):
        monkeypatch.setattr(bounded_server, "raise_descriptors", lambda most=most: most)
        assert HttpServer(web.Application()).most == expected


A_MOMENT_S = 0.05
ASKING = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
WORKING = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still, unless it is set forward."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s


class Site:
    """A bounded server on the loopback, in an event loop whose clock the test sets."""

    def __init__(self, loop: ClockLoop, most: int) -> None:
        self.loop = loop
        self.works = asyncio.Event()
        """Set: requests of ``/slow`` are answered."""
        app = web.Application()
        app.router.add_get("/quick", self._quick)
        app.router.add_get("/slow", self._slow)
        app.router.add_get("/big", self._big)
        self.http = HttpServer(app, most=most)
        self._clients: list[Client] = []
        self._big_answers: list[web.Response] = []

    async def _quick(self, _: web.Request) -> web.Response:
        return web.Response(text="quick")

    async def _big(self, _: web.Request) -> web.Response:
        self._big_answers.append(answer := web.Response(body=b"x" * BIG_BYTES))
        return answer

    @property
    def bodies(self) -> list[Any]:
        """What is left of the large answers."""
        return [answer.body for answer in self._big_answers]

    async def _slow(self, _: web.Request) -> web.Response:
        await self.works.wait()
        return web.Response(text="slow")

    @property
    def server(self) -> BoundedServer:
        return self.http.bounded

    async def start(self) -> None:
        listening = listen("127.0.0.1", 0)
        self.port = port_of(listening)
        await self.http.start(listening)

    async def close(self) -> None:
        self.works.set()
        for client in self._clients:
            client.transport.close()
        await self.http.close()

    async def settle(self) -> None:
        """Let the loop do what is due now."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds
        await self.settle()

    async def connect(self) -> Client:
        """Connect; return once the server has taken the connection, or refused it."""
        client, before, refused = Client(), self.server.connections, self.server.refused
        await self.loop.create_connection(lambda: client, "127.0.0.1", self.port)
        self._clients.append(client)
        await until(lambda: self.server.connections != before or self.server.refused != refused or client.is_ended)
        await self.settle()
        return client


class Client(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self) -> None:
        self.heard = b""
        self.is_ended = False
        """Whether the server has ended the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_ended = True

    async def ask(self, request: bytes = ASKING) -> int:
        """Return the status of the answer."""
        self.transport.write(request)
        await until(lambda: b"\r\n\r\n" in self.heard)
        head, _, body = self.heard.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await until(lambda: len(self.heard) >= len(head) + 4 + length)
        self.heard = body[length:]
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """Return what comes until the server ends the connection."""
        await until(lambda: self.is_ended)
        return self.heard


async def until(holds: Callable[[], object]) -> None:
    """Let the loop go on until something holds; its clock stands still meanwhile."""
    for _ in range(20_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never held")


def on_a_site(story: Callable[[Site], Awaitable[None]], most: int = 2) -> None:
    async def run() -> None:
        site = Site(loop, most)
        await site.start()
        try:
            await story(site)
        finally:
            await site.close()

    loop = ClockLoop()
    try:
        work: Coroutine[Any, Any, None] = run()
        loop.run_until_complete(work)
    finally:
        loop.close()


def test_who_brings_no_request_is_told_and_ended_in_time() -> None:
    async def story(site: Site) -> None:
        client = await site.connect()
        await site.pass_time(FIRST_REQUEST_S - A_MOMENT_S)
        assert not client.is_ended
        await site.pass_time(2 * A_MOMENT_S)
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert json.loads(body) == {"error": "INVALID_REQUEST", "message": "no whole request within 10 s"}
        assert not site.server._open
        assert not site.server._silent

    on_a_site(story)


def test_who_has_asked_may_be_idle_for_longer_and_is_ended_then() -> None:
    async def story(site: Site) -> None:
        client = await site.connect()
        assert await client.ask() == 200
        await site.pass_time(IDLE_S - 1)
        assert await client.ask() == 200
        await site.pass_time(IDLE_S - 1)
        assert not client.is_ended
        await site.pass_time(2)
        assert await client.rest() == b"", "it has had its answers"

    on_a_site(story)


def test_who_is_at_work_is_not_ended_however_long_it_takes() -> None:
    async def story(site: Site) -> None:
        client = await site.connect()
        answer = asyncio.ensure_future(client.ask(WORKING))
        await until(lambda: not site.server._idle)
        await site.pass_time(10 * IDLE_S)
        site.works.set()
        assert await answer == 200

    on_a_site(story)


def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
    async def story(site: Site) -> None:
        first, second = await site.connect(), await site.connect()
        await site.pass_time(IDLE_GRACE_S)
        assert await first.ask() == 200, "now the second is idle for longest"
        await site.pass_time(IDLE_GRACE_S)
        third = await site.connect()
        assert (site.server.displaced, site.server.refused) == (1, 0)
        assert await second.rest() == b""
        assert await third.ask() == 200
        assert await first.ask() == 200
        assert len(site.server._open) == 2

    on_a_site(story)


def test_who_is_idle_for_a_moment_or_at_work_makes_no_room() -> None:
    async def story(site: Site) -> None:
        working, idle = await site.connect(), await site.connect()
        answer = asyncio.ensure_future(working.ask(WORKING))
        await until(lambda: len(site.server._idle) == 1)
        await site.pass_time(IDLE_GRACE_S - A_MOMENT_S)
        refused = await site.connect()
        assert (site.server.displaced, site.server.refused) == (0, 1)
        await site.pass_time(2 * A_MOMENT_S)
        assert not refused.is_ended, "it is told once it asks"
        assert await refused.ask() == 503
        assert await refused.rest() == b""
        taken = await site.connect()
        assert await taken.ask() == 200
        assert await idle.rest() == b"", "it has been idle for long enough by now"
        last = await site.connect()
        assert (site.server.displaced, site.server.refused) == (1, 2), "one is at work, the other was just now"
        assert await last.ask() == 503
        site.works.set()
        assert await answer == 200

    on_a_site(story)


def test_a_connection_that_its_client_ends_makes_room() -> None:
    async def story(site: Site) -> None:
        working, idle = await site.connect(), await site.connect()
        answer = asyncio.ensure_future(working.ask(WORKING))
        await until(lambda: len(site.server._idle) == 1)
        idle.transport.close()
        await until(lambda: len(site.server._open) == 1)
        assert not site.server._idle
        assert not site.server._silent
        another = await site.connect()
        assert await another.ask() == 200
        assert (site.server.displaced, site.server.refused) == (0, 0)
        site.works.set()
        assert await answer == 200

    on_a_site(story)


def test_who_is_refused_is_told_how_many_are_taken() -> None:
    async def story(site: Site) -> None:
        refused = await site.connect()
        refused.transport.write(ASKING)
        head, _, body = (await refused.rest()).partition(b"\r\n\r\n")
        assert head.split(b"\r\n") == [
            b"HTTP/1.1 503 Service Unavailable", b"Content-Type: application/json; charset=utf-8",
            f"Content-Length: {len(body)}".encode(), b"Connection: close",
        ]  # fmt: skip
        message = "0 connections are open here, and no more are taken"
        assert json.loads(body) == {"error": "OVERLOADED", "message": message}
        await until(lambda: not site.server._refusing)

    on_a_site(story, most=0)


def test_who_is_refused_and_does_not_ask_is_ended() -> None:
    async def story(site: Site) -> None:
        refused = await site.connect()
        await site.pass_time(REFUSAL_S - A_MOMENT_S)
        assert not refused.is_ended
        await site.pass_time(2 * A_MOMENT_S)
        assert await refused.rest() == b""
        await until(lambda: not site.server._refusing)

    on_a_site(story, most=0)


def test_only_so_many_are_refused_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "MAX_REFUSED", 2)

    async def story(site: Site) -> None:
        first, second, third = [await site.connect() for _ in range(3)]
        assert await third.rest() == b"", "closed without a word"
        assert site.server.refused == 3
        assert await first.ask() == 503
        await until(lambda: len(site.server._refusing) == 1)
        assert await (await site.connect()).ask() == 503, "the first has made room"
        assert await second.ask() == 503

    on_a_site(story, most=0)


def test_the_log_says_now_and_then_that_connections_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    def notes() -> list[str]:
        return [one.getMessage() for one in caplog.records if "no more are taken" in one.getMessage()]

    async def story(site: Site) -> None:
        for _ in range(3):
            await site.connect()
        assert notes() == ["0 connections are open, and no more are taken; refused so far: 1"]
        await site.pass_time(NOTE_S - A_MOMENT_S)
        await site.connect()
        assert len(notes()) == 1
        await site.pass_time(A_MOMENT_S)
        await site.connect()
        assert notes()[1:] == ["0 connections are open, and no more are taken; refused so far: 5"]

    on_a_site(story, most=0)


def test_a_handshake_counts_as_a_connection_while_it_may_go_on() -> None:
    """Asyncio makes the protocol when it accepts a connection, and tells it of the connection after the handshake."""

    async def story(site: Site) -> None:
        site.server()
        site.server()
        await site.connect()
        assert site.server.refused == 1
        await site.pass_time(HANDSHAKE_S)
        await site.connect()
        assert site.server.refused == 2
        await site.pass_time(A_MOMENT_S)
        assert await (await site.connect()).ask() == 200
        assert site.server.refused == 2, "those two never will be connections"

    on_a_site(story)


def test_handshakes_of_those_who_will_be_refused_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "MAX_REFUSED", 2)

    async def story(site: Site) -> None:
        may = []
        for _ in range(5):
            may.append(site.server.may_greet())
            site.server()
        assert may == [True, True, True, False, False]
        await site.pass_time(HANDSHAKE_S)
        assert not site.server.may_greet()
        await site.pass_time(A_MOMENT_S)
        assert site.server.may_greet(), "their handshakes have ended by now"

    on_a_site(story, most=0)


def test_handshakes_that_begin_one_after_the_other_end_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "MAX_REFUSED", 1)

    async def story(site: Site) -> None:
        site.server()
        await site.pass_time(HANDSHAKE_S / 2)
        site.server()
        assert not site.server.may_greet()
        await site.pass_time(HANDSHAKE_S / 2 + A_MOMENT_S)
        assert site.server.may_greet(), "the first has ended"
        site.server()
        assert not site.server.may_greet()

    on_a_site(story, most=0)


def test_a_line_may_be_as_long_as_the_runner_says() -> None:
    async def story(site: Site) -> None:
        client = await site.connect()
        assert await client.ask(b"GET /quick?x=" + b"y" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n") == 400

    on_a_site(story)


def test_a_server_that_ends_leaves_no_connection_whatever_it_was_told() -> None:
    async def story(site: Site) -> None:
        working, idle = await site.connect(), await site.connect()
        answer = asyncio.ensure_future(working.ask(WORKING))
        await until(lambda: len(site.server._idle) == 1)
        refused = await site.connect()
        site.works.set()
        await site.http.close()
        assert await answer == 200
        for one in (working, idle, refused):
            await one.rest()
        with pytest.raises(RuntimeError, match="was not started, or has ended"):
            _ = site.http.bounded

    on_a_site(story)


# ---- peers that do not read

BIG_BYTES = 8 * 1024 * 1024
READING_BIG = b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n"


async def _ask_and_read_nothing(site: Site, before: int) -> Client:
    """``before``: how many have done so."""
    client = await site.connect()
    client.transport.pause_reading()
    client.transport.write(READING_BIG)
    await until(lambda: len(site.server._unread) + site.server.cut_off == before + 1)
    return client


async def _read_some(client: Client) -> None:
    before = len(client.heard)
    client.transport.resume_reading()
    await until(lambda: len(client.heard) > before)
    client.transport.pause_reading()


def test_what_nobody_reads_is_bounded_for_all_connections_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "MAX_UNSENT_BYTES", 3 * BIG_BYTES)

    async def story(site: Site) -> None:
        for number in range(12):
            await _ask_and_read_nothing(site, number)
            assert site.server._unread_bytes <= 3 * BIG_BYTES
            await site.pass_time(0.01)
        assert site.server.cut_off >= 9
        assert len(site.server._open) <= 3, "who was cut off has no place any more"
        reader = await site.connect()
        assert await reader.ask(READING_BIG) == 200, "who reads is not the one that is cut off"
        assert len(site.server._unread) <= 3

    on_a_site(story, most=20)


def test_who_reads_nothing_of_an_answer_is_cut_off_in_time() -> None:
    async def story(site: Site) -> None:
        client = await _ask_and_read_nothing(site, 0)
        await site.pass_time(UNREAD_S - 1)
        assert site.server._unread
        for _ in range(3):
            await site.pass_time(1)
        await until(lambda: not site.server._open)
        assert (site.server.cut_off, site.server._unread, site.server._unread_bytes) == (1, {}, 0)
        client.transport.resume_reading()
        await until(lambda: client.is_ended)

    on_a_site(story)


def test_who_reads_slowly_keeps_its_connection() -> None:
    async def story(site: Site) -> None:
        client = await _ask_and_read_nothing(site, 0)
        while len(client.heard) < BIG_BYTES:
            await _read_some(client)
            await site.pass_time(UNREAD_S / 3)
        assert site.server.cut_off == 0
        assert not client.is_ended

    on_a_site(story)


def test_a_connection_that_makes_room_is_gone_with_what_was_not_read() -> None:
    async def story(site: Site) -> None:
        await _ask_and_read_nothing(site, 0)
        await _ask_and_read_nothing(site, 1)
        await site.pass_time(IDLE_GRACE_S + 1)
        third = await site.connect()
        assert await third.ask() == 200
        assert (site.server.displaced, site.server.refused) == (1, 0)
        assert len(site.server._unread) == 1, "its answer is in no memory"
        assert len(site.server._open) == 2

    on_a_site(story)


def test_an_idle_connection_keeps_nothing_of_its_last_large_answer() -> None:
    async def story(site: Site) -> None:
        client = await site.connect()
        assert await client.ask(READING_BIG) == 200
        await site.settle()
        (body,) = site.bodies
        assert isinstance(body, Payload)
        assert (body.size, body.decode()) == (BIG_BYTES, "")

    on_a_site(story)


def test_the_head_of_a_large_answer_names_its_size() -> None:
    async def story(site: Site) -> None:
        client = await site.connect()
        client.transport.write(b"HEAD /big HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: b"\r\n\r\n" in client.heard)
        assert f"Content-Length: {BIG_BYTES}".encode() in client.heard
        assert client.heard.endswith(b"\r\n\r\n")
        client.heard = b""
        assert await client.ask() == 200
        (body,) = site.bodies
        assert body.decode() == ""

    on_a_site(story)
