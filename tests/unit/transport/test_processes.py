"""What forked processes begin anew: real forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from tests.support.local.forked import in_child
from transport.processes import begins_anew_in_forks, this_process


class Counting:
    """Counts how often it began anew, and may fail to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun = 0
        self.fails = fails
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        self.begun += 1
        if self.fails:
            raise OSError("as if")


def test_an_object_begins_anew_in_each_process_that_is_forked_and_not_in_the_first() -> None:
    one = Counting()
    assert in_child(lambda: one.begun == 1 and in_child(lambda: one.begun == 2))
    assert one.begun == 0


def test_one_that_fails_is_told_and_the_others_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    before, failing, after = Counting(), Counting(fails=True), Counting()
    assert in_child(
        lambda: (before.begun, failing.begun, after.begun) == (1, 1, 1) and "a Counting does not" in caplog.text
    )


def test_an_object_that_is_gone_is_forgotten() -> None:
    looked: list[int] = []

    class Telling(Counting):
        def begin_anew(self) -> None:
            looked.append(1)

    one: Telling | None = Telling()
    one = None  # noqa: F841 - gone
    gc.collect()
    assert in_child(lambda: not looked)


def test_the_number_of_the_process_follows_a_fork() -> None:
    first = os.getpid()
    assert this_process() == first
    assert in_child(lambda: this_process() == os.getpid() != first)


FORKS = """
import os, sys, gc
sys.path.insert(0, ".")
from confluent_kafka import Consumer, Producer
from transport.processes import keep_for_ever
settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
held = [Producer(settings), Consumer({**settings, "group.id": "g"})]
if os.fork() == 0:
    keep_for_ever(tuple(held))
    held.clear()
    gc.collect()
    own = Producer(settings)
    own.produce("t", b"value")
    own.purge()
    own.flush(1)
    sys.exit(3)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_clients_of_librdkafka_that_are_kept_let_a_forked_process_go_on_and_end() -> None:
    """Freed there, they end the process by SIGSEGV, or wait for threads that it does not have."""
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60, check=False).returncode == 3
