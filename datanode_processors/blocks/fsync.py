"""When a datanode has the kernel store what it wrote (the setting ``datanode_fsync``), and how often it did so.

Decision 0022 says what each policy promises after a loss of power. A kill of the process loses nothing under any of
them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from threading import Lock

from schemas.settings.table import FSYNC_CLOSE, FSYNC_NEVER, FSYNC_PACKET

CLOSE = FSYNC_CLOSE
"""fsync when a stream is flushed or ends, and before a PutBlock or a watch counts."""
NEVER = FSYNC_NEVER
"""No fsync: bytes in the page cache count as stored."""
PACKET = FSYNC_PACKET
"""fsync after each packet, before it is acknowledged; small ones that arrive together count as one."""
FSYNC_POLICIES = (CLOSE, NEVER, PACKET)


WRITEBACK_BYTES = 8 * 1024 * 1024
"""Under ``close``, after this many bytes the kernel is asked to begin writing a block's pages.

The fsync at the end then waits only for the last of them.
"""

_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def begin_writeback(descriptor: int, offset: int, size: int) -> None:
    """Ask the kernel to begin writing pages of a file, without waiting. This is a hint, which promises nothing.

    The fsync that follows reports any failure. Where there is no such call, nothing happens.
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
