"""HTTP servers in TLS: who is heard, who may change something, and how our clients of them refuse what is not theirs."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
import uvloop
from aiohttp import web

from producers.direct.core.link_talk import LinkFailed
from producers.direct.node_link import NodeLink
from producers.errors import InvalidArgument, NotConnected
from producers.reads.node_addresses import NodeAddresses
from producers.reads.reads import Reads
from replicated_db.shell.trimming.member_calls import MemberCalls
from schemas.security.certificates import AN_OM, READERS, PeerIdentity, Role
from schemas.security.tls import ProcessTls, TlsFiles
from tests.support.local.secret import SECRET
from tests.support.security.certified import Certified
from transport.waiting.deadline import Deadline
from transport.web import bounded_server, http_server
from transport.web.http_guard import OPEN_PATHS, HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of
from transport.web.threaded_server import ThreadedServer

DAY_S = 86_400
PACKAGES = (
    "schemas", "transport", "replicated_db", "om_processors", "datanode_processors", "producers", "spark_streaming",
    "stratolog",
)  # fmt: skip


class Server:
    """One HTTP server behind the guard, in TLS or in clear."""

    def __init__(self, tls: ProcessTls | None, most: int = 100) -> None:
        app = web.Application(middlewares=[HttpGuard(SECRET, secure=tls is not None).middleware()])
        app.router.add_route("*", "/{any:.*}", self._answer)
        context = None if tls is None else tls.server(needs_certificate=False)
        listening = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{port_of(listening)}"
        self._server = ThreadedServer(HttpServer(app, tls=context, most=most), "web").start(listening)

    async def _answer(self, _: web.Request) -> web.Response:
        return web.json_response({"info": {}, "path": "ok"})

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def site(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "authority")


@pytest.fixture
def server(site: Certified) -> Iterator[Server]:
    found = Server(site.tls("om1", Role.OM))
    yield found
    found.close()


@pytest.fixture
def plain() -> Iterator[Server]:
    found = Server(None)
    yield found
    found.close()


def client(tls: ProcessTls) -> httpx.Client:
    return httpx.Client(verify=tls.client(AN_OM), trust_env=False)


def without_certificate(site: Certified) -> ProcessTls:
    return ProcessTls(TlsFiles(ca=site.authority.ca_file))


@pytest.mark.parametrize("role", list(Role))
def test_a_certificate_reads_and_that_of_an_administrator_changes(site: Certified, server: Server, role: Role):
    with client(site.tls("x", role)) as http:
        assert http.get(f"https://{server.address}/status").status_code == 200
        may = role in {Role.OM, Role.ADMIN, Role.DASHBOARD}
        assert http.post(f"https://{server.address}/v1/x").status_code == (200 if may else 403)
        assert http.post(f"https://{server.address}/v1/x", auth=SECRET.sign).status_code == 200
        assert http.post(f"https://{server.address}/v1/x", headers={"Origin": "https://evil"}).status_code == 403


def test_nobody_is_anonymous_but_the_secret_will_do(site: Certified, server: Server):
    with client(without_certificate(site)) as http:
        for method in ("GET", "HEAD", "OPTIONS", "POST", "DELETE"):
            assert http.request(method, f"https://{server.address}/v1/shards/0/read-index").status_code == 403
        answer = http.get(f"https://{server.address}/metrics")
        assert "answers nobody whom it does not know" in answer.json()["message"]
        assert http.get(f"https://{server.address}/metrics", auth=SECRET.sign).status_code == 200
        assert http.post(f"https://{server.address}/v1/x", auth=SECRET.sign).status_code == 200


def test_foreign_and_expired_certificates_are_no_certificates(site: Certified, server: Server, tmp_path: Path):
    foreign = Certified(tmp_path / "other").files("root", Role.ADMIN).certificate
    late = site.files("late", Role.ADMIN, now_s=int(time.time()) - 31 * DAY_S).certificate
    for certificate in (foreign, late):
        with client(ProcessTls(TlsFiles(ca=site.authority.ca_file, certificate=certificate))) as http:
            with pytest.raises(httpx.TransportError):
                http.get(f"https://{server.address}/status").raise_for_status()


def test_plain_http_gets_no_answer_from_a_tls_server(server: Server):
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{server.address}/status", trust_env=False)


def test_reads_speak_tls_and_refuse_the_rest(site: Certified, server: Server, plain: Server):
    tls = site.tls("me", Role.CLIENT)
    reads = Reads([server.address], deadline_ms=3_000, tls=tls)
    assert reads.get("/status", {}, "stale")["path"] == "ok"
    reads.close()
    datanode = Server(site.tls("dn1", Role.DATANODE))
    for address, why in ((plain.address, "(?i)ssl|record"), (datanode.address, "is that of datanode dn1, not of om")):
        reads = Reads([address], deadline_ms=300, tls=tls)
        with pytest.raises(NotConnected, match=why):
            reads.get("/status", {}, "stale")
        reads.close()
    datanode.close()
    with pytest.raises(InvalidArgument, match="asked in clear"):
        Reads([f"http://{server.address}"], tls=tls)


def test_what_the_brokers_tell_is_asked_in_tls():
    found = NodeAddresses([], lambda _: ["http://om1:9", "om2:9"], is_secure=True)
    assert found.in_order(Deadline.after_s(1)) == ["https://om1:9", "https://om2:9"]


def test_members_ask_each_other_in_tls(site: Certified, server: Server, plain: Server):
    calls = MemberCalls("c", SECRET, site.tls("om2", Role.OM))
    assert isinstance(told := calls.ask(0, "om1", {"om1": server.address}), str)
    assert "does not answer at" in told  # it answered, with what is no place
    assert isinstance(told := calls.ask(0, "om1", {"om1": plain.address}), str)
    assert "SSL" in told
    calls.close()


def drive(link: NodeLink) -> None:
    """Receive until the link fails."""
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        link.on_writable()
        list(link.receive())
        time.sleep(0.01)
    raise AssertionError("the link neither opened nor failed")


def test_the_direct_door_is_behind_the_same_tls(site: Certified, server: Server, plain: Server):
    tls = site.tls("me", Role.CLIENT)
    link = NodeLink(server.address, "client", tls.client(AN_OM))
    with pytest.raises(LinkFailed, match="HTTP 200"):  # in TLS, by a server that has no door
        drive(link)
    link.close()
    link = NodeLink(server.address, "client", without_certificate(site).client(AN_OM))
    with pytest.raises(LinkFailed, match="HTTP 403"):
        drive(link)
    link.close()
    for address, context in ((plain.address, tls.client(AN_OM)), (server.address, None)):
        link = NodeLink(address, "client", context)
        with pytest.raises(LinkFailed):
            drive(link)
        link.close()


def test_a_silent_peer_does_not_hold_the_server(site: Certified, server: Server):
    host, _, port = server.address.partition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    with client(site.tls("x", Role.OM)) as http:
        assert http.get(f"https://{server.address}/status").status_code == 200
    for sock in silent:
        sock.close()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_silent_handshakers_are_closed_in_time_and_bounded_in_number(
    site: Certified, monkeypatch: pytest.MonkeyPatch, make_loop: Callable[[], asyncio.AbstractEventLoop]
):
    monkeypatch.setattr(asyncio.events, "new_event_loop", make_loop)
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 1.0)
    monkeypatch.setattr(bounded_server, "HANDSHAKE_S", 1.0)
    monkeypatch.setattr(bounded_server, "MAX_REFUSED", 10)
    server = Server(site.tls("om1", Role.OM), 20)
    host, _, port = server.address.partition(":")
    before = len(psutil.Process().net_connections("tcp"))
    begun_s = time.monotonic()
    silent = [socket.create_connection((host, int(port)), 10) for _ in range(200)]
    for sock in silent:
        sock.settimeout(0.3)

    def are_open() -> int:
        """Connections of the server's side: those of this test are as many again."""
        found = [one for one in psutil.Process().net_connections("tcp") if one.laddr.port == int(port)]
        return len([one for one in found if one.status == psutil.CONN_ESTABLISHED])

    deadline_s = time.monotonic() + 10
    while are_open() > 20 + 10 + 1:
        assert time.monotonic() < deadline_s, are_open()
        time.sleep(0.02)
    assert time.monotonic() - begun_s < 10
    while are_open() > 0:
        assert time.monotonic() < deadline_s, are_open()
        time.sleep(0.02)
    for sock in silent:
        sock.settimeout(5)
        with suppress(OSError):
            while sock.recv(1000):
                pass
        sock.close()
    time.sleep(1.1)
    with client(site.tls("x", Role.OM)) as http:
        assert http.get(f"https://{server.address}/status").status_code == 200
    assert len(psutil.Process().net_connections("tcp")) <= before + 4
    server.close()


