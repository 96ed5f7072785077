"""Requests to a cluster's datanodes, over a few kept connections (design, section 8).

The rules:

1. Connections for requests are kept for the next request, MAX_IDLE for each datanode. A request that fails on a kept
   connection is sent once more on a new one: all requests to datanodes may be repeated.
2. Whoever is asked for a HELLO and says none is remembered as silent (``silent``), until it says one. Whoever refuses
   at once is not: that costs a block no time, and it may be back for the next one.
3. At most ``max_conversations`` threads send requests to datanodes at a time; the others wait their turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from producers.blocks.datanode_connection import (
    CONNECT_TIMEOUT_MS,
    PROBE_TIMEOUT_MS,
    SILENCE_MS,
    BlocksInParts,
    DatanodeConnection,
    readable,
)
from producers.blocks.silent_members import SilentMembers
from producers.errors import UNREACHABLE, DatanodeError
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import BlocksWritten, Member
from schemas.records.packets import SMALL_BLOCKS_VERSION
from schemas.security.tls import ProcessTls
from schemas.stream_errors import BAD_FRAME, OVERLOADED, STOPPING, TIMED_OUT, UNSUPPORTED_VERSION

MAX_IDLE = 16
"""Connections to one datanode that are kept open for later requests."""
MAX_CONVERSATIONS = 256
EXCHANGE_TIMEOUT_MS = 15_000
"""How long small blocks may take that are written together; longer than datanodes wait for each other. Then they are
written as streams.
"""

Answer = TypeVar("Answer")


class Datanodes:
    """Connections to the datanodes of one cluster; safe to share between threads.

    ``cluster`` is checked against each datanode's, unless it is empty.
    """

    def __init__(
        self, *, cluster: str = "", peer: str = "client", connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        silence_ms: int = SILENCE_MS, max_conversations: int = MAX_CONVERSATIONS,
        tls: ProcessTls | None = None,
    ) -> None:  # fmt: skip
        self._tls = tls
        self.silence_ms = silence_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._hello = own_hello(peer, cluster)
        self._lock = threading.Lock()
        self._idle: dict[str, list[DatanodeConnection]] = {}
        self._turns = threading.BoundedSemaphore(max_conversations)
        self._closed = False
        self.silent = SilentMembers(lambda member: self.answers([member], timeout_ms=PROBE_TIMEOUT_MS))
        """The datanodes that did not answer just now."""

    def connect(self, member: Member, *, timeout_ms: int | None = None) -> DatanodeConnection:
        """Open a new connection, for a stream.

        With ``timeout_ms``, for a request, connecting and the wait for HELLO each take no longer than that.
        """
        limit_ms = self.silence_ms if timeout_ms is None else timeout_ms
        connection = self._greeted(
            member, silence_ms=self.silence_ms, timeout_ms=min(self._connect_timeout_ms, limit_ms),
            hello_timeout_ms=timeout_ms,
        )  # fmt: skip
        connection.is_alive = lambda: bool(self.answers([member], timeout_ms=PROBE_TIMEOUT_MS))
        return connection

    def _greeted(
        self, member: Member, *, silence_ms: int, timeout_ms: int, hello_timeout_ms: int | None = None
    ) -> DatanodeConnection:
        """Open a connection, and remember whether the datanode is silent; rule 2."""
        asked_s = time.monotonic()
        try:
            connection = DatanodeConnection(
                member.address, self._hello, datanode=member.datanode, connect_timeout_ms=timeout_ms,
                silence_ms=silence_ms, hello_timeout_ms=hello_timeout_ms, tls=self._tls,
            )  # fmt: skip
        except DatanodeError as error:
            # What fails in less than half of the time has refused.
            if error.status != TIMED_OUT and time.monotonic() - asked_s < timeout_ms / 2000:
                self.silent.on_answered(member)
            elif timeout_ms >= PROBE_TIMEOUT_MS:
                self.silent.on_silent(member)
            raise
        self.silent.on_answered(member)
        return connection

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until few enough threads talk to datanodes; raises DatanodeError (OVERLOADED) if that takes too long."""
        if not self._turns.acquire(timeout=10 * self.silence_ms / 1000):
            raise DatanodeError(OVERLOADED, "too many requests to datanodes are under way in this client")
        try:
            yield
        finally:
            self._turns.release()

    def borrow(self, member: Member, *, fresh: bool = False, timeout_ms: int | None = None) -> DatanodeConnection:
        """Return a kept connection, or a new one (``timeout_ms``: see :meth:`connect`)."""
        with self._lock:
            kept = [one for one in self._idle.get(member.address, ()) if one.datanode == member.datanode]
            for connection in self._idle.pop(member.address, ()):
                if connection.datanode != member.datanode:
                    connection.close()  # another datanode was at this address before
            if kept:
                self._idle[member.address] = kept
            if fresh and kept:
                # One kept connection was dead, and the others are as old.
                for connection in kept:
                    connection.close()
                kept.clear()
            if kept:
                return kept.pop()
        return self.connect(member, timeout_ms=timeout_ms)

    def give_back(self, connection: DatanodeConnection) -> None:
        """Keep a connection without an open request for the next request."""
        with self._lock:
            kept = self._idle.setdefault(connection.address, [])
            if not self._closed and len(kept) < MAX_IDLE and connection.is_idle:
                connection.talk.shrink()
                kept.append(connection)
                return
        connection.close()

    def ask(
        self, member: Member, request: Any, expect: type[Answer], *, timeout_ms: int | None = None, tokens: bytes = b""
    ) -> Answer:  # fmt: skip
        """Send a request to a datanode, with block tokens, and return its answer; raises DatanodeError."""
        answers = self.ask_all([member], request, expect, timeout_ms=timeout_ms or self.silence_ms, tokens=tokens)
        outcome = answers[member.datanode]
        if isinstance(outcome, DatanodeError):
            raise outcome
        return outcome

    def ask_small(self, member: Member, request: BlocksInParts) -> BlocksWritten:
        """Have a datanode write small blocks together; raises DatanodeError.

        The error is UNSUPPORTED_VERSION for a datanode that does not know how. A datanode that is silent is asked for
        a HELLO meanwhile, as one that streams is.
        """
        with self.turn():
            fresh = False
            while True:
                connection = self.borrow(member, fresh=fresh)
                reused = connection.used
                try:
                    return self._exchange(connection, request)
                except DatanodeError as error:
                    connection.close()
                    if fresh or not reused or error.status not in {UNREACHABLE, STOPPING}:
                        raise
                    fresh = True

    def _exchange(self, connection: DatanodeConnection, request: BlocksInParts) -> BlocksWritten:
        connection.doing = "WriteBlocks"
        if connection.version < SMALL_BLOCKS_VERSION:
            raise connection.error(UNSUPPORTED_VERSION, f"it speaks version {connection.version}")
        connection.send_blocks(request)
        answer = connection.answer(connection.receive_patiently(min(self.silence_ms, EXCHANGE_TIMEOUT_MS)))
        if not isinstance(answer, BlocksWritten):
            raise connection.error(BAD_FRAME, f"answered with a {type(answer).__name__}")
        self.give_back(connection)
        return answer

    def ask_all(
        self, members: Sequence[Member], request: Any, expect: type[Answer], *, timeout_ms: int,
        enough: Callable[[Mapping[str, Answer | DatanodeError]], bool] = lambda _: False, tokens: bytes = b"",
    ) -> dict[str, Answer | DatanodeError]:  # fmt: skip
        """Send one request to several datanodes at once; return the outcome of each, by name.

        It ends early when ``enough`` returns True. A datanode without an answer by then, or in ``timeout_ms``, has
        TIMED_OUT.
        """
        with self.turn():
            asked: dict[str, DatanodeConnection] = {}
            outcomes: dict[str, Answer | DatanodeError] = {}
            try:
                for member in members:
                    self._begin(member, request, asked, outcomes, timeout_ms=timeout_ms, tokens=tokens)
                self._collect(members, request, expect, timeout_ms, enough, asked, outcomes, tokens)
            finally:
                for connection in asked.values():
                    connection.close()
        for member in members:
            if member.datanode not in outcomes:
                message = f"no answer in {timeout_ms} ms"
                doing = type(request).__name__
                outcomes[member.datanode] = DatanodeError(TIMED_OUT, message, datanode=member.datanode, doing=doing)
        return outcomes

    def _begin(
        self, member: Member, request: Any, asked: dict[str, DatanodeConnection], outcomes: dict[str, Any], *,
        timeout_ms: int, tokens: bytes, fresh: bool = False,
    ) -> None:  # fmt: skip
        connection = None
        try:
            connection = self.borrow(member, fresh=fresh, timeout_ms=timeout_ms)
            connection.doing = type(request).__name__
            connection.send_request(request, tokens=tokens)
            asked[member.datanode] = connection
        except DatanodeError as error:
            if connection is not None:
                connection.close()
                if connection.used and not fresh:
                    self._begin(member, request, asked, outcomes, timeout_ms=timeout_ms, tokens=tokens, fresh=True)
                    return
            outcomes[member.datanode] = error

    def _collect(
        self, members: Sequence[Member], request: Any, expect: type[Answer], timeout_ms: int,
        enough: Callable[[Mapping[str, Answer | DatanodeError]], bool], asked: dict[str, DatanodeConnection],
        outcomes: dict[str, Answer | DatanodeError], tokens: bytes,
    ) -> None:  # fmt: skip
        named = {member.datanode: member for member in members}
        deadline_s = time.monotonic() + timeout_ms / 1000
        while asked and not enough(outcomes) and (left_s := deadline_s - time.monotonic()) > 0:
            ready = readable(list(asked.values()), left_s)
            for name in [name for name, connection in asked.items() if connection in ready]:
                connection = asked.pop(name)
                reused = connection.used
                try:
                    outcome = connection.answer(connection.receive(self.silence_ms))
                    if not isinstance(outcome, expect):
                        raise connection.error(BAD_FRAME, f"answered with a {type(outcome).__name__}")
                    outcomes[name] = outcome
                    self.give_back(connection)
                except DatanodeError as error:
                    # A datanode that stops says so on kept connections too: the next request finds it there.
                    has_ended = error.status in {UNREACHABLE, STOPPING}
                    if has_ended or error.status in {TIMED_OUT, BAD_FRAME}:
                        connection.close()
                        if has_ended and reused:
                            self._begin(
                                named[name], request, asked, outcomes, timeout_ms=timeout_ms, tokens=tokens, fresh=True
                            )  # fmt: skip
                            continue
                    else:
                        self.give_back(connection)
                    outcomes[name] = error

    def answers(
        self, members: Sequence[Member], *, timeout_ms: int, still: Callable[[object], None] = lambda _: None
    ) -> set[str]:
        """Return the names of the datanodes that say HELLO now; ``still`` is called with each that does not."""
        alive = set()
        for member in members:
            try:
                self._greeted(member, silence_ms=timeout_ms, timeout_ms=timeout_ms).close()
                alive.add(member.datanode)
            except DatanodeError as error:
                still(error)
        return alive

    def close(self) -> None:
        """Close all kept connections."""
        with self._lock:
            self._closed = True
            kept = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in kept:
            connection.close()
