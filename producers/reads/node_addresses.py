"""The nodes for reads: those that were given, or those that the brokers know (``leaders_group``).

What belongs here: which addresses are asked, in which order, and when the brokers are asked for them. The rules:

1. The node that answered last is asked first.
2. If no addresses were given, the brokers are asked at the first read, and again after a round in which no node
   answered, at most every FIND_AGAIN_MS: this finds a node that came back at another address.
3. If the brokers name no node or cannot be reached, the known addresses stay: those nodes may answer all the same.
4. One thread looks for nodes at a time. The others use the known addresses, and wait for it only while there are none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx

from producers.errors import NOT_CONNECTED, InvalidArgument, NotConnected, RetryableError
from producers.requests import arguments
from transport.processes import begins_anew_in_forks
from transport.waiting.deadline import Deadline

FIND_AGAIN_MS = 500
FIND_TIMEOUT_MS = 2_000
"""Longest time for the brokers to name the nodes."""

Find = Callable[[float], Sequence[str]]
"""Returns the addresses of the nodes, within so many seconds; raises a RetryableError."""


class NodeAddresses:
    """Addresses in the order in which to ask them; safe to share between threads."""

    def __init__(self, given: Sequence[str], find: Find | None, *, is_secure: bool = False) -> None:
        """``is_secure``: nodes are asked in TLS alone; the brokers tell no more than ``host:port``."""
        self._is_secure = is_secure
        try:
            self._addresses = [self._own(one) for one in arguments.sequence("read_from", given, str, "str")]
        except ValueError as error:
            raise InvalidArgument("read_from", f"must hold addresses: {error}") from error
        self._find = None if self._addresses else find
        self._look = True
        self._looked_at_s = float("-inf")
        self._preferred = ""
        self._failure: RetryableError | None = None
        """Why the last look failed."""
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """In a forked process, let this one look for nodes; the known addresses stay."""
        self._lock = threading.Lock()

    def _own(self, address: str) -> str:
        if not self._is_secure:
            return address_of(address)
        if address.startswith("http://"):
            raise ValueError(f"{address!r} is asked in clear, and 'tls' is given")
        return address_of(address if "://" in address else f"https://{address}")

    @property
    def given(self) -> list[str]:
        """The addresses that were given; none if the brokers are asked for them."""
        return self._addresses if self._find is None else []

    @property
    def any_hope(self) -> bool:
        """Whether there are nodes, or there may be some."""
        return self._find is not None or bool(self._addresses)

    def in_order(self, deadline: Deadline) -> list[str]:
        """Return the addresses; raises NotConnected if there are none."""
        if self._find is not None:
            self._look_for_nodes(self._find, deadline)
        if not self._addresses:
            raise NotConnected(NOT_CONNECTED, "the client was given no node to read from (read_from)")
        return sorted(self._addresses, key=lambda one: one != self._preferred)

    def _look_for_nodes(self, find: Find, deadline: Deadline) -> None:
        with self._turn(deadline) as is_ours:
            if not is_ours:
                return
            rests = time.monotonic() - self._looked_at_s < FIND_AGAIN_MS / 1000
            if self._addresses and (rests or not self._look):
                return
            if rests and self._failure is not None:
                # Threads that waited for this look do not each repeat it.
                raise NotConnected(self._failure.status, self._failure.message)
            try:
                found = find(deadline.sooner(FIND_TIMEOUT_MS / 1000).left_s)
                self._addresses, self._failure = [self._own(one.removeprefix("http://")) for one in found], None
            except RetryableError as error:
                # A copy without the traceback, which would keep the frames of the look alive, a Kafka client included.
                self._failure = NotConnected(error.status, error.message)
                if not self._addresses:
                    raise
            finally:
                self._looked_at_s = time.monotonic()
            self._look = False

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[bool]:
        """Take the turn to look; False if another thread has it and there are nodes. NotConnected at the deadline."""
        if self._addresses:
            is_ours = self._lock.acquire(blocking=False)
        else:
            is_ours = self._lock.acquire(timeout=min(deadline.left_s, threading.TIMEOUT_MAX))
        if not is_ours and not self._addresses:
            raise NotConnected(NOT_CONNECTED, "the brokers have not told yet which nodes there are")
        try:
            yield is_ours
        finally:
            if is_ours:
                self._lock.release()

    def answered(self, address: str) -> None:
        """Ask this node first from now on."""
        self._preferred = address

    def none_answered(self) -> None:
        """Look for the nodes again before the next read."""
        self._look = True


def address_of(address: str) -> str:
    """Return a node's address without a trailing slash; ``host:port`` alone means http.

    Raises ValueError, naming the text, if it is not an address.

    >>> address_of("127.0.0.1:9871/")
    'http://127.0.0.1:9871'
    """
    url = address if "://" in address else f"http://{address}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{address!r} is not the address of a node: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"{address!r} is not the address of a node, as in http://127.0.0.1:9871")
    return url.rstrip("/")
