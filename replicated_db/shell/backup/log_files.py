"""Files with records of a log, as they lie there: offset, append time, bytes.

Layout: ``SLOG0001``, then for each record ``offset (8) | time in ms (8) | length (4) | value``, big-endian.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct

from replicated_db.core.backup.manifest import LogPiece
from replicated_db.core.bootstrap.listing import Content
from replicated_db.core.ports import Entry
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, disk

MAGIC = b"SLOG0001"
PIECE_BYTES = 64 * 1024 * 1024
"""Bytes at which a file is full; the last record may go beyond."""

MAX_VALUE_BYTES = 64 * 1024 * 1024
"""A longer record is no record: the file is damaged."""

_HEAD = Struct(">QQI")


def keep_entries(
    repository: BackupRepository, entries: Iterable[Entry], first: int, on_bytes: Callable[[int], None]
) -> tuple[LogPiece, ...]:
    """Write records, which follow one another from offset ``first`` on, into the repository.

    Raises BackupFailed if one is missing.
    """
    pieces: list[LogPiece] = []
    offset = first
    remaining = iter(entries)
    while True:
        path = repository.scratch / f"log-{offset}"
        with disk(path):
            repository.scratch.mkdir(exist_ok=True)
            begun, offset = offset, _fill(path, remaining, offset, on_bytes)
        if offset == begun:
            path.unlink()
            return tuple(pieces)
        pieces.append(LogPiece(begun, offset, repository.keep_file(path)))


def _fill(path: Path, entries: Iterator[Entry], offset: int, on_bytes: Callable[[int], None]) -> int:
    with path.open("wb") as file:
        file.write(MAGIC)
        while file.tell() < PIECE_BYTES and (entry := next(entries, None)) is not None:
            if entry.offset != offset:
                raise BackupFailed(f"the log goes on at offset {entry.offset}, where {offset} was expected")
            file.write(_HEAD.pack(entry.offset, max(entry.timestamp_ms, 0), len(entry.value)))
            file.write(entry.value)
            on_bytes(_HEAD.size + len(entry.value))
            offset += 1
        file.flush()
        os.fsync(file.fileno())
    return offset


def kept_entries(repository: BackupRepository, pieces: Iterable[LogPiece], first: int) -> Iterator[Entry]:
    """Yield the records of pieces from offset ``first`` on, each once. Raises BackupFailed for a damaged file."""
    offset = first
    for piece in pieces:
        path = repository.path_of(piece.content)
        if not repository.is_right(piece.content):
            raise BackupFailed(f"{path}: the file with the log's records from offset {piece.first} on is damaged")
        for entry in _read(path, piece.content):
            if entry.offset == offset:
                offset += 1
                yield entry
        if offset != piece.end:
            raise BackupFailed(f"{path}: its records end at offset {offset}, not at {piece.end}")


def _read(path: Path, content: Content) -> Iterator[Entry]:
    with disk(path), path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BackupFailed(f"{path}: it is no file of a log")
        while file.tell() < content.size:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise BackupFailed(f"{path}: it ends within a record")
            offset, timestamp_ms, size = _HEAD.unpack(head)
            if size > MAX_VALUE_BYTES:
                raise BackupFailed(f"{path}: a record of {size} bytes")
            value = file.read(size)
            if len(value) < size:
                raise BackupFailed(f"{path}: it ends within a record")
            yield Entry(offset=offset, timestamp_ms=timestamp_ms, value=value)
