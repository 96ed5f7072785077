"""How an Object Manager node asks datanodes: one request per connection, which is a ``schemas.conversation``.

The courier asks on threads of its own, so that its caller never waits.

Rules of the courier:
    - A request under way is not sent again; its key identifies it. At most MAX_UNDER_WAY requests are under way, each
      on a thread of its own, so none waits for another. At most MAX_PER_DATANODE go to one address, and at most
      MAX_FETCHES may be long ones, so silent datanodes do not keep other datanodes, or other kinds of request, from
      being asked.
    - Each request has a time-out, and HELLO a short one. ``give_up`` ends the requests whose answers nobody wants any
      more.
    - The datanode at an address must be the one that is meant: addresses change.
    - Correctness needs no answer: the loops decide anew from heartbeats and rows.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any

from schemas.conversation.conversation import (
    Conversation,
    ConversationFailed,
    ConversationFault,
    Event,
    PeerAnswered,
    PeerRefused,
    own_hello,
)
from schemas.conversation.limits import UnreadableRecord
from schemas.conversation.states import ConversationRole
from schemas.security.certificates import ExpectedPeer, Role
from schemas.security.tls import ProcessTls
from schemas.security.tls_socket import TlsSocket
from schemas.stream_errors import WRONG_CLUSTER

Connected = socket.socket | TlsSocket

CONNECT_TIMEOUT_S = 3.0
HELLO_TIMEOUT_S = 5.0
"""The kernel of a datanode whose process stands still accepts the connection, but nothing is said on it."""
ANSWER_TIMEOUT_S = 30.0
FETCH_TIMEOUT_S = 3600.0
"""Copying a container may take this long."""
CODES = {ConversationFault.WRONG_CLUSTER: WRONG_CLUSTER}
"""The code of a fault in a conversation; other faults have none."""
MAX_UNDER_WAY = 64
MAX_PER_DATANODE = 8
"""Requests under way to one address."""
MAX_FETCHES = MAX_UNDER_WAY // 2
"""Requests under way that may take longer than ANSWER_TIMEOUT_S."""


class DatanodeFailed(Exception):
    """A datanode refused, or could not be asked; ``code`` is one of ``schemas.stream_errors``, or empty."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def ask(
    address: str, request: Any, *, own: str, cluster: str, datanode: str = "", timeout_s: float = ANSWER_TIMEOUT_S,
    hello_timeout_s: float = HELLO_TIMEOUT_S, opened: Callable[[Connected], None] = lambda _: None,
    tls: ProcessTls | None = None,
) -> Any:  # fmt: skip
    """Send a request to the datanode at ``address`` (host:port) and return its answer; raises DatanodeFailed.

    ``datanode`` is the name that the datanode must have; empty: any. ``opened`` is called with the socket; shutting the
    socket down makes the request fail. With ``tls`` the datanode must prove its name.
    """
    host, _, port = address.rpartition(":")
    talk = Conversation(ConversationRole.CLIENT, own_hello(own, cluster), datanode=datanode, cluster_needed=True)
    try:
        with _connect(host.strip("[]"), int(port), datanode, tls) as wire:
            opened(wire)
            wire.settimeout(hello_timeout_s)
            wire.sendall(talk.hello())
            _hear(wire, talk, hello_timeout_s)
            wire.sendall(talk.request(request, sequence=1))
            answer = _hear(wire, talk, timeout_s)
    except ConversationFailed as error:
        raise DatanodeFailed(f"datanode at {address}: {error}", CODES.get(error.fault, "")) from error
    except (OSError, UnreadableRecord, ValueError) as error:
        raise DatanodeFailed(f"datanode at {address}: {type(error).__name__}: {error}") from error
    if not isinstance(answer, PeerAnswered):
        raise DatanodeFailed(
            f"datanode at {address}: {type(answer).__name__} is no answer to a {type(request).__name__}"
        )
    return answer.record


def _connect(host: str, port: int, datanode: str, tls: ProcessTls | None) -> Connected:
    sock = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    if tls is None:
        return sock
    try:
        meant = ExpectedPeer(roles=frozenset({Role.DATANODE}), name=datanode or None)
        return TlsSocket(tls.client(meant, framed=True).wrap_socket(sock, server_hostname=host))
    except BaseException:
        sock.close()
        raise


