"""Connections to datanodes that are kept from one request to the next. For many threads.

The rules:

1. A connection is kept if nothing is open on it, for ``age_s`` at most; a datanode has ``per_address`` of them, all
   datanodes together ``total``. What does not fit is closed: the newest of an address, the oldest of all.
2. The one that was kept last is taken first. It is for the datanode that is meant: if another one was at its address,
   it is closed.
3. A kept connection may have died. Then the request is sent once more, over a fresh one, and all that are as old are
   closed: whatever is asked of datanodes may be repeated (``PoolCall``).
4. A forked process begins with none: its copies of connections are closed (``transport.processes``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from transport.datanodes.connection import Kept
from transport.datanodes.core.failures import BROKEN, ENDED, DatanodeFailed
from transport.processes import begins_anew_in_forks
from transport.waiting.deadline import Clock

Found = TypeVar("Found")

MAX_KEPT_PER_ADDRESS = 16
"""Connections to one datanode that are kept open for later requests."""
MAX_KEPT = 512
"""Connections to all datanodes together that are kept."""
KEPT_S = 300.0
"""How long a connection is kept that nobody uses; shorter than a datanode waits for a request."""


class ConnectionPool(Generic[Kept]):
    """The connections that one client of datanodes keeps."""

    def __init__(
        self, *, per_address: int = MAX_KEPT_PER_ADDRESS, total: int = MAX_KEPT, age_s: float = KEPT_S,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self._per_address = per_address
        self._total = total
        self._age_s = age_s
        self._clock = clock
        self._closed = False
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Keep no connection: rule 4."""
        self._lock = threading.Lock()
        self._since_s: dict[Kept, float] = {}
        """When each was kept, the oldest first."""
        self._by_address: dict[str, list[Kept]] = {}
        """The same connections, the oldest first."""

    def __len__(self) -> int:
        """Return how many connections are kept."""
        return len(self._since_s)

    def connections(self) -> list[Kept]:
        """Return those that are kept, the oldest first; they stay the pool's."""
        with self._lock:
            return list(self._since_s)

    def take(self, address: str, datanode: str = "") -> Kept | None:
        """Return a kept connection to the datanode at ``address`` (``datanode`` empty: any); None if there is none."""
        with self._lock:
            gone = self._outdated()
            there = self._by_address.get(address, ())
            gone += [self._remove(one) for one in list(there) if datanode and one.datanode != datanode]
            found = self._by_address.get(address)
            taken = self._remove(found[-1]) if found else None
        _close(gone)
        return taken

    def give_back(self, connection: Kept) -> None:
        """Keep a connection for the next request, or close it."""
        with self._lock:
            gone = self._outdated()
            full = len(self._by_address.get(connection.address, ())) >= self._per_address
            if self._closed or full or not connection.is_idle:
                gone.append(connection)
            else:
                connection.talk.shrink()
                self._since_s[connection] = self._clock()
                self._by_address.setdefault(connection.address, []).append(connection)
                if len(self._since_s) > self._total:
                    gone.append(self._remove(next(iter(self._since_s))))
        _close(gone)

    def drop(self, address: str) -> None:
        """Close what is kept to ``address``: one of them was dead, and the others are as old."""
        with self._lock:
            gone = [self._remove(one) for one in list(self._by_address.get(address, ()))]
        _close(gone)

    def close(self) -> None:
        """Close the kept connections; those that come back later are closed too."""
        with self._lock:
            self._closed = True
            gone = [self._remove(one) for one in list(self._since_s)]
        _close(gone)

    def _outdated(self) -> list[Kept]:
        """Take out what has been kept for too long."""
        gone: list[Kept] = []
        latest_s = self._clock() - self._age_s
        while self._since_s and self._since_s[oldest := next(iter(self._since_s))] <= latest_s:
            gone.append(self._remove(oldest))
        return gone

    def _remove(self, connection: Kept) -> Kept:
        del self._since_s[connection]
        kept = self._by_address[connection.address]
        kept.remove(connection)
        if not kept:
            del self._by_address[connection.address]
        return connection


class PoolCall(Generic[Kept]):
    """One request that is on its way to a datanode; for one thread.

    It ends by :meth:`finish`, or by :meth:`abandon`, or its connection goes over to the caller (:meth:`release`).
    """

    def __init__(
        self, pool: ConnectionPool[Kept], address: str, datanode: str, connect: Callable[[], Kept],
        send: Callable[[Kept], None],
    ) -> None:  # fmt: skip
        """``connect`` makes a fresh connection, ``send`` sends the request; both may raise DatanodeFailed."""
        self.address = address
        self.datanode = datanode
        self._pool = pool
        self._connect = connect
        self._send = send
        self._connection = pool.take(address, datanode)
        self._is_kept = self._connection is not None
        """Whether the connection was used before: then its end says nothing about the datanode of now."""
        if self._connection is None:
            self._connection = connect()
        try:
            send(self._connection)
        except DatanodeFailed as error:
            self._again(error)
        except BaseException:
            self.abandon()
            raise

    @property
    def connection(self) -> Kept:
        """Return the connection over which the answer comes."""
        assert self._connection is not None, self.datanode  # noqa: S101 - the call has not ended
        return self._connection

    def step(self, receive: Callable[[Kept], Found]) -> Found | None:
        """Return what ``receive`` returns; None if the request was sent once more: its answer is still to come.

        Raises DatanodeFailed; the connection is closed then, or kept if it is the datanode's answer.
        """
        try:
            return receive(self.connection)
        except DatanodeFailed as error:
            self._again(error)
            return None
        except BaseException:
            self.abandon()
            raise

    def hear(self, receive: Callable[[Kept], Found]) -> Found:
        """As :meth:`step`, until ``receive`` returns something."""
        while (found := self.step(receive)) is None:
            pass
        return found

    def finish(self, receive: Callable[[Kept], Found]) -> Found:
        """As :meth:`hear`, for a whole answer: the connection is kept for the next request."""
        found = self.hear(receive)
        self._pool.give_back(self.release())
        return found

    def release(self) -> Kept:
        """Return the connection, which is the caller's from now on."""
        connection, self._connection = self.connection, None
        return connection

    def abandon(self) -> None:
        """Close the connection if the answer has not come: nobody waits for it any more. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _again(self, error: DatanodeFailed) -> None:
        """Send the request over a fresh connection if ``error`` ended a kept one; raises it otherwise."""
        if not self._is_kept or error.status not in ENDED:
            self._fail(error)
            raise error
        self.abandon()
        self._is_kept = False
        self._pool.drop(self.address)
        self._connection = self._connect()
        try:
            self._send(self._connection)
        except DatanodeFailed as second:
            self._fail(second)
            raise
        except BaseException:
            self.abandon()
            raise

    def _fail(self, error: DatanodeFailed) -> None:
        if error.status in BROKEN:
            self.abandon()
        else:
            self._pool.give_back(self.release())


def _close(connections: list[Kept]) -> None:
    for connection in connections:
        connection.close()
