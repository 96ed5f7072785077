"""How a process ends at once, or without its worker, and how it tunes its memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import process
from replicated_db.shell.process import EXIT_FATAL

ROOT = Path(__file__).parents[4]
HANGING = """
import threading
from replicated_db.shell import process

process.STOP_WAIT_S = 0.1
process.end_soon(lambda: print("closed", flush=True))
threading.Event().wait()
"""
STOPPING = """
from replicated_db.shell import process

process.STOP_WAIT_S = 60.0
process.end_soon(lambda: print("closed", flush=True)).cancel()
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def test_it_ends_without_a_worker_that_hangs_once_everything_is_closed():
    assert output_of(HANGING) == "closed\n"


def test_a_worker_that_stops_ends_it_by_itself():
    assert output_of(STOPPING) == ""


# -- how it ends at once ----------------------------------------------------------------------------------------------

FATAL = """
import logging, sys
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import process

logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
{before}
process.fatal({error})
print("it goes on")
"""


@pytest.mark.parametrize(
    ("error", "first"),
    [
        ("StopProcess('the log is broken')", "CRITICAL stop: the log is broken"),
        ("LogUnavailable('no broker')", "CRITICAL stop: no broker"),
        ("KeyError('k')", "CRITICAL defect: KeyError('k')"),
    ],
)
def test_an_error_ends_it_and_says_whether_it_is_a_defect(error: str, first: str):
    status, output = ended(FATAL.format(before="", error=error))
    assert status == EXIT_FATAL
    assert output.splitlines()[0] == first
    assert ("KeyError: 'k'" in output) is first.startswith("CRITICAL defect"), "a defect comes with its traceback"


def test_an_error_while_the_stores_close_ends_nothing():
    status, output = ended(FATAL.format(before="process.closing()", error="StopProcess('the store is closed')"))
    assert (status, output) == (0, "WARNING while closing: the store is closed\nit goes on\n")


def ended(program: str) -> tuple[int, str]:
    """Run a program; return its exit status and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_the_collector_is_calm_and_leaves_out_what_exists():
    program = """
import gc
from replicated_db.shell import process

process.calm_collector()
print(gc.get_threshold() == process.COLLECTOR_THRESHOLDS, gc.get_freeze_count() > 1000)
"""
    assert output_of(program) == "True True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_freed_memory_is_kept():
    program = """
import resource
from replicated_db.shell import process

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytearray(4 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

process.keep_freed_memory()
faults()
print(faults() < 5_000)
"""
    assert output_of(program) == "True\n"


# -- the same in this process, where its end is noted instead ----------------------------------------------------------


class Ended(BaseException):
    """The process would have ended here."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens at the end of the process, in order."""
    found: list[str] = []

    def leave(status: int) -> None:
        found.append(f"exit {status}")
        raise Ended

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("logging.shutdown", lambda: found.append("log is written"))
    monkeypatch.setattr(process, "_closing", threading.Event())
    return found


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StopProcess("the log is broken"), "stop: the log is broken"), (LogUnavailable("no broker"), "stop: no broker"),
        (KeyError("k"), "defect: KeyError('k')"),
    ],
)  # fmt: skip
def test_an_error_is_in_the_log_before_the_process_ends(
    ends: list[str], caplog: pytest.LogCaptureFixture, error: Exception, said: str
):
    with pytest.raises(Ended):
        process.fatal(error)
    assert ends == ["log is written", "exit 70"]
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("CRITICAL", said)
    assert (record.exc_info is not None) is said.startswith("defect"), "a defect comes with its traceback"


def test_once_the_stores_are_being_closed_errors_end_nothing(ends: list[str], caplog: pytest.LogCaptureFixture):
    process.closing()
    process.fatal(StopProcess("the store is closed"))
    assert ends == []
    assert [record.getMessage() for record in caplog.records] == ["while closing: the store is closed"]
    assert caplog.records[0].levelname == "WARNING"


def test_the_stores_are_closed_before_the_process_ends_without_its_worker(
    ends: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    assert process.STOP_WAIT_S == 10.0
    timer = process.end_soon(lambda: ends.append("closed"))
    assert timer.daemon, "it keeps no process alive that ends by itself"
    assert timer.is_alive()
    assert timer.interval == process.STOP_WAIT_S
    timer.cancel()
    with pytest.raises(Ended):
        timer.function()
    assert ends == ["closed", "log is written", "exit 0"]
    assert caplog.messages == ["the worker has not stopped in 10 s: the process ends without it"]


def test_full_collections_are_rare():
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        process.calm_collector()
        assert gc.get_threshold() == process.COLLECTOR_THRESHOLDS
        assert gc.get_freeze_count() > frozen + 1000
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def test_what_is_garbage_is_collected_before_the_rest_is_left_out_for_good():
    class Node:
        """Part of a cycle."""

    thresholds, node = gc.get_threshold(), Node()
    node.self = node  # type: ignore[attr-defined]
    seen = weakref.ref(node)
    gc.disable()
    try:
        del node
        process.calm_collector()
        assert seen() is None
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()


def test_the_allocator_is_told_what_to_keep(monkeypatch: pytest.MonkeyPatch):
    """By the numbers of glibc's malloc.h: M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD."""
    told: dict[int, int] = {}
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=told.__setitem__))
    process.keep_freed_memory()
    assert told == {-8: process.ARENAS, -3: 32 * 1024 * 1024, -1: process.KEPT_BYTES}
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace())
    process.keep_freed_memory()  # another C library has no such function
