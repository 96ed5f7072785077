"""Copies of closed containers: a peer's rows and bytes become a directory, which appears complete and verified.

Rules:

1. A copy holds the committed bytes of each block, and its row. The bytes are verified cell by cell as they are written:
   a copy is right, or there is none.
2. An import is put together in ``.import-<container id>``, fsynced, and renamed into place. An interrupted import is
   removed, at the latest at the next start.
3. The rows lie beside the blocks in the file ``rows``, so that a datanode which is no member of the container's
   pipeline can answer for the copy and pass it on. Tombstones are kept as rows, without a file.
4. A row stays as long as its file. So a file without a row says that the rows have lost their end.

Layout of ``rows``, for each block in the order of keys::

    key (16) | length of the row (4) | row, as in blockTable | CRC32C of all that (4)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO

from crc32c import crc32c

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.containers import CLOSED_MARK, NEW_ROWS_FILE, ROWS_FILE, block_name
from datanode_processors.blocks.core.checksums import CellChecksums, check_cell_bytes, check_list
from datanode_processors.blocks.file_bytes import Buffer, block_error, write_fully
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.request_checks import MAX_BLOCK_BYTES, check_block
from schemas.codecs.block_rows import block_key, block_of_key, decode_block_row
from schemas.codecs.codec import Undecodable
from schemas.records.datanode import BlockRow
from schemas.records.record import record
from schemas.sharding import pipeline_of
from schemas.stream_errors import CHECKSUM_MISMATCH, FAILED, INVALID_REQUEST

_HEAD = Struct(">16sI")
_CRC = Struct(">I")


@record
class Imported:
    """What an import brought."""

    container_id: int
    blocks: int
    bytes: int


def import_container(
    store: BlockStore, container_id: int, blocks: Iterable[tuple[bytes, bytes, Iterable[Buffer]]]
) -> Imported:
    """Store a copy of a closed container from (key, row, pieces) of its blocks, ascending by key; all of it or nothing.

    Raises BlockError: INVALID_REQUEST (the container is stored here already, is being imported, or a key is not the
    container's or out of order), CHECKSUM_MISMATCH (bytes that are not the row's), DISK_FULL, FAILED (any OSError, also
    of the iterators); and anything else that the iterators raise.
    """
    folder = store.import_folder(container_id)
    if store.container_folder(container_id).exists():
        raise BlockError(INVALID_REQUEST, f"container {container_id} is stored here already")
    try:
        folder.mkdir()
    except FileExistsError:
        raise BlockError(INVALID_REQUEST, f"container {container_id} is being imported") from None
    except OSError as error:
        raise block_error(error, "make", folder) from error
    try:
        imported = _receive(store, container_id, folder, blocks)
        store.adopt_container(container_id, folder)
    except OSError as error:
        raise block_error(error, "import into", folder) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return imported


def _receive(
    store: BlockStore, container_id: int, folder: Path, blocks: Iterable[tuple[bytes, bytes, Iterable[Buffer]]]
) -> Imported:
    count = size = 0
    before = b""
    with (folder / ROWS_FILE).open("xb") as rows:
        for key, value, pieces in blocks:
            row = _row(container_id, key, value)
            if key <= before:
                raise BlockError(
                    INVALID_REQUEST, f"container {container_id}: block {block_of_key(key)} is out of order"
                )
            before = key
            if not row.deleted:
                _receive_block(store, folder / block_name(block_of_key(key)[1]), row, pieces)
                count, size = count + 1, size + row.length
            _write_row(rows, key, value)
        rows.flush()
        store.fsyncs.file(rows.fileno())
    (folder / CLOSED_MARK).touch()
    store.fsyncs.directory(folder)
    return Imported(container_id=container_id, blocks=count, bytes=size)


def _receive_block(store: BlockStore, path: Path, row: BlockRow, pieces: Iterable[Buffer]) -> None:
    cells = CellChecksums(row.bytes_per_checksum)
    with path.open("xb", buffering=0) as file:
        for piece in pieces:
            if cells.length + len(piece) > row.length:
                raise BlockError(CHECKSUM_MISMATCH, f"{path}: more than the {row.length} bytes that are committed")
            store.space.take(len(piece), path)
            write_fully(file.fileno(), [piece], cells.length)
            cells.write(cells.length, piece)
        if cells.length != row.length or cells.packed(row.length) != row.checksums:
            raise BlockError(
                CHECKSUM_MISMATCH,
                f"{path}: {cells.length} bytes came that do not have the checksums of the {row.length} committed",
            )
        store.fsyncs.file(file.fileno())


def _row(container_id: int, key: bytes, value: bytes) -> BlockRow:
    try:
        row = decode_block_row(value)
        if not row.deleted:
            check_cell_bytes(row.bytes_per_checksum)
            if not 0 <= row.length <= MAX_BLOCK_BYTES:
                raise ValueError(f"a length of {row.length}; 0 to {MAX_BLOCK_BYTES} are possible")
            check_list(row.checksums, row.length, row.bytes_per_checksum)
    except (Undecodable, ValueError) as error:
        raise BlockError(
            INVALID_REQUEST, f"container {container_id}: the row of {key.hex()} is none: {error}"
        ) from error
    if len(key) != len(block_key(0, 0)) or block_of_key(key)[0] != container_id:
        raise BlockError(INVALID_REQUEST, f"container {container_id}: {key.hex()} is no key of its blocks")
    check_block(pipeline_of(container_id), container_id, block_of_key(key)[1])
    return row


def _write_row(file: BinaryIO, key: bytes, value: bytes) -> None:
    head = _HEAD.pack(key, len(value)) + value
    file.write(head + _CRC.pack(crc32c(head)))


def replace_rows(store: BlockStore, container_id: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Replace the rows of a copy by other (key, row)s, ascending, all or none; raises BlockError DISK_FULL, FAILED.

    The new rows may use the disk's reserve. They are few bytes, and without them nothing could be deleted from a full
    disk.
    """
    folder = store.container_folder(container_id)
    fresh = folder / NEW_ROWS_FILE
    try:
        with fresh.open("wb") as file:
            for key, value in rows:
                _write_row(file, key, value)
            file.flush()
            store.fsyncs.file(file.fileno())
        fresh.replace(folder / ROWS_FILE)
        store.fsyncs.directory(folder)
    except OSError as error:
        with suppress(OSError):  # a half-written file must not keep room that others lack
            fresh.unlink(missing_ok=True)
        raise block_error(error, "replace the rows of", folder) from error


