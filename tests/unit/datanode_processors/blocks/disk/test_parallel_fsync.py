"""Many files stored at once: by the kernel's own threads, or by threads of the process; the outcomes are the same."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from datanode_processors.blocks.disk import parallel_fsync
from datanode_processors.blocks.disk.parallel_fsync import CONTEXT_FILES, MAX_CONTEXTS, ParallelFsync

CLOSED = 1_000_000
"""A descriptor that nobody has."""
Call = Callable[..., int]
Make = Callable[[int], list[int]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make files with some bytes that are not stored yet."""
    made: list[int] = []

    def files(count: int) -> list[int]:
        new = [os.open(tmp_path / f"{len(made) + number}", os.O_CREAT | os.O_RDWR) for number in range(count)]
        made.extend(new)
        for descriptor in new:
            os.write(descriptor, b"bytes")
        return new

    yield files
    for descriptor in made:
        os.close(descriptor)


@pytest.fixture
def fsync() -> Iterator[ParallelFsync]:
    fsync = ParallelFsync()
    yield fsync
    fsync.close()


@pytest.fixture
def kernel(fsync: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch) -> ParallelFsync:
    """Where the kernel does all: whoever calls fdatasync(2) fails."""
    fsync.files(make(2))
    if not fsync._contexts._made:
        pytest.skip("this kernel, or a sandbox, does not take fsyncs by io_submit")

    def forbidden(_: int) -> None:
        raise AssertionError("the kernel should do this")

    monkeypatch.setattr(os, "fdatasync", forbidden)
    return fsync


