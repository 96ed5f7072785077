"""The store on RocksDB (rocksdict, raw mode): one database per shard and node.

Durability: the write-ahead log (WAL) is on and not synced, recovery is point-in-time. The Kafka log is the truth, and
the position is in the same write as the data. So a replica that loses the tail of its WAL replays that tail. A database
that refuses to open is damaged before the tail: it is rebuilt from the log, never opened in a weaker mode.

A column family is made when its first row is written. Every family that exists is opened, known or not. So a database
has no family that its log's feature level does not have. Older software can open it, even software that knows fewer
families.

Values of BLOB_BYTES or more of the families named ``blobs`` lie in files of their own (RocksDB's blob files), so that
compactions do not write them again and again. Whoever opens the database reads them, with or without that option.

A database whose MANIFEST has lost its end opens without table files that it had. What opens it for writing looks first
(``core/tables/rocks_manifest``), and keeps the doubt in the file DOUBT_FILE: opening removes what gave rise to it.

Memory is bounded: the write buffers of a database by WRITE_BUFFERS_BYTES, its blocks by BLOCK_CACHE_BYTES.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import MAX_CHECKPOINTS, NO_PREFIX, RowPage, Write
from replicated_db.core.tables.column_families import LOCAL_FAMILIES
from replicated_db.core.tables.rocks_manifest import BLOCK_BYTES, doubt_about
from transport.files.durable_files import sync_folder, write_durably

WRITE_BUFFERS_BYTES = 64 * 1024 * 1024
BLOCK_CACHE_BYTES = 32 * 1024 * 1024
MAX_WAL_BYTES = 128 * 1024 * 1024
MAX_OPEN_FILES = 256
BLOOM_BITS_PER_KEY = 10
BLOB_BYTES = 4 * 1024
"""Least size of a value that lies in a blob file."""
WORK_FOLDER = ".work"
"""Beside the checkpoints: those that are being made or removed. No checkpoint's name begins with a period."""

MAX_SKIPPED_KEYS = 20_000
"""Most removed rows that one page passes over.

The interpreter's lock is held meanwhile: passing over 600,000 removed rows took a second, and all threads waited.
"""

DOUBT_FILE = "ROWS-IN-DOUBT"
"""In a database's folder: why rows may be missing. It goes when all rows have been scanned."""

MANIFEST_END_BYTES = 64 * BLOCK_BYTES
"""How much of a MANIFEST's end is read first. It says enough, if table files were written since the database opened."""

COMPACTION_WAIT_S = 5.0
"""How long closing waits for a compaction. After that the database is left as after a crash, which loses nothing."""

INCOMPLETE = "Result incomplete"
"""RocksDB's word for an iterator that has passed over too many keys."""

UNFLUSHED = "rocksdb.num-entries-active-mem-table"
"""RocksDB's property: how many entries its memory holds. A database that is opened for reading has one memtable."""

DEAD_SHARE = 0.5
"""A file with at least this share of removals is compacted soon.

Otherwise every search for the first row behind the removals would pass over them again.
"""

MEMTABLE_BLOOM_SHARE = 0.05
"""Share of a write buffer that its own filter takes. Two of three reads ask for a row that does not exist yet."""

READER_OPEN_FILES = 64
"""Most files that a database opened for reading holds open. It opens further ones when it needs them."""

READER_BUFFER_BYTES = 64 * 1024
"""Write buffer of a family that is only read. It holds the rows of the WAL, however many; this is its first piece.

With a store's buffers and their filters, an open checkpoint took 9 MiB. With these it takes 0.7 MiB.
"""


_DAMAGED = ("Corruption", os.strerror(errno.ENOENT))
"""What RocksDB says of a database whose files are wrong or gone."""
_OF_THE_MACHINE = tuple(
    os.strerror(number)
    for number in (
        errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK, errno.EAGAIN,
        errno.EACCES, errno.EPERM, errno.EROFS,
    )
)  # fmt: skip
"""What it says of a machine that gives too little, also within the report of a corruption: the files may be whole."""


