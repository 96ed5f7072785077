"""The socket of one direct connection: what is sent when, what waits for the kernel, and how it ends."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from producers.direct import node_link
from producers.direct.core.link_talk import LinkFailed, LinkState
from producers.direct.node_link import OPEN_TIMEOUT_S, NodeLink
from schemas.access.credentials import SECRET_BYTES, Credentials
from schemas.access.signatures import presented
from schemas.door.frames import DoorFrame, DoorFrames, DoorKind, door_frame
from schemas.door.talk import DoorRole, DoorTalk
from schemas.security.certificates import AN_OM, Role
from schemas.security.tls import ProcessTls
from tests.support.security.certified import Certified

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: stratolog-door\r\n\r\n"
HELLO = DoorTalk(DoorRole.NODE, "om1", "c").hello()
WAIT_S = 10.0


class Node:
    """The other side: a socket on the loopback."""

    def __init__(self, family: int = socket.AF_INET, host: str = "127.0.0.1") -> None:
        self._server = socket.create_server((host, 0), family=family)
        self._server.settimeout(WAIT_S)
        self.port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.sock: socket.socket | None = None
        self.link: NodeLink | None = None

    def connect(self, address: str = "") -> NodeLink:
        """Return a link whose connection is made, and take it."""
        self.link = NodeLink(address or self.address, "c0ffee")
        self.sock, _ = self._server.accept()
        self.sock.settimeout(WAIT_S)
        return self.link

    def open(self) -> NodeLink:
        link = self.connect()
        link.on_writable()
        self.say(SWITCHING + HELLO)
        self.heard(lambda: link.is_open)
        return link

    def say(self, data: bytes) -> None:
        assert self.sock is not None
        self.sock.sendall(data)

    def read(self, ends: bytes) -> bytes:
        """Return what the client has sent up to ``ends``."""
        assert self.sock is not None
        found = b""
        while not found.endswith(ends):
            found += self.sock.recv(65_536)
        return found

    def heard(self, holds: Callable[[], object]) -> list[DoorFrame]:
        """Let the client receive until something holds; return its frames."""
        assert self.link is not None
        found: list[DoorFrame] = []
        self.link.sock.settimeout(WAIT_S)
        while not holds():
            found += self.link.receive()
        self.link.sock.setblocking(False)
        return found

    def fails(self) -> str:
        """Let the client receive until its connection fails; return why."""
        with pytest.raises(LinkFailed) as failed:
            self.heard(lambda: False)
        return str(failed.value)

    def close(self) -> None:
        for one in (self.sock, self.link, self._server):
            if one is not None:
                one.close()


@pytest.fixture
def node() -> Iterator[Node]:
    found = Node()
    yield found
    found.close()


def test_the_upgrade_is_asked_for_once_the_connection_is_made(node: Node) -> None:
    link = node.connect()
    assert link.has_unsent
    assert not link.is_open
    link.on_writable()
    assert not link.has_unsent
    asked = node.read(b"\r\n\r\n")
    assert asked.startswith(b"GET /v1/door HTTP/1.1\r\n")
    assert f"host: {node.address}\r\n".encode() in asked.lower()
    assert b"authorization" not in asked.lower()


def test_hello_is_said_once_the_node_has_switched_and_once_only(node: Node) -> None:
    link = node.connect()
    link.on_writable()
    node.read(b"\r\n\r\n")
    node.say(SWITCHING)
    node.heard(lambda: link._greeted)
    assert (link.is_open, link.was_open) == (False, False), "the node has not said HELLO"
    node.say(HELLO)
    node.heard(lambda: link.is_open)
    node.say(door_frame(DoorKind.LEADERS, b"leaders"))
    assert link.was_open
    found: list[DoorFrame] = []
    link.sock.settimeout(WAIT_S)
    found += link.receive()
    assert [(frame.kind, frame.payload) for frame in found] == [(DoorKind.LEADERS, b"leaders")]
    assert link.write(b"the end")
    frames = DoorFrames(DoorRole.NODE.hears)
    sent = node.read(b"the end").removesuffix(b"the end")
    assert [frame.kind for frame in frames.take(sent)] == [DoorKind.HELLO]


def test_what_comes_together_with_the_switch_is_heard(node: Node) -> None:
    link = node.connect()
    link.on_writable()
    node.say(SWITCHING + HELLO + door_frame(DoorKind.LEADERS, b"1") + door_frame(DoorKind.ANSWERS, b"2"))
    found: list[DoorFrame] = []
    link.sock.settimeout(WAIT_S)
    while len(found) < 2:
        for frame in link.receive():
            assert link._greeted, "HELLO goes out before anything is done with a frame"
            found.append(frame)
    assert [frame.payload for frame in found] == [b"1", b"2"]
    assert (link.is_open, link.was_open) == (True, True)


def test_while_nothing_has_arrived_there_are_no_frames(node: Node) -> None:
    assert list(node.open().receive()) == []


def test_what_the_kernel_does_not_take_waits_and_goes_out_in_order(node: Node) -> None:
    link = node.open()
    parts = [bytes([number]) * 2_000_000 for number in range(4)]
    for part in parts:
        assert link.write(part)
    assert link.has_unsent
    found = bytearray()
    assert node.sock is not None
    node.sock.setblocking(False)
    end_s = time.monotonic() + WAIT_S
    while link.has_unsent or not found.endswith(parts[-1]):
        assert time.monotonic() < end_s
        link.flush()
        with suppress(BlockingIOError):
            found += node.sock.recv(1 << 20)
    assert found.endswith(b"".join(parts))
    assert not link.has_unsent


def test_beyond_the_bound_bytes_are_dropped_as_a_whole(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    link = node.connect()  # its connection counts as being made: everything waits
    link.on_writable()
    monkeypatch.setattr(link, "_send", lambda _: 0)
    monkeypatch.setattr(node_link, "MAX_UNSENT_BYTES", 10)
    assert link.write(b"123456")
    assert not link.write(b"78901")
    assert link.write(b"7890"), "so many may wait"
    assert not link.write(b"x")
    assert bytes(link._unsent) == b"1234567890"


@pytest.mark.parametrize(("last", "why"), [(b"", "the node has closed the connection"), (b"!!", "what answers is no")])
def test_the_end_of_a_connection_is_told_with_the_address(node: Node, last: bytes, why: str) -> None:
    link = node.open()
    node.say(last)
    assert node.sock is not None
    node.sock.shutdown(socket.SHUT_WR)
    assert node.fails().startswith(f"{node.address}: {why}")
    assert not link.is_open
    assert link.was_open


def test_a_connection_that_is_reset_is_told(node: Node) -> None:
    node.open()
    assert node.sock is not None
    node.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    node.sock.close()
    assert node.fails() == f"{node.address}: Connection reset by peer"


def test_what_cannot_be_sent_any_more_waits_until_receiving_tells(node: Node) -> None:
    link = node.open()
    link.sock.shutdown(socket.SHUT_WR)
    assert link.write(b"anything")
    assert link.has_unsent


def test_a_connection_must_open_in_time(node: Node) -> None:
    link = node.connect()
    link.look(link._begun_s + OPEN_TIMEOUT_S)
    with pytest.raises(LinkFailed, match=rf"^{node.address}: no answer in 3 s \(asks for the direct door\)$"):
        link.look(link._begun_s + OPEN_TIMEOUT_S + 0.001)
    link.on_writable()
    node.say(SWITCHING)
    node.heard(lambda: link._greeted)
    with pytest.raises(LinkFailed, match=LinkState.GREETING.value):
        link.look(link._begun_s + OPEN_TIMEOUT_S + 0.001)
    node.say(HELLO)
    node.heard(lambda: link.is_open)
    link.look(link._begun_s + 1_000_000)


def test_who_refuses_the_connection_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and it does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"

        def connect() -> None:
            with closing(NodeLink(address, "c0ffee")) as link:
                link.on_writable()

        with pytest.raises(LinkFailed, match=f"^{address}: ECONNREFUSED$"):
            connect()


@pytest.mark.parametrize("address", ["127.0.0.1:no", "127.0.0.1:99999999999999999999", "no such host:1"])
def test_an_address_that_leads_nowhere_is_named(address: str) -> None:
    with pytest.raises(LinkFailed, match=f"^{address}: "):
        NodeLink(address, "c0ffee")


def test_small_requests_are_not_held_back_and_a_dead_peer_is_noticed(node: Node) -> None:
    link = node.connect()
    assert link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert not link.sock.getblocking()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_in_brackets() -> None:
    try:
        node = Node(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("the loopback has no IPv6")
    link = node.connect(f"[::1]:{node.port}")
    link.on_writable()
    assert not link.has_unsent
    node.close()


def test_a_link_that_is_closed_gives_its_socket_back(node: Node) -> None:
    link = node.open()
    link.close()
    assert link.sock.fileno() == -1


def test_a_link_that_is_closed_takes_nothing_to_be_written(node: Node) -> None:
    link = node.open()
    link.close()
    assert not link.write(b"anything")
    assert not link.is_open
    assert link.was_open


def test_an_address_that_may_not_be_reached_leaves_no_socket() -> None:
    """A broadcast is refused at once."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(LinkFailed, match=r"^255\.255\.255\.255:9: E(ACCES|NETUNREACH)$"):
            NodeLink("255.255.255.255:9", "c0ffee")
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_has_credentials_says_who_it_is_to_this_node_alone(node: Node) -> None:
    ann = Credentials("ann:1", bytes(SECRET_BYTES))
    node.link = NodeLink(node.address, "c0ffee", None, ann)
    node.sock, _ = node._server.accept()
    node.sock.settimeout(WAIT_S)
    node.link.on_writable()
    asked = node.read(b"\r\n\r\n").decode()
    (line,) = [one for one in asked.split("\r\n") if one.lower().startswith("authorization: ")]
    said = presented(line.partition(": ")[2])
    assert said is not None
    assert said.is_of(ann, "GET", node.address, "/v1/door")
    assert not said.is_of(ann, "GET", "other:1", "/v1/door")
    assert abs(said.time_ms - time.time() * 1000) < 60_000


