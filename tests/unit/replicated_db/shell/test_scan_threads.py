"""Scans for those who ask over HTTP: apart from the event loop and its executor, bounded, and each closes its snapshot."""

from __future__ import annotations

import asyncio
import threading

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


def test_scans_leave_the_event_loop_and_its_executor_alone():
    async def main() -> None:
        scans = ScanThreads("scan", 4)
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


def test_a_snapshot_is_not_closed_under_a_scan_whose_asker_has_gone():
    async def main() -> None:
        scans = ScanThreads("scan", 1)
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


def test_a_scan_that_fails_tells_who_asked_and_closes():
    def fails(_: Held) -> int:
        raise OSError("the disk")

    async def main() -> None:
        scans, held = ScanThreads("scan", 1), Held()
        for _ in range(3):
            with pytest.raises(OSError, match="the disk"):
                await scans.run(held, fails)
            await asyncio.sleep(0)
        assert held.closed.is_set()

    asyncio.run(main())
