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
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from producers.blocks.core.write_ways import KeyMoment, KeyWay, key_way
from producers.blocks.stream_options import StreamOptions
from producers.errors import InvalidArgument, wrong_process
from producers.files.inline_keys import InlineReader, InlineWriter
from producers.files.key_reader import KeyReader
from producers.files.key_streams import KeyStreams
from producers.files.key_writer import KeyWriter, WriteStatistics
from producers.reads.read_views import TokenGrant
from producers.reads.reads import CONSISTENCIES, DEFAULT_CONSISTENCY, Consistency, Reads
from producers.requests import arguments
from producers.requests.keys import Requester
from schemas.records.packets import CELL_BYTES
from schemas.records.rows import BlockLocation, KeyInfo
from transport.processes import begins_anew_in_forks, this_process

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")
Found = TypeVar("Found")

BUFFER_BYTES = CELL_BYTES
"""Bytes of a key that is read, at most, that its file keeps to give lines and small parts from."""


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
        held = data or b""
        return KeyInput(InlineReader(held), path, info, held=held)
    tokens = streams.tokens_to_read(place)
    if grant is not None:
        tokens.take(grant)
    reader = KeyReader(streams, info.blocks, options=options, tokens=tokens, size=info.size, name=path)
    return KeyInput(reader, path, info)


class KeyOutput(io.BufferedIOBase):
    """A key that is being written, as a binary file, in the process that opened it.

    Threads may share it: each of their writes is whole. In a process that is forked meanwhile, each use raises
    RequestFailed (WRONG_PROCESS), and nothing becomes of the key there: it is the first process's.

    >>> with client.open("/vol1/bucket1/a.txt", "wb") as file:  # doctest: +SKIP
    ...     file.write(b"hello")
    ...     file.hsync()  # from here on these bytes survive any one failure
    ...     file.write(b" world")
    """

    def __init__(self, writer: KeyWriter | InlineWriter, name: str) -> None:
        super().__init__()
        self._writer = writer
        self._process = this_process()
        self._lock = threading.RLock()
        """Held by the thread that is in the writer; a forked process, where nobody frees it, never asks for it."""
        self.name = name
        """Path of the key."""
        self.mode = "wb"
        self._finishing = False
        self._within = False
        """Whether the file is in a ``with`` block of its own."""
        self._undecided = False
        """Whether it was closed while an exception was being handled; the end of the block then commits or aborts."""

    @property
    def _is_ours(self) -> bool:
        return self._process == this_process()

    def writable(self) -> bool:
        """Return True."""
        self._check()
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data`` and return its length; waits while too many bytes are on their way."""
        self._check_process()
        with self._lock:
            self._check_open()
            given = data if isinstance(data, bytes | bytearray | memoryview) else memoryview(data)
            return self._writer.write(given)

    def flush(self) -> None:
        """Return once all datanodes have the bytes written so far. They are not committed: see :meth:`hsync`.

        Whoever flushes bytes has them on datanodes, also those of a small key.
        """
        if self._finishing and not self.closed:
            return  # Python's close flushes once more
        self._check_process()
        with self._lock:
            self._check_open()
            self._writer.flush()

    def hsync(self) -> None:
        """Return once the bytes written so far are committed, and verified and stored by all replicas or a majority.

        >>> file.hsync()  # doctest: +SKIP
        """
        self._check_process()
        with self._lock:
            self._check_open()
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
        self._check_process()
        return self._writer.locations()

    @property
    def requests(self) -> int:
        """How many requests have made the key so far: one for most small keys, else CreateKey and CommitKey."""
        return self._writer.requests

    def statistics(self) -> WriteStatistics:
        """Return counts of the writing so far: blocks, failures, resumed streams."""
        self._check_process()
        return self._writer.statistics()

    def close(self) -> None:
        """Commit the key, which is visible when this returns. Raises one of ``producers.errors`` if it is not.

        After a failed write, close commits nothing and raises, each time. Otherwise closing again does nothing.
        """
        if self._is_ours:
            with self._lock:
                self._close()
        elif not self._undecided and not self.closed:
            self._finish()
            self._check_process()

    def _close(self) -> None:
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
        """Close without committing: the key stays as it was before, or absent. A write that is under way fails.

        >>> file.abort()  # doctest: +SKIP
        """
        if not self._is_ours:
            self._finish()
            return
        if not self._lock.acquire(blocking=False):
            self.interrupt(f"{self.name} was aborted")
            self._lock.acquire()
        try:
            self._undecided = False
            self._writer.abort()
            self._finish()
        finally:
            self._lock.release()

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
        self._check_process()
        self._writer.interrupt(reason)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: no copy of an open file can write the same key."""
        raise TypeError(f"{self.name} is an open file, which cannot be pickled or copied")

    def _check(self) -> None:
        self._check_open()
        self._check_process()

    def _check_open(self) -> None:
        _require_open(self, self.name)

    def _check_process(self) -> None:
        if not self._is_ours:
            instead = "let the process that opened it write and close it, or open the key again in this one"
            raise wrong_process(f"{self.name} is being written", self._process, this_process(), instead)


