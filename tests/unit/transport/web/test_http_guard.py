"""What an HTTP server lets by, asked over real sockets: foreign pages, rebound names, calls without a proof."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator, Mapping

import aiohttp
import httpx
import pytest
from aiohttp import web

from schemas.privilege import ClusterSecret
from tests.support.local.secret import SECRET
from transport.web.http_guard import HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of
from transport.web.threaded_server import ThreadedServer

TARGET = "/v1/shards/0/transfer?node=om2&address=h%3A1"


class Server:
    """A server of aiohttp on a thread of its own, which counts what its handlers are asked."""

    def __init__(self, guard: HttpGuard) -> None:
        self.calls: list[str] = []
        app = web.Application(middlewares=[guard.middleware()])
        app.router.add_route("*", "/{any:.*}", self._answer)
        listening = listen("127.0.0.1", 0)
        self.port = port_of(listening)
        self._server = ThreadedServer(HttpServer(app), "guarded").start(listening)

    async def _answer(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.method} {request.raw_path}")
        return web.json_response({})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Send exactly these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = json.loads(answer.read() or b"{}")
        connection.close()
        return answer.status, body.get("message", "")

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(HttpGuard(SECRET, ["om1", "OM1.Example.org"]))
    yield found
    found.close()


def signed(host: str, target: str = TARGET, method: str = "POST", secret: ClusterSecret = SECRET) -> dict[str, str]:
    return {"Host": host, "Authorization": secret.authorization(method, host, target)}


def test_a_call_with_a_proof_is_let_by(server: Server):
    assert server.ask("POST", TARGET, signed(server.address)) == (200, "")
    assert server.calls[-1] == f"POST {TARGET}"
    assert httpx.post(f"http://{server.address}{TARGET}", auth=SECRET.sign).status_code == 200
    params = {"node": "om 2", "address": "[::1]:9"}
    assert httpx.post(f"http://{server.address}/v1/x", params=params, auth=SECRET.sign).status_code == 200


def test_aiohttp_is_let_by_as_nodes_ask_each_other(server: Server):
    async def ask() -> int:
        async with aiohttp.ClientSession() as session:
            url = f"http://{server.address}/v1/shards/0/read-index"
            async with session.post(url, headers=signed(server.address, "/v1/shards/0/read-index")) as answer:
                return answer.status

    assert asyncio.run(ask()) == 200


def without_proof(address: str) -> dict[str, tuple[str, dict[str, str], str]]:
    other = ClusterSecret(b"the secret of another cluster, longer than it must be")
    return {
        "no header": ("POST", {"Host": address}, "has no header Authorization"),
        "another secret": ("POST", signed(address, secret=other), "has a wrong header Authorization"),
        "another call's": ("POST", signed(address, "/v1/shards/0/renew?owner=om1"), "has a wrong header"),
        "another node's": ("POST", {**signed("127.0.0.1:1"), "Host": address}, "has a wrong header"),
        "a GET's": ("POST", signed(address, method="GET"), "has a wrong header"),
        "odd bytes": ("POST", {"Host": address, "Authorization": "Stratolog \xff"}, "has a wrong header"),
        "put": ("PUT", {"Host": address}, "PUT is for the cluster's members and operators"),
        "delete": ("DELETE", {"Host": address}, "DELETE is for the cluster's members and operators"),
        "patch": ("PATCH", {"Host": address}, "PATCH is for the cluster's members and operators"),
    }


def test_what_changes_something_needs_a_proof(server: Server):
    before = len(server.calls)
    for name, (method, headers, said) in without_proof(server.address).items():
        status, message = server.ask(method, TARGET, headers)
        assert status == 403, name
        assert said in message, name
        assert "'cluster_secret_file'" in message
    assert len(server.calls) == before


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://"]
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_foreign_page_is_refused_even_with_a_proof(server: Server, origin: str, method: str):
    status, message = server.ask(method, TARGET, {**signed(server.address, method=method), "Origin": origin})
    assert (status, message) == (403, f"a page of {origin!r} may not ask this server")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_may_lead_here_and_not_fetch(server: Server, site: str):
    headers = {"Host": server.address, "Sec-Fetch-Site": site}
    assert server.ask("GET", "/status", {**headers, "Sec-Fetch-Mode": "no-cors"})[0] == 403
    assert server.ask("GET", "/status", {**headers, "Sec-Fetch-Mode": "navigate"})[0] == 200


def test_the_servers_own_pages_may_ask(server: Server):
    own = {"Host": server.address, "Origin": f"http://{server.address}", "Sec-Fetch-Site": "same-origin"}
    assert server.ask("GET", "/status", own)[0] == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9871", True),
        ("10.1.2.3", True),
        ("[::1]:9871", True),
        ("localhost:9871", True),
        ("a.localhost", True),
        ("om1:9871", True),
        ("OM1", True),
        ("om1.example.org:80", True),
        ("om1.example.org.", True),
        (socket.gethostname(), True),
        ("", True),
        ("evil.example:9871", False),
        ("om1.evil.example", False),
        ("127.0.0.1.evil.example:9871", False),
        ("localhost.evil.example", False),
        ("xlocalhost", False),
        ("om1:9871:9871", False),
        ("[::1].evil.example", False),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_is_not_the_servers_is_refused(server: Server, host: str, known: bool, method: str):
    """A page whose own name has come to resolve to this address is of one origin with what it asks here."""
    status, message = server.ask(method, "/status", signed(host, "/status", method))
    assert status == (200 if known else 403), message
    if not known:
        assert message.startswith(f"this server is not known as {host!r}: the setting 'http_hosts'")


def test_any_name_may_be_allowed_and_no_secret_means_no_changes():
    guard = HttpGuard(None, ["*"])
    assert guard.refusal("GET", "/", {"Host": "whatever.example"}) is None
    said = guard.refusal(
        "POST", "/", {"Host": "whatever.example", "Authorization": SECRET.authorization("POST", "x", "/")}
    )
    assert said == "this server has no secret, and so takes no calls that change anything"


def test_a_request_with_two_hosts_is_refused(server: Server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        text = f"GET /status HTTP/1.1\r\nHost: {server.address}\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        connection.sendall(text.encode())
        answer = connection.makefile("rb").read()
    assert answer.split()[1] in (b"400", b"403")


def test_a_request_of_two_origins_is_refused(server: Server):
    own = f"Origin: http://{server.address}\r\n"
    for origins, status in ((own, b"200"), (own + "Origin: http://evil.example\r\n", b"403"), (own + own, b"403")):
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(
                f"GET /status HTTP/1.1\r\nHost: {server.address}\r\n{origins}Connection: close\r\n\r\n".encode()
            )
            assert connection.makefile("rb").read().split()[1] == status


def test_followers_of_older_software_may_ask_for_a_read_index():
    guard = HttpGuard(None)
    assert guard.refusal("POST", "/v1/shards/3/read-index", {"Host": "127.0.0.1:1"}) is None
    for target in (
        "/v1/shards/3/read-index?x",
        "/v1/shards/3/renew",
        "/x/v1/shards/3/read-index",
        "/v1/shards/3/read-index/",
    ):
        assert guard.refusal("POST", target, {"Host": "127.0.0.1:1"}) is not None
    assert guard.refusal("POST", "/v1/shards/3/read-index", {"Host": "127.0.0.1:1", "Origin": "http://a.b"}) is not None


# ---- a proof is for one server


HERE = ("10.0.0.2", 9871)


def told(host: str, *, named: tuple[str, ...] = (), local: tuple[str, int] | None = HERE) -> str | None:
    """Return what a node at om2:9871 says of a call that was signed for ``host``, and sent to it under that name."""
    guard = HttpGuard(SECRET, ["om1", "om2", *named], address="om2:9871", named=named)
    return guard.refusal("POST", TARGET, signed(host), local=local)


@pytest.mark.parametrize("host", ["om2:9871", "OM2:9871", "om2.:9871", "10.0.0.2:9871", f"{socket.gethostname()}:9871"])
def test_a_proof_is_good_where_its_host_is_the_servers(host: str):
    assert told(host) is None


@pytest.mark.parametrize(
    "host", ["om1:9871", "om2:9872", "10.0.0.1:9871", "10.0.0.2:9872", "127.0.0.1:9871", "localhost:9871", "om2", "",
             "[::1]:9871", "om2:9871:9871", "om2:99999999"],
)  # fmt: skip
def test_a_proof_for_another_server_is_refused_whoever_sends_it(host: str):
    assert told(host) is not None
    assert told(host, local=None) is not None or host.startswith("10.0.0.2")


def test_names_that_a_person_gave_are_a_servers_own_at_its_port():
    assert told("localhost:9871", named=("localhost",)) is None
    assert "is signed for 'localhost:9872', and this server is om2:9871" in str(
        told("localhost:9872", named=("localhost",))
    )
    assert told("anything:1", named=("*",)) is None
    assert told("127.0.0.1:9871", local=("127.0.0.1", 9871)) is None
    assert told("127.0.0.1:9871", local=("::ffff:127.0.0.1", 9871)) is None
    assert told("localhost:9871", local=("::1", 9871)) is None
    assert told("10.0.0.2:19871", local=("10.0.0.2", 19871)) is None


def test_a_call_that_one_server_got_is_refused_by_another_on_real_sockets():
    servers = [Server(HttpGuard(SECRET, [], address=f"127.0.0.1:{port}")) for port in (0, 0)]
    try:
        first, second = servers
        call = signed(first.address)
        assert first.ask("POST", TARGET, call)[0] == 200
        status, why = second.ask("POST", TARGET, call)
        assert status == 403
        assert f"signed for '{first.address}'" in why
        assert second.calls == []
    finally:
        for one in servers:
            one.close()
