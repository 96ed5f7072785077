"""The datanodes that a stream is forwarded to: their connections, what they accept, and what they say.

The client is told the failure of a child as DOWNSTREAM_FAILED, with the child's name and code. For the stream's thread.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.core.stream import Below, StreamState
from datanode_processors.wire.wire import CODES, Wire, WireClosed, connect, read_error, refusal, unreadable
from datanode_processors.wire.wire_tls import WireTls, check_name
from schemas import stream_errors
from schemas.conversation.conversation import Conversation, ConversationFailed, PeerRefused, own_hello
from schemas.conversation.limits import UnreadableRecord
from schemas.conversation.states import ConversationRole
from schemas.records.datanode import StreamError
from schemas.records.framing import BadFrame
from schemas.records.packets import Kind


class Child:
    """A datanode that this one forwards to."""

    def __init__(self, below: Below) -> None:
        self.name = below.datanode
        self.address = below.address
        self.height = below.height
        self.wire: Wire | None = None
        self.talk: Conversation | None = None
        """The greeting. The stream's frames are not a part of it: OPEN goes out together with HELLO, which saves a
        round trip, and what the child acknowledges is judged by the stream's own state machine.
        """
        self.moved_at = time.monotonic()
        """When the child last accepted bytes or acknowledged some."""
        self.left: memoryview | None = None
        """The part of the packet in hand that the child has not accepted yet."""

    @property
    def connection(self) -> Wire:
        """Return the child's connection, which stays while the stream runs."""
        assert self.wire is not None, self.name  # noqa: S101 - opened before anything is sent
        return self.wire


class StreamChildren:
    """The children of one stream."""

    def __init__(
        self, state: StreamState, poll: select.poll, limits: WireLimits, *, name: str, cluster: str,
        attach: Callable[[Wire, str], None], detach: Callable[[Wire], None], tls: WireTls | None = None,
    ) -> None:  # fmt: skip
        """``name`` is this datanode's; ``attach`` and ``detach`` are called with connections, for the counters."""
        self._tls = tls
        self._state = state
        self._poll = poll
        self._limits = limits
        self._name = name
        self._cluster = cluster
        self._attach = attach
        self._detach = detach
        self._children = [Child(below) for below in state.place.children]
        self._by_fileno: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def by_fileno(self, fileno: int) -> Child | None:
        """Return the child with this connection; None if no greeted child has it."""
        return self._by_fileno.get(fileno)

    def connect(self, child: Child, opening: bytes) -> None:
        """Connect to a child, and send it the HELLO and the OPEN frame.

        Raises BlockError DOWNSTREAM_FAILED, as all methods here.
        """
        try:
            child.wire = connect(child.address, self._limits.connect_timeout_s, self._tls)
            self._attach(child.wire, child.name)
            child.talk = child.wire.conversation(
                ConversationRole.CLIENT, own_hello(self._name, self._cluster), datanode=child.name
            )
            child.wire.wait_send(child.talk.hello(), opening, timeout_s=self._limits.connect_timeout_s)
        except WireClosed as error:
            raise self._lost(child, error) from error

    def greet(self, child: Child) -> None:
        """Take a child's HELLO, and what it has said already; from then on the poll tells when it says more."""
        assert child.talk is not None, child.name  # noqa: S101 - it was connected
        try:
            event = child.connection.wait_event(child.talk, self._limits.connect_timeout_s)
        except WireClosed as error:
            raise self._lost(child, error) from error
        except ConversationFailed as error:
            raise self._state.child_failed(child.name, f"{child.address}: {error}", CODES[error.fault]) from error
        except UnreadableRecord as error:
            raise self._refused(child, unreadable(error)) from error
        if isinstance(event, PeerRefused):
            raise self._refused(child, event.error)
        try:
            check_name(child.connection.identity, child.name)
        except BlockError as error:
            raise self._state.child_failed(child.name, error.message, error.code) from error
        self._poll.register(child.connection, select.POLLIN)
        self._by_fileno[child.connection.fileno()] = child
        child.moved_at = time.monotonic()
        self.hear(child)

    def offer(self, child: Child, data: memoryview) -> None:
        """Send a child as much as its connection accepts at once; ``left`` is the rest."""
        try:
            count = child.connection.send(data)
        except WireClosed as error:
            self.hear(child)  # the child may have said why
            raise self._lost(child, error) from error
        if count:
            child.moved_at = time.monotonic()
        child.left = data[count:] if count < len(data) else None

    def hear(self, child: Child) -> None:
        """Take the child's frames that have arrived."""
        try:
            while (frame := child.connection.frame()) is not None:
                if frame.header.kind is Kind.ERROR:
                    raise self._state.child_refused(child.name, read_error(frame))
                frame.check()
                self._state.on_child_ack(child.name, frame.header)
                child.moved_at = time.monotonic()
        except WireClosed as error:
            raise self._lost(child, error) from error
        except BadFrame as error:
            raise self._state.child_failed(child.name, str(error), stream_errors.BAD_FRAME) from error

    def _refused(self, child: Child, error: StreamError) -> BlockError:
        """Return what to tell upwards of a child that answers HELLO with ERROR."""
        said = refusal(error)
        return self._state.child_failed(child.name, str(said), said.code)

    def _lost(self, child: Child, error: WireClosed) -> BlockError:
        code = stream_errors.TIMED_OUT if error.timed_out else stream_errors.FAILED
        return self._state.child_failed(child.name, str(error), code)

    def close(self) -> None:
        """Close the connections; may be called again."""
        for child in self._children:
            if child.wire is not None:
                self._detach(child.wire)
                child.wire.close()
                child.wire = None
        self._by_fileno.clear()
