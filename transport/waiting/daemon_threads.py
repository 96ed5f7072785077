"""Threads for work that nobody needs once the process ends: the interpreter's exit waits for none of them.

``concurrent.futures.ThreadPoolExecutor`` joins its threads when the interpreter exits, however long their work takes,
also after ``shutdown(wait=False)``. Whoever needs the outcome of work waits for its future.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from transport.waiting.deadline import Deadline

P = ParamSpec("P")
T = TypeVar("T")

_Job: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"
_Jobs: TypeAlias = "SimpleQueue[_Job | None]"


class DaemonThreads(Executor):
    """Up to ``most`` daemon threads, begun when there is work for them; for many callers.

    They end after :meth:`shutdown`, and when the pool is dropped, each behind its present job.
    """

    def __init__(self, most: int, name: str) -> None:
        """The threads are called ``name`` and a number."""
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._jobs: _Jobs = SimpleQueue()
        """What waits for a thread; None, which stays in it, ends them."""
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._closed = False
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread call a function; raises RuntimeError after :meth:`shutdown`, or if no thread can be begun."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"no work is taken after the shutdown of {self._name}")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                self._begin_thread()
            self._jobs.put((future, partial(fn, *args, **kwargs)))
        return future

    def _begin_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._jobs, self._idle), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As :meth:`concurrent.futures.Executor.shutdown`."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                self._cancel()
            self._jobs.put(None)
        if wait:
            self.wait(Deadline.never())

    def _cancel(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job[0].cancel()

    def wait(self, deadline: Deadline) -> bool:
        """After :meth:`shutdown`: wait until all threads have ended; return whether they have, at the deadline."""
        for thread in self._threads:
            thread.join(min(deadline.left_s, threading.TIMEOUT_MAX))
        return not any(thread.is_alive() for thread in self._threads)


def _work(jobs: _Jobs, idle: threading.Semaphore) -> None:
    """Do jobs until None comes; it holds no reference to the pool, which may be dropped meanwhile."""
    while True:
        try:
            job = jobs.get_nowait()
        except Empty:
            idle.release()
            job = jobs.get()
        if job is None:
            jobs.put(None)
            return
        _do(*job)
        del job


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
