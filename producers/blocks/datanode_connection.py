"""A connection to a datanode: frames over a blocking socket (design, section 8).

What belongs here: sockets, time-outs, and the exceptions for what the conversation (``schemas.conversation``) reports;
nothing about blocks. The rules:

1. The conversation decides what may be said when, and checks HELLO. Any fault that it finds ends the connection.
2. A frame is sent as ``[header, payload]`` without copying the payload. A received frame is valid until the next
   receive.
3. Every wait has a limit. A datanode that is silent for longer, or does not send a frame whole within twice that,
   counts as gone (TIMED_OUT). An error of a socket is UNREACHABLE. After either, and after an ERROR in a stream, the
   connection is closed.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any

from crc32c import crc32c

from producers.errors import UNREACHABLE, DatanodeError
from producers.waiting import WORD_AFTER_MS, logger
from schemas.codecs.codec import encode
from schemas.codecs.varints import encode_long
from schemas.conversation.conversation import (
    Conversation,
    ConversationFailed,
    ConversationFault,
    Event,
    PeerAnswered,
    PeerGreeted,
    PeerRefused,
)
from schemas.conversation.limits import UnreadableRecord
from schemas.conversation.states import ConversationRole, ConversationState
from schemas.records.datanode import Hello, StreamError, WriteBlocks
from schemas.records.packets import BLOCK_TOKENS_VERSION, Frame, Kind
from schemas.security.certificates import ExpectedPeer, Role
from schemas.security.tls import ProcessTls
from schemas.security.tls_socket import TlsSocket
from schemas.stream_errors import BAD_FRAME, TIMED_OUT, UNSUPPORTED_VERSION, WRONG_CLUSTER

STATUSES = {
    ConversationFault.BAD_FRAME: BAD_FRAME,
    ConversationFault.UNREADABLE: BAD_FRAME,
    ConversationFault.WRONG_CLUSTER: WRONG_CLUSTER,
    ConversationFault.UNSUPPORTED_VERSION: UNSUPPORTED_VERSION,
    # Two names must not lead to one datanode: its answer would count twice in a watch.
    ConversationFault.OTHER_DATANODE: UNREACHABLE,
    ConversationFault.OUT_OF_PLACE: BAD_FRAME,
    ConversationFault.CUT_OFF: UNREACHABLE,
}
"""The client's status for each fault of a conversation."""

CONNECT_TIMEOUT_MS = 4_000
"""Time limit for connecting, and then for the datanode's HELLO: the kernel still accepts connections for a process that
hangs.
"""
SILENCE_MS = 30_000
"""A datanode that should take or send bytes, and does neither for this long, counts as gone. The time is longer than
datanodes wait for each other, so that the neighbour of a datanode that hangs can name it.
"""
PROBE_AFTER_MS = 4_000
"""After this silence a datanode that streams is asked for a HELLO on another connection; if none comes, it is gone."""
PROBE_TIMEOUT_MS = 2_000
SOCKET_BUFFER_BYTES = 1024 * 1024
_TIMEVAL = Struct("ll")
MAX_PARTS = 512
"""Buffers that are sent with one call, at most: the kernel takes 1,024."""

Buffer = bytes | bytearray | memoryview


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


