"""How much room a datanode's disk has; a reserve of it stays free.

The file system is asked for its free space, because others write there too. So that not every packet asks, one answer
is good for GRANT_BYTES, or for what is left above the reserve if that is less.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

from datanode_processors.errors import BlockError
from schemas.stream_errors import DISK_FULL

GRANT_BYTES = 16 * 1024 * 1024
"""Bytes that may be written until the file system is asked again. Others may use this much of the reserve unnoticed."""


class DiskSpace:
    """The file system that holds ``folder``. For many threads."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self.reserve_bytes = reserve_bytes
        self._granted = 0
        self._lock = Lock()

    def capacity_bytes(self) -> int:
        """Return the size of the file system, in bytes, without the reserve."""
        found = os.statvfs(self._folder)
        return max(0, found.f_blocks * found.f_frsize - self.reserve_bytes)

    def free_bytes(self) -> int:
        """Return how many bytes may be written before the reserve is reached."""
        found = os.statvfs(self._folder)
        return max(0, found.f_bavail * found.f_frsize - self.reserve_bytes)

    def take(self, size: int, path: Path) -> None:
        """Allow ``size`` more bytes for a file; raises BlockError DISK_FULL if they would cross the reserve."""
        with self._lock:
            if size <= self._granted:
                self._granted -= size
                return
        free = self.free_bytes()
        if size > free:
            raise BlockError(
                DISK_FULL, f"{path}: {size} more bytes; {free} are free above the reserve of {self.reserve_bytes}"
            )
        with self._lock:
            self._granted = min(free, max(GRANT_BYTES, size)) - size
