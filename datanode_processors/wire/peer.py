"""A datanode as the client of another: one connection, requests one after another, and a block's cells.

Every failure is a BlockError. After a failure the connection can be used again only if the failure was the peer's own
answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from datanode_processors.errors import MAX_NAME_CHARACTERS, BlockError, shown
from datanode_processors.wire.wire import PEER_STATUSES
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import ReadBlock, SalvageBlock
from schemas.records.packets import Frame, Kind
from transport.datanodes.connection import DatanodeCaller, DatanodeConnection
from transport.datanodes.core.failures import FailureWords
from transport.waiting.deadline import Deadline

CONNECT_TIMEOUT_S = 5.0
SLOWEST_BYTES_PER_S = 256 * 1024
"""A peer that sends a block's bytes more slowly on average has timed out: it would delay
those who wait, cell by cell.
"""


WORDS = FailureWords(BlockError, PEER_STATUSES)


class Peer(DatanodeConnection):
    """A connection to the datanode at ``address``; a context manager that closes it."""

    def __init__(
        self, address: str, *, own: str, cluster: str, timeout_s: float, datanode: str = "", tls: WireTls | None = None
    ) -> None:  # fmt: skip
        """Connect and exchange HELLO. ``timeout_s`` is how long each answer may take; raises BlockError.

        ``datanode`` is the name that the peer must have; empty: any. With ``tls`` the peer must prove that it is a
        datanode, and the one that its HELLO names.
        """
        self._timeout_s = timeout_s
        timeout_ms = int(timeout_s * 1000)
        super().__init__(
            address, DatanodeCaller(own_hello(own, cluster), None if tls is None else tls.process, WORDS),
            datanode=datanode, connect_timeout_ms=int(min(timeout_s, CONNECT_TIMEOUT_S) * 1000), silence_ms=timeout_ms,
            hello_timeout_ms=timeout_ms,
        )  # fmt: skip
        self.name = shown(self.datanode, MAX_NAME_CHARACTERS)

    def error(self, status: str, message: str) -> BlockError:
        """Return what this datanode reports of the connection: it names the peer by its address."""
        return BlockError(status, f"datanode at {message}")

    def request(self, request: Any) -> Any:
        """Send a request and return its answer; raises BlockError: the peer's, or the connection's."""
        self.begin(request)
        return self.answer()

    def begin(self, request: Any) -> None:
        """Send a request, whose ``answer`` is asked for later; raises BlockError."""
        self.send_request(request)

    def send_on(self, payload: memoryview, crc: int) -> None:
        """Send an encoded request as it came, with its CRC32C; its ``answer`` is asked for later."""
        self.send_encoded([payload], crc=crc)

    def answer(self, timeout_s: float | None = None) -> Any:
        """Return the answer to the oldest request; raises BlockError: the peer's, or the connection's."""
        return self.answered(self.receive_by(Deadline.after_s(self._timeout_s if timeout_s is None else timeout_s)))

    def read_block(self, request: ReadBlock | SalvageBlock) -> Iterator[tuple[int, memoryview, int]]:
        """Yield (offset, bytes, CRC32C) of the cells that hold the requested range; bytes are good until the next cell.

        Each cell has its checksum. Raises BlockError; TIMED_OUT also for a peer that is slower than
        SLOWEST_BYTES_PER_S. The connection can be used again only after all cells were taken.
        """
        self.begin(request)
        left_s = self._timeout_s + max(0, request.length) / SLOWEST_BYTES_PER_S
        while True:
            begun_s = time.monotonic()
            event = self.receive_by(Deadline.after_s(min(self._timeout_s, left_s)))
            left_s -= time.monotonic() - begun_s  # the time that the caller spends on the bytes is not the peer's fault
            if not isinstance(event, Frame):
                raise self._unexpected(event)
            if event.header.kind is not Kind.DATA:
                return
            if left_s <= 0:
                raise self.error(
                    stream_errors.TIMED_OUT,
                    f"{self.address}: less than {SLOWEST_BYTES_PER_S} bytes a second came of {request.length}",
                )
            yield event.header.offset, event.payload, event.header.crc
