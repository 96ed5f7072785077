"""Requests to a cluster's datanodes (design, section 8).

What belongs here: how a client asks one or several datanodes, over the connections of ``transport.datanodes``. The
rules:

1. Connections for requests are kept for the next request (``transport/datanodes/kept``). A request that fails on a kept
   connection is sent once more on a new one: all requests to datanodes may be repeated.
2. Whoever is asked for a HELLO and says none is remembered as silent (``silent``), until it says one. Whoever refuses
   at once is not: that costs a block no time, and it may be back for the next one.
3. At most ``max_conversations`` threads send requests to datanodes at a time; the others wait their turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from producers.blocks.silent_members import SilentMembers
from producers.errors import DatanodeError
from producers.waiting import logger
from schemas.codecs.codec import encode
from schemas.codecs.varints import encode_long
from schemas.conversation.conversation import Event, own_hello
from schemas.kafka.brokers_id import brokers_mark
from schemas.records.datanode import BlocksWritten, Member, WriteBlocks
from schemas.records.packets import SMALL_BLOCKS_VERSION
from schemas.security.tls import ProcessTls
from schemas.stream_errors import BAD_FRAME, OVERLOADED, TIMED_OUT, UNSUPPORTED_VERSION
from transport.datanodes.connection import (
    CONNECT_TIMEOUT_MS,
    PROBE_TIMEOUT_MS,
    SILENCE_MS,
    Buffer,
    DatanodeCaller,
    DatanodeConnection,
    readable,
)
from transport.datanodes.core.failures import FailureWords
from transport.datanodes.kept import ConnectionPool, PoolCall
from transport.processes import begins_anew_in_forks
from transport.waiting.deadline import Deadline

MAX_CONVERSATIONS = 256
EXCHANGE_TIMEOUT_MS = 15_000
"""How long small blocks may take that are written together; longer than datanodes wait for each other. Then they are
written as streams.
"""
WORDS = FailureWords(DatanodeError)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class BlocksInParts:
    """A WriteBlocks whose bytes are not joined: ``data`` has them in order.

    Its payload is never a buffer of its own. A fresh one of a megabyte costs more than its bytes on their way.
    """

    opening: bytes
    data: Sequence[Buffer]

    def payload(self) -> list[Buffer]:
        """Return the encoded request in parts; raises Unencodable."""
        without = encode(WriteBlocks(opening=self.opening, data=b""))
        # The bytes come last, behind their length.
        beginning = without[: -len(encode_long(0))] + encode_long(sum(map(len, self.data)))
        return [beginning, *self.data]


class Datanodes:
    """Connections to the datanodes of one cluster; safe to share between threads.

    ``cluster`` is checked against each datanode's, unless it is empty; so are the brokers, told by their id.
    """

    def __init__(
        self, *, cluster: str = "", peer: str = "client", connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        silence_ms: int = SILENCE_MS, max_conversations: int = MAX_CONVERSATIONS,
        tls: ProcessTls | None = None, brokers_id: str = "",
    ) -> None:  # fmt: skip
        self.silence_ms = silence_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._caller = DatanodeCaller(
            own_hello(peer, cluster), tls, WORDS, on_slow_hello=_on_slow_hello, brokers=brokers_mark(brokers_id)
        )
        self.kept = ConnectionPool[DatanodeConnection]()
        self._max_conversations = max_conversations
        self.silent = SilentMembers(lambda member: self.answers([member], timeout_ms=PROBE_TIMEOUT_MS))
        """The datanodes that did not answer just now."""
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Count no conversation: those at a fork are the first process's."""
        self._turns = threading.BoundedSemaphore(self._max_conversations)

    def connect(self, member: Member, *, timeout_ms: int | None = None) -> DatanodeConnection:
        """Open a new connection, for a stream.

        With ``timeout_ms``, for a request, connecting and the wait for HELLO each take no longer than that.
        """
        limit_ms = self.silence_ms if timeout_ms is None else timeout_ms
        connection = self._greeted(
            member, silence_ms=self.silence_ms, timeout_ms=min(self._connect_timeout_ms, limit_ms)
        )
        connection.is_alive = lambda: bool(self.answers([member], timeout_ms=PROBE_TIMEOUT_MS))
        return connection

    def _greeted(self, member: Member, *, silence_ms: int, timeout_ms: int) -> DatanodeConnection:
        """Open a connection, and remember whether the datanode is silent; rule 2."""
        soon = Deadline.after_ms(timeout_ms / 2)
        try:
            connection = DatanodeConnection(
                member.address, self._caller, datanode=member.datanode, connect_timeout_ms=timeout_ms,
                silence_ms=silence_ms,
            )  # fmt: skip
        except DatanodeError as error:
            # What fails in less than half of the time has refused.
            if error.status != TIMED_OUT and not soon.has_passed:
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

    def call(
        self, member: Member, send: Callable[[DatanodeConnection], None], *, timeout_ms: int | None = None
    ) -> PoolCall[DatanodeConnection]:
        """Send a request over a kept connection, or a new one (``timeout_ms``: see :meth:`connect`)."""
        return PoolCall(
            self.kept, member.address, member.datanode, lambda: self.connect(member, timeout_ms=timeout_ms), send
        )

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

        def send(connection: DatanodeConnection) -> None:
            connection.doing = "WriteBlocks"
            if connection.version < SMALL_BLOCKS_VERSION:
                raise connection.error(UNSUPPORTED_VERSION, f"it speaks version {connection.version}")
            connection.send_encoded(request.payload())

        timeout_ms = min(self.silence_ms, EXCHANGE_TIMEOUT_MS)
        with self.turn():
            return self.call(member, send).finish(
                lambda connection: _expected(connection, connection.receive_patiently(timeout_ms), BlocksWritten)
            )

    def ask_all(
        self, members: Sequence[Member], request: Any, expect: type[Answer], *, timeout_ms: int,
        enough: Callable[[Mapping[str, Answer | DatanodeError]], bool] = lambda _: False, tokens: bytes = b"",
    ) -> dict[str, Answer | DatanodeError]:  # fmt: skip
        """Send one request to several datanodes at once; return the outcome of each, by name.

        It ends early when ``enough`` returns True. A datanode without an answer by then, or in ``timeout_ms``, has
        TIMED_OUT.
        """
        doing = type(request).__name__

        def send(connection: DatanodeConnection) -> None:
            connection.doing = doing
            connection.send_request(request, tokens=tokens)

        with self.turn():
            asked: dict[str, PoolCall[DatanodeConnection]] = {}
            outcomes: dict[str, Answer | DatanodeError] = {}
            try:
                for member in members:
                    try:
                        asked[member.datanode] = self.call(member, send, timeout_ms=timeout_ms)
                    except DatanodeError as error:
                        outcomes[member.datanode] = error
                self._collect(expect, Deadline.after_ms(timeout_ms), enough, asked, outcomes)
            finally:
                for call in asked.values():
                    call.abandon()
        for member in members:
            if member.datanode not in outcomes:
                message = f"no answer in {timeout_ms} ms"
                outcomes[member.datanode] = DatanodeError(TIMED_OUT, message, datanode=member.datanode, doing=doing)
        return outcomes

    def _collect(
        self, expect: type[Answer], deadline: Deadline, enough: Callable[[Mapping[str, Answer | DatanodeError]], bool],
        asked: dict[str, PoolCall[DatanodeConnection]], outcomes: dict[str, Answer | DatanodeError],
    ) -> None:  # fmt: skip
        while asked and not enough(outcomes) and not deadline.has_passed:
            ready = readable([call.connection for call in asked.values()], deadline.left_s)
            for name, call in [(name, call) for name, call in asked.items() if call.connection in ready]:
                try:
                    found = call.step(lambda one: _expected(one, one.receive(self.silence_ms), expect))
                except DatanodeError as error:
                    outcomes[name] = error
                    del asked[name]
                else:
                    if found is not None:
                        outcomes[name] = found
                        self.kept.give_back(asked.pop(name).release())

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
        self.kept.close()


def _expected(connection: DatanodeConnection, event: Event, expect: type[Answer]) -> Answer:
    answer = connection.answered(event)
    if not isinstance(answer, expect):
        raise connection.error(BAD_FRAME, f"answered with a {type(answer).__name__}")
    return answer


def _on_slow_hello(datanode: str, address: str) -> None:
    logger.warning("%s at %s takes connections and says no HELLO; it is waited for", datanode, address)
