"""Bytes to and from files: whole writes, whole reads, and the kernel's errors as the protocol's."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from datanode_processors.errors import BlockError
from schemas.stream_errors import DISK_FULL, FAILED

Buffer: TypeAlias = bytes | bytearray | memoryview
Packets: TypeAlias = Sequence[tuple[Buffer, int | None]]
"""Bytes, each with its CRC32C if that is known."""

MAX_VECTORS = 64
"""Buffers in one vectored write."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def block_error(error: OSError, doing: str, path: Path) -> BlockError:
    """Return the error for one of the kernel's: DISK_FULL if there is no room, else FAILED."""
    code = DISK_FULL if error.errno in _FULL else FAILED
    return BlockError(code, f"{doing} {path}: {error.strerror}")


def write_fully(descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write buffers one after the other; raises OSError, and then a part of them may have been written."""
    for first in range(0, len(buffers), MAX_VECTORS):
        left = buffers[first : first + MAX_VECTORS]
        while left:
            done = os.pwrite(descriptor, left[0], offset) if len(left) == 1 else os.pwritev(descriptor, left, offset)
            offset += done
            left = _after(left, done)


def _after(buffers: Sequence[Buffer], done: int) -> Sequence[Buffer]:
    """Return what is left of buffers after ``done`` bytes of them are written."""
    for number, buffer in enumerate(buffers):
        if done < len(buffer):
            return [memoryview(buffer)[done:], *buffers[number + 1 :]]
        done -= len(buffer)
    return ()


def read_fully(descriptor: int, offset: int, size: int) -> bytes:
    """Read ``size`` bytes, or to the file's end; raises OSError."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
