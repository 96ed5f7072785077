"""The web server of a node: names that are legal travel in a request's line, however long they are when escaped."""

from __future__ import annotations

import asyncio
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
from stratolog.local.processes import free_ports

LONGEST = "\U0001f5dd" * (MAX_KEY_NAME_BYTES // 4)
"""The longest legal key of characters that are all escaped."""


async def answers(app: faust.App, port: int, *urls: str) -> list[httpx.Response]:
    web: Any = app.web
    web.init_server()
    await web.start_server()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            return [await http.get(url) for url in urls]
    finally:
        await web.stop_server()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def app(tmp_path: Path, port: int) -> faust.App:
    made = make_app(
        "test", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=port, data_dir=tmp_path, fatal=lambda _: None
    )

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
