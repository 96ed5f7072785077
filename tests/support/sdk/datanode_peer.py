"""A peer of a client's connection that says what a test tells it to: bytes over a real socket, and no datanode behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from schemas.codecs.codec import encode
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import Hello
from schemas.records.packets import Kind, encode_frame
from transport.datanodes.connection import DatanodeCaller, DatanodeConnection

WAIT_S = 30.0
OWN = own_hello("client", "twin")
"""What the client says."""
CALLER = DatanodeCaller(OWN)
HELLO = own_hello("dn1", "twin")


def said(hello: Hello) -> bytes:
    """Return the frame of a HELLO."""
    return encode_frame(Kind.HELLO, encode(hello))


class Peer:
    """A socket that listens; ``greets`` are the bytes that it says to whoever connects."""

    def __init__(self, greets: bytes = said(HELLO)) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.socket: socket.socket
        self.came = threading.Event()
        """Set once somebody has connected and was greeted."""
        self._greets = greets
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            self.socket, _ = self._listening.accept()
            self.socket.settimeout(WAIT_S)
            self.socket.sendall(self._greets)
            self.came.set()

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def heard(self, count: int) -> bytes:
        """Return the next bytes that came, so many of them or all until the end."""
        found = b""
        while len(found) < count and (more := self.socket.recv(count - len(found))):
            found += more
        return found

    def close(self) -> None:
        """End the connection, and listen no more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(WAIT_S)
        if self.came.is_set():
            self.socket.close()


def greeted(peer: Peer, caller: DatanodeCaller = CALLER, **settings: Any) -> DatanodeConnection:
    """Return a connection to a peer, both having said HELLO."""
    connection = DatanodeConnection(peer.address, caller, datanode="dn1", **settings)
    assert peer.came.wait(WAIT_S)
    assert peer.heard(len(said(OWN))) == said(OWN)
    return connection


@contextmanager
def listening() -> Iterator[Callable[..., Peer]]:
    """Yield a factory of peers that say what a test tells them to; they end with the test."""
    made: list[Peer] = []

    def begin(*greets: bytes) -> Peer:
        made.append(Peer(*greets))
        return made[-1]

    yield begin
    for peer in made:
        peer.close()


@contextmanager
def talking(
    listens: Callable[..., Peer], caller: DatanodeCaller = CALLER
) -> Iterator[Callable[..., tuple[DatanodeConnection, Peer]]]:
    """Yield a factory of (connection, peer) that have said HELLO."""
    made: list[DatanodeConnection] = []

    def begin(**settings: Any) -> tuple[DatanodeConnection, Peer]:
        peer = listens()
        made.append(greeted(peer, caller, **settings))
        return made[-1], peer

    yield begin
    for connection in made:
        connection.close()
