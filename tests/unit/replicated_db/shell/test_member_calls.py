"""The call to a member over real HTTP: honest, foreign, broken and endless answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from replicated_db.core.trimming.places import MemberPlace
from replicated_db.shell.trimming.member_calls import MAX_ANSWER_BYTES, MemberCalls
from schemas.privilege import AUTHORIZATION
from tests.support.local.secret import SECRET

PLACE = MemberPlace(
    node="n2", cluster="c", shard=3, offset=8, keeps_from=7, index=2, flagged=False, members=("n1", "n2")
)

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers POSTs as the test says; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Answer = lambda _: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.asked.append((self.path, self.headers.get(AUTHORIZATION)))
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture
def calls() -> Iterator[MemberCalls]:
    found = MemberCalls("c", SECRET)
    yield found
    found.close()


def sends(body: bytes, status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def as_json(**changed: Any) -> bytes:
    return json.dumps(PLACE.to_json() | changed).encode()


def test_an_honest_answer(server: Server, calls: MemberCalls) -> None:
    server.answer = sends(as_json())
    assert calls.ask(3, "n2", {"n2": server.address}) == PLACE
    [(path, proof)] = server.asked
    assert path == "/v1/shards/3/durable-position"
    assert SECRET.authorizes(proof, "POST", server.address, path)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (as_json(node="n9"), "answers as n9 of cluster 'c', shard 3"),
        (as_json(cluster="other"), "answers as n2 of cluster 'other', shard 3"),
        (as_json(shard=0), "answers as n2 of cluster 'c', shard 0"),
        (as_json(offset="8"), "offset is '8'"),
        (b"no json", "does not answer at"),
        (b"[]", "the answer is a list"),
        (b"", "does not answer at"),
        (b"x" * (MAX_ANSWER_BYTES + 1), f"over {MAX_ANSWER_BYTES} bytes"),
        (b"\xff\xfe", "does not answer at"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_foreign_answer_is_no_position(server: Server, calls: MemberCalls, body: bytes, told: str) -> None:
    server.answer = sends(body)
    found = calls.ask(3, "n2", {"n2": server.address})
    assert isinstance(found, str)
    assert told in found


def test_a_refusal_is_told(server: Server, calls: MemberCalls) -> None:
    server.answer = sends(b"PERMISSION_DENIED", 403)
    assert calls.ask(3, "n2", {"n2": server.address}) == f"{server.address} answers 403: PERMISSION_DENIED"


def test_an_endless_answer_ends(server: Server, calls: MemberCalls) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            return

    server.answer = endless
    found = calls.ask(3, "n2", {"n2": server.address})
    assert isinstance(found, str)
    assert "bytes" in found


def test_nobody_there(server: Server, calls: MemberCalls) -> None:
    address = server.address
    server.http.shutdown()
    server.http.server_close()
    assert "does not answer at" in str(calls.ask(3, "n2", {"n2": address}))
    assert calls.ask(3, "n2", {}) == "its address is not known here"
