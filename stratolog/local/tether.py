"""Become another program that the kernel kills when its parent ends: ``tether.py PARENT_PID PROGRAM ARGUMENT...``.

It runs as a script of its own (``python -I -S``), so it imports nothing of ours. A script is needed because code
between ``fork`` and ``exec`` may deadlock in a process with threads (librdkafka's). Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tether(parent: int) -> bool:
    """Have the kernel kill this process when the thread that forked it ends; False if ``parent`` has ended already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent


def main() -> None:
    """Ask for SIGKILL at the parent's end, then become the program."""
    parent, *command = sys.argv[1:]
    if not tether(int(parent)):
        return
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
