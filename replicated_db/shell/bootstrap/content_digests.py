"""Files by their content: XXH3-128 digests, kept by inode for files that RocksDB never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from xxhash import xxh3_128

from replicated_db.core.bootstrap.file_plan import CarriedFile, is_carried
from replicated_db.core.bootstrap.listing import (
    CHECKPOINTS,
    DATABASE,
    IMMUTABLE_SUFFIXES,
    MAX_LISTED_FILES,
    Content,
    ListedFile,
    is_folder_name,
    is_path,
)
from replicated_db.core.errors import StoreFailure

READ_BYTES = 1024 * 1024
MAX_KEPT_DIGESTS = MAX_LISTED_FILES
"""Digests that are kept; the one that was not asked for the longest goes first."""


class FileVanished(StoreFailure):
    """A file of a folder was removed while the folder was read."""


class ContentDigests:
    """Digests of files; those of immutable files are computed once. Usable from any thread."""

    def __init__(self, on_read: Callable[[int], None] = lambda _: None) -> None:
        """``on_read`` is told the bytes that were read for a digest, piece by piece."""
        self._kept: OrderedDict[tuple[int, int, int, int], str] = OrderedDict()
        self._lock = threading.Lock()
        self._on_read = on_read

    def of(self, path: Path, *, fresh: bool = False) -> Content:
        """Return a file's content; ``fresh`` reads it whatever is kept. Raises OSError."""
        found = path.stat()
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        keeps = path.name.endswith(IMMUTABLE_SUFFIXES)
        with self._lock:
            digest = self._kept.get(key) if keeps and not fresh else None
            if digest is not None:
                self._kept.move_to_end(key)
        if digest is not None:
            return Content(digest, found.st_size)
        digest, size = self._read(path)
        if keeps:
            with self._lock:
                self._kept[key] = digest
                while len(self._kept) > MAX_KEPT_DIGESTS:
                    self._kept.popitem(last=False)
        return Content(digest, size)

    def _read(self, path: Path) -> tuple[str, int]:
        hashed, size = xxh3_128(), 0
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                hashed.update(piece)
                size += len(piece)
                self._on_read(len(piece))
        return hashed.hexdigest(), size

    def found_in(self, database: Path | None, checkpoints: Path | None) -> list[CarriedFile]:
        """Return the files of a database and of the checkpoints in a folder, by the paths of a listing.

        Raises FileVanished if a file goes meanwhile, StoreFailure for a name that no listing may have.
        """
        places = [] if database is None or not database.is_dir() else [(DATABASE, database)]
        if checkpoints is not None and checkpoints.is_dir():
            places += [(f"{CHECKPOINTS}/{folder.name}", folder) for folder in checkpoint_folders(checkpoints)]
        return [one for prefix, folder in places for one in self._in_folder(prefix, folder)]

    def _in_folder(self, prefix: str, folder: Path) -> list[CarriedFile]:
        found = []
        try:
            for path in sorted(folder.iterdir()):
                if not is_carried(path.name) or not path.is_file():
                    continue
                listed = f"{prefix}/{path.name}"
                if not is_path(listed):
                    raise StoreFailure(f"{path}: a file of this name is not RocksDB's, and cannot be transferred")
                status = path.stat()
                found.append(CarriedFile(file=ListedFile(listed, self.of(path)), inode=(status.st_dev, status.st_ino)))
        except FileNotFoundError as error:
            raise FileVanished(f"{folder}: {error}") from error
        except OSError as error:
            raise StoreFailure(f"{folder}: {error}") from error
        return found


def checkpoint_folders(checkpoints: Path) -> list[Path]:
    """Return the folders of finished checkpoints, by name."""
    if not checkpoints.is_dir():
        return []
    return sorted(
        path for path in checkpoints.iterdir()
        if path.is_dir() and is_folder_name(path.name) and is_carried(path.name)
    )  # fmt: skip
