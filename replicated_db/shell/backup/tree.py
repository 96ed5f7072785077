"""From a repository's files to the folders of a database and its checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from replicated_db.core.bootstrap.file_plan import placement
from replicated_db.core.bootstrap.listing import CHECKPOINTS, DATABASE, Listing
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, disk
from transport.files.durable_files import copy_durably, sync_folder


def build_tree(
    repository: BackupRepository, listing: Listing, tree: Path, *, linked: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Put ``tree/db`` and ``tree/checkpoints`` together from a listing.

    ``linked``: immutable files are links to the repository's, for a tree that is only read, and is not durable. Else
    each file is read and compared with its digest. Raises BackupFailed, which names a file that is missing or damaged.
    """
    with disk(tree):
        shutil.rmtree(tree, ignore_errors=True)
        (tree / DATABASE).mkdir(parents=True)
        (tree / CHECKPOINTS).mkdir()
        for placed in placement(listing):
            source = repository.path_of(placed.content)
            if not repository.has(placed.content) or not (linked or repository.is_right(placed.content)):
                raise BackupFailed(f"{source}: it is damaged or missing; the backup needs it as {placed.paths[0]}")
            first, *others = (tree / path for path in placed.paths)
            first.parent.mkdir(parents=True, exist_ok=True)
            if linked and placed.linked:
                os.link(source, first)
            else:
                copy_durably(source, first)
                progress(placed.content.size)
            for other in others:
                other.parent.mkdir(parents=True, exist_ok=True)
                os.link(first, other)
        if not linked:
            sync_tree(tree)


def copy_trees(pairs: Mapping[Path, Path], progress: Callable[[int], None] = lambda _: None) -> None:
    """Copy folders to new ones; paths that are one file stay one file, also in two folders. Raises BackupFailed."""
    known: dict[tuple[int, int], Path] = {}
    for source, target in pairs.items():
        with disk(target):
            target.mkdir(parents=True)
            for folder, _, names in os.walk(source):
                there = target / Path(folder).relative_to(source)
                there.mkdir(exist_ok=True)
                for name in sorted(names):
                    _copy_file(Path(folder) / name, there / name, known, progress)


def _copy_file(
    path: Path, target: Path, known: dict[tuple[int, int], Path], progress: Callable[[int], None]
) -> None:  # fmt: skip
    status = path.stat()
    same = known.setdefault((status.st_dev, status.st_ino), target)
    if same != target:
        os.link(same, target)
        return
    copy_durably(path, target)
    progress(status.st_size)


def sync_tree(tree: Path) -> None:
    """Make the names in a folder, and in all folders below it, survive a loss of power. Raises OSError."""
    for folder, _, _ in os.walk(tree):
        sync_folder(Path(folder))
    sync_folder(tree.parent)