def test_every_listener_of_http_has_the_limit():
    """A site that is made elsewhere has asyncio's minute, and no bound."""
    root = Path(__file__).parents[4]
    others = r"\b(TCPSite|SockSite|UnixSite|\.create_server\(\w+, sock|AppRunner|run_app|http\.server|wsgiref|WSGI|start_http_server)"
    found = {
        path.name
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
        if re.search(others, path.read_text())
    }
    assert found <= {"http_server.py"}


def test_a_certificate_is_checked_for_its_host(site: Certified, server: Server):
    context = without_certificate(site).client()
    host, _, port = server.address.partition(":")

    async def ask() -> None:
        await asyncio.open_connection(host, int(port), ssl=context, server_hostname="elsewhere.example")

    with pytest.raises(ssl.SSLCertVerificationError, match="(?i)mismatch"):
        asyncio.run(ask())


def test_a_signed_call_passes_to_who_judges_signatures_and_only_there():
    host, users = "127.0.0.1:1", {"Authorization": "Stratolog-User alice:0:ff"}
    signed = HttpGuard(SECRET, secure=True, signed=True)
    assert signed.refusal("GET", "/v1/volumes", {"Host": host, **users}) is None
    assert signed.refusal("POST", "/v1/shards/0/trim", {"Host": host, **users}) is None
    assert HttpGuard(SECRET, secure=True).refusal("POST", "/v1/shards/0/trim", {"Host": host, **users}) is not None
    assert signed.refusal("POST", "/v1/shards/0/trim", {"Host": host, "Authorization": "Stratolog 00"}) is not None
    assert signed.refusal("GET", "/v1/volumes", {"Host": host, "Authorization": "Stratolog 00"}) is not None
    assert signed.refusal("GET", "/v1/volumes", {"Host": host}) is not None
    assert HttpGuard(SECRET, secure=True).refusal("GET", "/v1/volumes", {"Host": host, **users}) is not None


