"""Keys as files whose methods are awaited, for ``AsyncClient.open``.

What belongs here: the order in which awaited calls use the client's worker threads. The rules:

1. One thread is in a file at a time. A turn ends when its thread has ended, even if nobody waits for the thread any
   more.
2. A cancelled write fails the file, as nobody could say whether its bytes are in the key. A cancelled read does not
   move.
3. A cancelled close goes on; the next one waits for it. An abort makes a write that is under way fail.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from producers.files.key_files import KeyInput, KeyOutput

P = ParamSpec("P")
T = TypeVar("T")


class AsyncKeyFile:
    """A key as a file whose methods are awaited, one after the other; they run in the client's worker threads.

    :meth:`AsyncClient.open` returns it; ``async with``, or awaiting it, opens it.

    >>> async with client.open("/vol1/bucket1/a.txt", "wb") as file:  # doctest: +SKIP
    ...     await file.write(b"hello")
    """

    def __init__(
        self, opens: Callable[[], KeyOutput | KeyInput], workers: Callable[[], Executor],
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``check`` is called with each use, and raises if this is not the client's process."""
        self._opens = opens
        self._check = check
        self._workers = workers
        self._opened: KeyOutput | KeyInput | None = None
        self._turn = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check()  # another process's turn may never end here
        await self._turn.acquire()
        return await self._run_in_turn(function, *args, **kwargs)

    async def _run_in_turn(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on a worker thread, in turn.

        The turn ends with the thread, not with the wait for it: two threads must not be in one file.
        """
        loop = asyncio.get_running_loop()
        try:
            # With the task's context: a key's span is below the one that is current where it is opened.
            step = partial(copy_context().run, partial(function, *args, **kwargs))
            running = loop.run_in_executor(self._workers(), step)
        except BaseException:
            self._turn.release()
            raise
        running.add_done_callback(self._turn_is_over)
        return await asyncio.shield(running)

    def _turn_is_over(self, running: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not running.cancelled():
            running.exception()  # a cancelled caller does not ask for it

    @property
    def file(self) -> KeyOutput | KeyInput:
        """The synchronous file; raises ValueError if it is not open yet."""
        self._check()
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
        """As :meth:`KeyOutput.write`.

        A cancelled write fails the file, as nobody could say whether its bytes are in the key.
        """
        output = self._output()
        await self._turn.acquire()
        try:
            return await self._run_in_turn(output.write, data)
        except asyncio.CancelledError:
            output.interrupt(f"a write of {output.name} was cancelled")
            raise

    async def flush(self) -> None:
        """As :meth:`KeyOutput.flush`."""
        await self._run(self._output().flush)

    async def hsync(self) -> None:
        """As :meth:`KeyOutput.hsync`."""
        await self._run(self._output().hsync)

    async def read(self, size: int = -1) -> bytes:
        """As :meth:`KeyInput.read`. A cancelled read does not move."""
        file = self._input()

        def read_here() -> tuple[int, bytes]:
            offset = file.tell()
            return offset, file.pread(size if size >= 0 else file.size, offset)

        offset, found = await self._run(read_here)
        file.seek(offset + len(found))
        return found

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """As :meth:`KeyInput.readinto`. A cancelled read neither moves nor touches the buffer."""
        with memoryview(buffer).cast("B") as view:
            found = await self.read(len(view))
            view[: len(found)] = found
        return len(found)

    async def pread(self, size: int, offset: int) -> bytes:
        """As :meth:`KeyInput.pread`."""
        return await self._run(self._input().pread, size, offset)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As :meth:`KeyInput.seek`; it waits for nothing."""
        return self._input().seek(offset, whence)

    def tell(self) -> int:
        """Return the offset."""
        return self.file.tell()

    async def close(self) -> None:
        """As :meth:`KeyOutput.close` or :meth:`KeyInput.close`.

        A cancelled close goes on; the next one waits for it, and returns or raises the same.
        """
        file = self.file
        if self._closing is None or self._closing.done():
            self._closing = asyncio.ensure_future(self._run(file.close))
            self._closing.add_done_callback(lambda closing: closing.cancelled() or closing.exception())
        await asyncio.shield(self._closing)

    async def abort(self) -> None:
        """As :meth:`KeyOutput.abort`; a write that is under way soon ends with an error."""
        output = self._output()
        if self._turn.locked() and self._closing is None:
            output.interrupt(f"{output.name} was aborted")
        await self._run(output.abort)

    async def _open(self) -> Self:
        if self._opened is None:
            opening = asyncio.ensure_future(self._run(self._open_once))
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(opening)
        return self

    def _open_once(self) -> None:
        if self._opened is None:
            self._opened = self._opens()

    def __await__(self) -> Generator[Any, None, Self]:
        """Open the file and return it."""
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        """Open the file and return it."""
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort if an exception ended the block; close a key that was read."""
        if kind is not None and isinstance(self.file, KeyOutput):
            await self.abort()
        else:
            await self.close()
