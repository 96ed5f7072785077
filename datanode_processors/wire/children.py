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
from datanode_processors.wire.wire import Wire, WireClosed, connect, hello_frame, read_error, read_hello
from schemas import stream_errors
from schemas.records.packets import BadFrame, Kind


class Child:
    """A datanode that this one forwards to."""

    def __init__(self, below: Below) -> None:
        self.name = below.datanode
        self.address = below.address
        self.height = below.height
        self.wire: Wire | None = None
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
        attach: Callable[[Wire, str], None], detach: Callable[[Wire], None],
    ) -> None:  # fmt: skip
        """``name`` is this datanode's; ``attach`` and ``detach`` are called with connections, for the counters."""
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
            child.wire = connect(child.address, self._limits.connect_timeout_s)
            self._attach(child.wire, child.name)
            hello = hello_frame(self._name, self._cluster)
            child.wire.wait_send(hello, opening, timeout_s=self._limits.connect_timeout_s)
        except WireClosed as error:
            raise self._lost(child, error) from error

    def greet(self, child: Child) -> None:
        """Take a child's HELLO, and what it has said already; from then on the poll tells when it says more."""
        try:
            hello = read_hello(child.connection.wait_hello(self._limits.connect_timeout_s), self._cluster)
        except WireClosed as error:
            raise self._lost(child, error) from error
        except BadFrame as error:
            raise self._state.child_failed(child.name, str(error), stream_errors.BAD_FRAME) from error
        except BlockError as error:
            raise self._state.child_failed(child.name, str(error), error.code) from error
        if hello.peer != child.name:
            raise self._state.child_failed(
                child.name, f"at {child.address} is {hello.peer!r}", stream_errors.INVALID_REQUEST
            )
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
                self._state.child_said(child.name, frame.header)
                child.moved_at = time.monotonic()
        except WireClosed as error:
            raise self._lost(child, error) from error
        except BadFrame as error:
            raise self._state.child_failed(child.name, str(error), stream_errors.BAD_FRAME) from error

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
