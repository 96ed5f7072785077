"""The web server of a node: names that are legal travel in a request's line, however long they are when escaped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import faust
import httpx
import pytest

from om_processors.namespace.names import MAX_KEY_NAME_BYTES
from replicated_db.core.execution.transaction import MAX_KEY_BYTES
from replicated_db.shell.follower import make_app
from replicated_db.shell.web.node_web import MAX_LINE_BYTES
from schemas.security.certificates import AN_OM, Role
from schemas.security.tls import ProcessTls
from stratolog.local.ports import free_ports
from tests.support.security.certified import Certified
from transport.web.listening import CannotListen

LONGEST = "\U0001f5dd" * (MAX_KEY_NAME_BYTES // 4)
"""The longest legal key of characters that are all escaped."""


async def answers(
    app: faust.App, port: int, *urls: str, tls: ProcessTls | None = None, listening: Sequence[socket.socket] = ()
) -> list[httpx.Response]:  # fmt: skip
    web: Any = app.web
    web.init_server()
    web.listening = listening
    await web.start_server()
    scheme, verify = ("http", True) if tls is None else ("https", tls.client(AN_OM))
    try:
        async with httpx.AsyncClient(base_url=f"{scheme}://127.0.0.1:{port}", verify=verify, trust_env=False) as http:
            return [await http.get(url) for url in urls]
    finally:
        await web.stop_server()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def app(tmp_path: Path, port: int) -> faust.App:
    return app_at(port, tmp_path)


def app_at(port: int, data_dir: Path, tls: ProcessTls | None = None) -> faust.App:
    made = make_app(
        "test", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=port, data_dir=data_dir, fatal=lambda _: None,
        tls=tls,
    )  # fmt: skip

    @made.page("/echo")
    async def echo(view: Any, request: Any) -> Any:
        return view.json(dict(request.query))

    return made


def test_the_longest_names_arrive(app: faust.App, port: int):
    listing = f"/echo?prefix={quote(LONGEST, safe='')}&start_after={quote(LONGEST, safe='')}&consistency=linearizable"
    row = f"/echo?cf=openKeyTable&key={'ab' * MAX_KEY_BYTES}"
    long, short = asyncio.run(answers(app, port, listing, row))
    assert long.json()["start_after"] == long.json()["prefix"] == LONGEST
    assert short.json()["key"] == "ab" * MAX_KEY_BYTES


def test_a_line_has_a_limit(app: faust.App, port: int):
    (refused,) = asyncio.run(answers(app, port, f"/echo?name={'x' * MAX_LINE_BYTES}"))
    assert refused.status_code == 400


def test_in_tls_it_listens_at_its_own_port_and_nobody_is_answered_in_clear(tmp_path: Path, port: int):
    site = Certified(tmp_path / "authority")
    app = app_at(port, tmp_path, site.tls("om1", Role.OM))
    (answer,) = asyncio.run(answers(app, port, "/echo?a=b", tls=site.tls("om2", Role.OM)))
    assert answer.json() == {"a": "b"}
    with pytest.raises(httpx.TransportError):
        asyncio.run(answers(app_at(port, tmp_path, site.tls("om1", Role.OM)), port, "/echo"))


@pytest.mark.parametrize("is_secure", [False, True])
def test_it_answers_on_the_sockets_that_listen_already_and_on_no_other(tmp_path: Path, port: int, is_secure: bool):
    """A node listens before it opens its replicas, and its server takes the same sockets over."""
    site = Certified(tmp_path / "authority")
    tls = site.tls("om2", Role.OM) if is_secure else None
    for place in (0, 1):
        listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        app = app_at(port, tmp_path, site.tls("om1", Role.OM) if is_secure else None)
        at = listening[place].getsockname()[1]
        (answer,) = asyncio.run(answers(app, at, "/echo?a=b", tls=tls, listening=listening))
        assert answer.json() == {"a": "b"}
    with socket.create_server(("127.0.0.1", 0)) as last, pytest.raises(httpx.ConnectError):
        asyncio.run(answers(app_at(port, tmp_path), port, "/echo", listening=[last]))


@pytest.mark.parametrize("is_secure", [False, True])
def test_an_address_that_is_taken_is_named(tmp_path: Path, port: int, is_secure: bool):
    tls = Certified(tmp_path / "authority").tls("om1", Role.OM) if is_secure else None
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            asyncio.run(answers(app_at(port, tmp_path, tls), port))
