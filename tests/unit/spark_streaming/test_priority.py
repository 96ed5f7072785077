"""The audit's processes give way to those that serve requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHOWS = "import os, subprocess, sys; from spark_streaming.jobs.priority import lower_priority; lower_priority({}); "
SAYS = (
    "print(os.getpriority(os.PRIO_PROCESS, 0), subprocess.run(['nice'], capture_output=True, text=True).stdout.strip())"
)


def said(nice: int, *, begun_at: int = 0, own_session: bool = False) -> list[int]:
    """Return the niceness of a process that lowers its priority, and that of its child."""
    command = ["nice", "-n", str(begun_at), sys.executable, "-c", SHOWS.format(nice) + SAYS]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60, start_new_session=own_session
    )
    return [int(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def own() -> int:
    """The niceness that the tests have."""
    (found, _) = said(0)
    return found


@pytest.mark.parametrize("own_session", [False, True])
def test_a_process_and_its_children_are_nice(own_session: bool, own: int):
    assert said(19, own_session=own_session) == [19, 19]
    assert said(0, own_session=own_session) == [own, own]


def test_what_is_nicer_already_stays_so():
    """Only a superuser may take niceness back."""
    assert said(3, begun_at=19) == [19, 19]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroups")
def test_the_session_is_nice_too_if_it_is_the_audits_own():
    shows = SHOWS.format(7) + "print(open('/proc/self/autogroup').read().split()[-1])"
    done = subprocess.run(
        [sys.executable, "-c", shows], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
        start_new_session=True,
    )  # fmt: skip
    assert done.stdout.split() == ["7"]
