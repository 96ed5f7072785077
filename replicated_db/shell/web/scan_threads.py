"""Threads on which a process reads much of a store for an HTTP request.

Rules:
    - Scans run neither on the event loop, which would stand still, nor on its executor, on which followers fill gaps
      and nodes hand over.
    - THREADS scans of a kind run at once. More may wait, up to the kind's limit of running and waiting scans. A further
      scan is refused with :class:`ScansBusy`.
    - The thread that reads a snapshot closes it. The asker may be gone by then: a scan that has begun runs to its end.
    - Who makes the threads closes them. A scan that waits then still runs, for its snapshot must be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

THREADS = 2
MAX_SCANS = 16
"""Most scans of whole tables that run or wait. Each holds a snapshot, which keeps old files."""


class Closable(Protocol):
    """A snapshot."""

    def close(self) -> None:
        """Release the snapshot."""
        ...


Snapshot = TypeVar("Snapshot", bound=Closable)
Found = TypeVar("Found")


class ScansBusy(Exception):
    """The limit of scans is reached, or the process ends; ask again."""


class ScanThreads:
    """Scan threads of one event loop."""

    def __init__(self, name: str, limit: int) -> None:
        """``limit`` is how many scans may run or wait; ``name`` says which kind of scan they are."""
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix=name)
        self._name = name
        self._limit = limit
        self._asked = 0
        self._closed = False

    async def run(self, snapshot: Snapshot, scan: Callable[[Snapshot], Found]) -> Found:
        """Scan a snapshot on a thread, and close it in any case. Raises ScansBusy, and what ``scan`` raises."""
        if self._closed:
            snapshot.close()
            raise ScansBusy(f"no {self._name} begins here any more: ask another node")
        if self._asked >= self._limit:
            snapshot.close()
            raise ScansBusy(f"{self._asked} {self._name}s run or wait here, as many as are taken: ask again")

        def scanned() -> Found:
            try:
                return scan(snapshot)
            finally:
                snapshot.close()

        self._asked += 1
        job = asyncio.get_running_loop().run_in_executor(self._threads, scanned)
        job.add_done_callback(self._ended)
        return await asyncio.shield(job)

    def close(self) -> None:
        """Let the threads end behind the scans that run and wait; refuse further ones."""
        self._closed = True
        self._threads.shutdown(wait=False)

    def _ended(self, job: asyncio.Future[Found]) -> None:
        self._asked -= 1
        if not job.cancelled():
            job.exception()  # take it: the asker may be gone, and nobody else would
