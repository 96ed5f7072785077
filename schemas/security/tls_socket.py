"""A TLS connection that behaves as the plain sockets of the datanodes' protocol do (``schemas.conversation``).

What an ``ssl.SSLSocket`` does otherwise, and what is made of it here:

1. It has no ``sendmsg``. Parts are sent in records: a small part goes together with the beginning of the next one.
2. A socket that would have to wait raises ``SSLWantReadError``, ``SSLWantWriteError`` or TimeoutError. Here it is
   BlockingIOError, as from a plain socket.
3. Bytes of a record that was read in part are not seen by ``poll``. So whoever polls must have read until
   BlockingIOError, as the code of both sides does.
4. A record that the kernel did not take is made already: the next bytes sent must begin with those of that record.
   ``send`` after BlockingIOError is therefore given the same bytes again, or ``is_committed`` says that it must be.
5. ``shutdown`` of an SSLSocket makes a plain socket of it, which would send in clear. Here it shuts the connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Self

RECORD_BYTES = 16 * 1024
"""Most bytes of a TLS record."""

Part = bytes | bytearray | memoryview


def first_record(parts: Sequence[Part]) -> Part:
    """Return the bytes that the next record carries: at most RECORD_BYTES, copied only if several parts go together.

    >>> first_record([b"ab", b"cd"]), len(first_record([b"x" * 70000])), first_record([b"", b"z"])
    (b'abcd', 16384, b'z')
    """
    left = [part for part in parts if len(part)]
    if not left:
        return b""
    if len(left) == 1 or len(left[0]) >= RECORD_BYTES:
        return memoryview(left[0])[:RECORD_BYTES] if len(left[0]) > RECORD_BYTES else left[0]
    gathered = bytearray()
    for part in left:
        gathered += memoryview(part)[: RECORD_BYTES - len(gathered)]
        if len(gathered) == RECORD_BYTES:
            break
    return bytes(gathered)


class TlsSocket:
    """A connection whose handshake has ended. For one thread at a time, but ``shutdown``."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._set_s: float | None = sock.gettimeout()
        self._receive_s = self._send_s = self._set_s
        self.certificate: dict[str, Any] | None = sock.getpeercert() or None
        """The peer's certificate, verified; None if it has shown none."""
        self.is_committed = False
        """Whether bytes that were not taken are in a record already, and must be the next to be sent."""

    def settimeout(self, seconds: float | None) -> None:
        """Let calls wait for so long; None = for ever, 0 = not at all."""
        self._receive_s = self._send_s = seconds

    def limit(self, seconds: float, *, sending: bool) -> None:
        """Let calls that send, or those that receive, wait for so long: SO_SNDTIMEO, SO_RCVTIMEO."""
        if sending:
            self._send_s = seconds
        else:
            self._receive_s = seconds

    def _wait_for(self, seconds: float | None) -> None:
        if seconds != self._set_s:
            self._sock.settimeout(seconds)
            self._set_s = seconds

    def setblocking(self, blocking: bool) -> None:
        """As a plain socket's."""
        self.settimeout(None if blocking else 0.0)

    def recv_into(self, space: Part, size: int = 0, flags: int = 0) -> int:
        """Receive what is there, up to the size of ``space``; with any ``flags`` (MSG_DONTWAIT) it does not wait."""
        del size
        self._wait_for(0.0 if flags else self._receive_s)
        try:
            return self._sock.recv_into(space)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, TimeoutError) as error:
            raise BlockingIOError("nothing has arrived in time") from error

    def send(self, data: Part) -> int:
        """Send as much of ``data`` as the kernel takes, a record at least; raises BlockingIOError if it takes none."""
        return self.sendmsg((data,))

    def sendmsg(self, parts: Iterable[Part]) -> int:
        """Send as much of the parts, in order, as the kernel takes; raises BlockingIOError if it takes none."""
        left: list[Part] = list(parts)
        sent = 0
        self._wait_for(self._send_s)
        while len(record := first_record(left)):
            try:
                count = self._sock.send(record)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, TimeoutError) as error:
                self.is_committed = True
                if not sent:
                    raise BlockingIOError("nothing was taken in time") from error
                return sent
            self.is_committed = False
            sent += count
            left = left_after(left, count)
        return sent

    def sendall(self, data: Part) -> None:
        """Send all of ``data``; raises TimeoutError if a part of it is not taken in the socket's time."""
        self._wait_for(self._send_s)
        self._sock.sendall(data)

    def shutdown(self, how: int) -> None:
        """Shut the connection, or one way of it; for any thread. Raises OSError."""
        super(ssl.SSLSocket, self._sock).shutdown(how)

    def setsockopt(self, *option: Any) -> None:
        """As a plain socket's."""
        self._sock.setsockopt(*option)

    def getblocking(self) -> bool:
        """Say whether calls that receive wait."""
        return self._receive_s != 0

    def getsockopt(self, *option: Any) -> Any:
        """As a plain socket's."""
        return self._sock.getsockopt(*option)

    def fileno(self) -> int:
        """Return the descriptor; -1 if the socket is closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def left_after(parts: Sequence[Part], sent: int) -> list[Part]:
    """Return what of ``parts`` is left to be sent, once so many bytes of them are.

    >>> [bytes(part) for part in left_after([b"abc", b"de"], 4)]
    [b'e']
    """
    left: list[Part] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            left.append(memoryview(part)[sent:] if sent else part)
            sent = 0
    return left
