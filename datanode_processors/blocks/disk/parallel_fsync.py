"""Has the kernel store many files at the same time.

The kernel stores files whose fsyncs overlap with one commit of its journal (decision 0067). The rules:

1. Linux takes any number of them in one system call (io_submit(2), IOCB_CMD_FDSYNC) and carries them out with threads
   of its own. So the caller's thread makes two calls, and no other thread of this process wakes up: sixteen threads
   that each wait for the interpreter's lock, before and after a file's fsync, cost more than the fsyncs (decision
   0089).
2. What the kernel does not take so is fsynced by FSYNC_THREADS threads: all of it on other systems, and where a sandbox
   forbids these calls; whatever is beyond MAX_CONTEXTS callers at once.
3. A file counts as stored when its own fsync has ended well, whichever way it went. An error is reported to one fsync of
   a descriptor, so none is repeated for a second opinion.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

FSYNC_THREADS = 16
"""Files of one store that are fsynced at once by threads, beside one by the thread of each caller."""
MAX_CONTEXTS = 16
"""Callers whose files the kernel fsyncs at once; it keeps a ring of events for each."""
CONTEXT_FILES = 64
"""Files of one caller that the kernel takes at once."""

_FDSYNC = 3
"""IOCB_CMD_FDSYNC of linux/aio_abi.h."""
_IOCB = struct.Struct("=QIIHhIQQqQII")
"""struct iocb: data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved, flags, eventfd."""
_EVENT = struct.Struct("=QQqq")
"""struct io_event: data, address of the iocb, result, second result."""
_CALLS = {
    "x86_64": {"io_setup": 206, "io_destroy": 207, "io_getevents": 208, "io_submit": 209},
    "aarch64": {"io_setup": 0, "io_destroy": 1, "io_submit": 2, "io_getevents": 4},
}
"""Numbers of the system calls; libc has no functions for them."""
_FORBIDDEN = (errno.ENOSYS, errno.EPERM)
"""What a kernel without these calls, or a sandbox, answers. EINVAL may be about one file alone."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class ParallelFsync:
    """Fsyncs files at the same time; for many threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(FSYNC_THREADS, thread_name_prefix="fsync")
        self._contexts = _Contexts(_CALLS.get(platform.machine(), {}) if ctypes.sizeof(ctypes.c_void_p) == 8 else {})

    def files(self, descriptors: Sequence[int]) -> list[OSError | None]:
        """Have the kernel store files' bytes and lengths; return what went wrong with each, None if nothing."""
        outcomes: list[OSError | None] = []
        while len(left := descriptors[len(outcomes) :]) > 1:
            taken = self._contexts.fdatasync(left[:CONTEXT_FILES])
            if not taken:
                break
            outcomes.extend(taken)
        left = descriptors[len(outcomes) :]
        others = [self._begin(descriptor) for descriptor in left[1:]]
        own = [_fdatasync(descriptor) for descriptor in left[:1]]
        return [*outcomes, *own, *(other.result() for other in others)]

    def _begin(self, descriptor: int) -> Future[OSError | None]:
        try:
            return self._threads.submit(_fdatasync, descriptor)
        except RuntimeError:  # closed, or the system has no further thread
            done: Future[OSError | None] = Future()
            done.set_result(_fdatasync(descriptor))
            return done

    def close(self) -> None:
        """Let the threads end, and give the kernel's rings back once nobody uses them."""
        self._threads.shutdown(wait=False)
        self._contexts.close()


def _fdatasync(descriptor: int) -> OSError | None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        return error
    return None


class _Contexts:
    """The kernel's contexts that are there, each used by one caller at a time; for many threads."""

    def __init__(self, calls: dict[str, int]) -> None:
        self._calls = calls
        """Empty where the kernel does not do this."""
        self._lock = Lock()
        self._idle: list[_Context] = []
        self._made = 0
        self._closed = False

    def fdatasync(self, descriptors: Sequence[int]) -> list[OSError | None]:
        """Return the outcomes of the first of these files, as many as the kernel has taken, perhaps none."""
        context = self._borrow()
        if context is None:
            return []
        outcomes, error = context.fdatasync(descriptors)
        if error in _FORBIDDEN:
            self._calls = {}
            context.broken = True
        self._give_back(context)
        return outcomes

    def _borrow(self) -> _Context | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._closed or not self._calls or self._made >= MAX_CONTEXTS:
                return None
            self._made += 1
        try:
            return _Context(self._calls)
        except OSError as error:
            with self._lock:
                self._made -= 1
                if error.errno in _FORBIDDEN:
                    self._calls = {}
            return None

    def _give_back(self, context: _Context) -> None:
        with self._lock:
            if not context.broken and not self._closed:
                self._idle.append(context)
                return
            self._made -= 1
        context.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for context in idle:
            context.close()


class _Context:
    """One context of the kernel (io_setup(2)); for one thread at a time. Raises OSError if there is none."""

    def __init__(self, calls: dict[str, int]) -> None:
        self._calls = dict(calls)
        self._requests = ctypes.create_string_buffer(_IOCB.size * CONTEXT_FILES)
        first = ctypes.addressof(self._requests)
        self._addresses = (ctypes.c_void_p * CONTEXT_FILES)(
            *(first + _IOCB.size * number for number in range(CONTEXT_FILES))
        )
        self._events = ctypes.create_string_buffer(_EVENT.size * CONTEXT_FILES)
        self._context = ctypes.c_ulong(0)
        self.broken = False
        """Whether nobody may use it again: its events cannot be read, or it takes nothing."""
        if self._call("io_setup", ctypes.c_long(CONTEXT_FILES), ctypes.byref(self._context)) < 0:
            raise _error()

    def _call(self, name: str, *arguments: object) -> int:
        """Make a system call, without the interpreter's lock."""
        return int(_LIBC.syscall(ctypes.c_long(self._calls[name]), *arguments))

    def fdatasync(self, descriptors: Sequence[int]) -> tuple[list[OSError | None], int]:
        """Fsync files, at most CONTEXT_FILES; return outcomes of those that were taken, and if none was, the reason."""
        for number, descriptor in enumerate(descriptors):
            _IOCB.pack_into(self._requests, _IOCB.size * number, number, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, 0, 0)
        taken = self._call("io_submit", self._context, ctypes.c_long(len(descriptors)), self._addresses)
        if taken <= 0:
            return [], ctypes.get_errno() if taken < 0 else errno.EAGAIN
        outcomes: dict[int, OSError | None] = {}
        while len(outcomes) < taken:
            left = ctypes.c_long(taken - len(outcomes))
            come = self._call("io_getevents", self._context, left, left, self._events, None)
            if come < 0 and ctypes.get_errno() != errno.EINTR:
                # How the others ended is not known, and a second fsync would not be told of an error of the first.
                self.broken, unknown = True, _error()
                return [outcomes.get(number, unknown) for number in range(taken)], 0
            for event in range(come):
                number, _, result, _ = _EVENT.unpack_from(self._events, _EVENT.size * event)
                outcomes[number] = OSError(-result, os.strerror(-result)) if result < 0 else None
        return [outcomes[number] for number in range(taken)], 0

    def close(self) -> None:
        """Give the context back; the kernel waits for what is under way."""
        self._call("io_destroy", self._context)


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
