"""One TCP connection of the stream protocol: frames in, frames out.

A Wire belongs to one thread. Its socket does not block: a method that waits has that in its name, and takes a time-out.
Each failure of the connection is a :class:`WireClosed`, each malformed frame a ``BadFrame``; after either the
connection is of no further use.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from datanode_processors.errors import BlockError
from datanode_processors.wire.wire_tls import WireTls, identity_on
from schemas import stream_errors
from schemas.codecs.codec import encode, header_of
from schemas.codecs.varints import read_length
from schemas.conversation.conversation import (
    Conversation,
    ConversationFailed,
    ConversationFault,
    Event,
)
from schemas.conversation.limits import UnreadableRecord, decode_within, record_of, without_tokens
from schemas.conversation.states import ConversationRole
from schemas.records.datanode import Hello, OpenBlocks, StreamError, WriteBlocks
from schemas.records.framing import BadFrame
from schemas.records.packets import Frame, FrameBuffer, Kind, check_payload, encode_frame
from schemas.security.certificates import PeerIdentity
from schemas.security.tls_socket import TlsSocket
from transport.datanodes.core.failures import ConnectionFault
from transport.datanodes.dialing import Connected, NoConnection, dial, keep_alive, why_not
from transport.waiting.deadline import Deadline

Taken = TypeVar("Taken")

SOCKET_BUFFER_BYTES = 1024 * 1024
"""Send and receive buffer that each connection asks of the kernel.

