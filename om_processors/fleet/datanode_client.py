"""How an Object Manager node asks datanodes: one request per connection (``transport.datanodes``).

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

from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from schemas.conversation.conversation import own_hello
from schemas.kafka.brokers_id import brokers_mark
from schemas.security.tls import ProcessTls
from transport.datanodes.connection import DatanodeCaller, DatanodeConnection
from transport.datanodes.core.failures import DatanodeFailed
from transport.waiting.deadline import Deadline

CONNECT_TIMEOUT_MS = 3_000
HELLO_TIMEOUT_S = 5.0
"""The kernel of a datanode whose process stands still accepts the connection, but nothing is said on it."""
ANSWER_TIMEOUT_S = 30.0
FETCH_TIMEOUT_S = 3600.0
"""Copying a container may take this long."""
MAX_UNDER_WAY = 64
MAX_PER_DATANODE = 8
"""Requests under way to one address."""
MAX_FETCHES = MAX_UNDER_WAY // 2
"""Requests under way that may take longer than ANSWER_TIMEOUT_S."""


def ask(
    address: str, request: Any, *, own: str, cluster: str, datanode: str = "", timeout_s: float = ANSWER_TIMEOUT_S,
    hello_timeout_s: float = HELLO_TIMEOUT_S, connected: Callable[[DatanodeConnection], None] = lambda _: None,
    tls: ProcessTls | None = None, brokers_id: str = "",
) -> Any:  # fmt: skip
    """Send a request to the datanode at ``address`` (host:port) and return its answer; raises DatanodeFailed.

    ``datanode`` is the name that the datanode must have; empty: any. ``connected`` is called with the connection;
    interrupting it makes the request fail. With ``tls`` the datanode must prove its name.
    It must be at the brokers with ``brokers_id``, if it says at which it is.
    """
    caller = DatanodeCaller(
        own_hello(own, cluster), tls, cluster_needed=True, brokers=brokers_mark(brokers_id)
    )  # fmt: skip
    with DatanodeConnection(
        address, caller, datanode=datanode, connect_timeout_ms=CONNECT_TIMEOUT_MS, connected=connected,
        hello_timeout_ms=int(hello_timeout_s * 1000),
    ) as connection:  # fmt: skip
        connection.doing = type(request).__name__
        connection.send_request(request)
        return connection.answered(connection.receive_by(Deadline.after_s(timeout_s)))


class _Errand:
    """A request under way."""

    __slots__ = ("address", "connection", "ended", "long")

    def __init__(self, address: str, *, long: bool) -> None:
        self.address = address
        self.long = long
        self.ended = False
        self.connection: DatanodeConnection | None = None


class Courier:
    """Asks datanodes on threads of its own; for many threads."""

    def __init__(
        self, *, own: str, cluster: str, log: Callable[[str], None], tls: ProcessTls | None = None, brokers_id: str = ""
    ) -> None:
        self._tls = tls
        self._brokers_id = brokers_id
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
                    if errand.connection is not None:
                        errand.connection.interrupt()

    def _ask(
        self, key: Hashable, errand: _Errand, request: Any, datanode: str, timeout_s: float,
        done: Callable[[Any], None] | None,
    ) -> None:  # fmt: skip
        def connected(connection: DatanodeConnection) -> None:
            with self._lock:
                errand.connection = connection
                if errand.ended:
                    connection.interrupt()

        try:
            answer = ask(
                errand.address, request, own=self._own, cluster=self._cluster, datanode=datanode, timeout_s=timeout_s,
                connected=connected, tls=self._tls, brokers_id=self._brokers_id,
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
                errand.connection = None
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
