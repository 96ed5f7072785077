"""The checkpoints of one node as directories: what is there, what it takes on the disk, and how it is opened.

A checkpoint of a shard's database lies beside it, in ``<database>.checkpoints/<name>``. Its SST files never change.
They are hard links of the database's own, so a file costs nothing until the database has compacted it away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from rocksdict import Cache

from replicated_db.core.bootstrap.listing import IMMUTABLE_SUFFIXES
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import StoreSnapshot
from replicated_db.shell.rocks import RocksReader
from schemas.records.record import record

SNAPSHOT_CACHE_BYTES = 32 * 1024 * 1024
"""Most bytes of blocks that all open snapshots of a node keep in memory together."""


class CheckpointName(NamedTuple):
    """A checkpoint of this node: the shard, and the name of the directory."""

    shard: int
    name: str


class CheckpointUnreadable(Exception):
    """A checkpoint is not there, or does not open, or has lost files. The message says which and why."""


@record
class DiskUse:
    """Bytes and number of a checkpoint's SST files. ``only_bytes`` are those that nothing else on the disk has.

    Removing the checkpoint frees ``only_bytes``.
    """

    files: int
    total_bytes: int
    only_bytes: int


class Checkpoints(Protocol):
    """The checkpoints of one node. Every method raises CheckpointUnreadable for one that is not there."""

    def identity(self, which: CheckpointName) -> object:
        """Return a value that is another one once the checkpoint has been made anew."""
        ...

    def open(self, which: CheckpointName) -> StoreSnapshot:
        """Open the checkpoint for reading; whoever opens it closes it. Slow: not for an event loop."""
        ...

    def disk_use(self, which: CheckpointName) -> DiskUse:
        """Return what the checkpoint takes on the disk. Slow: not for an event loop."""
        ...


class RocksCheckpoints:
    """The checkpoints of the databases in ``databases``, by shard. Their readers share one cache of blocks."""

    def __init__(self, databases: Mapping[int, Path], families: Iterable[str]) -> None:
        self._databases = dict(databases)
        self._families = tuple(families)
        self._cache = Cache(SNAPSHOT_CACHE_BYTES)

    def folder(self, which: CheckpointName) -> Path:
        """Return the directory of a checkpoint, which need not be there."""
        database = self._databases[which.shard]
        return database.with_name(database.name + ".checkpoints") / which.name

    def identity(self, which: CheckpointName) -> object:
        """Return device, inode and time of the file that names the manifest: a checkpoint made anew has another."""
        folder = self.folder(which)
        try:
            found = (folder / "CURRENT").stat()
        except OSError as error:
            raise CheckpointUnreadable(f"{folder} is not there: {error.strerror}") from error
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def open(self, which: CheckpointName) -> StoreSnapshot:
        """Open the database of a checkpoint, in some 15 ms."""
        try:
            return RocksReader(self.folder(which), self._families, self._cache)
        except StoreFailure as error:
            raise CheckpointUnreadable(str(error)) from error

    def disk_use(self, which: CheckpointName) -> DiskUse:
        """Look at each table and blob file once, by inode; one with a single name on the disk is the checkpoint's."""
        folder = self.folder(which)
        self.identity(which)
        try:
            seen = [file.stat() for file in folder.iterdir() if file.suffix in IMMUTABLE_SUFFIXES]
        except OSError as error:
            raise CheckpointUnreadable(f"{folder} has lost a file: {error}") from error
        found = {(file.st_dev, file.st_ino): file for file in seen}
        return DiskUse(
            files=len(found),
            total_bytes=sum(file.st_size for file in found.values()),
            only_bytes=sum(file.st_size for file in found.values() if file.st_nlink == 1),
        )