class KeyInput(io.BufferedReader):
    """A key's bytes as a binary file, which reads the key as it was when it was opened.

    Replaced or deleted meanwhile, the key can still be read for the nodes' setting ``deleted_block_grace_ms``, a minute
    by default; so can a snapshot's key after its snapshot was deleted. After that a read may raise DatanodeError
    BLOCK_DELETED. A key that is read for longer is opened in a snapshot that stays: ``.snapshot/NAME/KEY``. Every other
    reader (commands, asyncio, trees) reads through this class, or promises the same.

    A read that fails does not move. After a line that failed the file is nowhere until it is told where to go on
    (:meth:`seek`). Threads may share it: they take turns, and share one position, which :meth:`pread` neither uses nor
    moves. Lines alone are for one thread: Python's ``readline`` loses bytes if another thread reads meanwhile.

    >>> with client.open("/vol1/bucket1/a.txt") as file:  # doctest: +SKIP
    ...     file.seek(6)
    ...     print(file.read())
    b'world'
    """

    def __init__(
        self, reader: KeyReader | InlineReader, name: str, info: KeyInfo | None = None, *, held: bytes | None = None
    ) -> None:
        self._unbuffered = _UnbufferedKey(reader, name) if held is None else _HeldKey(held, name)
        self._reader = reader
        self.info = info
        """The key's row: size, metadata, blocks."""
        self._begin()
        begins_anew_in_forks(self)

    def _begin(self) -> None:
        super().__init__(self._unbuffered, max(min(self._reader.size, BUFFER_BYTES), 1))
        self._lock = threading.RLock()
        """Held by the thread that uses the position."""

    def begin_anew(self) -> None:
        """Go on at the same place in a forked process; nowhere if another thread was moving the file at the fork."""
        if not self.closed:
            is_still = self._unbuffered.begin_anew() and self._lock.acquire(blocking=False)
            at = self.tell() if is_still and not self._unbuffered.is_lost else None
            self._unbuffered.is_lost = False  # a buffer begins where its file is
            self._begin()
            if at is None:
                self._unbuffered.is_lost = True
            else:
                self.seek(at)

    @property
    def size(self) -> int:
        """Bytes of the key."""
        return self._reader.size

    @property
    def failovers(self) -> int:
        """How often another replica had to be asked."""
        return self._reader.failovers

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, fewer only at the end; all that are left if ``size`` is negative or None."""
        return self._or_stay(super().read, size)

    def read1(self, size: int = -1, /) -> bytes:
        """Return the bytes of one packet, or of the buffer, ``size`` bytes at most."""
        return self._or_stay(super().read1, size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer and return the number of bytes, fewer than its length only at the end."""
        return self._or_stay(super().readinto, buffer)

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        """As :meth:`readinto`, but with the bytes of one packet, or of the buffer, at most."""
        return self._or_stay(super().readinto1, buffer)

    def peek(self, size: int = 0, /) -> bytes:
        """Return some bytes without moving; none only at the end."""
        return self._or_stay(super().peek, size)

    def _or_stay(self, read: Callable[[T], Found], wanted: T) -> Found:
        """Read, and move back if that fails: Python's buffer drops what it had read until then."""
        with self._lock:
            self._unbuffered.check()
            at = self.tell()
            try:
                return read(wanted)
            except BaseException:
                if not self.closed:
                    self.seek(at)
                raise

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to another offset, which may lie beyond the end, and return it."""
        with self._lock:
            if whence == os.SEEK_CUR:
                self.tell()
            was_lost, self._unbuffered.is_lost = self._unbuffered.is_lost, False
            try:
                return super().seek(offset, whence)
            except BaseException:
                self._unbuffered.is_lost = was_lost
                raise

    def detach(self) -> NoReturn:
        """Raise UnsupportedOperation: nothing below the file can be used without it."""
        raise io.UnsupportedOperation("detach")

    def pread(self, size: int, offset: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on without moving; fewer only at the end.

        Raises ValueError if one of them is negative.

        >>> file.pread(5, 1_000_000)  # doctest: +SKIP
        b'bytes'
        """
        return self._unbuffered.pread(size, offset)


