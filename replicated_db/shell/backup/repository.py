"""A repository of backups: a folder with files named by their content, and a manifest for each backup.

::

    repository.json          the cluster that is backed up here
    lock                     locked by whoever writes here, shared by those who read
    content/ab/DIGEST        a file that is whole and was checked when it came
    content/ab/DIGEST.part   one that is coming
    backups/NAME.json        a manifest, with the digest of its text in the first line
    scratch/                 of a backup at work

Rules:
    - A file gets its name only when its digest is right and it is on the disk. A manifest is written after all files
      that it names, at once or not at all. So whatever ends a backup, those before it stay as they were; what it has
      fetched is found by the next one.
    - Files are removed by :meth:`BackupRepository.prune` alone, and only if no manifest names them.
    - One process writes at a time; readers keep writers out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from xxhash import xxh3_128_hexdigest

from replicated_db.core.backup.manifest import (
    BackupManifest,
    BadManifest,
    FutureManifest,
    check_version,
    is_backup_name,
    manifest_from,
)
from replicated_db.core.bootstrap.listing import Content, Listing
from replicated_db.core.errors import StopProcess
from replicated_db.shell.bootstrap.content_digests import ContentDigests
from transport.files.durable_files import sync_folder, write_durably

REPOSITORY_VERSION = 1
REPOSITORY_FILE = "repository.json"
SPARE_BYTES = 256 * 1024 * 1024
"""Free space that a backup leaves on the repository's disk."""

MAX_MANIFEST_BYTES = 1024 * 1024 * 1024
"""Most bytes of a manifest."""

MAX_BACKUPS = 10_000
"""Most backups in one repository; older ones are to be pruned."""

ON_BYTES = Callable[[int], None]


class BackupFailed(StopProcess):
    """A backup or restore cannot go on; the message names the file, or what is missing."""


