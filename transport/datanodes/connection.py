"""A connection to a datanode: frames over a blocking socket (design, section 8).

What belongs here: a socket, its time-outs, and the exceptions for what the conversation (``schemas.conversation``)
reports; nothing about blocks. The rules:

1. The conversation decides what may be said when, and checks HELLO. Any fault that it finds ends the connection.
2. A frame is sent as ``[header, payload]`` without copying the payload. A received frame is valid until the next
   receive.
3. Every wait has a limit. A datanode that is silent for longer, or does not send a frame whole in time, counts as gone
   (SILENT). An error of a socket is UNREACHABLE. After either, and after an ERROR in a stream, the connection is of no
   further use.
4. In TLS the datanode's certificate has the name that its HELLO has.
5. Requests are numbered from 1 on, and an answer carries the number of its request. One with another number, such as
   an answer that a peer repeats late, ends the connection.
6. A connection belongs to the process that made it. One that is forked from it closes its copy at once, and refuses to
   use it: what it sent or took would be missing in the talk of the first.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Self, TypeVar

from crc32c import crc32c

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
from schemas.records.datanode import Hello, StreamError
from schemas.records.packets import BLOCK_TOKENS_VERSION, Frame, Kind
from schemas.security.certificates import ExpectedPeer, Role, WrongPeer, identity_of
from schemas.security.tls import ProcessTls
from schemas.security.tls_socket import TlsSocket, left_after
from schemas.stream_errors import BAD_FRAME
from transport.datanodes.core.failures import ConnectionFault, DatanodeFailed, FailureWords
from transport.datanodes.dialing import Connected, NoConnection, dial, keep_alive
from transport.processes import begins_anew_in_forks, this_process
from transport.waiting.deadline import Deadline

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
SLOW_HELLO_MS = 2_000
"""After this wait for HELLO, ``on_slow_hello`` is told."""
SOCKET_BUFFER_BYTES = 1024 * 1024
_TIMEVAL = Struct("ll")
MAX_PARTS = 512
"""Buffers that are sent with one call, at most: the kernel takes 1,024."""

Buffer = bytes | bytearray | memoryview
Kept = TypeVar("Kept", bound="DatanodeConnection")


@dataclass(frozen=True, slots=True)
class DatanodeCaller:
    """Who calls datanodes: what it says of itself, and how it is told what goes wrong. One for all its connections."""

    hello: Hello
    tls: ProcessTls | None = None
    """With it, a datanode must prove its name."""
    words: FailureWords = FailureWords()
    cluster_needed: bool = False
    """Whether a datanode must name the cluster in its HELLO (``judge_hello``)."""
    brokers: int = 0
    """What stands for the caller's brokers (``brokers_mark``): a datanode of others is refused."""
    on_slow_hello: Callable[[str, str], None] | None = None
    """Called with a datanode's name and address if its HELLO does not come for SLOW_HELLO_MS."""