def _way_back(said: str) -> str:
    """Return what to do about a database that does not open: only one that is damaged may be moved away."""
    if any(words in said for words in _DAMAGED) and not any(words in said for words in _OF_THE_MACHINE):
        return "Move it away; the replica is rebuilt from the log, or from a peer's checkpoint"
    return "That does not say that its rows are damaged: leave it where it is, end the cause, and start the node again"


def _options(cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_db_write_buffer_size(WRITE_BUFFERS_BYTES)
    options.set_write_buffer_size(WRITE_BUFFERS_BYTES // 4)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_SHARE)
    options.set_memtable_whole_key_filtering(True)
    options.set_max_total_wal_size(MAX_WAL_BYTES)
    options.set_max_open_files(MAX_OPEN_FILES)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.add_compact_on_deletion_collector_factory(0, 0, DEAD_SHARE)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    table.set_cache_index_and_filter_blocks(True)
    # Partitioned: the index and the filter of a large file, each in one block, do not fit into a shard of the cache
    # (512 KiB), and every read would fetch them from the file (docs/performance.md, "Filters that no shard of the cache
    # held").
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


def _with_blobs(options: Options) -> Options:
    options.set_enable_blob_files(True)
    options.set_min_blob_size(BLOB_BYTES)
    options.set_enable_blob_gc(True)
    return options


def _reader_options(cache: Cache) -> Options:
    options = _options(cache)
    options.create_if_missing(False)
    options.create_missing_column_families(False)
    options.set_write_buffer_size(READER_BUFFER_BYTES)
    options.set_memtable_prefix_bloom_ratio(0.0)
    options.set_memtable_whole_key_filtering(False)
    options.set_max_open_files(READER_OPEN_FILES)
    return options


def rows_between(table: Any, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Iterate in key order over the rows of a table in [start, stop), as they are at the first step.

    Raises what rocksdict raises.
    """
    options = ReadOptions()
    if stop is not None:
        options.set_iterate_upper_bound(stop)
    cursor = table.iter(options)
    cursor.seek(start)
    while cursor.valid():
        yield cursor.key(), cursor.value()
        cursor.next()
    cursor.status()


class RocksView:
    """Reads of the database. A family without a table has no row yet."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = dict(tables)

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        try:
            table = self._tables[cf]
            value: bytes | None = None if table is None else table.get(key)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise _failure(f"get from {cf}", error) from error
        return value

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop), over the rows as they are at the first step."""
        try:
            if self._tables[cf] is None:
                return
            yield from rows_between(self._tables[cf], start, stop)
        except GeneratorExit:
            raise
        except Exception as error:
            raise _failure(f"iterate over {cf}", error) from error


class RocksSnapshot:
    """The state of all families at one moment.

    It is exact only if taken under the apply lock, because each family has its own moment.

    A snapshot holds an iterator of each family, which RocksDB pins to the state at its making. (Iterating over
    rocksdict's own ``Snapshot``, 0.3.29, reads the present state.) For one thread at a time; iterations may be
    interleaved.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._cursors = {name: None if table is None else table.iter(ReadOptions()) for name, table in tables.items()}
        self._users: dict[str, object] = {}

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        found = next(self.iterate(cf, key, key + b"\x00"), None)
        return None if found is None else found[1]

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop)."""
        try:
            cursor = self._cursors[cf]
            if cursor is None:
                return
            self._users[cf] = user = object()
            cursor.seek(start)
            while cursor.valid():
                key = cursor.key()
                if stop is not None and key >= stop:
                    break
                yield key, cursor.value()
                if self._users[cf] is not user:  # another iteration has moved the cursor
                    self._users[cf] = user
                    cursor.seek(key)
                cursor.next()
            cursor.status()
        except Exception as error:
            raise _failure(f"iterate over {cf} in a snapshot", error) from error

    def close(self) -> None:
        """Release the iterators; further calls raise StoreFailure."""
        self._cursors = {}


class RocksReader(RocksView):
    """A database opened for reading while nobody writes it. Raises StoreFailure if there is none, or it does not open.

    ``cache`` holds blocks for several readers together; without it the reader has one of BLOCK_CACHE_BYTES.
    """

    def __init__(self, path: Path, families: Iterable[str], cache: Cache | None = None) -> None:
        if not (path / "CURRENT").is_file():
            raise StoreFailure(f"{path} does not open: there is no database")
        shared = Cache(BLOCK_CACHE_BYTES) if cache is None else cache
        names = [*families, *LOCAL_FAMILIES]
        try:
            options = _reader_options(shared)
            found = _families_in(path, options)
            kinds = {name: _reader_options(shared) for name in found}
            self._db = Rdict(str(path), options, kinds, AccessType.read_only())
            super().__init__({name: self._db.get_column_family(name) if name in found else None for name in names})
        except Exception as error:
            _clear_remains(path)
            raise StoreFailure(f"{path} does not open: {error}") from error

    def live_files(self) -> list[dict[str, Any]]:
        """Return the table files of all families, as rocksdict describes them; it does not say whose they are."""
        try:
            found: list[dict[str, Any]] = self._db.live_files()
        except Exception as error:
            raise _failure("list table files", error) from error
        return found

    def rows_outside_files(self, cf: str) -> int:
        """Return how many entries of a family are in no table file: those that only the write-ahead log holds."""
        try:
            table = self._tables[cf]
            return 0 if table is None else int(table.property_int_value(UNFLUSHED) or 0)
        except Exception as error:
            raise _failure(f"count entries of {cf}", error) from error

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        if not self._tables:
            return
        for table in self._tables.values():
            if table is not None:
                table.close()
        self._tables = {}
        self._db.close()


class RocksStore(RocksView):
    """A database in ``path``, with ``families`` and the replica-local ones. Raises StoreFailure if it does not open."""

    def __init__(
        self, path: Path, families: Iterable[str], kept: str = NO_PREFIX, *, blobs: Collection[str] = ()
    ) -> None:
        """``kept`` begins the names of checkpoints that stay until they are dropped; ``blobs`` are families."""
        self._blobs = frozenset(blobs)
        self.path = path
        self._checkpoints = path.with_name(path.name + ".checkpoints")
        self._kept = kept
        names = [*families, *LOCAL_FAMILIES]
        self._block_cache = Cache(BLOCK_CACHE_BYTES)
        try:
            path.mkdir(parents=True, exist_ok=True)
            options = _options(self._block_cache)
            found = {name: self._options_of(name) for name in _families_in(path, options)}
            self._doubt = _doubt_kept(path)
            self._db = Rdict(str(path), options, found, AccessType.read_write())
            super().__init__({name: self._db.get_column_family(name) if name in found else None for name in names})
            self._handles = {name: self._db.get_column_family_handle(name) for name in names if name in found}
            self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
            self._compaction: Thread | None = None
            # A process that was killed may have left something half made or half removed.
            shutil.rmtree(self._checkpoints / WORK_FOLDER, ignore_errors=True)
        except Exception as error:
            raise StoreFailure(f"{path} does not open: {error}. {_way_back(str(error))}") from error

    def _options_of(self, cf: str) -> Options:
        options = _options(self._block_cache)
        return _with_blobs(options) if cf in self._blobs else options

    def _make(self, cf: str) -> Any:
        """Make a family for the first row written to it. A crash before that row leaves the family empty."""
        if self._tables[cf] is None:
            self._db.create_column_family(cf, self._options_of(cf))
            # Readers on other threads see a whole mapping: the old one or the new one.
            self._tables = {**self._tables, cf: self._db.get_column_family(cf)}
        self._handles[cf] = handle = self._db.get_column_family_handle(cf)
        return handle

    def write(self, writes: Iterable[Write]) -> None:
        """Write all rows atomically."""
        batch = WriteBatch(raw_mode=True)
        put, delete, handles = batch.put, batch.delete, self._handles
        try:
            for cf, key, value in writes:
                handle = handles[cf] if cf in handles else self._make(cf)
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)
            self._db.write(batch)
        except Exception as error:
            raise _failure("write", error) from error

    def page(self, cf: str, start: bytes, limit: int) -> RowPage:
        """Return up to ``limit`` rows from ``start`` on; fewer if MAX_SKIPPED_KEYS removed rows lie between.

        Such removed rows are then compacted away.
        """
        rows: list[tuple[bytes, bytes]] = []
        try:
            table = self._tables[cf]
            if table is None:
                return RowPage(rows=rows, more=False)
            options = ReadOptions()
            options.set_max_skippable_internal_keys(MAX_SKIPPED_KEYS)
            cursor = table.iter(options)
            cursor.seek(start)
            while len(rows) < limit and cursor.valid():
                rows.append((cursor.key(), cursor.value()))
                cursor.next()
            more = cursor.valid()
            if not more and _gave_up(cursor):
                self._have_compacted(cf, table)
                more = True
        except Exception as error:
            raise _failure(f"page of {cf}", error) from error
        return RowPage(rows=rows, more=more)

    def _have_compacted(self, cf: str, table: Any) -> None:
        """Compact a family's removed rows away, one family at a time.

        A thread of its own does this; it does not hold the interpreter's lock.
        """
        if self._compaction is None or not self._compaction.is_alive():
            self._compaction = Thread(target=_compact, args=(table,), name=f"compact-{cf}", daemon=True)
            self._compaction.start()

    def sync(self) -> None:
        """Make everything written so far survive a loss of power."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise _failure("sync", error) from error

    def snapshot(self, families: Iterable[str] | None = None) -> RocksSnapshot:
        """Return a snapshot of all families, or of some: it costs an iterator for each."""
        if not self._tables:
            raise StoreFailure("RocksDB: the store is closed")
        try:
            tables = self._tables if families is None else {name: self._tables[name] for name in families}
            snapshot = RocksSnapshot(tables)
        except Exception as error:
            raise _failure("snapshot", error) from error
        self._snapshots.add(snapshot)
        return snapshot

    def checkpoint(self, name: str) -> None:
        """Create a checkpoint beside the database, in ``<path>.checkpoints/<name>``. It replaces one of the same name.

        It is made in WORK_FOLDER and moved from there when it is whole, so a directory under its name is whole. Of the
        checkpoints without the prefix ``kept`` the youngest MAX_CHECKPOINTS stay, because each holds files on the disk
        that the database itself has long compacted away.
        """
        made = self._checkpoints / WORK_FOLDER / name
        try:
            self._remove(name)
            made.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(made))
            made.rename(self._checkpoints / name)
            sync_folder(self._checkpoints)  # a row that names it may be on the disk at any time from now on
            others = [path for path in self._whole_checkpoints() if not path.name.startswith(self._kept)]
            by_age = sorted(others, key=lambda path: path.stat().st_mtime_ns)
            for old in [path for path in by_age if path.name != name][: -(MAX_CHECKPOINTS - 1)]:
                self._remove(old.name)
        except Exception as error:
            raise _failure(f"checkpoint {name}", error) from error

    def write_files(self) -> None:
        """Write everything written so far into table files. A checkpoint right afterwards has little left to write."""
        try:
            for table in self._tables.values():
                if table is not None:
                    table.flush()
        except Exception as error:
            raise _failure("flush", error) from error

    def rows_in_memory(self) -> int:
        """Return how many entries are in no table file yet: rows that were put or removed. It costs no look at them."""
        self._check_open("count rows in memory")
        try:
            tables = [table for table in self._tables.values() if table is not None]
            return sum(int(table.property_int_value(UNFLUSHED) or 0) for table in tables)
        except Exception as error:
            raise _failure("count rows in memory", error) from error

    def copy_to(self, target: Path) -> None:
        """Make a checkpoint of everything written so far in ``target``, a new directory on the same disk.

        The caller removes it. It holds files on the disk that the database itself may have compacted away since. If
        others write meanwhile, some of their rows may be in its write-ahead log alone.
        """
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(target))
        except Exception as error:
            raise _failure(f"checkpoint in {target}", error) from error

    def complete_copy(self, target: Path) -> None:
        """Put into the checkpoint ``target`` what this store keeps elsewhere: nothing."""

    def checkpoint_folder(self, name: str) -> Path:
        """Return the directory of a checkpoint, which need not be there."""
        return self._checkpoints / name

    def checkpoint_names(self) -> list[str]:
        """Return the names of the checkpoints that there are."""
        self._check_open("checkpoints")
        try:
            return [path.name for path in self._whole_checkpoints()]
        except OSError as error:
            raise _failure("checkpoints", error) from error

    def drop_checkpoint(self, name: str) -> None:
        """Remove a checkpoint. Its directory is gone at once; its files follow."""
        self._check_open(f"drop checkpoint {name}")
        try:
            self._remove(name)
        except OSError as error:
            raise _failure(f"drop checkpoint {name}", error) from error

    @property
    def doubt(self) -> str:
        """Why rows may be missing; "" if there is no reason to think so."""
        return self._doubt

    def trust(self) -> None:
        """Take the doubt away, durably: all rows have been scanned."""
        self._check_open("trust")
        try:
            if self._doubt:
                (self.path / DOUBT_FILE).unlink(missing_ok=True)
                sync_folder(self.path)
            self._doubt = ""
        except OSError as error:
            raise _failure("trust", error) from error

    def _whole_checkpoints(self) -> list[Path]:
        if not self._checkpoints.is_dir():
            return []
        return [path for path in self._checkpoints.iterdir() if path.name != WORK_FOLDER]

    def _remove(self, name: str) -> None:
        """Move a checkpoint away, then remove its files: what has its name is never half a checkpoint."""
        removed = self._checkpoints / WORK_FOLDER / name
        shutil.rmtree(removed, ignore_errors=True)
        if not (self._checkpoints / name).exists():
            return
        removed.parent.mkdir(exist_ok=True)
        (self._checkpoints / name).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def _check_open(self, what: str) -> None:
        if not self._tables:
            raise StoreFailure(f"RocksDB: {what}: the store is closed")

    def close(self) -> None:
        """Close the database and its snapshots, and release its lock file; a second call does nothing."""
        if not self._tables:
            return
        for snapshot in self._snapshots:
            snapshot.close()
        if self._compaction is not None:
            self._compaction.join(COMPACTION_WAIT_S)
        tables, self._tables, self._handles = self._tables, {}, {}
        if self._compaction is not None and self._compaction.is_alive():
            # rocksdict cannot close what is in use. Everything written is in the write-ahead log, and the process ends.
            self._db.flush_wal(False)
            return
        for table in tables.values():
            if table is not None:
                table.close()
        self._db.close()


