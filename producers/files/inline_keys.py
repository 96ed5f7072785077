"""Small keys (docs/small-objects.md): writing them, and reading the bytes that came from the nodes' tables.

What belongs here: holding the bytes of a key that may be small, and carrying out what the table of ways says
(``blocks/core/write_ways``) with each write and flush, and at the end. The rules:

1. While bytes are held nothing is asked, so what CreateKey would refuse at once (a bucket that is missing, a name) is
   raised by ``close``.
2. When the table has the key opened, what was held is written to datanodes first; a key that is opened stays so.
3. At the end the table is asked until a way has committed the key. Each way that is left lowers the key's limits; the
   caller sees no difference. What a refused PutKey says is remembered for other keys, too (``core/inline_limit``).
4. One fate holds for all ways (``core/key_fate``): a failure lasts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from producers.blocks.core.write_ways import KeyMoment, KeyWay, WayLeft, WayLimits, key_way
from producers.blocks.stream_options import StreamOptions
from producers.errors import WRITE_FAILED, RetryableError
from producers.files.key_streams import KeyStreams
from producers.files.key_writer import BegunKey, KeyWriter, WriteStatistics
from producers.files.reserved_keys import ReservedKey
from producers.requests.keys import Requester
from schemas.records.messages import PutKey
from schemas.records.rows import BlockLocation


class InlineWriter:
    """Writes one key that may be small; for one thread at a time. As :class:`KeyWriter`, with rules 1 to 3.

    ``limits`` say what the row and a reserved block take; ``size`` is the expected number of bytes, 0 if it is not
    known.
    """

    def __init__(
        self, client: Requester, streams: KeyStreams, place: tuple[str, str, str], *, limits: WayLimits, size: int = 0,
        replication: str = "RATIS/THREE", metadata: Mapping[str, str] | None = None,
        options: StreamOptions | None = None,
    ) -> None:  # fmt: skip
        self._client = client
        self._streams = streams
        self._place = place
        self._limits = limits
        self._size = size
        self._replication = replication
        self._metadata = dict(metadata or {})
        self._options = options or streams.options
        self._reserved: ReservedKey | None = None
        self._begun = BegunKey(streams, place)
        self.path = self._begun.path
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._writer: KeyWriter | None = None
        """What writes to datanodes, once that is the way."""
        self._puts = 0

    @property
    def written(self) -> int:
        """Bytes passed to :meth:`write` so far."""
        return self._held_bytes if self._writer is None else self._writer.written

    @property
    def requests(self) -> int:
        """PutKeys and CommitReserveds that were sent, and the requests of :attr:`KeyWriter.requests`."""
        ways = (self._reserved, self._writer)
        return self._puts + sum(way.requests for way in ways if way is not None)

    @property
    def ended(self) -> bool:
        """Whether the key was committed or aborted, or its writing failed."""
        return self._begun.ended or self._begun.failed

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept in memory."""
        return self._held_bytes if self._writer is None else self._writer.held_bytes

    def statistics(self) -> WriteStatistics:
        """Return counts of the writing so far; without datanodes, of bytes alone."""
        if self._writer is not None:
            return self._writer.statistics()
        return WriteStatistics(
            bytes=self._held_bytes,
            blocks=len(self.locations()),
            failed_blocks=0,
            resumed_streams=0 if self._reserved is None else self._reserved.resumed,
            watches_by_majority=0 if self._reserved is None else self._reserved.watches_by_majority,
        )

    def locations(self) -> list[BlockLocation]:
        """Return the blocks as :meth:`KeyWriter.locations` does; none while the bytes are held."""
        if self._writer is not None:
            return self._writer.locations()
        reserved = None if self._reserved is None else self._reserved.location
        return [] if reserved is None else [reserved]

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Hold or write all of ``data``; returns its length."""
        if self._writer is None:
            self._begun.check()
            view = memoryview(data).cast("B")
            if self._way(KeyMoment.WRITTEN, len(view)) is KeyWay.HELD:
                self._held.append(data if isinstance(data, bytes) else bytes(view))
                self._held_bytes += len(view)
                return len(view)
        return self._on_datanodes(memoryview(data).nbytes).write(data)

    def _way(self, when: KeyMoment, coming_bytes: int = 0) -> KeyWay:
        stock = self._streams.reservations.serves(self._place[:2])
        return key_way(when, self._limits.fit(self._held_bytes + coming_bytes), stock=stock)

    def flush(self) -> None:
        """As :meth:`KeyWriter.flush`; bytes that are held go to datanodes."""
        self._begun.check()
        if self._is_to_open():
            self._on_datanodes().flush()

    def hsync(self) -> None:
        """As :meth:`KeyWriter.hsync`; bytes that are held go to datanodes."""
        self._begun.check()
        if self._is_to_open():
            self._on_datanodes().hsync()

    def _is_to_open(self) -> bool:
        """Say whether the bytes that were written so far have to be on datanodes now."""
        return self._writer is not None or self._way(KeyMoment.FLUSHED) is KeyWay.OPENED

    def _on_datanodes(self, coming_bytes: int = 0) -> KeyWriter:
        """Return what writes to datanodes; at first, open the key and write there what was held.

        The key is opened for what is known to be written, so that its first block comes with it.
        """
        writer = self._writer
        if writer is None:
            self._begun.check()
            with self._step():
                writer = KeyWriter(
                    self._client, self._streams, self._place,
                    size=max(self._size, self._held_bytes + coming_bytes), replication=self._replication,
                    metadata=self._metadata, options=self._options, begun=self._begun,
                )  # fmt: skip
                self._writer = writer
            if held := b"".join(self._held):
                self._held.clear()
                writer.write(held)
        return writer

    def close(self) -> None:
        """Commit the key, as :meth:`KeyWriter.close`."""
        if self._writer is not None:
            self._writer.close()
        elif not self._begun.ended:
            self._begun.check()
            while (left := self._commit(self._way(KeyMoment.CLOSED))) is not None:
                self._limits = self._limits.after(left)

    def _commit(self, way: KeyWay) -> WayLeft | None:
        """Commit the key on a way; return why the way was left, None once the key is committed."""
        if way is KeyWay.PUT:
            return self._put()
        if way is KeyWay.RESERVED:
            return self._write_reserved()
        self._on_datanodes().close()
        return None

    def _put(self) -> WayLeft | None:
        """Make the key by one request."""
        volume, bucket, key = self._place
        body = PutKey(
            volume=volume, bucket=bucket, key=key, data=b"".join(self._held), replication=self._replication,
            metadata=self._metadata,
        )  # fmt: skip

        def send() -> None:
            self._puts += 1
            with self._begun.span.current():
                answer = self._client.submit(body)
            answer.result()

        with self._step():
            if (left := self._begun.commit(send, KeyWay.PUT)) is not None:
                metadata_bytes = sum(len(name.encode()) + len(text.encode()) for name, text in self._metadata.items())
                self._streams.inline_limit.on_refused(left, self._held_bytes, metadata_bytes, time.monotonic())
                return left
        self._let_go()
        return None

    def _write_reserved(self) -> WayLeft | None:
        """Write the key to a reserved block."""
        streams, volume, bucket = self._streams, self._place[0], self._place[1]
        block = streams.reservations.take(self._client, (volume, bucket), self._held_bytes)
        if block is None:
            return WayLeft.NO_BLOCK
        with self._step():
            self._reserved = ReservedKey(
                self._client, streams, self._place, self._begun, block, replication=self._replication,
                metadata=self._metadata, options=self._options,
            )  # fmt: skip
            if (left := self._reserved.write(self._held)) is not None:
                return left
        self._let_go()
        return None

    def abort(self) -> None:
        """Let go of the key without committing it; does nothing after :meth:`close`."""
        if self._writer is not None:
            self._writer.abort()
            return
        self._begun.on_abort()
        self._let_go()

    def interrupt(self, reason: str) -> None:
        """Make the thread that is in a method of this writer fail soon, and the key with it. For any thread."""
        self._begun.on_failure(RetryableError(WRITE_FAILED, reason))
        if (reserved := self._reserved) is not None:
            reserved.interrupt()
        if (writer := self._writer) is not None:
            writer.interrupt(reason)

    @contextmanager
    def _step(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._begun.on_failure(error)
            self._let_go()
            raise

    def _let_go(self) -> None:
        self._held.clear()
        self._begun.let_go()


class InlineReader:
    """The bytes of a key that came with its row, as :class:`KeyReader` gives those of blocks."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)
        """Bytes of the key."""
        self.failovers = 0
        """No other replica is ever asked."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` with the key's bytes from ``offset`` on; return their number, smaller only at the end."""
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def next_bytes(self, offset: int, wanted: int) -> memoryview:
        """Return the bytes from ``offset`` on; ``wanted`` is how many will be read."""
        del wanted
        return self._data[offset:]

    def close(self) -> None:
        """Do nothing: there are no connections."""
