"""The bytes of blocks in a repository: a file for each block, named by the block and the checksums of its cells.

::

    blocks/ab/CONTAINER-LOCAL-DIGEST    container and local id in hexadecimal; XXH3-128 over length and checksums

A file gets its name only when each of its cells has the checksum of the block's committed row. A committed block never
changes; one that has grown has another name. So a block is fetched once, however many backups need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from datanode_processors.blocks.core.checksums import CellChecksums
from replicated_db.shell.backup.repository import BackupFailed, disk
from schemas.codecs.block_rows import block_of_key, decode_block_row
from schemas.records.datanode import BlockRow
from transport.files.durable_files import sync_folder

PIECE_BYTES = 1024 * 1024
FOLDER = "blocks"


class WrongBytes(Exception):
    """Bytes of a block that do not have the checksums of its row."""


class BlockFiles:
    """The files of blocks in the repository in ``folder``. Methods raise BackupFailed if the disk fails."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def path_of(self, key: bytes, row: BlockRow) -> Path:
        """Return where a block's bytes lie, or would lie."""
        container_id, local_id = block_of_key(key)
        size = row.length.to_bytes(8, "big") + row.bytes_per_checksum.to_bytes(8, "big")
        digest = xxh3_128_hexdigest(size + row.checksums)
        return self._folder / digest[:2] / f"{container_id:x}-{local_id:x}-{digest}"

    def has(self, key: bytes, row: BlockRow) -> bool:
        """Whether a block's bytes are here, by name and size."""
        try:
            return self.path_of(key, row).stat().st_size == row.length
        except OSError:
            return False

    def keep(self, key: bytes, row: BlockRow, pieces: Iterable[memoryview]) -> None:
        """Take a block's bytes, compared with the row's checksums; durable. Raises WrongBytes."""
        path = self.path_of(key, row)
        part = path.with_name(path.name + ".part")
        cells = CellChecksums(row.bytes_per_checksum)
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                for piece in pieces:
                    if cells.length + len(piece) > row.length:
                        raise WrongBytes(f"{path.name}: more than the {row.length} bytes that are committed")
                    file.write(piece)
                    cells.write(cells.length, piece)
                file.flush()
                os.fsync(file.fileno())
            if cells.length != row.length or cells.packed(row.length) != row.checksums:
                part.unlink()
                raise WrongBytes(f"{path.name}: {cells.length} bytes came that do not have the row's checksums")
            part.rename(path)
            sync_folder(path.parent)

    def pieces(self, key: bytes, row: BlockRow) -> Iterator[bytes]:
        """Yield a block's bytes; whether they are right is for the caller to see."""
        path = self.path_of(key, row)
        with disk(path), path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def is_right(self, key: bytes, row: BlockRow) -> bool:
        """Read a block's bytes; return whether they are here, with the row's checksums."""
        if not self.has(key, row):
            return False
        cells = CellChecksums(row.bytes_per_checksum)
        for piece in self.pieces(key, row):
            cells.write(cells.length, piece)
        return cells.length == row.length and cells.packed(row.length) == row.checksums

    def remove_unused(self, needed: Iterable[tuple[bytes, bytes]]) -> int:
        """Remove the files that no (key, row) names; return their bytes."""
        names = {self.path_of(key, decode_block_row(value)).name for key, value in needed}
        freed = 0
        with disk(self._folder):
            for path in self._folder.glob("??/*"):
                if path.name not in names:
                    freed += path.stat().st_size
                    path.unlink()
        return freed


def attached_bytes(disks: Iterable[Path], key: bytes, row: BlockRow) -> Iterator[bytes]:
    """Yield a block's bytes from the first folder of a datanode that has them, with the row's checksums.

    Raises BackupFailed if none has.
    """
    container_id, local_id = block_of_key(key)
    tried = []
    for folder in disks:
        path = folder / "containers" / str(container_id) / f"{local_id}.block"
        if _holds(path, row):
            yield from _committed(path, row)
            return
        tried.append(str(path))
    raise BackupFailed(f"block {container_id}/{local_id} is not whole on any disk that was named: {', '.join(tried)}")


def _holds(path: Path, row: BlockRow) -> bool:
    if not path.is_file() or path.stat().st_size < row.length:
        return False
    cells = CellChecksums(row.bytes_per_checksum)
    for piece in _committed(path, row):
        cells.write(cells.length, piece)
    return cells.packed(row.length) == row.checksums


def _committed(path: Path, row: BlockRow) -> Iterator[bytes]:
    """Yield the first ``length`` bytes of a file: a stream may have written more than was committed."""
    left = row.length
    with disk(path), path.open("rb") as file:
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
