"""The store of a pipeline's database: RocksDB, but bytes of chunks (the old way) lie in the blocks' files.

A row of chunkTable holds up to 4 MiB that the log has already and that the block's file needs anyway. RocksDB would
write them to the disk three times (its log, a table, the file). So RocksDB gets only a mark, and the bytes go to the
file at once::

    RocksDB's value = 00 | number of bytes (8, big-endian) | XXH3-128 of them (16)
                           the bytes are in the block's file at the row's offset
                    = 01 | the bytes
                           they could not be put into the file yet

Rules:
    - The bytes are written before the mark and the position, so a crash in between replays them. Before a mark is
      written they are also stored under the fsync policy. RocksDB's own log may survive a loss of power that takes the
      file's pages, and a mark without its bytes is another row, for which this replica would have to flag itself. The
      policy ``never`` does not promise that.
    - A chunk that lies beyond the file's end is kept whole: an earlier chunk is missing, or another stream holds the
      block. It is moved to the file when the missing bytes have come.
    - A read gives exactly the bytes that were written, or raises StoreFailure. A chunk whose bytes were changed in the
      file shows as another row (evidence, digest), as any damaged row does.
    - A checkpoint for another member has all bytes in RocksDB: there is no file of a block beside it.
    - A chunk's row is removed when a PutBlock covers it; then the file's bytes are the block's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

from xxhash import xxh3_128_digest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import chunk_key, chunk_of_key
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import Write
from replicated_db.shell.rocks import RocksReader, RocksSnapshot, RocksStore
from schemas.column_families import CHUNK_TABLE
from schemas.records.packets import CELL_BYTES
from schemas.stream_errors import FAILED

MAX_CACHED_BYTES = 64 * 1024 * 1024
"""Chunks that were written last are kept in memory: each is read twice more, when its PutBlock deletes the row."""

_IN_FILE, _WHOLE = b"\x00", b"\x01"
_SIZE = slice(1, 9)
_HASH = slice(9, 25)


class ChunkStore(RocksStore):
    """A pipeline's database. Writes come from one thread at a time (the apply lock)."""

    def __init__(self, path: Path, families: Iterable[str], blocks: BlockStore) -> None:
        self._families = list(families)
        self._blocks = blocks
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        super().__init__(path, self._families)

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        value = super().get(cf, key)
        return value if value is None or cf != CHUNK_TABLE else self._bytes_of(key, value)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop)."""
        rows = super().iterate(cf, start, stop)
        if cf != CHUNK_TABLE:
            return rows
        return ((key, self._bytes_of(key, value)) for key, value in rows)

    def write(self, writes: Iterable[Write]) -> None:
        """Write all rows atomically; bytes of chunks go to the blocks' files first, in the order of their offsets.

        The order of different rows in one write means nothing. A chunk that follows another one of the same write finds
        it in the file.
        """
        in_order = sorted(writes, key=lambda one: one[1] if one[0] == CHUNK_TABLE else b"")
        super().write([self._placed(*one) if one[0] == CHUNK_TABLE else one for one in in_order])

    def snapshot(self, families: Iterable[str] | None = None) -> ChunkSnapshot:  # type: ignore[override]
        """Return snapshots of all families, or of some."""
        return ChunkSnapshot(super().snapshot(families), self)

    def complete_copy(self, target: Path) -> None:
        """Put the bytes of chunks into a checkpoint of this database, in the place of their marks.

        Raises StoreFailure if a chunk has gone from its file meanwhile: its block was deleted. Another checkpoint does.
        """
        reader = RocksReader(target, self._families)
        try:
            marks = [(key, mark) for key, mark in reader.iterate(CHUNK_TABLE, b"") if mark[:1] == _IN_FILE]
        finally:
            reader.close()
        if not marks:
            return
        copy = RocksStore(target, self._families)
        try:
            for key, mark in marks:
                value = self.read_chunk(key, mark)
                if xxh3_128_digest(value) != mark[_HASH]:
                    raise StoreFailure(f"chunk {chunk_of_key(key)} of the checkpoint is no longer in its file")
                copy.write([(CHUNK_TABLE, key, _WHOLE + value)])
        finally:
            copy.close()

    def _placed(self, cf: str, key: bytes, value: bytes | None) -> Write:
        if value is None:
            self._forget(key)
            kept = super().get(CHUNK_TABLE, key)
            if kept is not None and kept[:1] == _WHOLE:
                # The last chance to place the bytes: a PutBlock covers the chunk, and the block is what its file has.
                self._write_to_file(key, kept[1:])
            return cf, key, None
        if not self._write_to_file(key, value):
            return cf, key, _WHOLE + value
        self._remember(key, value)
        self._place_next(key, len(value))
        return cf, key, _mark_of(value)

    def _write_to_file(self, key: bytes, value: bytes) -> bool:
        container_id, local_id, offset = chunk_of_key(key)
        try:
            with self._blocks.open_writer(container_id, local_id, offset, CELL_BYTES) as writer:
                writer.write(offset, memoryview(value))
                writer.flush()
        except BlockError:
            # It is kept whole: an earlier chunk is missing, another stream has the block, the log deletes it later …
            return False
        return True

    def _place_next(self, key: bytes, size: int) -> None:
        """Move chunks that were kept whole, and that follow this one, to the file."""
        container_id, local_id, offset = chunk_of_key(key)
        while True:
            offset += size
            key = chunk_key(container_id, local_id, offset)
            kept = super().get(CHUNK_TABLE, key)
            if kept is None or kept[:1] != _WHOLE or not self._write_to_file(key, value := kept[1:]):
                return
            # The mark comes before the write under way: after a crash in between, the bytes are in the file anyway.
            super().write([(CHUNK_TABLE, key, _mark_of(value))])
            self._remember(key, value)
            size = len(value)

    def _bytes_of(self, key: bytes, stored: bytes) -> bytes:
        if stored[:1] == _WHOLE:
            return stored[1:]
        cached = self._cache.get(key)
        return cached if cached is not None else self.read_chunk(key, stored)

    def read_chunk(self, key: bytes, mark: bytes) -> bytes:
        """Return what the file has where a chunk's bytes were written: fewer bytes, if they are gone."""
        container_id, local_id, offset = chunk_of_key(key)
        size = int.from_bytes(mark[_SIZE], "big")
        found = bytearray()
        try:
            for at, data, _ in self._blocks.read(container_id, local_id, offset, size):
                found += data[max(0, offset - at) :]
        except BlockError:
            return b""
        return bytes(found[:size])

    def _remember(self, key: bytes, value: bytes) -> None:
        self._forget(key)
        self._cache[key] = value
        self._cached_bytes += len(value)
        while self._cached_bytes > MAX_CACHED_BYTES:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    def _forget(self, key: bytes) -> None:
        if (value := self._cache.pop(key, None)) is not None:
            self._cached_bytes -= len(value)


