"""Files that are replaced as a whole, and survive a loss of power. All raise OSError.

A file gets its name only when its bytes are on the disk: otherwise the name may be there after a loss of power, and the
file be empty. Then the folder is synced, so that the name is there, too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_durably(path: Path, text: str, *, aside: Path | None = None) -> None:
    """Write a file at once or not at all. ``aside``: where it is written first; ``NAME.tmp`` by default."""
    fresh = path.with_name(path.name + ".tmp") if aside is None else aside
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_folder(path.parent)


def name_durably(fresh: Path, path: Path) -> None:
    """Give a file that was written and closed its name, in place of what has it."""
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_folder(path.parent)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file to a place that nothing has. The folder is not synced."""
    with source.open("rb") as read, target.open("xb") as written:
        shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
