"""A server on a thread of its own begins, ends and fails whole: no thread, no socket and no loop is left."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import httpx
import pytest
from aiohttp import web

from transport.web import threaded_server
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of
from transport.web.threaded_server import ThreadedServer

NAME = "tested-web"


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == NAME]


def made(app: web.Application | None = None, end_timeout_s: float = 1.0) -> ThreadedServer:
    return ThreadedServer(HttpServer(app or web.Application(), end_timeout_s=end_timeout_s), NAME)


def is_free(port: int) -> bool:
    with suppress(OSError):
        socket.create_server(("127.0.0.1", port)).close()
        return True
    return False


def test_it_serves_until_it_is_closed_and_then_nobody_listens() -> None:
    listening = listen("127.0.0.1", 0)
    port = port_of(listening)
    server = made().start(listening)
    assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 404
    for _ in range(2):
        server.close()
        assert (threads(), is_free(port)) == ([], True)


def test_closing_one_that_never_began_does_nothing() -> None:
    made().close()


def test_many_may_close_it_at_once() -> None:
    server = made().start(listen("127.0.0.1", 0))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: server.close(), range(8)))
    assert threads() == []


def test_an_application_that_cannot_start_is_told_and_leaves_nothing() -> None:
    async def broken(_: web.Application) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    app = web.Application()
    app.cleanup_ctx.append(broken)
    listening = listen("127.0.0.1", 0)
    port = port_of(listening)
    server = made(app)
    with pytest.raises(ValueError, match="no database"):
        server.start(listening)
    server.close()
    assert (threads(), is_free(port)) == ([], True)


def test_one_that_takes_too_long_to_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded_server, "START_TIMEOUT_S", 0.2)

    async def slow(_: web.Application) -> AsyncIterator[None]:
        await asyncio.sleep(0.3)
        yield

    app = web.Application()
    app.cleanup_ctx.append(slow)
    with pytest.raises(TimeoutError):
        made(app).start(listen("127.0.0.1", 0))
    assert threads() == []


def test_who_is_at_work_is_waited_for_and_cut_off_in_time_and_silent_peers_are_ended() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(600)
        return web.Response()

    app = web.Application()
    app.router.add_get("/hang", hang)
    listening = listen("127.0.0.1", 0)
    at = ("127.0.0.1", port_of(listening))
    server = made(app, end_timeout_s=0.2).start(listening)
    with closing(socket.create_connection(at, 10)) as asking, closing(socket.create_connection(at, 10)) as silent:
        asking.sendall(b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.05)
        server.close()
        for one in (asking, silent):
            one.settimeout(10)
            with suppress(ConnectionResetError):
                while one.recv(1000):
                    pass
    assert threads() == []


def test_an_answer_that_holds_the_thread_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def hold(_: web.Request) -> web.Response:
        go_on.wait(60)
        return web.Response()

    app = web.Application()
    app.router.add_get("/hold", hold)
    listening = listen("127.0.0.1", 0)
    server = made(app, end_timeout_s=0.1).start(listening)
    with closing(socket.create_connection(("127.0.0.1", port_of(listening)), 10)) as asking:
        asking.sendall(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        monkeypatch.setattr(threaded_server, "START_TIMEOUT_S", 0.1)
        with pytest.raises(TimeoutError, match=f"{NAME} has not ended"):
            server.close()
        go_on.set()
        monkeypatch.undo()
        server.close()
    assert threads() == []
