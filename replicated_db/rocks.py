"""The store on RocksDB (rocksdict, raw mode): one database per shard and node.

Durability: the write-ahead log is on and not synced, recovery is point-in-time. The Kafka log is the truth and the position is
in the same write as the data, so a replica that loses the tail of its WAL replays it. A database that refuses to open is
damaged before that tail: it is rebuilt from the log, never opened in a weaker mode.

Memory is bounded: the write buffers of a database by WRITE_BUFFERS_BYTES, its blocks by BLOCK_CACHE_BYTES.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from replicated_db.column_families import LOCAL_FAMILIES
from replicated_db.errors import StoreFailure
from replicated_db.ports import Write

WRITE_BUFFERS_BYTES = 64 * 1024 * 1024
BLOCK_CACHE_BYTES = 32 * 1024 * 1024
MAX_WAL_BYTES = 128 * 1024 * 1024
MAX_OPEN_FILES = 256
BLOOM_BITS_PER_KEY = 10
MEMTABLE_BLOOM_SHARE = 0.05
"""Share of a write buffer that its own filter takes: two reads of three ask for a row that is not there yet."""


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
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    table.set_cache_index_and_filter_blocks(True)
    # In parts: the index and the filter of a large file, each in one block, do not fit into a shard of the cache (512 KiB), and every read
    # would fetch them from the file (docs/performance.md, "Filters that no shard of the cache held").
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


class RocksView:
    """Reads of one state: of the database, or of a snapshot of every family."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = dict(tables)

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        try:
            value: bytes | None = self._tables[cf].get(key)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise _failure(f"get from {cf}", error) from error
        return value

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop); the state is that of the first step."""
        try:
            options = ReadOptions()
            if stop is not None:
                options.set_iterate_upper_bound(stop)
            cursor = self._tables[cf].iter(options)
            cursor.seek(start)
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            cursor.status()
        except GeneratorExit:
            raise
        except Exception as error:
            raise _failure(f"iterate over {cf}", error) from error


class RocksSnapshot:
    """One moment's state of all families; exact only if taken under the apply lock (each family has its own moment).

    It holds an iterator of each family, which RocksDB pins to the state in which it was made. (Iterating over rocksdict's own
    ``Snapshot``, 0.3.29, reads the present state.) For one thread at a time; iterations may be interleaved.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._cursors = {name: table.iter(ReadOptions()) for name, table in tables.items()}
        self._users: dict[str, object] = {}

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        found = next(self.iterate(cf, key, key + b"\x00"), None)
        return None if found is None else found[1]

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop)."""
        try:
            cursor = self._cursors[cf]
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
    """A database that nobody has open, opened to be read. Raises StoreFailure if it does not open."""

    def __init__(self, path: Path, families: Iterable[str]) -> None:
        cache = Cache(BLOCK_CACHE_BYTES)
        options = _options(cache)
        options.create_if_missing(False)
        names = [*families, *LOCAL_FAMILIES]
        try:
            columns = {name: _options(cache) for name in names}
            self._db = Rdict(str(path), options, columns, AccessType.read_only())
            super().__init__({name: self._db.get_column_family(name) for name in names})
        except Exception as error:
            raise StoreFailure(f"{path} does not open: {error}") from error

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        if not self._tables:
            return
        for table in self._tables.values():
            table.close()
        self._tables = {}
        self._db.close()


class RocksStore(RocksView):
    """A database in ``path``, with ``families`` and the replica-local ones. Raises StoreFailure if it does not open."""

    def __init__(self, path: Path, families: Iterable[str]) -> None:
        self.path = path
        names = [*families, *LOCAL_FAMILIES]
        cache = Cache(BLOCK_CACHE_BYTES)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(
                str(path), _options(cache), {name: _options(cache) for name in names}, AccessType.read_write()
            )
            super().__init__({name: self._db.get_column_family(name) for name in names})
            self._handles = {name: self._db.get_column_family_handle(name) for name in names}
            self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        except Exception as error:
            raise StoreFailure(
                f"{path} does not open: {error}. Move it away; the replica is rebuilt from the log"
            ) from error

    def write(self, writes: Iterable[Write]) -> None:
        """Write all rows atomically."""
        batch = WriteBatch(raw_mode=True)
        handles = self._handles
        try:
            for cf, key, value in writes:
                if value is None:
                    batch.delete(key, handles[cf])
                else:
                    batch.put(key, value, handles[cf])
            self._db.write(batch)
        except Exception as error:
            raise _failure("write", error) from error

    def snapshot(self) -> RocksSnapshot:
        """Return snapshots of all families."""
        if not self._tables:
            raise StoreFailure("RocksDB: the store is closed")
        try:
            snapshot = RocksSnapshot(self._tables)
        except Exception as error:
            raise _failure("snapshot", error) from error
        self._snapshots.add(snapshot)
        return snapshot

    def checkpoint(self, name: str) -> None:
        """Create a checkpoint beside the database, in ``<path>.checkpoints/<name>``; replaces an older one."""
        target = self.path.with_name(self.path.name + ".checkpoints") / name
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(target))
        except Exception as error:
            raise _failure(f"checkpoint {name}", error) from error

    def close(self) -> None:
        """Close the database and its snapshots, and release its lock file; a second call does nothing."""
        if not self._tables:
            return
        for snapshot in self._snapshots:
            snapshot.close()
        for table in self._tables.values():
            table.close()
        self._tables = {}
        self._handles = {}
        self._db.close()


def _failure(what: str, error: Exception) -> StoreFailure:
    return StoreFailure(f"RocksDB: {what}: {type(error).__name__}: {error}")
