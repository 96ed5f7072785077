"""An HTTP server on an event loop and a thread of its own, for a process that has no event loop, or none yet."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

from transport.web.http_server import HttpServer

START_TIMEOUT_S = 10.0
"""A server that does not serve by then is given up."""


class ThreadedServer:
    """Serves from :meth:`start` to :meth:`close`; it is not started again."""

    def __init__(self, server: HttpServer, name: str) -> None:
        """``name`` is that of the thread."""
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: Future[None] = Future()
        self._ending = asyncio.Event()
        self._listening: Sequence[socket.socket] = ()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, listening: Sequence[socket.socket]) -> Self:
        """Serve on sockets that listen; they are closed with the server, and if it cannot start.

        Raises what kept the server from starting, and TimeoutError.
        """
        self._listening = listening
        self._thread.start()
        try:
            self._started.result(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the server, its connections, its loop and its thread. Once it has ended, or never began, do nothing.

        Raises TimeoutError if an answer under way holds the thread.
        """
        if self._loop is None:
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(self._server.end_timeout_s + START_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the HTTP server {self._thread.name} has not ended: an answer holds its thread")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.start(self._listening)
        self._started.set_result(None)
        await self._ending.wait()
        await self._server.close()
