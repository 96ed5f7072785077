"""Threads that no exit waits for: what they do, when they end, and that a process ends beside them."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait

import pytest

from tests.support.local.waiting import eventually
from transport.waiting.daemon_threads import DaemonThreads
from transport.waiting.deadline import Deadline

WAIT_S = 30.0


@pytest.fixture
def go() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


def hang(pool: DaemonThreads, go: threading.Event, count: int = 1) -> list[Future[bool]]:
    """Keep threads busy until ``go``."""
    futures = [pool.submit(go.wait, WAIT_S) for _ in range(count)]
    eventually(lambda: sum(one.running() for one in futures) == min(count, len(pool._threads)))
    return futures


def test_work_is_done_by_as_many_threads_as_it_needs(go: threading.Event) -> None:
    pool = DaemonThreads(3, "name")
    for number in range(20):
        assert pool.submit(divmod, number, 7).result(WAIT_S) == divmod(number, 7)
    futures = hang(pool, go, 5)
    assert sorted(thread.name for thread in pool._threads) == ["name_0", "name_1", "name_2"]
    assert all(thread.daemon for thread in pool._threads)
    go.set()
    assert wait(futures, WAIT_S).not_done == set()
    pool.shutdown()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_an_error_is_that_of_its_work_alone() -> None:
    pool = DaemonThreads(1, "name")
    failed = pool.submit(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(WAIT_S)
    ended = pool.submit(sys.exit, 3)
    assert isinstance(ended.exception(WAIT_S), SystemExit)
    assert pool.submit(int, "7").result(WAIT_S) == 7
    assert len(pool._threads) == 1
    pool.shutdown()


def test_work_that_is_cancelled_before_its_turn_is_not_done(go: threading.Event) -> None:
    pool = DaemonThreads(1, "name")
    hang(pool, go)
    done: list[int] = []
    first, second = pool.submit(done.append, 1), pool.submit(done.append, 2)
    assert first.cancel()
    go.set()
    second.result(WAIT_S)
    assert done == [2]
    pool.shutdown()


@pytest.mark.parametrize("cancels", [False, True])
def test_after_the_shutdown_what_waits_is_done_or_cancelled_and_nothing_is_taken(
    go: threading.Event, *, cancels: bool
) -> None:
    pool = DaemonThreads(2, "name")
    busy = hang(pool, go, 2)
    waiting = pool.submit(int, "7")
    pool.shutdown(wait=False, cancel_futures=cancels)
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after the shutdown of name"):
        pool.submit(int, "8")
    assert not pool.wait(Deadline.after_ms(1)), "what is under way goes on"
    go.set()
    assert pool.wait(Deadline.after_s(WAIT_S))
    assert all(one.result(0) for one in busy)
    if cancels:
        with pytest.raises(CancelledError):
            waiting.result(0)
    else:
        assert waiting.result(0) == 7


def test_the_threads_of_a_pool_that_is_dropped_end() -> None:
    pool = DaemonThreads(2, "name")
    pool.submit(int, "7").result(WAIT_S)
    threads = list(pool._threads)
    del pool
    gc.collect()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_without_a_thread_no_work_is_taken(monkeypatch: pytest.MonkeyPatch, go: threading.Event) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = DaemonThreads(2, "name")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit(int, "7")
    assert pool._jobs.empty()
    hang(pool, go)
    monkeypatch.setattr(threading.Thread, "start", none)
    waiting = pool.submit(int, "7")
    go.set()
    assert waiting.result(WAIT_S) == 7, "those that are there do it"
    pool.shutdown()


EXITS: dict[str, str] = {
    "threads": """
        from transport.waiting.daemon_threads import DaemonThreads
        begun = threading.Event()
        DaemonThreads(1, "name").submit(lambda: (begun.set(), threading.Event().wait()))
        begun.wait()
    """,
    "commits": """
        from producers.blocks.background_commits import BackgroundCommits
        from producers.blocks.stream_options import StreamOptions
        from tests.unit.producers.blocks.test_background_commits import PACKET, World
        world = World(2)
        world.played.go.clear()
        world.played.go.wait = lambda _: threading.Event().wait()
        assert world.commits.begin_due()
    """,
}


@pytest.mark.parametrize("program", EXITS.values(), ids=EXITS)
def test_the_end_of_a_process_waits_for_none_of_them(program: str) -> None:
    """A block's commit that did not end kept a process for half a minute."""
    script = "import threading\n" + textwrap.dedent(program)
    ended = subprocess.run([sys.executable, "-c", script], timeout=2 * WAIT_S, check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
