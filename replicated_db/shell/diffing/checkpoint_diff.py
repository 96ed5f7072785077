"""Which rows differ between two checkpoints of one database, on the disk.

The two are opened for reading, their table files compared by inode: checkpoints of one database share a file by hard
links. ``core.diffing.file_plan`` then says which files are read and which key ranges are swept.

Rules:
    - Both directories exist as long as they are compared, so an inode cannot be that of another file by then.
    - A checkpoint with rows in its write-ahead log alone is swept as a whole, for no file tells of those rows.
    - A file that cannot be read key by key is swept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import cramjam

from replicated_db.core.diffing.file_plan import DiffPlan, KeyRange, TableFile, fences_of, full_sweep, make_plan
from replicated_db.core.diffing.sweep import CHECKED_ROWS, OnRows, RowChange, look_up, sweep
from replicated_db.core.diffing.table_file import MAX_BLOCK_BYTES, TableFileKeys, UnreadableTable, varint
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.rocks import RocksReader

LZ4 = 4
"""RocksDB's number of the compression that the stores use."""


class FileIdentity(NamedTuple):
    """Tells a file from every other one that exists at the same time."""

    device: int
    inode: int
    size: int


class _Known(NamedTuple):
    """What a table file says of itself: its column family, and its fences if that is the one that is compared."""

    family: str
    fences: Sequence[bytes]


class CheckpointDiff:
    """Two checkpoints, opened; close it. For one thread at a time.

    ``wanted`` is the range of the family ``cf`` that is compared. ``use_files`` False compares all its rows.
    Raises StoreFailure if one does not open. All methods raise StoreFailure, also if a directory is removed meanwhile.
    """

    def __init__(
        self, older: Path, newer: Path, families: Iterable[str], cf: str, wanted: KeyRange, *, use_files: bool = True
    ) -> None:
        self._cf = cf
        names = list(families)
        with ExitStack() as stack:
            self._old = stack.enter_context(closing(RocksReader(older, names)))
            self._new = stack.enter_context(closing(RocksReader(newer, names)))
            self.plan = self._planned(older, newer, wanted) if use_files else full_sweep(wanted)
            """What will be read."""
            self._stack = stack.pop_all()
        self.steps_done = 0
        """How many of the plan's steps are done."""

    def _planned(self, older: Path, newer: Path, wanted: KeyRange) -> DiffPlan:
        if self._old.rows_outside_files(self._cf) or self._new.rows_outside_files(self._cf):
            return full_sweep(wanted)
        known: dict[FileIdentity, _Known | None] = {}
        old = list(_files(self._old, older, self._cf, known, wanted))
        new = list(_files(self._new, newer, self._cf, known, wanted))
        return make_plan(old, new, wanted)

    def rows(self, on_rows: OnRows) -> Iterator[RowChange]:
        """Iterate over the rows that differ, in no order; a row may come several times.

        ``on_rows`` takes how many rows were read since the last call, at least every CHECKED_ROWS rows. What it raises
        ends the iteration.
        """
        for one in self.plan.swept:
            yield from sweep(self._old, self._new, self._cf, one.start, one.stop, on_rows)
            self.steps_done += 1
        for file, ranges in self.plan.listed:
            for one in ranges:
                yield from self._listed(file, one, on_rows)
                self.steps_done += 1

    def _listed(self, file: TableFile, wanted: KeyRange, on_rows: OnRows) -> Iterator[RowChange]:
        read, last = 0, None
        try:
            with _opened(Path(file.path)) as keys:
                for key in keys.keys(wanted.start, wanted.stop):
                    if key == last:
                        continue
                    last = key
                    read += 1
                    if read == CHECKED_ROWS:
                        on_rows(read)
                        read = 0
                    if (found := look_up(self._old, self._new, self._cf, key)) is not None:
                        yield found
        except UnreadableTable:  # a damaged block, or one of a kind that is not known; RocksDB may know better
            yield from sweep(self._old, self._new, self._cf, wanted.start, wanted.stop, on_rows)
        on_rows(read)

    def close(self) -> None:
        """Close both checkpoints; a second call does nothing."""
        self._stack.close()


@contextmanager
def _opened(path: Path) -> Iterator[TableFileKeys]:
    """Open a table file for its keys. Raises UnreadableTable, and StoreFailure if the disk fails."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            yield TableFileKeys(lambda offset, size: os.pread(fd, size, offset), os.fstat(fd).st_size, _decompressed)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreFailure(f"{path} cannot be read: {error}") from error


def _decompressed(kind: int, content: bytes) -> bytes:
    """Return a block as it was before compression. Raises ValueError for no LZ4, and for what LZ4 cannot be."""
    if kind != LZ4:
        raise ValueError(f"compression {kind} is not LZ4")
    size, at = varint(content, 0)
    if size > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of {size} bytes; at most {MAX_BLOCK_BYTES} are read")
    try:
        block = bytes(cramjam.lz4.decompress_block(content[at:], output_len=size))
    except cramjam.DecompressionError as error:
        raise ValueError(f"not LZ4: {error}") from error
    if len(block) != size:
        raise ValueError(f"{len(block)} bytes, not {size}")
    return block


def _files(
    reader: RocksReader, folder: Path, cf: str, known: dict[FileIdentity, _Known | None], wanted: KeyRange
) -> Iterator[TableFile]:
    """Yield the table files of a family that overlap a range.

    rocksdict does not say whose a file is; the file itself does. One that does not is taken for the family's, and
    swept.
    ``known`` remembers what files have said.
    """
    for found in reader.live_files():
        first, last = found["start_key"] or b"", found["end_key"] or b""
        if first >= wanted.stop or last < wanted.start:
            continue
        path = folder / found["name"].lstrip("/")
        try:
            status = path.stat()
        except OSError as error:
            raise StoreFailure(f"{path} cannot be read: {error}") from error
        identity = FileIdentity(status.st_dev, status.st_ino, status.st_size)
        if identity not in known:
            try:
                with _opened(path) as keys:
                    known[identity] = _Known(keys.family, fences_of(keys.fences()) if keys.family == cf else ())
            except UnreadableTable:
                known[identity] = None
        said = known[identity]
        if said is None or said.family == cf:
            yield TableFile(
                identity=identity, path=str(path), first=first, last=last, entries=found["num_entries"],
                fences=() if said is None else said.fences, listable=said is not None,
            )  # fmt: skip
