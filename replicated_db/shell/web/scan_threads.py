"""Threads on which a process reads much of a store for somebody who asked over HTTP.

Rules:
    - They are apart from the event loop, which would stand still, and from its executor, on which followers fill gaps and nodes hand over.
    - THREADS of a kind run at once, and so many more wait as its limit says; a further one is refused with :class:`ScansBusy`.
    - The thread that reads a snapshot closes it. Whoever asked may be gone by then: what has begun is read to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

THREADS = 2
MAX_SCANS = 16
"""Scans of whole tables that run or wait, each with a snapshot that keeps old files."""


class Closable(Protocol):
    """A snapshot."""

    def close(self) -> None:
        """Let go of it."""
        ...


Snapshot = TypeVar("Snapshot", bound=Closable)
Found = TypeVar("Found")


class ScansBusy(Exception):
    """As many scans are asked for as are taken; to be asked again."""


class ScanThreads:
    """For one event loop."""

    def __init__(self, name: str, limit: int) -> None:
        """``limit`` is how many may run or wait; ``name`` says of what."""
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix=name)
        self._name = name
        self._limit = limit
        self._asked = 0

    async def run(self, snapshot: Snapshot, scan: Callable[[Snapshot], Found]) -> Found:
        """Scan a snapshot on a thread, and close it whatever happens; raises ScansBusy, and what ``scan`` raises."""
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

    def _ended(self, job: asyncio.Future[Found]) -> None:
        self._asked -= 1
        if not job.cancelled():
            job.exception()  # nobody may be left to hear of it