class DatanodeConnection:
    """One connection; for one thread at a time. Every method may raise DatanodeError.

    The constructor raises DatanodeError if the datanode cannot be reached or is of another cluster or version.
    """

    def __init__(
        self, address: str, hello: Hello, *, datanode: str = "", connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        silence_ms: int = SILENCE_MS, hello_timeout_ms: int | None = None, tls: ProcessTls | None = None,
    ) -> None:  # fmt: skip
        """``hello_timeout_ms`` limits the wait for HELLO, if it is less than ``connect_timeout_ms``.

        With ``tls`` the datanode must prove its name.
        """
        self.address = address
        self.datanode = datanode or address
        self.doing = "HELLO"
        """The request that an error's message names."""
        self.used = False
        """Whether an earlier request was answered on this connection."""
        self.version = 0
        """The version of the conversation that both sides speak, once the datanode has said HELLO."""
        self.is_alive: Callable[[], bool] = lambda: True
        """Called while the datanode is silent; returns whether waiting still makes sense."""
        self._silence_ms = silence_ms
        self.talk = Conversation(ConversationRole.CLIENT, hello, datanode=datanode)
        """The conversation makes the bytes; this class sends them."""
        self._frame_deadline_s = float("inf")
        self._timeouts: dict[int, int] = {}
        try:
            self._socket = _connect(_host_and_port(address), connect_timeout_ms / 1000, datanode, tls)
        except (OSError, ValueError) as error:
            raise self.error(UNREACHABLE, f"cannot connect to {address}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            self._socket.settimeout(None)
            self._limit(socket.SO_SNDTIMEO, min(silence_ms, PROBE_AFTER_MS))
            self._greet(min(connect_timeout_ms, hello_timeout_ms or connect_timeout_ms))
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, timeout_ms: int) -> None:
        self.send_parts([self.talk.hello()])
        if timeout_ms > WORD_AFTER_MS and not readable([self], WORD_AFTER_MS / 1000):
            logger.warning(
                "%s at %s takes connections and says no HELLO; it is waited for", self.datanode, self.address
            )
        greeted = self.receive(timeout_ms)
        if not isinstance(greeted, PeerGreeted):
            raise self._unexpected(greeted)
        self.datanode = greeted.hello.peer
        self.version = greeted.version

    # -- frames

    def send_parts(self, parts: list[bytes | bytearray | memoryview]) -> None:
        """Send the parts of whole frames in order."""
        total = sum(map(len, parts))
        try:
            while (sent := self._send_some(parts)) < total:
                total -= sent
                parts = _after(parts, sent)
        except OSError as error:
            raise self._last_words() or self.error(UNREACHABLE, f"{self.address}: {error}") from error

    def _send_some(self, parts: list[bytes | bytearray | memoryview]) -> int:
        for _ in range(max(self._silence_ms // PROBE_AFTER_MS, 1)):
            try:
                return self._socket.sendmsg(parts[:MAX_PARTS])
            except BlockingIOError:
                if not self.is_alive():
                    break
        raise self.error(TIMED_OUT, f"{self.address} takes no bytes")

    def receive_patiently(
        self, timeout_ms: int, *, look_ms: int | None = None, is_worth_it: Callable[[], bool] | None = None
    ) -> Event:
        """As :meth:`receive`, but give up sooner if the datanode seems dead.

        ``is_worth_it`` is called after each ``look_ms`` of silence; :attr:`is_alive` after each PROBE_AFTER_MS, if they
        are None.
        """
        look_ms = look_ms or PROBE_AFTER_MS
        left_ms = timeout_ms
        self._limit_receiving(min(look_ms, max(left_ms, PROBE_TIMEOUT_MS)))
        while (event := self._next_event()) is None:
            try:
                self._read_some(0)
            except DatanodeError as error:
                left_ms -= look_ms
                if error.status != TIMED_OUT or left_ms <= 0 or not (is_worth_it or self.is_alive)():
                    raise
                self._limit_receiving(min(look_ms, max(left_ms, PROBE_TIMEOUT_MS)))
        return event

    def receive(self, timeout_ms: int) -> Event:
        """Wait for the datanode's next event and return it.

        Raises the datanode's ERROR; TIMED_OUT if nothing arrives for ``timeout_ms``, or no whole frame in twice that.
        """
        self._limit_receiving(timeout_ms)
        while (event := self._next_event()) is None:
            self._read_some(0)
        return event

    def receive_now(self) -> Event | None:
        """Return an event that has already arrived, None if there is none; raises the datanode's ERROR."""
        while (event := self._next_event()) is None:
            if not self._read_some(socket.MSG_DONTWAIT):
                return None
        return event

    def _next_event(self) -> Event | None:
        try:
            event = self.talk.next_event()
        except ConversationFailed as error:
            self.close()
            raise self.error(STATUSES[error.fault], f"{self.address}: {error}") from error
        except UnreadableRecord as error:
            raise self.error(BAD_FRAME, f"{self.address}: {error}") from error
        if isinstance(event, PeerRefused):
            raise self._refusal(event.error)
        return event

    def _read_some(self, flags: int) -> bool:
        """Read the bytes that are there; return False if there are none and ``flags`` say not to wait."""
        if not flags and time.monotonic() > self._frame_deadline_s:
            raise self.error(TIMED_OUT, f"{self.address} does not send a whole frame in time")
        try:
            count = self._socket.recv_into(self.talk.space(), 0, flags)
        except BlockingIOError as error:
            if flags:
                return False
            raise self.error(TIMED_OUT, f"{self.address} is silent") from error
        except OSError as error:
            raise self.error(UNREACHABLE, f"{self.address}: {error}") from error
        if not count:
            raise self.error(UNREACHABLE, f"{self.address} closed the connection")
        self.talk.received(count)
        return True

    def _limit_receiving(self, timeout_ms: int) -> None:
        self._limit(socket.SO_RCVTIMEO, timeout_ms)
        self._frame_deadline_s = time.monotonic() + 2 * timeout_ms / 1000

    def _last_words(self) -> DatanodeError | None:
        """Return the ERROR that the datanode sent before it closed the connection, if it can still be read."""
        try:
            while self.receive_now() is not None:
                pass
        except DatanodeError as error:
            return None if error.status == UNREACHABLE else error
        return None

    def _limit(self, option: int, timeout_ms: int) -> None:
        if self._timeouts.get(option) != timeout_ms:
            if isinstance(self._socket, TlsSocket):
                self._socket.limit(max(timeout_ms, 1) / 1000, sending=option == socket.SO_SNDTIMEO)
                self._timeouts[option] = timeout_ms
                return
            seconds, rest_ms = divmod(max(timeout_ms, 1), 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, rest_ms * 1000))
            self._timeouts[option] = timeout_ms

    # -- requests

    def send_request(self, request: Any, *, tokens: bytes = b"") -> None:
        """Send a request, with block tokens; the next answer belongs to the oldest request without one."""
        self.send_parts([self.talk.request(request, tokens=self.presented(tokens))])

    def send_blocks(self, request: BlocksInParts) -> None:
        """Send whole blocks; the answer is taken as that of any request."""
        parts, crc, length = request.payload(), 0, 0
        for part in parts:
            crc, length = crc32c(part, crc), length + len(part)
        header = self.talk.header(Kind.REQUEST, stream=0, sequence=0, offset=0, length=length, crc=crc)
        self.send_parts([header, *parts])

    def presented(self, tokens: bytes) -> bytes:
        """Return block tokens as the datanode is shown them: one of an earlier version knows none."""
        return tokens if self.version >= BLOCK_TOKENS_VERSION else b""

    def answer(self, event: Event) -> Any:
        """Return the record in the answer to a request; raises DatanodeError for anything else."""
        if not isinstance(event, PeerAnswered):
            raise self._unexpected(event)
        self.used = True
        return event.record

    # -- errors

    def error(self, status: str, message: str) -> DatanodeError:
        """Return the exception for the datanode's present request."""
        return DatanodeError(status, message, datanode=self.datanode, doing=self.doing)

    def _unexpected(self, event: Event) -> DatanodeError:
        said = event.header.kind.name if isinstance(event, Frame) else type(event).__name__
        return self.error(BAD_FRAME, f"{self.address}: {said} is no answer to that")

    def _refusal(self, said: StreamError) -> DatanodeError:
        self.used = True
        return DatanodeError(
            said.code, said.message, datanode=said.datanode or self.datanode, doing=self.doing, offset=said.offset,
            hint=said.hint,
        )  # fmt: skip

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for several connections at once."""
        return self._socket.fileno()

    @property
    def is_idle(self) -> bool:
        """Whether no request or stream is open on it, so that it may be kept for the next request."""
        return self.talk.state is ConversationState.OPEN and not self.talk.has_received

    def interrupt(self) -> None:
        """End the wait of another thread on this connection; for any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def readable(connections: Sequence[DatanodeConnection], timeout_s: float) -> list[DatanodeConnection]:
    """Return those of the connections that have something to receive; wait for one of them, at most ``timeout_s``."""
    poll = select.poll()
    by_descriptor = {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)]


def _after(parts: list[bytes | bytearray | memoryview], sent: int) -> list[bytes | bytearray | memoryview]:
    """Return the parts of a frame that are left to send."""
    left: list[bytes | bytearray | memoryview] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            left.append(memoryview(part)[sent:])
            sent = 0
    return left


def _connect(
    place: tuple[str, int], timeout_s: float, datanode: str, tls: ProcessTls | None
) -> socket.socket | TlsSocket:  # fmt: skip
    sock = socket.create_connection(place, timeout_s)
    if tls is None:
        return sock
    try:
        meant = ExpectedPeer(roles=frozenset({Role.DATANODE}), name=datanode or None)
        return TlsSocket(tls.client(meant, framed=True).wrap_socket(sock, server_hostname=place[0]))
    except BaseException:
        sock.close()
        raise


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)