Linux doubles it for its own bookkeeping, up to its own limit. Together with one packet per hop this bounds what a
stream holds in a datanode.
"""
LARGE_KEPT_S = 1.0
"""How long a connection on which nothing comes keeps the room of its last large frame: the next one may be as large."""
CODES: Mapping[ConversationFault | ConnectionFault, str] = {
    ConversationFault.BAD_FRAME: stream_errors.BAD_FRAME,
    ConversationFault.UNREADABLE: stream_errors.INVALID_REQUEST,
    ConversationFault.WRONG_CLUSTER: stream_errors.WRONG_CLUSTER,
    ConversationFault.UNSUPPORTED_VERSION: stream_errors.UNSUPPORTED_VERSION,
    ConversationFault.OTHER_DATANODE: stream_errors.INVALID_REQUEST,
    ConversationFault.OUT_OF_PLACE: stream_errors.INVALID_REQUEST,
    ConversationFault.CUT_OFF: stream_errors.FAILED,
}
"""The code with which a datanode reports each error of a conversation."""
PEER_STATUSES: Mapping[ConversationFault | ConnectionFault, str] = {
    **CODES,
    # A peer's misplaced answer is not a request that this datanode could call invalid.
    ConversationFault.OUT_OF_PLACE: stream_errors.BAD_FRAME,
    ConnectionFault.NO_ADDRESS: stream_errors.INVALID_REQUEST,
    # Not the other datanode's fault: a client would leave it out.
    ConnectionFault.NO_DESCRIPTOR: stream_errors.OVERLOADED,
    ConnectionFault.NO_ANSWER: stream_errors.TIMED_OUT,
    ConnectionFault.UNREACHABLE: stream_errors.FAILED,
    ConnectionFault.SILENT: stream_errors.TIMED_OUT,
    ConnectionFault.UNREADABLE_RECORD: stream_errors.INVALID_REQUEST,
    ConnectionFault.WRONG_NAME: stream_errors.PERMISSION_DENIED,
}
"""The code with which a datanode reports what was wrong with its connection to another one."""
_WRITE_BLOCKS = header_of(WriteBlocks)
HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)
"""The event which says that a peer has closed its sending side."""


class WireClosed(Exception):
    """The connection is closed or broken, or its peer took too long (``timed_out``)."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Room:
    """How many bytes the buffers of many connections may grow beyond the usual size, all together. For many threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.taken_bytes = 0

    def take(self, size: int) -> None:
        """Raises OVERLOADED if there is no room for ``size`` bytes more."""
        with self._lock:
            if self.taken_bytes + size > self._limit_bytes:
                raise BlockError(
                    stream_errors.OVERLOADED,
                    f"large frames that are being received take {self.taken_bytes} of {self._limit_bytes} bytes here",
                )
            self.taken_bytes += size

    def give(self, size: int) -> None:
        """Give back ``size`` bytes."""
        with self._lock:
            self.taken_bytes -= size


class Wire:
    """A connected socket and the buffer that frames are taken from. Counts its bytes for the metrics."""

    def __init__(self, sock: Connected, room: Room | None = None) -> None:
        """``room`` is what the buffer may grow into, shared with other connections. Raises PERMISSION_DENIED."""
        self.sock = sock
        self.identity: PeerIdentity | None = identity_on(sock)
        """Who the peer is, by its certificate; None on a plain connection, and for a peer that has shown none."""
        self._room = room
        self.bytes_in = 0
        self.bytes_out = 0
        self.packets = 0
        """DATA frames that were taken."""
        self._buffer = FrameBuffer() if room is None else FrameBuffer(grow=room.take)
        self._unsent = b""
        tune(sock)

    def secure(self, tls: WireTls, timeout_s: float) -> None:
        """Go on in TLS, as the side that was called; raises WireClosed, PERMISSION_DENIED for an unknown holder."""
        plain = self.sock
        assert isinstance(plain, socket.socket)  # noqa: S101 - done once, before anything is said
        try:
            self.sock = sock = tls.accept(plain, timeout_s)
        except OSError as error:
            raise WireClosed(
                f"no TLS connection: {why_not(error)}", timed_out=isinstance(error, TimeoutError)
            ) from error
        sock.setblocking(False)
        self.identity = identity_on(sock)

    def fileno(self) -> int:
        """Return the socket's descriptor, for poll."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket; may be called again. No more frames are taken afterwards."""
        self.sock.close()
        room, self._room = self._room, None
        if room is not None:
            room.give(self._buffer.grown_bytes)

    @property
    def is_receiving(self) -> bool:
        """Whether the beginning of a frame has arrived, so that more is on its way."""
        return len(self._buffer) > 0

    def stop_receiving(self) -> None:
        """Make the thread that receives find the connection closed; its own frames still go out.

        Called by another thread.
        """
        try:
            self.sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # it is closed already

    def has_hung_up(self) -> bool:
        """Return whether the peer has closed or lost the connection, even if received bytes are unread.

        Called by other threads too.
        """
        if self.sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self.sock, HANG_UP)
        return bool(poll.poll(0))

    def conversation(
        self, role: ConversationRole, hello: Hello, *, datanode: str = "", brokers: int = 0
    ) -> Conversation:
        """Return a conversation that takes its events out of this wire's buffer, by ``wait_event``.

        ``datanode`` is the name that the peer must have; empty: any. ``brokers`` stands for this side's (0: unknown).
        """
        return Conversation(role, hello, datanode=datanode, frames=self._buffer, brokers=brokers)

    def frame(self) -> Frame | None:
        """Return the next frame, or None if it has not arrived whole; does not wait. Raises BadFrame, WireClosed."""
        return self._next(self._buffer.frame)

    def _next(self, take: Callable[[], Taken | None]) -> Taken | None:
        """Return what ``take`` makes of the buffer, after receiving what has arrived; None if that is not enough."""
        while (taken := take()) is None:
            try:
                count = self.sock.recv_into(self._buffer.space())
            except BlockingIOError:
                return None
            except OSError as error:
                raise WireClosed(f"the connection broke: {error}") from error
            if not count:
                raise WireClosed("the peer closed the connection")
            self._buffer.received(count)
            self.bytes_in += count
        return taken

    def ready(self) -> Frame | None:
        """Return the next frame if it was received together with the last one; frames taken before stay good.

        Raises BadFrame.
        """
        return self._buffer.frame()

    def together(self, first: Frame, last: Frame) -> memoryview:
        """Return the bytes from one frame to another that was taken later."""
        return self._buffer.together(first, last)

    def wait_frame(self, timeout_s: float) -> Frame:
        """Return the next frame, its payload checked. Raises BadFrame, WireClosed (also for the time-out)."""
        frame = self._wait_next(self._buffer.frame, timeout_s)
        frame.check()
        return frame

    def wait_event(self, conversation: Conversation, timeout_s: float) -> Event:
        """Return the next event of this wire's conversation.

        Raises as ``Conversation.next_event``, and WireClosed (also for the time-out).
        """
        return cast("Event", self._wait_next(conversation.next_event, timeout_s))  # of a union mypy infers object

    def _wait_next(self, take: Callable[[], Taken | None], timeout_s: float) -> Taken:
        deadline = None
        while (taken := self._next(take)) is None:
            deadline = deadline or Deadline.after_s(timeout_s)
            self._shrink_if_quiet(deadline)
            self._wait(select.POLLIN, deadline, timeout_s)
        return taken

    def _shrink_if_quiet(self, deadline: Deadline) -> None:
        """Shrink the buffer to the usual size if nothing is under way, and nothing comes for LARGE_KEPT_S."""
        grown_bytes = self._buffer.grown_bytes
        if self._room is None or not grown_bytes or self.is_receiving:
            return
        if not self._is_ready(select.POLLIN, deadline.sooner(LARGE_KEPT_S)):
            self._buffer.shrink()
            self._room.give(grown_bytes - self._buffer.grown_bytes)

    def send(self, data: bytes | memoryview) -> int:
        """Send as much of ``data`` as the kernel takes at once and return how much that was. Raises WireClosed."""
        try:
            count = self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise WireClosed(f"the connection broke: {error}") from error
        self.bytes_out += count
        return count

    def send_small(self, frame: bytes) -> bool:
        """Send a small frame without waiting; False if the kernel took nothing of it. Raises WireClosed.

        If the kernel took a part, the next call that sends finishes the frame.
        """
        if self._unsent:
            self._unsent = self._unsent[self.send(self._unsent) :]
            if self._unsent:
                return False
        count = self.send(frame)
        if 0 < count < len(frame) or (isinstance(self.sock, TlsSocket) and self.sock.is_committed):
            self._unsent = frame[count:]
            return True
        return count > 0

    def wait_send(self, *parts: bytes | memoryview, timeout_s: float) -> None:
        """Send all parts, one after the other; raises WireClosed.

        ``timeout_s`` is how long the peer may take nothing.
        """
        left = [memoryview(part) for part in (self._unsent, *parts) if len(part)]
        self._unsent = b""
        deadline = None
        while left:
            try:
                count = self.sock.sendmsg(left)
            except BlockingIOError:
                deadline = deadline or Deadline.after_s(timeout_s)
                self._wait(select.POLLOUT, deadline, timeout_s)
                continue
            except OSError as error:
                raise WireClosed(f"the connection broke: {error}") from error
            self.bytes_out += count
            deadline = None
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left:
                left[0] = left[0][count:]

    def discard(self, timeout_s: float, limit_bytes: int) -> None:
        """Close the sending side, then drop what arrives until the peer closes its own, time is up or it was too much.

        Without this, the kernel resets a connection that has unread data, and the peer never sees the last frame.
        """
        deadline = Deadline.after_s(timeout_s)
        scrap = bytearray(SOCKET_BUFFER_BYTES // 4)
        try:
            self.sock.shutdown(socket.SHUT_WR)
            while limit_bytes > 0:
                try:
                    count = self.sock.recv_into(scrap)
                except BlockingIOError:
                    self._wait(select.POLLIN, deadline, timeout_s)
                    continue
                if not count:
                    return
                limit_bytes -= count
        except (OSError, WireClosed):
            return

    def _wait(self, events: int, deadline: Deadline, timeout_s: float) -> None:
        if not self._is_ready(events, deadline):
            raise WireClosed(f"the peer was silent for {timeout_s:g} s", timed_out=True)

    def _is_ready(self, events: int, deadline: Deadline) -> bool:
        poll = select.poll()
        poll.register(self.sock, events)
        return bool(poll.poll(deadline.left_s * 1000))


def tune(sock: Connected) -> None:
    """Set the options of every connection of the protocol: no blocking, no Nagle, large buffers, keep-alive."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    keep_alive(sock)


def connect(address: str, timeout_s: float, tls: WireTls | None = None) -> Wire:
    """Connect to a datanode; with ``tls`` it must prove that it is one.

    Raises INVALID_REQUEST for an illegal address, OVERLOADED without a descriptor, WireClosed if nobody answers.
    """
    try:
        return Wire(dial(address, Deadline.after_s(timeout_s), None if tls is None else tls.client))
    except NoConnection as error:
        if error.fault in {ConnectionFault.NO_ADDRESS, ConnectionFault.NO_DESCRIPTOR}:
            raise BlockError(PEER_STATUSES[error.fault], f"{address}: {error}") from error
        raise WireClosed(f"{address}: {error}", timed_out=error.fault is ConnectionFault.NO_ANSWER) from error


def read_record(frame: Frame, *types: type) -> Any:
    """As ``record_of``; raises INVALID_REQUEST."""
    try:
        return record_of(frame, *types)
    except UnreadableRecord as error:
        raise BlockError(stream_errors.INVALID_REQUEST, str(error)) from error


def read_request(frame: Frame, *types: type) -> tuple[Any, bytes]:
    """Return the request in a frame, and its block tokens; raises INVALID_REQUEST.

    With ``types``, the request must be one of them. The bytes of a WriteBlocks are a view of the frame, good as long as
    it is: they are many, and nobody needs them in another place.
    """
    if not types and (blocks := _blocks_in(frame)) is not None:
        return blocks, b""
    try:
        request, tokens = without_tokens(record_of(frame))
    except UnreadableRecord as error:
        raise BlockError(stream_errors.INVALID_REQUEST, str(error)) from error
    if types and not isinstance(request, types):
        wanted = " or ".join(cls.__name__ for cls in types)
        raise BlockError(
            stream_errors.INVALID_REQUEST,
            f"payload of {frame.header.kind.name} is a {type(request).__name__}, not a {wanted}",
        )
    return request, tokens


def _blocks_in(frame: Frame) -> WriteBlocks | None:
    """Return the WriteBlocks in a frame, its bytes as a view; None for all that is not plainly one: it is decoded."""
    payload, begin = frame.payload, _WRITE_BLOCKS
    if frame.header.kind is not Kind.REQUEST or payload[: len(begin)] != begin:
        return None
    try:
        opening, at = _bytes_at(payload, len(begin))
        data, at = _bytes_at(payload, at)
    except (ValueError, IndexError):
        return None
    # A view serves as well as bytes for all that is done with a request.
    return WriteBlocks(opening=bytes(opening), data=cast("bytes", data)) if at == len(payload) else None


def _bytes_at(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return Avro ``bytes`` as a view, and the position behind them; raises ValueError, IndexError."""
    size, at = read_length(data, at)
    return data[at : at + size], at + size


def opening_of(request: WriteBlocks) -> tuple[OpenBlocks, bytes]:
    """Return what WriteBlocks begins with, and its block tokens; raises INVALID_REQUEST."""
    what = "opening of WriteBlocks"
    try:
        opening, tokens = without_tokens(decode_within(request.opening, what, frozenset()))
    except UnreadableRecord as error:
        raise BlockError(stream_errors.INVALID_REQUEST, str(error)) from error
    if not isinstance(opening, OpenBlocks):
        raise BlockError(stream_errors.INVALID_REQUEST, f"WriteBlocks begins with a {type(opening).__name__}")
    return opening, tokens


def decode_bounded(data: bytes, what: str, large: frozenset[str]) -> Any:
    """As ``decode_within``; raises INVALID_REQUEST."""
    try:
        return decode_within(data, what, large)
    except UnreadableRecord as error:
        raise BlockError(stream_errors.INVALID_REQUEST, str(error)) from error


def failure(error: ConversationFailed) -> BlockError:
    """Return the error that reports what was wrong in a conversation."""
    return BlockError(CODES[error.fault], str(error))


def refusal(error: StreamError) -> BlockError:
    """Return the error that a peer sent in an ERROR frame."""
    return BlockError(error.code, error.message, error.offset, error.hint, error.datanode)


def unreadable(error: Exception) -> StreamError:
    """Return the error that stands for an unreadable ERROR frame."""
    return StreamError(
        code=stream_errors.FAILED, message=f"an error that cannot be read: {error}", datanode="", offset=-1, hint=""
    )


def read_error(frame: Frame) -> StreamError:
    """Return the StreamError of an ERROR frame, even of an unreadable one."""
    try:
        check_payload(frame.header, frame.payload)
        error = record_of(frame, StreamError)
    except (UnreadableRecord, BadFrame) as problem:
        return unreadable(problem)
    assert isinstance(error, StreamError)  # noqa: S101 - record_of saw to it
    return error


def stream_error(own: str, error: BlockError) -> StreamError:
    """Return the record that says ``error``; ``own`` is this datanode's name."""
    return StreamError(
        code=error.code, message=error.message, datanode=error.datanode or own, offset=error.offset, hint=error.hint
    )


def error_frame(own: str, error: BlockError, *, stream: int = 0, sequence: int = 0) -> bytes:
    """Return the ERROR frame that says ``error``, to a peer with which no exchange has begun yet.

    ``own`` is this datanode's name.
    """
    record = stream_error(own, error)
    return encode_frame(Kind.ERROR, encode(record), stream=stream, sequence=sequence, offset=max(0, error.offset))