def has_rows(store: BlockStore, container_id: int) -> bool:
    """Return whether a container has a file of rows, right or damaged; False if the disk cannot tell."""
    # Not Path.exists, which raises the disk's error: that would end a thread that looks at all copies.
    return os.path.exists(store.container_folder(container_id) / ROWS_FILE)


def check_rows(container_id: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise BlockError INVALID_REQUEST unless (key, row)s may be those of a container."""
    for key, value in rows:
        _row(container_id, key, value)


def stored_rows(
    store: BlockStore, container_id: int, strays: Collection[int] = ()
) -> Iterator[tuple[bytes, bytes]]:  # fmt: skip
    """Iterate over (key, row) of a container that was imported; any other container has none.

    ``strays`` are blocks that need no row though there is a file. Raises BlockError FAILED if the rows are damaged;
    whether some are missing shows at their end.
    """
    path = store.container_folder(container_id) / ROWS_FILE
    missing = {local_id for local_id, _ in store.blocks(container_id)}.difference(strays)  # before the rows are read
    try:
        with path.open("rb") as file:
            while head := file.read(_HEAD.size):
                size = _HEAD.unpack(head)[1] if len(head) == _HEAD.size else 0
                if size > os.fstat(file.fileno()).st_size:
                    raise BlockError(FAILED, f"{path} is damaged: a row of {size} bytes")
                value, check = file.read(size), file.read(_CRC.size)
                if check != _CRC.pack(crc32c(head + value)):
                    raise BlockError(
                        FAILED, f"{path} is damaged: a row before {file.tell()} does not have its checksum"
                    )
                missing.discard(block_of_key(head[:16])[1])
                yield head[:16], value
        if missing:
            raise BlockError(
                FAILED, f"{path} is damaged: {len(missing)} blocks have no row, the first of them {min(missing)}"
            )
    except FileNotFoundError:
        return
    except OSError as error:
        raise block_error(error, "read", path) from error
