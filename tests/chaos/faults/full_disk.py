"""The disk of a replica is full: its data directory is a small tmpfs, filled to the last byte while it applies (by turns the leader and
a follower).

What must hold: the node stops with an error that says so, instead of going on without what it could not write; the others go on. Once there
is space again it starts, goes on from the position in its store, and is equal to the others.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.campaign import Chaos, Fault
from tests.chaos.damage import LogMark, wait_stopped
from tests.support.local.stack import TestStack

VICTIM = "om1"
DISK_BYTES = 384 * 1024 * 1024
BALLAST = "ballast"
CHUNK_BYTES = 1024 * 1024


def inject(chaos: Chaos, round_number: int) -> None:
    stack = chaos.stack
    _let_lead(chaos, wanted=round_number % 2 == 0)
    mark = LogMark(chaos, VICTIM)
    ballast = _disk(stack) / BALLAST
    with chaos.burst():
        _fill(ballast)
        said = wait_stopped(chaos, VICTIM, mark)
    assert "No space left on device" in said, said
    chaos.wait_progress()
    ballast.unlink()
    stack.start_node(VICTIM)
    chaos.wait_caught_up(VICTIM)
    chaos.wait_progress()


def _let_lead(chaos: Chaos, *, wanted: bool) -> None:
    """Make the node whose disk will be full the leader, or not: whoever leads wrongly is stopped and started."""
    for _ in range(8):
        leader = chaos.wait_leader()
        if (leader == VICTIM) is wanted:
            return
        chaos.stack.stop_node(leader)
        chaos.wait_leader(other_than=leader)
        chaos.stack.start_node(leader)
        chaos.wait_caught_up(leader)


def _fill(path: Path) -> None:
    """Write until there is no byte left. (RocksDB has reserved some for its WAL, and uses that up first: hence the burst.)"""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(CHUNK_BYTES))
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1))


def _disk(stack: TestStack) -> Path:
    return stack.settings.node_folder(VICTIM)


@contextmanager
def small_disk(stack: TestStack) -> Iterator[None]:
    """Mount a small tmpfs where the victim keeps its data."""
    disk = _disk(stack)
    disk.mkdir(parents=True)
    _mount(disk, DISK_BYTES)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


def _mount(folder: Path, size_bytes: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)


@cache
def why_not() -> str:
    """Try it out: return why nothing can be mounted here, empty if it can."""
    if os.geteuid() != 0:
        return "a small file system cannot be mounted here: root is needed"
    with TemporaryDirectory() as folder:
        try:
            _mount(Path(folder), CHUNK_BYTES)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"a small file system cannot be mounted here: {getattr(error, 'stderr', '') or error}"
        subprocess.run(["umount", folder], check=True)
    return ""


FAULT = Fault(
    name="full-disk",
    inject=inject,
    surroundings=small_disk,
    why_not=why_not,
)
