"""Sorted rows on the disk that one piece of work writes and reads, and that nobody needs after it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from replicated_db.core.errors import StoreFailure
from replicated_db.shell.rocks import rows_between

SCRATCH_BUFFER_BYTES = 8 * 1024 * 1024
"""Most bytes of rows that a scratch holds in memory; twice that while one buffer is being written."""
SCRATCH_BATCH_ROWS = 1_000
"""How many rows are gathered before they are written."""


class ScratchFull(Exception):
    """The scratch has taken as many bytes as it may."""


class DiskScratch:
    """Rows by key in a database of its own in ``path``, a new directory. A crash may lose them.

    ``max_bytes`` bounds the bytes of keys and values that it takes; ``put`` raises ScratchFull beyond. Everything
    raises StoreFailure if the disk fails. For one thread at a time.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self.bytes_taken = 0
        """Bytes of keys and values that were put, those that were replaced included."""
        self._waiting: list[tuple[bytes, bytes]] = []
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(SCRATCH_BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        options.set_keep_log_file_num(1)
        options.set_compression_type(DBCompressionType.lz4())
        self._unlogged = _without_log()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(path), options, access_type=AccessType.read_write())
        except Exception as error:
            raise StoreFailure(f"{path} does not open: {error}") from error

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row; it replaces the row of the same key."""
        self.bytes_taken += len(key) + len(value)
        if self.bytes_taken > self._max_bytes:
            raise ScratchFull(f"more than {self._max_bytes} bytes")
        self._waiting.append((key, value))
        if len(self._waiting) >= SCRATCH_BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in self._waiting:
            batch.put(key, value)
        self._waiting = []
        try:
            self._db.write(batch, self._unlogged)
        except Exception as error:
            raise StoreFailure(f"{self._path}: write: {error}") from error

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows in [start, stop) by key, as they are at the first step."""
        if self._waiting:
            self._write()
        try:
            yield from rows_between(self._db, start, stop)
        except GeneratorExit:
            raise
        except Exception as error:
            raise StoreFailure(f"{self._path}: iterate: {error}") from error

    def close(self) -> None:
        """Close the database and remove its directory; a second call does nothing."""
        with suppress(DbClosedError):
            self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)


def _without_log() -> Any:
    """Return options of a write that leaves the write-ahead log out."""
    # rocksdict's types take the property for a method.
    options: Any = WriteOptions
    found = options()
    found.disable_wal = True
    return found