def _families_in(path: Path, options: Options) -> list[str]:
    """Return the column families of the database in ``path`` except RocksDB's own; none if there is no database yet."""
    if not (path / "CURRENT").exists():
        return []
    return [name for name in Rdict.list_cf(str(path), options) if name != "default"]


def _doubt_kept(path: Path) -> str:
    """Return why rows of the database may be missing, and keep that on the disk; "" if there is no reason."""
    kept = path / DOUBT_FILE
    if kept.exists():
        return kept.read_text(encoding="utf-8", errors="replace") or "an earlier start was in doubt"
    if doubt := _doubt_about(path):
        write_durably(kept, doubt)
    return doubt


def _doubt_about(path: Path) -> str:
    if not (path / "CURRENT").exists():
        return ""
    manifest = path / (path / "CURRENT").read_text(encoding="utf-8").strip()
    number = int(manifest.name.rpartition("-")[2])
    logs = {int(log.stem) for log in path.glob("*.log")}
    begin = max(0, manifest.stat().st_size - MANIFEST_END_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    with manifest.open("rb") as file:
        file.seek(begin)
        found = doubt_about(number, file.read(), logs, whole=begin == 0)
    return (doubt_about(number, manifest.read_bytes(), logs, whole=True) or "") if found is None else found


def _clear_remains(path: Path) -> None:
    """Remove the folder that rocksdict makes when it opens a database which somebody has just removed."""
    with suppress(OSError):
        if not (path / "CURRENT").exists():
            (path / "rocksdict-config.json").unlink(missing_ok=True)
            path.rmdir()  # only if nothing else is in it


def _gave_up(cursor: Any) -> bool:
    """Whether a cursor is invalid because it passed over too many removed rows. Raises its other errors."""
    try:
        cursor.status()
    except Exception as error:
        if INCOMPLETE not in str(error):
            raise
        return True
    return False


def _compact(table: Any) -> None:
    options = CompactOptions()
    # By default files are moved to the last level as they are, removals included.
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    with suppress(Exception):  # the database is being closed; or it fails, and the next write reports that
        table.compact_range(None, None, options)


def _failure(what: str, error: Exception) -> StoreFailure:
    return StoreFailure(f"RocksDB: {what}: {type(error).__name__}: {error}")
