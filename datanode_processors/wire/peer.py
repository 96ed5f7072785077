"""A datanode as the client of another: one connection, requests one after another, and a block's cells.

A Peer is made for one thread and one errand, and then closed. Every failure is a BlockError. After a failure the
connection can be used again only if the failure was the peer's own answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from datanode_processors.errors import MAX_NAME_CHARACTERS, BlockError, shown
from datanode_processors.wire.wire import CODES, Wire, WireClosed, connect, refusal
from datanode_processors.wire.wire_tls import WireTls, check_name
from schemas import stream_errors
from schemas.conversation.conversation import (
    ConversationFailed,
    ConversationFault,
    Event,
    PeerAnswered,
    PeerGreeted,
    PeerRefused,
    own_hello,
)
from schemas.conversation.limits import UnreadableRecord
from schemas.conversation.states import ConversationRole
from schemas.records.datanode import ReadBlock, SalvageBlock
from schemas.records.packets import Frame, Kind

CONNECT_TIMEOUT_S = 5.0
SLOWEST_BYTES_PER_S = 256 * 1024
"""A peer that sends a block's bytes more slowly on average has timed out: it would delay
those who wait, cell by cell.
"""


class Peer:
    """A connection to the datanode at ``address``; a context manager that closes it."""

    def __init__(
        self, address: str, *, own: str, cluster: str, timeout_s: float, datanode: str = "", tls: WireTls | None = None
    ) -> None:  # fmt: skip
        """Connect and exchange HELLO. ``timeout_s`` is how long each answer may take; raises BlockError.

        ``datanode`` is the name that the peer must have; empty: any. With ``tls`` the peer must prove that it is a
        datanode, and the one that its HELLO names.
        """
        self._address = address
        self._timeout_s = timeout_s
        self._sequence = 0
        try:
            self._wire: Wire = connect(address, min(timeout_s, CONNECT_TIMEOUT_S), tls)
        except WireClosed as error:
            raise self._closed(error) from error
        self._talk = self._wire.conversation(ConversationRole.CLIENT, own_hello(own, cluster), datanode=datanode)
        try:
            self._send(self._talk.hello())
            greeted = self._receive()
            if not isinstance(greeted, PeerGreeted):
                raise self._unexpected(greeted)
            check_name(self._wire.identity, greeted.hello.peer)
            self.name = shown(greeted.hello.peer, MAX_NAME_CHARACTERS)
            self.version = greeted.version
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._wire.close()

    def request(self, request: Any) -> Any:
        """Send a request and return its answer; raises BlockError: the peer's, or the connection's."""
        self._ask(request)
        return self.answer()

    def begin(self, request: Any) -> None:
        """Send a request, whose ``answer`` is asked for later; raises BlockError."""
        self._ask(request)

    def send_on(self, payload: memoryview, crc: int) -> None:
        """Send an encoded request as it came, with its CRC32C; its ``answer`` is asked for later. Raises BlockError."""
        self._sequence += 1
        try:
            header = self._talk.header(
                Kind.REQUEST, stream=0, sequence=self._sequence, offset=0, length=len(payload), crc=crc
            )
        except ConversationFailed as error:
            raise self._failed(error) from error
        self._send(header, payload)

    def answer(self, timeout_s: float | None = None) -> Any:
        """Return the answer to the oldest request; raises BlockError: the peer's, or the connection's."""
        event = self._receive(timeout_s)
        if not isinstance(event, PeerAnswered):
            raise self._unexpected(event)
        return event.record

    def read_block(self, request: ReadBlock | SalvageBlock) -> Iterator[tuple[int, memoryview, int]]:
        """Yield (offset, bytes, CRC32C) of the cells that hold the requested range; bytes are good until the next cell.

        Each cell has its checksum. Raises BlockError; TIMED_OUT also for a peer that is slower than
        SLOWEST_BYTES_PER_S. The connection can be used again only after all cells were taken.
        """
        self._ask(request)
        left_s = self._timeout_s + max(0, request.length) / SLOWEST_BYTES_PER_S
        while True:
            begun_s = time.monotonic()
            event = self._receive(min(self._timeout_s, left_s))
            left_s -= time.monotonic() - begun_s  # the time that the caller spends on the bytes is not the peer's fault
            if not isinstance(event, Frame):
                raise self._unexpected(event)
            if event.header.kind is not Kind.DATA:
                return
            if left_s <= 0:
                raise BlockError(
                    stream_errors.TIMED_OUT,
                    f"datanode at {self._address}: less than {SLOWEST_BYTES_PER_S} bytes a second came "
                    f"of {request.length}",
                )
            yield event.header.offset, event.payload, event.header.crc

    def _ask(self, request: Any) -> None:
        self._sequence += 1
        try:
            frame = self._talk.request(request, sequence=self._sequence)
        except ConversationFailed as error:
            raise self._failed(error) from error
        self._send(frame)

    def _send(self, *parts: bytes | memoryview) -> None:
        try:
            self._wire.wait_send(*parts, timeout_s=self._timeout_s)
        except WireClosed as error:
            raise self._closed(error) from error

    def _receive(self, timeout_s: float | None = None) -> Event:
        """Return what the peer says next; raises BlockError, also for its ERROR."""
        try:
            event = self._wire.wait_event(self._talk, self._timeout_s if timeout_s is None else timeout_s)
        except WireClosed as error:
            raise self._closed(error) from error
        except ConversationFailed as error:
            raise self._failed(error) from error
        except UnreadableRecord as error:
            raise BlockError(stream_errors.INVALID_REQUEST, f"datanode at {self._address}: {error}") from error
        if isinstance(event, PeerRefused):
            raise refusal(event.error)
        return event

    def _closed(self, error: WireClosed) -> BlockError:
        code = stream_errors.TIMED_OUT if error.timed_out else stream_errors.FAILED
        return BlockError(code, f"datanode at {self._address}: {error}")

    def _failed(self, error: ConversationFailed) -> BlockError:
        # A peer's misplaced answer is not a request that this datanode could call invalid.
        code = stream_errors.BAD_FRAME if error.fault is ConversationFault.OUT_OF_PLACE else CODES[error.fault]
        return BlockError(code, f"datanode at {self._address}: {error}")

    def _unexpected(self, event: Event) -> BlockError:
        return BlockError(
            stream_errors.BAD_FRAME, f"datanode at {self._address}: {type(event).__name__} is no answer to that"
        )