# -- in TLS ------------------------------------------------------------------------------------------------------------


class SecureNode:
    """The other side in TLS, on a thread: it says ``says`` once it has heard the question."""

    def __init__(self, tls: ProcessTls, says: bytes = SWITCHING + HELLO) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._context = tls.server(needs_certificate=False)
        self._says = says
        self.heard = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            sock, _ = self._server.accept()
            sock.settimeout(WAIT_S)
            with self._context.wrap_socket(sock, server_side=True) as peer:
                while b"\r\n\r\n" not in self.heard:
                    self.heard += peer.recv(65_536)
                peer.sendall(self._says)
                while more := peer.recv(65_536):
                    self.heard += more

    def close(self) -> None:
        self._server.close()
        self._thread.join(WAIT_S)


def driven(link: NodeLink, holds: Callable[[], object]) -> list[DoorFrame]:
    """Let a link send and receive until something holds."""
    found: list[DoorFrame] = []
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s
        link.on_writable()
        found += link.receive()
    return found


def test_in_tls_the_same_is_said_and_heard(tmp_path: Path) -> None:
    site = Certified(tmp_path / "authority")
    node = SecureNode(site.tls("om1", Role.OM), SWITCHING + HELLO + door_frame(DoorKind.LEADERS, b"leaders"))
    link = NodeLink(node.address, "c0ffee", site.tls("me", Role.CLIENT).client(AN_OM))
    frames: list[DoorFrame] = []
    end_s = time.monotonic() + WAIT_S
    while not frames:
        assert time.monotonic() < end_s
        link.on_writable()
        frames += link.receive()
    assert [frame.payload for frame in frames] == [b"leaders"]
    assert link.is_open
    assert link.write(b"the end")
    driven(link, lambda: node.heard.endswith(b"the end"))
    assert node.heard.startswith(b"GET /v1/door HTTP/1.1\r\n")
    link.close()
    node.close()


def test_in_tls_another_than_a_node_is_told_nothing(tmp_path: Path) -> None:
    site = Certified(tmp_path / "authority")
    for role, expected in ((Role.DATANODE, "is that of datanode x, not of om"), (Role.OM, "certificate verify failed")):
        other = site if role is Role.DATANODE else Certified(tmp_path / "foreign")
        node = SecureNode(other.tls("x", role))
        link = NodeLink(node.address, "c0ffee", site.tls("me", Role.CLIENT).client(AN_OM))
        with pytest.raises(LinkFailed, match=f"{node.address}: .*{expected}"):
            driven(link, lambda: False)
        link.close()
        assert node.heard == b""
        node.close()
