"""A table of Parquet files that one process writes, micro-batch by micro-batch, and keeps few and young.

    <folder>/batch-000000000042.parquet                  what micro-batch 42 gave
    <folder>/batches-000000000000-000000000511.parquet   the same of many, put together

Each file appears whole, and survives a loss of power. One that cannot be read all the same is removed at the start; the
log says so, and its rows are on the topic still. A micro-batch that is repeated after a crash replaces its file. When
there are COMPACT_FILES of the first kind, all but the newest are put together: Spark may repeat the newest. Files older
than RETENTION_SECONDS are deleted, and the oldest if all together have more than RETENTION_BYTES.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from transport.files.durable_files import name_durably

log = logging.getLogger("stratolog.audit")

COMPACT_FILES = 512
"""Files of single micro-batches at which they are put together."""

RETENTION_SECONDS = 7 * 86_400
"""How long a table keeps what it was given."""

RETENTION_BYTES = 1024 * 1024 * 1024
"""Most bytes of a table."""

_SINGLE = re.compile(r"batch-(\d+)\.parquet")
_MANY = re.compile(r"batches-(\d+)-(\d+)\.parquet")
_TEMPORARY = "_new-"
"""Readers of Parquet, Spark among them, leave out files that begin with an underscore."""


NOT_PARQUET = (pa.ArrowInvalid, OSError)
"""What reading a damaged file raises. An OSError with a number is the disk's, though, and says nothing of the file."""


class _File(NamedTuple):
    first: int
    last: int
    path: Path

    @property
    def is_single(self) -> bool:
        return _SINGLE.fullmatch(self.path.name) is not None


class BatchFiles:
    """One table; for one thread of one process."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._singles: int | None = None

    def write(self, batch_id: int, rows: Sequence[dict[str, Any]]) -> None:
        """Write what a micro-batch gave, also in place of what its first run gave."""
        if self._singles is None:
            self._begin()
        path = self._folder / f"batch-{batch_id:012d}.parquet"
        self._singles = (self._singles or 0) + (not path.exists())
        if not rows:
            self._singles -= not path.exists()
            path.unlink(missing_ok=True)
            return
        table = pa.Table.from_pylist(list(rows), schema=self._schema)
        with pq.ParquetWriter(self._temporary(path), self._schema) as writer:
            writer.write_table(table)
        name_durably(self._temporary(path), path)
        if self._singles > COMPACT_FILES:
            self._compact()
            self._expire(time.time())

    def _temporary(self, path: Path) -> Path:
        return self._folder / f"{_TEMPORARY}{path.name}"

    def _files(self) -> list[_File]:
        """Return the table's files, the oldest first."""
        found = [
            _File(int(numbers[1]), int(numbers[numbers.lastindex or 1]), path)
            for path in self._folder.iterdir()
            if (numbers := _SINGLE.fullmatch(path.name) or _MANY.fullmatch(path.name))
        ]
        return sorted(found)

    def _begin(self) -> None:
        """Make the folder, and remove what a process left that ended while it put files together."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f"{_TEMPORARY}*"):
            left.unlink()
        files = [file for file in self._files() if _is_readable(file.path)]
        merged = [file for file in files if not file.is_single]
        singles = [file for file in files if file.is_single]
        covered = [one for one in singles if any(many.first <= one.first <= many.last for many in merged)]
        for one in covered:
            one.path.unlink()
        self._singles = len(singles) - len(covered)

    def _compact(self) -> None:
        parts = [file for file in self._files() if file.is_single][:-1]
        path = self._folder / f"batches-{parts[0].first:012d}-{parts[-1].last:012d}.parquet"
        with pq.ParquetWriter(self._temporary(path), self._schema) as writer:
            for part in parts:
                if (found := self._table(part.path)) is not None:
                    writer.write_table(found)
        name_durably(self._temporary(path), path)
        for part in parts:
            part.path.unlink()
        self._singles = 1

    def _table(self, path: Path) -> pa.Table | None:
        try:
            return pq.read_table(path, schema=self._schema)
        except NOT_PARQUET as error:
            _raise_of_disk(error)
            log.warning("the rows of %s are left out, for it cannot be read: %s", path, error)
            return None

    def _expire(self, now_s: float) -> None:
        """Delete what is too old or too much."""
        total = 0
        for file in reversed(self._files()):
            found = file.path.stat()
            total += found.st_size
            if total > RETENTION_BYTES or found.st_mtime < now_s - RETENTION_SECONDS:
                file.path.unlink()


def _is_readable(path: Path) -> bool:
    """Say whether a file is Parquet; remove it if not."""
    try:
        pq.read_metadata(path)
    except NOT_PARQUET as error:
        _raise_of_disk(error)
        log.warning("%s is removed, for it cannot be read: %s", path, error)
        path.unlink()
        return False
    return True


def _raise_of_disk(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno is not None:
        raise error