class ChunkReader(RocksReader):
    """A checkpoint of a pipeline's database that was completed (:meth:`ChunkStore.complete_copy`), to be checked."""

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop). Raises ValueError at a chunk whose bytes are not in the database."""
        for key, value in super().iterate(cf, start, stop):
            if cf == CHUNK_TABLE and value[:1] != _WHOLE:
                raise ValueError(f"chunk {chunk_of_key(key)} has its bytes elsewhere")
            yield key, value[1:] if cf == CHUNK_TABLE else value


class ChunkSnapshot:
    """A snapshot whose chunks are read from the blocks' files."""

    def __init__(self, rows: RocksSnapshot, store: ChunkStore) -> None:
        self._rows = rows
        self._store = store

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        value = self._rows.get(cf, key)
        return value if value is None or cf != CHUNK_TABLE else self._bytes_of(key, value)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop).

        Raises BlockError if a chunk has gone from its file since the snapshot.
        """
        rows = self._rows.iterate(cf, start, stop)
        if cf != CHUNK_TABLE:
            return rows
        return ((key, self._bytes_of(key, value)) for key, value in rows)

    def close(self) -> None:
        """Release the snapshot."""
        self._rows.close()

    def _bytes_of(self, key: bytes, stored: bytes) -> bytes:
        if stored[:1] == _WHOLE:
            return stored[1:]
        value = self._store.read_chunk(key, stored)
        if xxh3_128_digest(value) != stored[_HASH] and self._store.get(CHUNK_TABLE, key) is None:
            raise BlockError(FAILED, f"chunk {chunk_of_key(key)} was deleted while its snapshot was read")
        return value


def _mark_of(value: bytes) -> bytes:
    return _IN_FILE + len(value).to_bytes(8, "big") + xxh3_128_digest(value)
