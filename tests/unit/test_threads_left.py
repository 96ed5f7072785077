"""Who begins threads ends them: what is left when a module's tests and fixtures are over is found and named."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.local.threads import TIMER, described, threads_left

ROOT = Path(__file__).parents[2]
LONG_S = 30.0

Begin = Callable[[threading.Thread], threading.Thread]


class Busy(threading.Thread):
    """Says in its class what it runs."""

    def __init__(self, end: threading.Event) -> None:
        super().__init__(name="busy", daemon=True)
        self._end = end

    def run(self) -> None:
        self._end.wait(LONG_S)


@pytest.fixture
def before() -> list[threading.Thread]:
    return threading.enumerate()


@pytest.fixture
def end() -> threading.Event:
    return threading.Event()


@pytest.fixture
def begin(end: threading.Event) -> Iterator[Begin]:
    """Begins threads that run until ``end`` is set, at the latest when the test is over."""
    begun: list[threading.Thread] = []

    def start(thread: threading.Thread) -> threading.Thread:
        thread.start()
        begun.append(thread)
        return thread

    yield start
    end.set()
    for thread in begun:
        if isinstance(thread, threading.Timer):
            thread.cancel()
        thread.join(LONG_S)


def test_a_thread_that_runs_is_named_until_it_has_ended(
    before: list[threading.Thread], begin: Begin, end: threading.Event
) -> None:
    thread = begin(threading.Thread(target=end.wait, args=(LONG_S,), name="mine"))
    assert threads_left(before, 0) == [thread]
    assert described(thread) == "mine: threading.Event.wait"
    assert threads_left(threading.enumerate(), 0) == [], "it is not of those who come later"
    end.set()
    thread.join(LONG_S)
    assert threads_left(before, 0) == []


def test_threads_are_waited_for(before: list[threading.Thread], begin: Begin, end: threading.Event) -> None:
    begin(threading.Thread(target=end.wait, args=(LONG_S,)))
    begin(threading.Timer(0.05, end.set))
    assert threads_left(before, LONG_S) == []


def test_whatever_a_thread_runs_is_told(begin: Begin, end: threading.Event) -> None:
    assert described(begin(Busy(end))) == f"busy: {__name__}.Busy"
    assert described(begin(threading.Thread(target=partial(partial(end.wait), LONG_S), name="n"))) == (
        "n: threading.Event.wait"
    )
    assert described(begin(threading.Timer(LONG_S, end.set))).endswith(": threading.Event.set")
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(end.is_set).result(LONG_S)
        (worker,) = pool._threads
        assert described(worker) == "pool_0: concurrent.futures.thread._worker"


@pytest.mark.parametrize(
    "module", ["py4j.clientserver", "pyspark.accumulators", "execnet.gateway_base", "xdist.remote"]
)
def test_threads_that_last_as_long_as_the_process_are_let_be(
    before: list[threading.Thread], begin: Begin, end: threading.Event, module: str
) -> None:
    shared = type("Shared", (Busy,), {"__module__": module})
    server = type("Server", (), {"__module__": module, "serve": lambda self: end.wait(LONG_S)})()
    begin(shared(end))
    begin(threading.Thread(target=server.serve))
    assert threads_left(before, 0) == []
    other = begin(type("Other", (Busy,), {"__module__": f"not{module}"})(end))
    assert threads_left(before, 0) == [other]


def test_the_timer_of_a_test_is_let_be(before: list[threading.Thread], begin: Begin, end: threading.Event) -> None:
    begin(threading.Thread(target=end.wait, args=(LONG_S,), name=f"{TIMER} tests/unit/test_x.py::test_y"))
    assert threads_left(before, 0) == []


def test_a_thread_of_c_code_that_has_called_back_is_let_be(
    before: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = object.__new__(threading._DummyThread)
    foreign.__dict__.update(_name="Dummy-1")
    found = SimpleNamespace(enumerate=lambda: [*before, foreign], _DummyThread=threading._DummyThread)
    monkeypatch.setattr("tests.support.local.threads.threading", found)
    assert threads_left(before, 0) == []


LEAVES = """
import threading
import pytest
import tests.conftest

tests.conftest.THREADS_END_S = 0.2


@pytest.fixture(scope="module", autouse=True)
def ended():
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="of-a-fixture")
    thread.start()
    yield
    end.set()
    thread.join()


def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()


def test_is_the_last_one():
    pass
"""


def test_a_module_that_leaves_a_thread_fails_at_its_end_and_the_next_one_does_not(tmp_path: Path) -> None:
    """The guard looks when the module's own fixtures have ended."""
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    (tmp_path / "test_next.py").write_text("def test_next():\n    pass\n")
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest",
            "-p", "no:cacheprovider", "-q", str(tmp_path),
        ],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    said = ran.stdout
    assert "3 passed, 1 error" in said, said + ran.stderr
    assert "ERROR at teardown of test_is_the_last_one" in said
    assert "threads that the module began still run: left: threading.Event.wait\n" in said
    assert "of-a-fixture" not in said
