"""What belongs to one process, and what becomes of it in a process that is forked from that one (decision 0098).

A fork copies objects, and none of the threads that work for them. The copies name the same sockets and ids as the
first process, and a lock that another thread held stays locked in them for ever. The rules:

1. An object that has sockets, threads, locks, or an id of its own *begins anew* in a forked process: its
   ``begin_anew`` is called there, before the fork returns. No other thread is there, and nothing has run.
2. ``begin_anew`` makes locks and tables as the constructor does. It closes the copies of sockets and says nothing on
   them: no request, no shutdown, no end of TLS. It takes no lock, waits for nothing, and connects to nobody: the first
   use does. What is known of the cluster stays known.
3. What cannot begin anew (a key that is being written) keeps the number of its process (:func:`this_process`) and
   refuses in another one, naming what to do instead.
4. A client of librdkafka cannot be closed in a forked process: it would wait for threads that are not there. It is
   kept (:func:`keep_for_ever`), and so are its copies of sockets, until that process ends.

"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Protocol
from weakref import WeakSet

logger = logging.getLogger("stratolog.client")


class BeginsAnew(Protocol):
    """An object that a forked process has a copy of, and can go on with."""

    def begin_anew(self) -> None:
        """Begin anew, in a process that was just forked: rules 1 and 2."""


_number = os.getpid()
"""The number of this process: to ask the kernel for it with each call would cost as much as a small one."""
_living: WeakSet[BeginsAnew] = WeakSet()


def this_process() -> int:
    """Return the number of the process that asks."""
    return _number


def begins_anew_in_forks(one: BeginsAnew) -> None:
    """Have an object begin anew in each process that is forked from now on, for as long as it lives."""
    _living.add(one)


def keep_for_ever(one: object) -> None:
    """Have an object never be closed or freed in this process, nor at its end: rule 4."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _after_fork() -> None:
    global _number
    _number = os.getpid()
    for one in list(_living):
        try:
            one.begin_anew()
        except Exception:  # the others are to begin anew all the same
            logger.exception("a %s does not begin anew in process %d", type(one).__name__, _number)


os.register_at_fork(after_in_child=_after_fork)