def _require_open(file: io.IOBase, name: str) -> None:
    if file.closed:
        raise ValueError(f"{name} is closed")


def _checked(size: int, offset: int, name: str) -> tuple[int, int]:
    """Return what ``pread`` was asked for; raises TypeError, ValueError."""
    size, offset = operator.index(size), operator.index(offset)
    if size < 0 or offset < 0:
        raise ValueError(f"{size} bytes at offset {offset} of {name}: neither may be negative")
    return size, offset


class _UnbufferedKey(io.RawIOBase):
    """A key's bytes, with a position; Python's own buffer over it makes a file of them.

    One thread at a time is in the reader, which has one packet and one connection: the others wait.
    """

    def __init__(self, reader: KeyReader | InlineReader, name: str) -> None:
        super().__init__()
        self._reader = reader
        self._offset = 0
        self.is_lost = False
        """Whether a read has failed, so that nobody knows what Python's buffer had taken until then."""
        self._is_moving = False
        self._turn = _OneReads(name)
        self.name = name
        """Path of the key."""
        self.mode = "rb"

    def begin_anew(self) -> bool:
        """Have a lock that no other thread holds, in a forked process; return whether none was moving the file."""
        was_moving, self._is_moving = self._is_moving, False
        self._turn = _OneReads(self.name)
        return not was_moving

    def readable(self) -> bool:
        """Return True."""
        self.check()
        return True

    def seekable(self) -> bool:
        """Return True."""
        self.check()
        return True

    def tell(self) -> int:
        """Return the offset of the next byte; raises ValueError if nobody knows it."""
        self.check()
        if self.is_lost:
            raise ValueError(f"a read of {self.name} has failed: seek to where to go on")
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to another offset, which may lie beyond the end, and return it."""
        self.check()
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._reader.size}
        if whence not in bases:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        found = bases[whence] + operator.index(offset)
        if found < 0:
            raise ValueError(f"offset {found} lies before the key")
        self._offset = found
        return found

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer with bytes of one packet; return their number, 0 only at the end."""
        view = memoryview(buffer).cast("B")
        with self._turn:
            part = self._part(len(view))
        view[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        """Return all bytes that are left."""
        with self._turn:
            return b"".join(iter(lambda: self._part(self._reader.size), b""))

    def _part(self, wanted: int) -> memoryview:
        """Return the bytes that follow in one packet, ``wanted`` at most, and move behind them."""
        wanted = min(wanted, self._reader.size - self.tell())
        if wanted <= 0:
            return memoryview(b"")
        self._is_moving = True
        try:
            part = self._reader.next_bytes(self._offset, wanted)[:wanted]
        except BaseException:
            self.is_lost = True
            raise
        finally:
            self._is_moving = False
        self._offset += len(part)
        return part

    def pread(self, size: int, offset: int) -> bytes:
        """As :meth:`KeyInput.pread`."""
        size, offset = _checked(size, offset, self.name)
        with self._turn:
            self.check()
            buffer = bytearray(max(min(size, self._reader.size - offset), 0))
            return bytes(memoryview(buffer)[: self._reader.read_into(memoryview(buffer), offset)])

    def close(self) -> None:
        """Close the reader's connections."""
        with self._turn:
            if not self.closed:
                self._reader.close()
                super().close()

    def check(self) -> None:
        """Raise ValueError if the key is closed."""
        _require_open(self, self.name)


class _HeldKey(io.BytesIO):
    """As :class:`_UnbufferedKey`, of a key whose bytes came with its row: nothing is read, so nothing fails half-way.

    A small key is opened, read and closed in a quarter of the processor time that way.
    """

    is_lost = False

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    @property
    def mode(self) -> str:
        """As that of a file that is read."""
        return "rb"

    def check(self) -> None:
        """Raise ValueError if the key is closed."""
        _require_open(self, self.name)

    def begin_anew(self) -> bool:
        """Return True: no thread can be within."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """As :meth:`KeyInput.pread`."""
        size, offset = _checked(size, offset, self.name)
        self.check()
        return bytes(self.getbuffer()[offset : offset + size])


class _OneReads:
    """Lets one thread in at a time; the others wait. Within it, the same thread is refused.

    A signal's handler that reads the file whose read it interrupted would take bytes for the outer read's.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.RLock()
        self._within = False
        self._name = name

    def __enter__(self) -> None:
        """Wait for the turn; raises RuntimeError."""
        self._lock.acquire()
        if self._within:
            self._lock.release()
            raise RuntimeError(f"{self._name} is used while this thread reads it")
        self._within = True

    def __exit__(self, *_: object) -> None:
        """End the turn."""
        self._within = False
        self._lock.release()
