"""A datanode as the client of another: one connection, requests one after another, and a block's cells.

Made to be used by one thread for one errand and closed: what failed is a BlockError, and the connection is of no further use after
anything but an answer of the peer's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from datanode_processors.errors import MAX_NAME_CHARACTERS, BlockError, shown
from datanode_processors.wire.wire import Wire, WireClosed, connect, hello_frame, read_error, read_hello, read_record
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import ReadBlock, SalvageBlock
from schemas.records.packets import BadFrame, Frame, Kind, encode_frame

CONNECT_TIMEOUT_S = 5.0
SLOWEST_BYTES_PER_S = 256 * 1024
"""A peer that gives a block's bytes more slowly, on the whole, has timed out: it would hold up whoever waits for them, cell by cell."""


class Peer:
    """A connection to the datanode at ``address``; a context manager that closes it."""

    def __init__(self, address: str, *, own: str, cluster: str, timeout_s: float) -> None:
        """Connect and exchange HELLO. ``timeout_s`` is how long each answer may take; raises BlockError."""
        self._address = address
        self._timeout_s = timeout_s
        self._sequence = 0
        try:
            self._wire: Wire = connect(address, min(timeout_s, CONNECT_TIMEOUT_S))
        except WireClosed as error:
            raise self._failure(error) from error
        try:
            self._send(hello_frame(own, cluster))
            self.name = shown(read_hello(self._receive(hello=True), cluster).peer, MAX_NAME_CHARACTERS)
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
        frame = self._answer()
        if frame.header.kind is not Kind.REPLY:
            raise self._unexpected(frame)
        return read_record(frame)

    def read_block(self, request: ReadBlock | SalvageBlock) -> Iterator[tuple[int, memoryview, int]]:
        """Yield (offset, bytes, CRC32C) of the cells that hold what is asked for; the bytes are good until the next one.

        Each has its checksum. Raises BlockError, TIMED_OUT also for a peer that is slower than SLOWEST_BYTES_PER_S. The connection can be used again only once all cells were taken.
        """
        self._ask(request)
        left_s = self._timeout_s + max(0, request.length) / SLOWEST_BYTES_PER_S
        while True:
            begun_s = time.monotonic()
            frame = self._answer(min(self._timeout_s, left_s))
            left_s -= time.monotonic() - begun_s  # what is done with the bytes is no fault of the peer's
            if frame.header.kind is not Kind.DATA:
                break
            if left_s <= 0:
                raise BlockError(
                    stream_errors.TIMED_OUT,
                    f"datanode at {self._address}: less than {SLOWEST_BYTES_PER_S} bytes a second came of {request.length}",
                )
            yield frame.header.offset, frame.payload, frame.header.crc
        if frame.header.kind is not Kind.END:
            raise self._unexpected(frame)

    def _ask(self, request: Any) -> None:
        self._sequence += 1
        self._send(encode_frame(Kind.REQUEST, encode(request), sequence=self._sequence))

    def _answer(self, timeout_s: float | None = None) -> Frame:
        frame = self._receive(timeout_s)
        if frame.header.kind is Kind.ERROR:
            error = read_error(frame)
            raise BlockError(error.code, error.message, error.offset, error.hint, error.datanode)
        if frame.header.sequence != self._sequence:
            raise self._unexpected(frame)
        return frame

    def _send(self, frame: bytes) -> None:
        try:
            self._wire.wait_send(frame, timeout_s=self._timeout_s)
        except WireClosed as error:
            raise self._failure(error) from error

    def _receive(self, timeout_s: float | None = None, *, hello: bool = False) -> Frame:
        receive = self._wire.wait_hello if hello else self._wire.wait_frame
        try:
            return receive(self._timeout_s if timeout_s is None else timeout_s)
        except WireClosed as error:
            raise self._failure(error) from error
        except BadFrame as error:
            raise BlockError(stream_errors.BAD_FRAME, f"datanode at {self._address}: {error}") from error

    def _failure(self, error: WireClosed) -> BlockError:
        code = stream_errors.TIMED_OUT if error.timed_out else stream_errors.FAILED
        return BlockError(code, f"datanode at {self._address}: {error}")

    def _unexpected(self, frame: Frame) -> BlockError:
        header = frame.header
        return BlockError(
            stream_errors.BAD_FRAME,
            f"datanode at {self._address}: {header.kind.name} {header.sequence} does not answer request {self._sequence}",
        )
