"""A look from a process that was forked from the test's."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(look: Callable[[], bool]) -> bool:
    """Return what ``look`` finds in a forked process; False if it raises there."""
    if (child := os.fork()) == 0:
        try:
            os._exit(0 if look() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
