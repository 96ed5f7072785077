"""The socket of one direct connection. It never blocks: what the kernel does not take waits, up to MAX_UNSENT_BYTES.

``write`` is for any thread, the rest for the thread that receives.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections.abc import Iterator

from producers.direct.core.link_talk import LinkFailed, LinkState, LinkTalk
from producers.requests.core.one_cluster import OneCluster
from schemas.access.credentials import Credentials
from schemas.access.signatures import user_authorization
from schemas.door.frames import DOOR_PATH, DoorFrame
from schemas.security.tls_layer import TlsLayer
from transport.processes import begins_anew_in_forks

MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Most bytes that wait for the kernel; what comes on top is dropped, and the calls are sent again when they are due."""
RECEIVE_BYTES = 256 * 1024
OPEN_TIMEOUT_S = 3.0
"""How long a connection may take until it is open."""


def _authorization(credentials: Credentials | None, address: str) -> str | None:
    """Return the header that says who connects: it is good for one node, for as long as clocks may differ."""
    if credentials is None:
        return None
    return user_authorization(credentials, "GET", address, DOOR_PATH, time.time_ns() // 1_000_000)


class NodeLink:
    """A connection to ``address`` (``host:port``). Raises LinkFailed if the address cannot be resolved or reached.

    With ``tls`` the node must prove who it is before it is told anything. With ``credentials`` the client says who it
    is. The node must be of the ``cluster``, else receiving raises OtherCluster.
    """

    def __init__(
        self, address: str, client: str, tls: ssl.SSLContext | None = None, credentials: Credentials | None = None,
        cluster: OneCluster | None = None,
    ) -> None:  # fmt: skip
        self.address = address
        self._tls = None if tls is None else TlsLayer(tls, address.rpartition(":")[0].strip("[]"))
        self._talk = LinkTalk(address, client, _authorization(credentials, address), cluster)
        self._lock = threading.Lock()
        self._unsent = bytearray(self._sealed(self._talk.begin()))
        self._begun_s = time.monotonic()
        self._connected = False
        self._greeted = False
        self._closed = False
        self.was_open = False
        """Whether requests could ever be written."""
        self.sock = self._connect(address)
        begins_anew_in_forks(self)

    @staticmethod
    def _connect(address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[
                0
            ]
            sock = socket.socket(family, kind, protocol)
        except (OSError, ValueError, OverflowError) as error:
            raise LinkFailed(f"{address}: {error}") from error
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found = sock.connect_ex(place)
        if found not in (0, errno.EINPROGRESS):
            sock.close()
            raise LinkFailed(f"{address}: {errno.errorcode.get(found, found)}")
        return sock

    @property
    def is_open(self) -> bool:
        """Whether requests may be written."""
        return self._talk.state is LinkState.OPEN and not self._closed

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait for the kernel, or the connection is being made."""
        return bool(self._unsent) or not self._connected

    def write(self, data: bytes) -> bool:
        """Send bytes, or keep them; returns False if they were dropped: too many wait, or the link is closed."""
        with self._lock:
            if self._closed or len(self._unsent) + len(data) > MAX_UNSENT_BYTES:
                return False
            data = self._sealed(data)
            if self._unsent:
                self._unsent += data
                return True
            self._unsent += data[self._send(data) :]
        return True

    def on_writable(self) -> None:
        """Send what waits; raises LinkFailed if the connection could not be made."""
        if not self._connected:
            fault = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if fault:
                raise LinkFailed(f"{self.address}: {errno.errorcode.get(fault, fault)}")
            self._connected = True
        self.flush()

    def _sealed(self, data: bytes) -> bytes:
        """Return what goes out for ``data``, and for the handshake; under the lock, once others may write."""
        if self._tls is None:
            return data
        self._tls.say(data)
        return self._tls.take()

    def _opened(self, data: bytes) -> bytes:
        """Return what the node says with bytes that have arrived; raises LinkFailed if it is not the one expected."""
        if self._tls is None:
            return data
        with self._lock:
            try:
                said = self._tls.hear(data)
            except ssl.SSLError as error:
                raise LinkFailed(f"{self.address}: {error}") from error
            self._unsent += self._tls.take()
        self.flush()
        return said

    def flush(self) -> None:
        """Send what waits, as far as the kernel takes it."""
        with self._lock:
            del self._unsent[: self._send(bytes(self._unsent))]

    def _send(self, data: bytes) -> int:
        try:
            return self.sock.send(data)
        except OSError:  # not now, or the connection is broken: receiving tells
            return 0

    def receive(self) -> Iterator[DoorFrame]:
        """Yield the frames that have arrived; raises LinkFailed."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise LinkFailed(f"{self.address}: {error.strerror}") from error
        said = self._opened(data)
        if data and not said and self._tls is not None:
            return
        try:
            for frame in self._talk.hear(said):
                self._greet()
                yield frame
        except LinkFailed as error:
            raise type(error)(f"{self.address}: {error}") from error
        self._greet()

    def _greet(self) -> None:
        """Say HELLO once the node has switched."""
        if not self._greeted and self._talk.state is not LinkState.UPGRADING:
            self._greeted = True
            self.write(self._talk.hello())
        self.was_open = self.was_open or self.is_open

    def look(self, now_s: float) -> None:
        """Raise LinkFailed if the connection is not open after OPEN_TIMEOUT_S."""
        if not self.is_open and now_s - self._begun_s > OPEN_TIMEOUT_S:
            raise LinkFailed(f"{self.address}: no answer in {OPEN_TIMEOUT_S:.0f} s ({self._talk.state.value})")

    def begin_anew(self) -> None:
        """Close a forked process's copy of the socket; the link is the first process's."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Close the socket; nothing is taken to be written any more."""
        with self._lock:
            self._closed = True
            self.sock.close()