class DatanodeConnection:
    """One connection; for one thread at a time. Every method may raise DatanodeFailed, as its caller words it.

    The constructor raises it if the datanode cannot be reached or is of another cluster or version.
    """

    def __init__(
        self, address: str, caller: DatanodeCaller, *, datanode: str = "", connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        silence_ms: int = SILENCE_MS, hello_timeout_ms: int | None = None,
        connected: Callable[[Self], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``datanode`` is the name that the datanode must have; empty: any.

        ``hello_timeout_ms`` limits the wait for HELLO; None: as for connecting. ``silence_ms`` is how long the datanode
        may take no bytes. ``connected`` is called before HELLO: from then on, :meth:`interrupt` ends the waiting.
        """
        self.address = address
        self.datanode = datanode or address
        self.doing = "HELLO"
        """The request that an error's message names."""
        self.version = 0
        """The version of the conversation that both sides speak, once the datanode has said HELLO."""
        self.is_alive: Callable[[], bool] = lambda: True
        """Called while the datanode is silent; returns whether waiting still makes sense."""
        self.process = this_process()
        self._is_ours = True
        self._number = 0
        """The number of the request that was sent last."""
        self._silence_ms = silence_ms
        self._caller = caller
        self._timeouts: dict[int, int] = {}
        self.talk = Conversation(
            ConversationRole.CLIENT, caller.hello, datanode=datanode, cluster_needed=caller.cluster_needed,
            brokers=caller.brokers,
        )  # fmt: skip
        """The conversation makes the bytes; this class sends them."""
        self._socket = self._dial(datanode, Deadline.after_ms(connect_timeout_ms))
        begins_anew_in_forks(self)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            keep_alive(self._socket)
            self._socket.settimeout(None)
            self._limit(socket.SO_SNDTIMEO, min(silence_ms, PROBE_AFTER_MS))
            connected(self)
            self._greet(connect_timeout_ms if hello_timeout_ms is None else hello_timeout_ms)
        except BaseException:
            self.close()
            raise

    def _dial(self, datanode: str, deadline: Deadline) -> Connected:
        tls = self._caller.tls
        meant = ExpectedPeer(roles=frozenset({Role.DATANODE}), name=datanode or None)
        try:
            return dial(self.address, deadline, None if tls is None else tls.client(meant, framed=True))
        except NoConnection as error:
            raise self._fault(error.fault, str(error)) from error

    def _greet(self, timeout_ms: int) -> None:
        self.send_parts([self.talk.hello()])
        slow = self._caller.on_slow_hello
        if slow is not None and timeout_ms > SLOW_HELLO_MS and not readable([self], SLOW_HELLO_MS / 1000):
            slow(self.datanode, self.address)
        greeted = self.receive(timeout_ms)
        if not isinstance(greeted, PeerGreeted):
            raise self._unexpected(greeted)
        self.datanode = greeted.hello.peer
        self.version = greeted.version
        if isinstance(self._socket, TlsSocket):
            self._check_name(self._socket, greeted.hello.peer)

    def _check_name(self, sock: TlsSocket, name: str) -> None:
        try:
            holder = identity_of(sock.certificate)
        except WrongPeer as error:
            raise self._fault(ConnectionFault.WRONG_NAME, str(error)) from error
        if holder.name != name:
            what = f"HELLO is of {name!r}, the certificate is that of {holder}"
            raise self._fault(ConnectionFault.WRONG_NAME, what)

    # -- frames

    def send_parts(self, parts: list[Buffer]) -> None:
        """Send the parts of whole frames in order."""
        if not self._is_ours:
            raise self._not_ours()
        total = sum(map(len, parts))
        try:
            while (sent := self._send_some(parts)) < total:
                total -= sent
                parts = left_after(parts, sent)
        except OSError as error:
            raise self._last_words() or self._broken(error) from error

    def _send_some(self, parts: list[Buffer]) -> int:
        for _ in range(max(self._silence_ms // PROBE_AFTER_MS, 1)):
            try:
                return self._socket.sendmsg(parts[:MAX_PARTS])
            except BlockingIOError:
                if not self.is_alive():
                    break
        raise self._fault(ConnectionFault.SILENT, "it takes no bytes")

    def receive_patiently(
        self, timeout_ms: int, *, look_ms: int | None = None, is_worth_it: Callable[[], bool] | None = None
    ) -> Event:
        """As :meth:`receive`, but give up sooner if the datanode seems dead.

        ``is_worth_it`` is called after each ``look_ms`` of silence; :attr:`is_alive` after each PROBE_AFTER_MS, if they
        are None.
        """
        if (event := self._next_event()) is not None:
            return event
        look_ms = look_ms or PROBE_AFTER_MS
        left_ms = timeout_ms
        while isinstance(found := self._wait(min(look_ms, max(left_ms, PROBE_TIMEOUT_MS))), DatanodeFailed):
            left_ms -= look_ms
            if left_ms <= 0 or not (is_worth_it or self.is_alive)():
                raise found
        return found

    def receive(self, timeout_ms: int) -> Event:
        """Wait for the datanode's next event and return it.

        Raises the datanode's ERROR; SILENT if nothing arrives for ``timeout_ms``, or if a frame that has begun is not
        whole in twice that.
        """
        if (event := self._next_event()) is not None:
            return event
        found = self._wait(timeout_ms)
        if isinstance(found, DatanodeFailed):
            raise found
        return found

    def _wait(self, timeout_ms: int) -> Event | DatanodeFailed:
        """Return the next event, or the failure of a datanode that is silent or slow: the caller may go on waiting."""
        self._limit(socket.SO_RCVTIMEO, timeout_ms)
        whole_by: Deadline | None = None
        while self._read_some(0):
            if (event := self._next_event()) is not None:
                return event
            whole_by = whole_by or Deadline.after_ms(2 * timeout_ms)
            if whole_by.has_passed:
                return self._not_whole()
        return self._silent()

    def receive_by(self, deadline: Deadline) -> Event:
        """As :meth:`receive`; SILENT if no whole frame has come by the deadline. What is there already is taken."""
        has_waited = False
        while (event := self._next_event()) is None:
            if has_waited and deadline.has_passed:
                raise self._not_whole()
            self._limit(socket.SO_RCVTIMEO, deadline.left_ms)
            if not self._read_some(0):
                raise self._silent()
            has_waited = True
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
            raise self._conversation_failed(error) from error
        except UnreadableRecord as error:
            raise self._fault(ConnectionFault.UNREADABLE_RECORD, str(error)) from error
        if isinstance(event, PeerRefused):
            raise self._refusal(event.error)
        return event

    def _read_some(self, flags: int) -> bool:
        """Read the bytes that are there; return False if none came in time, or with ``flags`` none are there."""
        if not self._is_ours:
            raise self._not_ours()
        try:
            count = self._socket.recv_into(self.talk.space(), 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(error) from error
        if not count:
            raise self._fault(ConnectionFault.UNREACHABLE, "it closed the connection")
        self.talk.received(count)
        return True

    def _last_words(self) -> DatanodeFailed | None:
        """Return the ERROR that the datanode sent before it closed the connection, if it can still be read."""
        gone = self._caller.words.statuses[ConnectionFault.UNREACHABLE]
        try:
            while self.receive_now() is not None:
                pass
        except DatanodeFailed as error:
            return None if error.status == gone else error
        return None

    def _limit(self, option: int, timeout_ms: int) -> None:
        if not self._is_ours:
            raise self._not_ours()
        if self._timeouts.get(option) == timeout_ms:
            return
        self._timeouts[option] = timeout_ms
        if isinstance(self._socket, TlsSocket):
            self._socket.limit(max(timeout_ms, 1) / 1000, sending=option == socket.SO_SNDTIMEO)
            return
        seconds, rest_ms = divmod(max(timeout_ms, 1), 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, rest_ms * 1000))

    # -- requests

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def send_request(self, request: Any, *, tokens: bytes = b"") -> None:
        """Send a request, with block tokens; the next answer belongs to the oldest request without one."""
        try:
            frame = self.talk.request(request, sequence=self._next_number(), tokens=self.presented(tokens))
        except ConversationFailed as error:
            raise self._conversation_failed(error) from error
        self.send_parts([frame])

    def send_encoded(self, parts: Sequence[Buffer], *, crc: int | None = None) -> None:
        """Send an encoded request, whose parts are not joined; ``crc`` is its CRC32C, if it is known."""
        length = sum(map(len, parts))
        if crc is None:
            crc = 0
            for part in parts:
                crc = crc32c(part, crc)
        try:
            header = self.talk.header(
                Kind.REQUEST, stream=0, sequence=self._next_number(), offset=0, length=length, crc=crc
            )
        except ConversationFailed as error:
            raise self._conversation_failed(error) from error
        self.send_parts([header, *parts])

    def presented(self, tokens: bytes) -> bytes:
        """Return block tokens as the datanode is shown them: one of an earlier version knows none."""
        return tokens if self.version >= BLOCK_TOKENS_VERSION else b""

    def answered(self, event: Event) -> Any:
        """Return the record in the answer to a request; raises DatanodeFailed for anything else."""
        if not isinstance(event, PeerAnswered):
            raise self._unexpected(event)
        return event.record

    # -- errors

    def error(self, status: str, message: str) -> DatanodeFailed:
        """Return the exception for the datanode's present request."""
        return self._caller.words.fails(status, message, datanode=self.datanode, doing=self.doing)

    def _fault(self, fault: ConversationFault | ConnectionFault, message: str) -> DatanodeFailed:
        return self.error(self._caller.words.statuses[fault], f"{self.address}: {message}")

    def _conversation_failed(self, error: ConversationFailed) -> DatanodeFailed:
        return self._fault(error.fault, str(error))

    def _broken(self, error: OSError) -> DatanodeFailed:
        return self._fault(ConnectionFault.UNREACHABLE, str(error))

    def _not_ours(self) -> DatanodeFailed:
        what = f"the connection is of process {self.process}, not of this one, {this_process()}"
        return self._fault(ConnectionFault.UNREACHABLE, what)

    def _silent(self) -> DatanodeFailed:
        limit_s = self._timeouts[socket.SO_RCVTIMEO] / 1000
        return self._fault(ConnectionFault.SILENT, f"it is silent: nothing came for {limit_s:g} s")

    def _not_whole(self) -> DatanodeFailed:
        return self._fault(ConnectionFault.SILENT, "it does not send a whole frame in time")

    def _unexpected(self, event: Event) -> DatanodeFailed:
        said = event.header.kind.name if isinstance(event, Frame) else type(event).__name__
        return self.error(BAD_FRAME, f"{self.address}: {said} is no answer to that")

    def _refusal(self, said: StreamError) -> DatanodeFailed:
        return self._caller.words.fails(
            said.code, said.message, datanode=said.datanode or self.datanode, doing=self.doing, offset=said.offset,
            hint=said.hint,
        )  # fmt: skip

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for several connections at once."""
        return self._socket.fileno()

    @property
    def is_idle(self) -> bool:
        """Whether no request or stream is open on it, so that it may be kept for the next request."""
        return self.talk.state is ConversationState.OPEN and not self.talk.has_received and self._is_ours

    def interrupt(self) -> None:
        """End the wait of another thread on this connection; for any thread."""
        if self._is_ours:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()

    def begin_anew(self) -> None:
        """Close the copy of a forked process: rule 6."""
        self._is_ours = False
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def readable(connections: Sequence[Kept], timeout_s: float) -> list[Kept]:
    """Return those of the connections that have something to receive; wait for one of them, at most ``timeout_s``."""
    poll = select.poll()
    by_descriptor = {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)]