@pytest.fixture(params=["kernel", "threads"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ParallelFsync]:
    if request.param == "threads":
        monkeypatch.setattr(parallel_fsync, "_CALLS", {})
    fsync = ParallelFsync()
    yield fsync
    fsync.close()


def calling(monkeypatch: pytest.MonkeyPatch, **changed: Callable[[Call], int]) -> list[str]:
    """Change system calls: each is given the real one, bound to its arguments. Return the names of calls as they come."""
    real = parallel_fsync._Context._call
    names: list[str] = []

    def call(self: parallel_fsync._Context, name: str, *arguments: object) -> int:
        names.append(name)
        change = changed.get(name)
        if change is None:
            return real(self, name, *arguments)
        return change(lambda *other: real(self, name, *(other or arguments)))

    monkeypatch.setattr(parallel_fsync._Context, "_call", call)
    return names


def failing(code: int) -> Callable[[Call], int]:
    def fail(_: Call) -> int:
        ctypes.set_errno(code)
        return -1

    return fail


def codes_of(outcomes: list[OSError | None]) -> list[int | None]:
    return [None if outcome is None else outcome.errno for outcome in outcomes]


# ------------------------------------------------------------------------------------------------------ either way


@pytest.mark.parametrize("count", [0, 1, 2, 17, CONTEXT_FILES, CONTEXT_FILES + 1, 2 * CONTEXT_FILES + 3])
def test_every_file_is_stored(either: ParallelFsync, make: Make, count: int) -> None:
    assert either.files(make(count)) == [None] * count


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_fails_for_one_file_fails_for_no_other(either: ParallelFsync, make: Make, place: int) -> None:
    descriptors = make(2)
    descriptors.insert(place, CLOSED)
    expected: list[int | None] = [None, None]
    expected.insert(place, errno.EBADF)
    assert codes_of(either.files(descriptors)) == expected
    assert either.files(make(3)) == [None] * 3


def test_a_pipe_cannot_be_stored(either: ParallelFsync, make: Make) -> None:
    reading, writing = os.pipe()
    try:
        assert codes_of(either.files([*make(1), writing, *make(1)])) == [None, errno.EINVAL, None]
    finally:
        os.close(reading)
        os.close(writing)


def test_one_file_may_come_twice(either: ParallelFsync, make: Make) -> None:
    (descriptor,) = make(1)
    assert either.files([descriptor, descriptor]) == [None, None]


def test_many_callers_at_once(either: ParallelFsync, make: Make) -> None:
    files = [make(5) for _ in range(2 * MAX_CONTEXTS)]
    begin = threading.Barrier(len(files))

    def store(descriptors: list[int]) -> list[OSError | None]:
        begin.wait(30)
        return either.files([*descriptors, CLOSED])

    with ThreadPoolExecutor(len(files)) as callers:
        for outcomes in callers.map(store, files):
            assert codes_of(outcomes) == [None] * 5 + [errno.EBADF]
    assert either._contexts._made <= MAX_CONTEXTS


def test_files_are_stored_after_the_end_too(either: ParallelFsync, make: Make) -> None:
    either.files(make(2))
    either.close()
    either.close()
    assert either.files(make(3)) == [None] * 3


# ---------------------------------------------------------------------------------------------------- by the kernel


def test_no_thread_wakes_for_what_the_kernel_does(kernel: ParallelFsync, make: Make) -> None:
    assert kernel.files(make(CONTEXT_FILES)) == [None] * CONTEXT_FILES
    assert not kernel._threads._threads


def test_a_file_alone_is_fsynced_as_ever(fsync: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    names = calling(monkeypatch)
    assert fsync.files(make(1)) == [None]
    assert names == []


def test_a_context_is_used_again_and_given_back_in_the_end(
    kernel: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = calling(monkeypatch)
    for _ in range(3):
        kernel.files(make(2))
    assert names == ["io_submit", "io_getevents"] * 3
    kernel.close()
    assert names[-1:] == ["io_destroy"]


@pytest.mark.parametrize("when", ["io_setup", "io_submit"])
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_sandbox_that_forbids_it_is_asked_once(
    fsync: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch, when: str, code: int
) -> None:
    names = calling(monkeypatch, **{when: failing(code)})
    for _ in range(3):
        assert fsync.files(make(4)) == [None] * 4
    assert names.count(when) == 1


def test_a_system_without_room_for_another_context_is_asked_again(
    fsync: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calling(patch, io_setup=failing(errno.EAGAIN))
        assert fsync.files(make(4)) == [None] * 4
        assert not fsync._contexts._made
    names = calling(monkeypatch)
    assert fsync.files(make(4)) == [None] * 4
    assert names[0] == "io_setup"


def test_what_the_kernel_did_not_take_goes_to_threads(
    fsync: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync.files(make(2))
    (context,) = fsync._contexts._idle or pytest.skip("the kernel does not do this")
    with monkeypatch.context() as patch:
        one = ctypes.c_long(1)
        names = calling(patch, io_submit=lambda real: real(context._context, one, context._addresses))
        assert codes_of(fsync.files([*make(3), CLOSED])) == [None] * 3 + [errno.EBADF]
        assert names.count("io_submit") == 3, "each time one; the last file alone is no business of the kernel's"


def test_a_wait_that_is_interrupted_goes_on(kernel: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = [errno.EINTR, errno.EINTR]
    calling(monkeypatch, io_getevents=lambda real: failing(interrupted.pop())(real) if interrupted else real())
    assert kernel.files(make(5)) == [None] * 5
    assert not interrupted


def test_an_error_of_the_disk_is_that_files(kernel: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (context,) = kernel._contexts._idle

    def fails(real: Call) -> int:
        come = real()
        for event in range(come):
            number, address, _, more = parallel_fsync._EVENT.unpack_from(context._events, 32 * event)
            if number == 1:
                parallel_fsync._EVENT.pack_into(context._events, 32 * event, number, address, -errno.EIO, more)
        return come

    calling(monkeypatch, io_getevents=fails)
    assert codes_of(kernel.files(make(3))) == [None, errno.EIO, None]


def test_files_whose_end_is_not_known_are_not_stored(
    kernel: ParallelFsync, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        names = calling(patch, io_getevents=failing(errno.EFAULT))
        assert codes_of(kernel.files(make(3))) == [errno.EFAULT] * 3
        assert names[-1] == "io_destroy", "nobody uses that context again"
    names = calling(monkeypatch)
    assert kernel.files(make(3)) == [None] * 3
    assert names[0] == "io_setup"
