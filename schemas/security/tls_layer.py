"""TLS without a socket: bytes of the network in, bytes for the network out. For connections that several threads use.

An SSLSocket must not be read by one thread while another writes. Here the caller's lock decides who is in.
"""

from __future__ import annotations

import ssl

READ_BYTES = 64 * 1024


class TlsLayer:
    """The client's end of one connection. Raises ssl.SSLError if the peer is not the one expected, or speaks no TLS."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=False, server_hostname=host)
        self._early = bytearray()
        """What is to be said once the handshake has ended."""
        self.is_open = False
        """Whether the handshake has ended."""
        self._shake()

    def hear(self, data: bytes) -> bytes:
        """Take bytes of the network (none: its end); return what the peer says with them."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.is_open:
            self._shake()
        said = bytearray()
        while self.is_open:
            try:
                piece = self._tls.read(READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break
            if not piece:
                break
            said += piece
        return bytes(said)

    def say(self, data: bytes) -> None:
        """Say something to the peer; before the end of the handshake it is kept."""
        if not self.is_open:
            self._early += data
        elif data:
            self._tls.write(data)

    def take(self) -> bytes:
        """Return the bytes for the network since this was last called."""
        return self._outgoing.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_open = True
        early, self._early = bytes(self._early), bytearray()
        self.say(early)
