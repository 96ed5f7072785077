"""Scans for those who ask over HTTP: apart from the event loop and its executor, bounded, and each closes its snapshot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from replicated_db.shell.web.scan_threads import THREADS, ScansBusy, ScanThreads

WAIT_S = 20.0


class Held:
    """A snapshot whose scan waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.closed = threading.Event()
        self.begun = threading.Event()
        self.thread = ""

    def close(self) -> None:
        self.closed.set()


def scan(held: Held) -> int:
    held.thread = threading.current_thread().name
    held.begun.set()
    held.go.wait(WAIT_S)
    assert not held.closed.is_set(), "while it is read"
    return 7


Make = Callable[[int], ScanThreads]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes scan threads with a limit."""
    with ExitStack() as made:

        def begin(limit: int) -> ScanThreads:
            scans = ScanThreads("scan", limit)
            made.callback(scans.close)
            return scans

        yield begin


def test_scans_leave_the_event_loop_and_its_executor_alone(make: Make):
    async def main() -> None:
        scans = make(4)
        helds = [Held() for _ in range(4)]
        jobs = [asyncio.create_task(scans.run(held, scan)) for held in helds]
        await asyncio.sleep(0)
        assert await asyncio.get_running_loop().run_in_executor(None, lambda: 3) == 3
        refused = Held()
        with pytest.raises(ScansBusy, match="4 scans run or wait here"):
            await scans.run(refused, scan)
        assert refused.closed.is_set()
        for held in helds:
            held.go.set()
        assert await asyncio.gather(*jobs) == [7] * 4
        assert all(held.closed.is_set() for held in helds)
        assert len({held.thread for held in helds}) <= THREADS
        again = Held()
        again.go.set()
        assert await scans.run(again, scan) == 7, "there is room again"

    asyncio.run(main())


def test_a_snapshot_is_not_closed_under_a_scan_whose_asker_has_gone(make: Make):
    async def main() -> None:
        scans = make(1)
        held = Held()
        job = asyncio.create_task(scans.run(held, scan))
        assert await asyncio.get_running_loop().run_in_executor(None, held.begun.wait, WAIT_S)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        with pytest.raises(ScansBusy):
            await scans.run(Held(), scan)
        held.go.set()
        assert held.closed.wait(WAIT_S)

    asyncio.run(main())


def test_a_scan_that_fails_tells_who_asked_and_closes(make: Make):
    def fails(_: Held) -> int:
        raise OSError("the disk")

    async def main() -> None:
        scans, held = make(1), Held()
        for _ in range(3):
            with pytest.raises(OSError, match="the disk"):
                await scans.run(held, fails)
            await asyncio.sleep(0)
        assert held.closed.is_set()

    asyncio.run(main())


def test_threads_end_behind_the_scans_that_run_and_wait_and_further_ones_are_refused(make: Make):
    async def main() -> None:
        scans = make(8)
        helds = [Held() for _ in range(THREADS + 2)]
        jobs = [asyncio.create_task(scans.run(held, scan)) for held in helds]
        for held in helds[:THREADS]:
            assert await asyncio.to_thread(held.begun.wait, WAIT_S)
        running = [thread for thread in threading.enumerate() if thread.name.startswith("scan_")]
        assert len(running) == THREADS
        scans.close()
        late = Held()
        with pytest.raises(ScansBusy, match="no scan begins here any more"):
            await scans.run(late, scan)
        assert late.closed.is_set()
        for held in helds:
            held.go.set()
        assert await asyncio.gather(*jobs) == [7] * len(helds)
        assert all(held.closed.is_set() for held in helds)
        for thread in running:
            await asyncio.to_thread(thread.join, WAIT_S)
            assert not thread.is_alive()

    asyncio.run(main())
