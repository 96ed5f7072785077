"""When a datanode has the kernel store what it wrote (the setting ``datanode_fsync``), and how often that was done.

What each policy promises after a loss of power is in decision 0022. A kill of the process loses nothing under any of them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from threading import Lock

CLOSE = "close"
"""fsync when a stream is flushed or ends, and before a PutBlock or a watch counts."""
NEVER = "never"
"""No fsync: what is in the page cache counts as stored."""
PACKET = "packet"
"""fsync after each packet (small ones that came together count as one), before it is acknowledged."""
FSYNC_POLICIES = (CLOSE, NEVER, PACKET)


WRITEBACK_BYTES = 8 * 1024 * 1024
"""After so many bytes the kernel is told to begin to write a block's pages under ``close``: the fsync in the end then waits for the last alone."""

_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def begin_writeback(descriptor: int, offset: int, size: int) -> None:
    """Have the kernel begin to write pages of a file, and do not wait for it: a hint, which promises nothing.

    What goes wrong with it is told by the fsync that follows. Where there is no such call nothing happens.
    """
    begin = getattr(_LIBC, "sync_file_range", None)
    if begin is not None:
        begin(descriptor, ctypes.c_int64(offset), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


class FsyncCount:
    """Counts fsyncs of files and of directories."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.files = 0
        self.directories = 0

    def file(self, descriptor: int) -> None:
        """Have the kernel store a file's bytes and length."""
        os.fdatasync(descriptor)
        with self._lock:
            self.files += 1

    def directory(self, path: Path) -> None:
        """Have the kernel store a directory's entries."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with self._lock:
            self.directories += 1
