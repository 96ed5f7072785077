"""Which blocks a shard's rows need, and lists of blocks' rows as files.

Needed are the blocks of keys, and those of deleted versions that a snapshot needs. Blocks of open keys are not: nobody
has committed them. A list holds the committed row of each needed block (length, checksums of its cells, index), as its
datanode had it. Layout: ``SBLK0001``, then for each block, ascending by key,
``key (16) | length of the row (4) | row``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Protocol

from om_processors.fleet.block_deletion import is_on_datanodes
from om_processors.namespace.snapshots import NeededVersions
from om_processors.namespace.tables import decode_key
from replicated_db.core.bootstrap.listing import Content
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, disk
from schemas.codecs.block_rows import block_key
from schemas.column_families import DELETED_TABLE, KEY_TABLE
from schemas.records.rows import NEVER_WRITTEN, BlockLocation

MAGIC = b"SBLK0001"
MAX_ROW_BYTES = 4 * 1024 * 1024
"""A longer row is no row: the file is damaged."""

_HEAD = Struct(">16sI")


class RowsView(Protocol):
    """What rows are read from."""

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over rows in key order."""


def needed_blocks(view: RowsView) -> dict[bytes, BlockLocation]:
    """Return the blocks that a shard's rows need, by their keys in blockTable; the longest, if several name one."""
    found: dict[bytes, BlockLocation] = {}
    for _, value in view.iterate(KEY_TABLE, b""):
        _add(found, decode_key(value).blocks)
    versions = NeededVersions(view)
    for _, value in view.iterate(DELETED_TABLE, b""):
        info = decode_key(value)
        if versions.include(info):
            _add(found, info.blocks)
    return found


def _add(found: dict[bytes, BlockLocation], blocks: Iterable[BlockLocation]) -> None:
    for block in blocks:
        if not block.length or block.bcs_id == NEVER_WRITTEN or not is_on_datanodes(block):
            continue
        key = block_key(block.container_id, block.local_id)
        if key not in found or found[key].length < block.length:
            found[key] = block


def write_list(repository: BackupRepository, shard: int, rows: dict[bytes, bytes]) -> Content:
    """Write a list into the repository; return its content. Raises BackupFailed."""
    path = repository.scratch / f"blocks-{shard}"
    with disk(path):
        repository.scratch.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.write(MAGIC)
            for key in sorted(rows):
                file.write(_HEAD.pack(key, len(rows[key])) + rows[key])
    return repository.keep_file(path)


def read_list(repository: BackupRepository, content: Content) -> dict[bytes, bytes]:
    """Return the rows of a list; raises BackupFailed, which names the file, if it is damaged."""
    path = repository.path_of(content)
    if not repository.is_right(content):
        raise BackupFailed(f"{path}: the list of blocks is damaged or missing")
    return dict(_rows(path, content.size))


def _rows(path: Path, size: int) -> Iterator[tuple[bytes, bytes]]:
    with disk(path), path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BackupFailed(f"{path}: it is no list of blocks")
        while file.tell() < size:
            head = file.read(_HEAD.size)
            key, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", MAX_ROW_BYTES + 1)
            row = file.read(length) if length <= MAX_ROW_BYTES else b""
            if len(row) != length:
                raise BackupFailed(f"{path}: it ends within a row, or a row has {length} bytes")
            yield key, row