@pytest.mark.parametrize("role", list(Role))
def test_what_is_for_holders_every_certificate_reads_and_the_rest_members_and_operators(role: Role):
    guard = HttpGuard(SECRET, secure=True, for_holders=OPEN_PATHS)
    headers, peer = {"Host": "127.0.0.1:1"}, PeerIdentity(name="x", role=role)

    def may(target: str, method: str = "GET") -> bool:
        return guard.refusal(method, target, headers, peer) is None

    assert all(may(target) for target in ("/health", "/status?x=1", "/metrics"))
    is_reader = role in READERS
    for target in (
        "/v1/shards/0/rows?cf=chunks&bucket=1", "/v1/shards/0/row", "/v1/shards/0/digest", "/v1/shards/0/checkpoint",
        "/v1/transfers/1/2", "/", "/v1/unheard-of", "/status/../v1/shards/0/row", "/%73tatus", "/status%3f",
    ):  # fmt: skip
        assert may(target) is (is_reader or (role is Role.AUDIT and "/rows" in target)), target
    assert may("/v1/shards/0/read-index", "POST") is is_reader
    said = guard.refusal("GET", "/v1/shards/0/row?cf=x", headers, peer)
    assert is_reader or said == f"/v1/shards/0/row is for members and operators, and not for {peer}"
