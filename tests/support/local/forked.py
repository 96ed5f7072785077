"""A look from a process that was forked from the test's."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

HANGS_S = 60
"""A process that has not ended by then is killed: it hangs."""


def in_child(look: Callable[[], bool]) -> bool:
    """Return what ``look`` finds in a forked process; False if it raises or hangs there."""
    return found_by(begin_child(look))


def begin_child(look: Callable[[], bool]) -> int:
    """Fork a process that looks, and return its number; :func:`found_by` follows."""
    if (child := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HANGS_S)
            os._exit(0 if look() else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    return child


def found_by(child: int) -> bool:
    """Return what a forked process has found."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