def _hear(wire: Connected, talk: Conversation, timeout_s: float) -> Event:
    """Return the datanode's next event, whole, within ``timeout_s``; raises DatanodeFailed for an ERROR."""
    deadline_s = time.monotonic() + timeout_s
    while (event := talk.next_event()) is None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no whole answer has come in {timeout_s:g} s")
        wire.settimeout(left_s)
        count = wire.recv_into(talk.space())
        talk.received(count) if count else talk.ended()
    if isinstance(event, PeerRefused):
        said = event.error
        raise DatanodeFailed(f"{said.datanode}: {said.code}: {said.message}", said.code)
    return event


class _Errand:
    """A request under way."""

    __slots__ = ("address", "ended", "long", "wire")

    def __init__(self, address: str, *, long: bool) -> None:
        self.address = address
        self.long = long
        self.ended = False
        self.wire: Connected | None = None


class Courier:
    """Asks datanodes on threads of its own; for many threads."""

    def __init__(self, *, own: str, cluster: str, log: Callable[[str], None], tls: ProcessTls | None = None) -> None:
        self._tls = tls
        self._own = own
        self._cluster = cluster
        self._log = log
        self._lock = Lock()
        self._under_way: dict[Hashable, _Errand] = {}
        self._threads = ThreadPoolExecutor(max_workers=MAX_UNDER_WAY, thread_name_prefix="courier")
        self._told: dict[Hashable, str] = {}
        self._closed = False

    @property
    def under_way(self) -> frozenset[Hashable]:
        """Keys of the requests that have no answer yet."""
        with self._lock:
            return frozenset(self._under_way)

    def send(
        self, key: Hashable, address: str, request: Any, *, datanode: str = "", timeout_s: float = ANSWER_TIMEOUT_S,
        done: Callable[[Any], None] | None = None,
    ) -> bool:  # fmt: skip
        """Ask, unless the same request or too many are under way; return whether it asks.

        ``done`` is called with an answer.

        ``datanode`` is the name that must answer at the address; empty: any.
        """
        errand = _Errand(address, long=timeout_s > ANSWER_TIMEOUT_S)
        with self._lock:
            if self._closed or key in self._under_way or not self._has_room(errand):
                return False
            self._under_way[key] = errand
            self._threads.submit(self._ask, key, errand, request, datanode, timeout_s, done)
        return True

    def _has_room(self, errand: _Errand) -> bool:
        others = self._under_way.values()
        if errand.long and sum(other.long for other in others) >= MAX_FETCHES:
            return False
        there = Counter(other.address for other in others)[errand.address]
        return len(self._under_way) < MAX_UNDER_WAY and there < MAX_PER_DATANODE

    def give_up(self, unwanted: Callable[[Hashable], bool]) -> None:
        """End the requests under way whose keys are unwanted; they fail."""
        with self._lock:
            for key, errand in self._under_way.items():
                if unwanted(key) and not errand.ended:
                    errand.ended = True
                    _shut(errand.wire)

    def _ask(
        self, key: Hashable, errand: _Errand, request: Any, datanode: str, timeout_s: float,
        done: Callable[[Any], None] | None,
    ) -> None:  # fmt: skip
        def opened(wire: Connected) -> None:
            with self._lock:
                errand.wire = wire
                if errand.ended:
                    _shut(wire)

        try:
            answer = ask(
                errand.address, request, own=self._own, cluster=self._cluster, datanode=datanode, timeout_s=timeout_s,
                opened=opened, tls=self._tls,
            )  # fmt: skip
        except DatanodeFailed as error:
            why = "given up" if errand.ended else str(error)
            self._say(key, f"{type(request).__name__} {key}: {why}")
        else:
            self._say(key, "")
            if done is not None:
                done(answer)
        finally:
            with self._lock:
                errand.wire = None
                del self._under_way[key]

    def _say(self, key: Hashable, trouble: str) -> None:
        """Log a failure once; do not repeat it while it stays the same."""
        with self._lock:
            news = trouble and self._told.get(key) != trouble
            if len(self._told) > MAX_UNDER_WAY * 16:
                self._told.clear()
            if trouble:
                self._told[key] = trouble
            else:
                self._told.pop(key, None)
        if news:
            self._log(trouble)

    def close(self) -> None:
        """Begin no more requests, and end those under way."""
        with self._lock:
            self._closed = True
        self.give_up(lambda _: True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _shut(wire: Connected | None) -> None:
    if wire is not None:
        with suppress(OSError):  # it has ended by itself
            wire.shutdown(socket.SHUT_RDWR)
