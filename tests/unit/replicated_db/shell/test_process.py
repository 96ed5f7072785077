"""How a process ends at once, or without its worker, and how it tunes its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
