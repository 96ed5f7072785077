"""How a process ends whose worker does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