class BackupRepository:
    """The repository in a folder, while its lock is held (:func:`opened`). Methods raise BackupFailed."""

    def __init__(self, folder: Path, on_read: ON_BYTES = lambda _: None) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self._content = folder / "content"
        self._backups = folder / "backups"
        self._digests = ContentDigests(on_read)

    # -- contents ------------------------------------------------------------------------------------------------------

    def path_of(self, content: Content) -> Path:
        """Return where a content lies, or would lie."""
        return self._content / content.digest[:2] / content.digest

    def part_of(self, content: Content) -> Path:
        """Return the file to which a content is appended while it comes."""
        path = self.path_of(content)
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(path.name + ".part")

    def has(self, content: Content) -> bool:
        """Whether a content is here, by its name and size."""
        try:
            return self.path_of(content).stat().st_size == content.size
        except OSError:
            return False

    def having(self, contents: Iterable[Content]) -> frozenset[Content]:
        """Return those of the contents that are here."""
        return frozenset(content for content in contents if self.has(content))

    def accept(self, content: Content) -> bool:
        """Take the finished part of a content if it is what its digest says; else delete it and return False."""
        part, path = self.part_of(content), self.path_of(content)
        with disk(part):
            if self._digests.of(part, fresh=True) != content:
                part.unlink()
                return False
            part.rename(path)
            sync_folder(path.parent)
            sync_folder(self._content)
        return True

    def keep_file(self, path: Path) -> Content:
        """Move a finished file of this disk into the repository; return its content."""
        with disk(path):
            content = self._digests.of(path, fresh=True)
            if self.has(content):
                path.unlink()
                return content
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.rename(self.part_of(content))
        if not self.accept(content):
            raise BackupFailed(f"{path}: it has changed while it was read")
        return content

    def is_right(self, content: Content) -> bool:
        """Read a content; return whether it is here and is what its digest says."""
        try:
            return self._digests.of(self.path_of(content), fresh=True) == content
        except FileNotFoundError:
            return False
        except OSError as error:
            raise BackupFailed(f"{self.path_of(content)}: {error}") from error

    def drop_damaged(self, contents: Iterable[Content]) -> list[Path]:
        """Read contents, and remove those that are not what their digests say; return their paths."""
        damaged = [content for content in sorted(contents) if self.has(content) and not self.is_right(content)]
        for content in damaged:
            with disk(self.path_of(content)):
                self.path_of(content).unlink()
        return [self.path_of(content) for content in damaged]

    def check_room(self, size: int) -> None:
        """Raise BackupFailed if the disk has no room for ``size`` more bytes."""
        with disk(self.folder):
            free = shutil.disk_usage(self.folder).free
        if size + SPARE_BYTES > free:
            raise BackupFailed(
                f"{self.folder}: {size} more bytes do not fit: {free} are free, and {SPARE_BYTES} of them are to stay free"
            )

    # -- manifests -----------------------------------------------------------------------------------------------------

    def backups(self) -> list[BackupManifest]:
        """Return all backups, oldest first. A damaged manifest is an error that names the file."""
        with disk(self._backups):
            paths = sorted(self._backups.glob("*.json")) if self._backups.is_dir() else []
        found = [self._read(path) for path in paths]
        return sorted(found, key=lambda one: (one.created_at_ms, one.name))

    def backup(self, name: str) -> BackupManifest:
        """Return a backup by its name."""
        path = self._manifest_path(name)
        if not path.is_file():
            names = ", ".join(one.name for one in self.backups()) or "none"
            raise BackupFailed(f"{self.folder}: there is no backup {name!r}; there are: {names}")
        return self._read(path)

    def write_manifest(self, manifest: BackupManifest) -> Path:
        """Write a backup's manifest, the last of its files."""
        path = self._manifest_path(manifest.name)
        text = json.dumps(manifest.to_json(), indent=1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise BackupFailed(f"{path}: it would have {len(text)} bytes, more than {MAX_MANIFEST_BYTES}")
        if path.exists():
            raise BackupFailed(f"{path}: there is a backup of this name")
        with disk(path):
            write_durably(path, f"{xxh3_128_hexdigest(text.encode())}\n{text}\n")
            sync_folder(self.folder)
        return path

    def check_new_name(self, name: str) -> None:
        """Raise BackupFailed unless a new backup may have this name."""
        if self._manifest_path(name).exists():
            raise BackupFailed(f"{self.folder}: there is a backup {name!r} already")
        if len(self.backups()) >= MAX_BACKUPS:
            raise BackupFailed(f"{self.folder}: there are {MAX_BACKUPS} backups, as many as may be: prune some")

    def _manifest_path(self, name: str) -> Path:
        if not is_backup_name(name):
            raise BackupFailed(f"{name[:200]!r} is no name of a backup: letters, digits and ._-, 100 at most")
        return self._backups / f"{name}.json"

    def _read(self, path: Path) -> BackupManifest:
        with disk(path):
            if path.stat().st_size > 2 * MAX_MANIFEST_BYTES:
                raise BackupFailed(f"{path}: it is no manifest, it has over {MAX_MANIFEST_BYTES} bytes")
            data = path.read_bytes()
        first, _, rest = data.partition(b"\n")
        text = rest.removesuffix(b"\n")
        try:
            if xxh3_128_hexdigest(text).encode() != first:
                raise BackupFailed(f"{path}: it is damaged: its text does not have the digest in its first line")
            manifest = manifest_from(json.loads(text))
        except FutureManifest as error:
            raise BackupFailed(f"{path}: {error}") from error
        except (BadManifest, ValueError, RecursionError) as error:
            raise BackupFailed(f"{path}: it is no manifest: {error}") from error
        if manifest.name != path.stem:
            raise BackupFailed(f"{path}: it is the manifest of {manifest.name!r}")
        return manifest

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def problems(self, manifests: Iterable[BackupManifest], note: Callable[[str], None]) -> list[str]:
        """Read every file that the backups need; return what is missing or damaged, in words."""
        found = []
        known: dict[Content, bool] = {}
        for manifest in manifests:
            note(f"reads the files of {manifest.name}")
            for content in sorted(manifest.contents()):
                if content not in known:
                    known[content] = self.is_right(content)
                if not known[content]:
                    what = "damaged" if self.path_of(content).exists() else "missing"
                    found.append(f"{self.path_of(content)}: {what}; backup {manifest.name} needs it")
        return found

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Remove all but the last ``keep`` backups, and files that no backup needs; return names and bytes."""
        manifests = self.backups()
        gone, stay = manifests[: max(len(manifests) - keep, 0)], manifests[max(len(manifests) - keep, 0) :]
        with disk(self._backups):
            for manifest in gone:
                self._manifest_path(manifest.name).unlink()
            if gone:
                sync_folder(self._backups)
        return [manifest.name for manifest in gone], self.remove_unused(stay)

    def remove_unused(self, manifests: Iterable[BackupManifest]) -> int:
        """Remove the files that none of the backups needs; return their bytes."""
        needed: set[str] = set()
        for manifest in manifests:
            needed |= {content.digest for content in manifest.contents()}
        freed = 0
        with disk(self._content):
            for path in self._content.glob("??/*"):
                if path.name not in needed:
                    freed += path.stat().st_size
                    path.unlink()
        return freed

    def placed(self, listing: Listing) -> dict[str, Path]:
        """Return where the content of each path of a listing lies."""
        return {one.path: self.path_of(one.content) for one in listing.files}


@contextmanager
def opened(
    folder: Path, *, cluster: str | None, writes: bool, on_read: ON_BYTES = lambda _: None
) -> Iterator[BackupRepository]:
    """Open and lock a repository. With a ``cluster`` it is made if the folder is empty or not there.

    Raises BackupFailed if another process uses it, if it is another cluster's, or if the folder holds something else.
    """
    path = folder / REPOSITORY_FILE
    if not path.is_file():
        if cluster is None or not writes:
            raise BackupFailed(f"{folder}: it holds no backups: there is no {REPOSITORY_FILE}")
        _make(folder, cluster)
    with _locked(folder, writes=writes):
        _check_cluster(path, cluster)
        if writes:
            shutil.rmtree(folder / "scratch", ignore_errors=True)
            with disk(folder):
                (folder / "content").mkdir(exist_ok=True)
                (folder / "backups").mkdir(exist_ok=True)
        yield BackupRepository(folder, on_read)


def _make(folder: Path, cluster: str) -> None:
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted(one.name for one in folder.iterdir() if one.name not in ("lock", REPOSITORY_FILE + ".tmp"))
        if strangers:
            raise BackupFailed(f"{folder}: it is no repository of backups, and not empty: {strangers[0]} lies there")
        write_durably(folder / REPOSITORY_FILE, json.dumps({"version": REPOSITORY_VERSION, "cluster": cluster}) + "\n")


def _check_cluster(path: Path, cluster: str | None) -> None:
    try:
        found: Any = json.loads(path.read_bytes()[:MAX_MANIFEST_BYTES])
        check_version(found)
        own = found["cluster"]
    except FutureManifest as error:
        raise BackupFailed(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise BackupFailed(f"{path}: it cannot be used: {error}") from error
    if cluster is not None and own != cluster:
        raise BackupFailed(f"{path.parent}: these are backups of cluster {own!r}, not of {cluster!r}")


@contextmanager
def _locked(folder: Path, *, writes: bool) -> Iterator[None]:
    path = folder / "lock"
    with disk(path):
        file: IO[str] = path.open("a" if writes or not path.exists() else "r")
    with file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if writes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            raise BackupFailed(f"{folder}: another process uses these backups, for it has locked {path}") from error
        yield


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn an OSError into BackupFailed, which names the file."""
    try:
        yield
    except OSError as error:
        raise BackupFailed(f"{error.filename or path}: {error.strerror or error}") from error
