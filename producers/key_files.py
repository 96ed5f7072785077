"""Keys as file objects, for ``client.open`` (design, section 8).

What belongs here: the way from :class:`KeyWriter` and :class:`KeyReader` to what Python expects of a binary file, and the
same awaited. A key that is written becomes visible, whole, when its file is closed; a ``with`` block that ends by an
exception, and a file that is dropped without being closed, leave nothing.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from producers.errors import RequestFailed
from producers.key_reader import KeyReader
from producers.key_streams import KeyStreams
from producers.key_writer import KeyWriter, Requester, WriteStatistics
from producers.reads import DEFAULT_CONSISTENCY, Consistency, Reads
from producers.stream_options import StreamOptions
from schemas.result_codes import INVALID_REQUEST
from schemas.rows import BlockLocation, KeyInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

P = ParamSpec("P")
T = TypeVar("T")
PEEK_BYTES = 1


def split_path(path: str) -> tuple[str, str, str]:
    """Return volume, bucket and key of ``/volume/bucket/key``; raises RequestFailed for anything else.

    >>> split_path("/vol1/bucket1/a/b.txt")
    ('vol1', 'bucket1', 'a/b.txt')
    """
    volume, _, rest = path.removeprefix("/").partition("/")
    bucket, _, key = rest.partition("/")
    if not volume or not bucket or not key:
        raise RequestFailed(INVALID_REQUEST, f"{path!r} is not the path of a key: /volume/bucket/key")
    return volume, bucket, key


def create_file(
    client: Requester, streams: KeyStreams, path: str, *, size: int = 0, replication: str = "RATIS/THREE",
    metadata: Mapping[str, str] | None = None, options: StreamOptions | None = None,
) -> KeyOutput:  # fmt: skip
    """Open a key to write it; what ``client.open(path, "wb")`` does."""
    place = split_path(path)
    writer = KeyWriter(client, streams, place, size=size, replication=replication, metadata=metadata, options=options)
    return KeyOutput(writer, path)


def open_file(
    reads: Reads, streams: KeyStreams, path: str, *, options: StreamOptions | None = None,
    consistency: Consistency = DEFAULT_CONSISTENCY,
) -> KeyInput:  # fmt: skip
    """Open a key to read it; what ``client.open(path)`` does."""
    info = reads.key_info(*split_path(path), consistency=consistency).info
    return KeyInput(KeyReader(streams, info.blocks, options=options), path, info)


class KeyOutput(io.BufferedIOBase):
    """A key that is being written, as a binary file; for one thread at a time.

    >>> with client.open("/vol1/bucket1/a.txt", "wb") as file:  # doctest: +SKIP
    ...     file.write(b"hello")
    ...     file.hsync()  # from here on these bytes survive any one failure
    ...     file.write(b" world")
    """

    def __init__(self, writer: KeyWriter, name: str) -> None:
        super().__init__()
        self._writer = writer
        self.name = name
        """Path of the key."""
        self.mode = "wb"

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data`` and return its length; waits while too many bytes are on their way."""
        self._check()
        given = data if isinstance(data, bytes | bytearray | memoryview) else memoryview(data)
        return self._writer.write(given)

    def flush(self) -> None:
        """Return once all datanodes have what was written; it is not committed: see :meth:`hsync`."""
        # Closing a file flushes it once more.
        if not self._writer.ended:
            self._writer.flush()

    def hsync(self) -> None:
        """Return once what was written is committed, verified and stored by all replicas, or a majority of them.

        >>> file.hsync()  # doctest: +SKIP
        """
        self._check()
        self._writer.hsync()

    def tell(self) -> int:
        """Return the bytes written so far."""
        self._check()
        return self._writer.written

    def locations(self) -> list[BlockLocation]:
        """Return the blocks as far as they are committed and watched.

        >>> [block.length for block in file.locations()]  # doctest: +SKIP
        [268435456, 1024]
        """
        return self._writer.locations()

    def statistics(self) -> WriteStatistics:
        """Return what the writing met so far: blocks, failures, resumed streams."""
        return self._writer.statistics()

    def close(self) -> None:
        """Commit the key: it is visible when this returns. Raises one of ``producers.errors`` if it is not."""
        if self.closed:
            return
        try:
            self._writer.close()
        finally:
            self._writer.abort()
            super().close()

    def abort(self) -> None:
        """Close without committing: the key stays as it was before, or absent.

        >>> file.abort()  # doctest: +SKIP
        """
        if not self.closed:
            self._writer.abort()
            super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort if an exception is on its way."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        """Abort: a file that was forgotten is not a key that was meant."""
        if hasattr(self, "_writer"):
            self.abort()

    def _check(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")


class KeyInput(io.BufferedIOBase):
    """A key's bytes as a binary file; for one thread at a time. What is read is the key as it was when it was opened.

    >>> with client.open("/vol1/bucket1/a.txt") as file:  # doctest: +SKIP
    ...     file.seek(6)
    ...     print(file.read())
    b'world'
    """

    def __init__(self, reader: KeyReader, name: str, info: KeyInfo | None = None) -> None:
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
        """Return where the next byte is read."""
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
        """Fill a buffer and return how many bytes there were, fewer only at the end."""
        self._check()
        count = self._reader.read_into(memoryview(buffer).cast("B"), self._offset)
        self._offset += count
        return count

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        """As :meth:`readinto`, but with what one packet holds at most."""
        part = self.read1(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(part)] = part
        return len(part)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, all that are left if it is negative or None; fewer only at the end."""
        self._check()
        left = max(self.size - self._offset, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        buffer = bytearray(wanted)
        return bytes(memoryview(buffer)[: self.readinto(buffer)])

    def read1(self, size: int = -1, /) -> bytes:
        """Return what one packet holds, ``size`` bytes at most."""
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
        """Let go of connections."""
        if not self.closed:
            self._reader.close()
            super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")


class AsyncKeyFile:
    """A key as a file whose methods are awaited, each in turn; they run in the client's worker threads.

    What :meth:`AsyncClient.open` returns; it is opened by ``async with``, or by awaiting it.

    >>> async with client.open("/vol1/bucket1/a.txt", "wb") as file:  # doctest: +SKIP
    ...     await file.write(b"hello")
    """

    def __init__(self, opens: Callable[[], KeyOutput | KeyInput], workers: Callable[[], Executor]) -> None:
        self._opens = opens
        self._workers = workers
        self._opened: KeyOutput | KeyInput | None = None
        self._turn = asyncio.Lock()

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        async with self._turn:
            return await loop.run_in_executor(self._workers(), partial(function, *args, **kwargs))

    @property
    def file(self) -> KeyOutput | KeyInput:
        """The file beneath; raises ValueError if it is not open yet."""
        if self._opened is None:
            raise ValueError("the file is not open: use it in 'async with', or await it")
        return self._opened

    def _output(self) -> KeyOutput:
        if not isinstance(self.file, KeyOutput):
            raise io.UnsupportedOperation(f"{self.file.name} is open for reading")
        return self.file

    def _input(self) -> KeyInput:
        if not isinstance(self.file, KeyInput):
            raise io.UnsupportedOperation(f"{self.file.name} is open for writing")
        return self.file

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """As :meth:`KeyOutput.write`."""
        return await self._run(self._output().write, data)

    async def flush(self) -> None:
        """As :meth:`KeyOutput.flush`."""
        await self._run(self._output().flush)

    async def hsync(self) -> None:
        """As :meth:`KeyOutput.hsync`."""
        await self._run(self._output().hsync)

    async def read(self, size: int = -1) -> bytes:
        """As :meth:`KeyInput.read`."""
        return await self._run(self._input().read, size)

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """As :meth:`KeyInput.readinto`."""
        return await self._run(self._input().readinto, buffer)

    async def pread(self, size: int, offset: int) -> bytes:
        """As :meth:`KeyInput.pread`."""
        return await self._run(self._input().pread, size, offset)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As :meth:`KeyInput.seek`; nothing is waited for."""
        return self._input().seek(offset, whence)

    def tell(self) -> int:
        """Return the offset."""
        return self.file.tell()

    async def close(self) -> None:
        """As :meth:`KeyOutput.close` or :meth:`KeyInput.close`."""
        await self._run(self.file.close)

    async def abort(self) -> None:
        """As :meth:`KeyOutput.abort`."""
        await self._run(self._output().abort)

    async def _open(self) -> Self:
        if self._opened is None:
            self._opened = await self._run(self._opens)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Open the file and return it."""
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        """Open the file and return it."""
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort if an exception is on its way; close what was read."""
        if kind is not None and isinstance(self.file, KeyOutput):
            await self.abort()
        else:
            await self.close()
