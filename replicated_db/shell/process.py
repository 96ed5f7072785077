"""The life of a process that hosts replicas: how it waits for the brokers, tunes the collector, and ends.

A StopProcess anywhere ends the process with EXIT_FATAL and logs its message. The Kafka log is the truth, and a restart
begins from it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from replicated_db.core.errors import StopProcess, StoreFailure
from replicated_db.core.ports import LogUnavailable
from transport.waiting.deadline import Deadline

EXIT_FATAL = 70
"""Exit status after a StopProcess or a defect: look at the log before starting again."""

BROKER_WAIT_S = 60.0
END_WAIT_S = 2.0
"""How long to wait for the end of a background thread."""

STOP_WAIT_S = 10.0
"""How long Faust's worker may take to stop after the node has handed over.

A worker whose consumer is just joining its group takes minutes.
"""

FOLDER_LOOK_S = 1.0
"""How often a process looks whether its folders are still where they were."""

COLLECTOR_THRESHOLDS = (50_000, 20, 50)
"""Thresholds of Python's cyclic collector. The defaults cost a third of the leader's time (docs/performance.md)."""

KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory at the end of an allocator's arena that the allocator keeps for the next request."""
ARENAS = 2
_ALLOCATED_BY_MMAP_BYTES = 32 * 1024 * 1024
"""Larger requests get pages of their own; glibc takes no higher limit."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's ``mallopt``."""

T = TypeVar("T")

log = logging.getLogger("stratolog.node")

_closing = threading.Event()
"""Set once the stores are about to be closed: errors from then on are consequences of closing."""


def closing() -> None:
    """Say that the stores are about to be closed."""
    _closing.set()


def fatal(error: BaseException) -> None:
    """End the process at once, before anything can acknowledge what was not applied."""
    if _closing.is_set():
        log.warning("while closing: %s", error)
        return
    if isinstance(error, StopProcess | LogUnavailable):
        log.critical("stop: %s", error)
    else:
        log.critical("defect: %r", error, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_FATAL)


def end_soon(close: Callable[[], None]) -> threading.Timer:
    """End the process after STOP_WAIT_S, by ``close`` and at once, if its worker has not stopped by then.

    Call it when everything has been handed over. To call it off, cancel the timer that is returned.
    """

    def end() -> None:
        log.warning("the worker has not stopped in %.0f s: the process ends without it", STOP_WAIT_S)
        close()
        logging.shutdown()
        os._exit(os.EX_OK)

    timer = threading.Timer(STOP_WAIT_S, end)
    timer.daemon = True
    timer.start()
    return timer


class Background:
    """A thread that runs from :meth:`start` to :meth:`close`. An error of :meth:`run` meanwhile is ``fatal``."""

    end_wait_s = END_WAIT_S
    """How long :meth:`close` waits for the end."""

    def __init__(self, name: str, fatal: Callable[[BaseException], None]) -> None:
        self._fatal = fatal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_begun(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    def close(self) -> None:
        """Set ``_stop``, and wait for the thread to end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self.end_wait_s)

    def run(self) -> None:
        """Work until ``_stop`` is set."""
        raise NotImplementedError

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            if not self._stop.is_set():
                self._fatal(error)


class FolderWatch(Background):
    """Ends the process when a file that it holds open is no longer at its path.

    The folder was removed, unmounted or replaced then: what the process writes is in files that nobody will find again.
    """

    def __init__(self, fatal: Callable[[BaseException], None]) -> None:
        super().__init__("folder-watch", fatal)
        self._held: dict[Path, tuple[int, int]] = {}

    def hold(self, path: Path) -> None:
        """Watch a file that this process has open until it ends: so no other file gets its number. Raises OSError."""
        found = path.stat()
        self._held[path] = found.st_dev, found.st_ino

    def run(self) -> None:
        """Look from time to time. Raises StoreFailure."""
        while not self._stop.wait(FOLDER_LOOK_S):
            for path, number in list(self._held.items()):
                if _is_elsewhere(path, number):
                    raise StoreFailure(
                        f"{path} is gone or is another file: {path.parent} was removed, unmounted or replaced while this "
                        "process used it. Bring the folder back and start the process again; with an empty folder it "
                        "takes what it needs from its peers"
                    )


def _is_elsewhere(path: Path, number: tuple[int, int]) -> bool:
    """Whether a path has another file, or none. A disk that does not answer says neither."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return (found.st_dev, found.st_ino) != number


def calm_collector() -> None:
    """Collect cycles seldom: a full collection walks every request in flight, and requests form no cycles.

    Objects that exist now live as long as the process, so the collector leaves them out for good.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def keep_freed_memory() -> None:
    """Make the allocator keep freed memory, for a process that takes and frees buffers of megabytes.

    Call it before there are threads. By default glibc gives such a buffer back to the kernel when it is freed, and the
    kernel clears and maps the next one page by page: for 4 MiB that takes longer than filling it. With few arenas
    little is kept. With another C library nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _ALLOCATED_BY_MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def when_brokers_answer(ask: Callable[[], T]) -> T:
    """Ask until the brokers answer, for at most BROKER_WAIT_S. Raises LogUnavailable if they do not."""
    deadline = Deadline.after_s(BROKER_WAIT_S)
    while True:
        try:
            return ask()
        except LogUnavailable as error:
            if deadline.has_passed:
                raise
            log.warning("brokers do not answer: %s", error)
            time.sleep(1)
