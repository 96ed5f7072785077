"""Keys as file objects, for ``client.open`` (design, section 8).

What belongs here: the methods that Python expects of a binary file, over :class:`KeyWriter` and :class:`KeyReader`;
``async_key_files`` has the awaited ones. A key that is written becomes visible, whole, when its file is closed. The key
stays as it was before if the ``with`` block ends by an exception, if a write fails once, or if the file is dropped
without being closed.

A file that wraps another (``io.TextIOWrapper``) closes the inner one in any case. Within ``with client.open(...)``,
such a close commits nothing while an exception is raised or handled: the end of the block decides. Without that
``with``, a wrapper's close is an ordinary close.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from producers.blocks.core.write_ways import KeyMoment, KeyWay, key_way
from producers.blocks.stream_options import StreamOptions
from producers.errors import InvalidArgument
from producers.files.inline_keys import InlineReader, InlineWriter
from producers.files.key_reader import KeyReader
from producers.files.key_streams import KeyStreams
from producers.files.key_writer import KeyWriter, WriteStatistics
from producers.reads.read_views import TokenGrant
from producers.reads.reads import CONSISTENCIES, DEFAULT_CONSISTENCY, Consistency, Reads
from producers.requests import arguments
from producers.requests.keys import Requester
from schemas.records.rows import BlockLocation, KeyInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

PEEK_BYTES = 1


def split_path(path: str) -> tuple[str, str, str]:
    """Return volume, bucket and key of ``/volume/bucket/key``; raises InvalidArgument for anything else.

    >>> split_path("/vol1/bucket1/a/b.txt")
    ('vol1', 'bucket1', 'a/b.txt')
    """
    volume, _, rest = arguments.text("path", path).removeprefix("/").partition("/")
    bucket, _, key = rest.partition("/")
    if not volume or not bucket or not key:
        raise InvalidArgument("path", f"must be that of a key, /volume/bucket/key, not {arguments.shown(path)}")
    return volume, bucket, key


def check_open(
    path: str, *, size: int, replication: str, metadata: Mapping[str, str] | None, options: StreamOptions | None,
    consistency: Consistency,
) -> None:  # fmt: skip
    """Check the arguments of ``client.open``; raises TypeError, InvalidArgument."""
    split_path(path)
    arguments.number("size", size, 0)
    arguments.text("replication", replication)
    arguments.metadata("metadata", metadata)
    arguments.optional("options", options, StreamOptions)
    arguments.choice("consistency", consistency, CONSISTENCIES)


def create_file(
    client: Requester, streams: KeyStreams, path: str, *, size: int = 0, replication: str = "RATIS/THREE",
    metadata: Mapping[str, str] | None = None, options: StreamOptions | None = None,
) -> KeyOutput:  # fmt: skip
    """Open a key to write it; ``client.open(path, "wb")`` calls this."""
    place = split_path(path)
    chosen = options or streams.options
    limits = chosen.way_limits(streams.inline_limit.bytes_at(chosen.inline_bytes, time.monotonic()))
    stock = streams.reservations.serves(place[:2])
    writer: KeyWriter | InlineWriter
    if key_way(KeyMoment.OPENED, limits.fit(size), stock=stock) is KeyWay.OPENED:
        writer = KeyWriter(
            client, streams, place, size=size, replication=replication, metadata=metadata, options=options
        )
    else:
        writer = InlineWriter(
            client, streams, place, limits=limits, size=size, replication=replication, metadata=metadata,
            options=options,
        )  # fmt: skip
    return KeyOutput(writer, path)


def open_file(
    reads: Reads, streams: KeyStreams, path: str, *, options: StreamOptions | None = None,
    consistency: Consistency = DEFAULT_CONSISTENCY,
) -> KeyInput:  # fmt: skip
    """Open a key to read it; ``client.open(path)`` calls this."""
    place = split_path(path)
    grant: TokenGrant | None = None
    if streams.directory.has_said_tokens and not reads.has_door:
        view, data, grant = reads.key_to_read(*place, consistency=consistency, with_bytes=True)
    else:
        view, data = reads.key_with_bytes(*place, consistency=consistency)
        if data is None and view.info.blocks and streams.directory.gives_tokens():
            # Row and tokens of one moment: the key may just have been replaced.
            view, data, grant = reads.key_to_read(*place, consistency=consistency, with_bytes=True)
    info = view.info
    if info.inline:
        return KeyInput(InlineReader(data or b""), path, info)
    tokens = streams.tokens_to_read(place)
    if grant is not None:
        tokens.take(grant)
    reader = KeyReader(streams, info.blocks, options=options, tokens=tokens, size=info.size, name=path)
    return KeyInput(reader, path, info)


class KeyOutput(io.BufferedIOBase):
    """A key that is being written, as a binary file; for one thread at a time.

    >>> with client.open("/vol1/bucket1/a.txt", "wb") as file:  # doctest: +SKIP
    ...     file.write(b"hello")
    ...     file.hsync()  # from here on these bytes survive any one failure
    ...     file.write(b" world")
    """

    def __init__(self, writer: KeyWriter | InlineWriter, name: str) -> None:
        super().__init__()
        self._writer = writer
        self.name = name
        """Path of the key."""
        self.mode = "wb"
        self._finishing = False
        self._within = False
        """Whether the file is in a ``with`` block of its own."""
        self._undecided = False
        """Whether it was closed while an exception was being handled; the end of the block then commits or aborts."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data`` and return its length; waits while too many bytes are on their way."""
        self._check()
        given = data if isinstance(data, bytes | bytearray | memoryview) else memoryview(data)
        return self._writer.write(given)

    def flush(self) -> None:
        """Return once all datanodes have the bytes written so far. They are not committed: see :meth:`hsync`.

        Whoever flushes bytes has them on datanodes, also those of a small key.
        """
        # Closing a file flushes it once more.
        if not self._finishing:
            self._check()
            self._writer.flush()

    def hsync(self) -> None:
        """Return once the bytes written so far are committed, and verified and stored by all replicas or a majority.

        >>> file.hsync()  # doctest: +SKIP
        """
        self._check()
        self._writer.hsync()

    def tell(self) -> int:
        """Return the bytes written so far."""
        self._check()
        return self._writer.written

    def locations(self) -> list[BlockLocation]:
        """Return the blocks with the lengths that are committed and watched.

        >>> [block.length for block in file.locations()]  # doctest: +SKIP
        [268435456, 1024]
        """
        return self._writer.locations()

    @property
    def requests(self) -> int:
        """How many requests have made the key so far: one for most small keys, else CreateKey and CommitKey."""
        return self._writer.requests

    def statistics(self) -> WriteStatistics:
        """Return counts of the writing so far: blocks, failures, resumed streams."""
        return self._writer.statistics()

    def close(self) -> None:
        """Commit the key, which is visible when this returns. Raises one of ``producers.errors`` if it is not.

        After a failed write, close commits nothing and raises, each time. Otherwise closing again does nothing.
        """
        if self._undecided:
            return
        # The exception may be one that was being handled when the block began: a bare ``raise`` raises the same object
        # again.
        if self._within and not self.closed and sys.exc_info()[1] is not None:
            self._undecided = True
            self._finish()
            return
        try:
            self._writer.close()
        finally:
            self._finish()

    def _finish(self) -> None:
        self._finishing = True
        super().close()

    def abort(self) -> None:
        """Close without committing: the key stays as it was before, or absent.

        >>> file.abort()  # doctest: +SKIP
        """
        self._undecided = False
        self._writer.abort()
        self._finish()

    def __enter__(self) -> Self:
        """Return the file itself."""
        self._check()
        self._within = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort if an exception ended the block."""
        self._within = self._undecided = False
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        """Abort: a file that was forgotten must not become a key."""
        if hasattr(self, "_finishing"):
            self.abort()

    def _dealloc_warn(self, source: object) -> None:
        """Abort: Python's wrappers call this when they were forgotten themselves, before they close the inner file."""
        del source
        self.abort()

    def interrupt(self, reason: str) -> None:
        """Make the key fail, so that the thread that writes it soon gets an error; may be called by any thread.

        >>> file.interrupt("the upload was cancelled")  # doctest: +SKIP
        """
        self._writer.interrupt(reason)

    def _check(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")


class KeyInput(io.BufferedIOBase):
    """A key's bytes as a binary file; for one thread at a time. It reads the key as it was when it was opened.

    >>> with client.open("/vol1/bucket1/a.txt") as file:  # doctest: +SKIP
    ...     file.seek(6)
    ...     print(file.read())
    b'world'
    """

    def __init__(self, reader: KeyReader | InlineReader, name: str, info: KeyInfo | None = None) -> None:
        super().__init__()
        self._reader = reader
        self._offset = 0
        self.name = name
        """Path of the key."""
        self.mode = "rb"
        self.info = info
        """The key's row: size, metadata, blocks."""

    @property
    def size(self) -> int:
        """Bytes of the key."""
        return self._reader.size

    @property
    def failovers(self) -> int:
        """How often another replica had to be asked."""
        return self._reader.failovers

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        self._check()
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to another offset, which may lie beyond the end, and return it."""
        self._check()
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self.size}
        if whence not in bases:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        if bases[whence] + offset < 0:
            raise ValueError(f"offset {bases[whence] + offset} lies before the key")
        self._offset = bases[whence] + offset
        return self._offset

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer and return the number of bytes, fewer than its length only at the end."""
        self._check()
        count = self._reader.read_into(memoryview(buffer).cast("B"), self._offset)
        self._offset += count
        return count

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        """As :meth:`readinto`, but with the bytes of one packet at most."""
        part = self.read1(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(part)] = part
        return len(part)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, fewer only at the end; all that are left if ``size`` is negative or None."""
        self._check()
        left = max(self.size - self._offset, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        buffer = bytearray(wanted)
        return bytes(memoryview(buffer)[: self.readinto(buffer)])

    def read1(self, size: int = -1, /) -> bytes:
        """Return the bytes of one packet, ``size`` bytes at most."""
        self._check()
        if self._offset >= self.size or size == 0:
            return b""
        part = self._reader.next_bytes(self._offset, size if size > 0 else 1)
        found = bytes(part[:size] if size > 0 else part)
        self._offset += len(found)
        return found

    def peek(self, size: int = 0, /) -> bytes:
        """Return some bytes without moving."""
        del size
        self._check()
        if self._offset >= self.size:
            return b""
        return bytes(self._reader.next_bytes(self._offset, PEEK_BYTES))

    def pread(self, size: int, offset: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on without moving; fewer only at the end.

        >>> file.pread(5, 1_000_000)  # doctest: +SKIP
        b'bytes'
        """
        self._check()
        buffer = bytearray(max(min(size, self.size - offset), 0))
        return bytes(memoryview(buffer)[: self._reader.read_into(memoryview(buffer), offset)])

    def close(self) -> None:
        """Close the reader's connections."""
        if not self.closed:
            self._reader.close()
            super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")
