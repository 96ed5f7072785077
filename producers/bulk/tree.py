"""A directory tree as the ingest sees it: its files and their contents.

What belongs here: walking, reading and hashing; nothing of clusters. The rules:

1. Regular files are taken, in the order of their names within a directory, directories after files.
2. Symbolic links are never followed and never taken; neither are sockets, pipes and devices. Each is *skipped*,
   with the reason.
3. A file or directory that cannot be read, changes while it is read, or has a name that is not UTF-8 is skipped
   with the reason, too. Nothing is left out silently.
4. Size, modification time and checksum are those of the bytes that were read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

READ_BYTES = 1 << 20
"""Bytes of a file that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A regular file; ``size`` in bytes as the directory says, which may be outdated when the file is read."""

    relative_path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry that is not taken, and why. ``relative_path`` has escapes where it is not UTF-8."""

    relative_path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """The content of a file that was read: ``size`` in bytes, ``mtime_ns`` since the epoch, ``sha256`` in hex."""

    relative_path: str
    size: int
    mtime_ns: int
    sha256: str


def walk(root: str | os.PathLike[str], leave_out: Collection[str] = ()) -> Iterator[FoundFile | Skipped]:
    """Iterate over everything below ``root`` that is not a directory (rules 1 to 3), without the folders to leave out.

    ``leave_out`` are paths within ``root``. Memory holds the entries of the directories on the way down. Raises
    NotADirectoryError or FileNotFoundError, naming ``root``, if it is not a directory.

    >>> [found.relative_path for found in walk("/usr/lib/python3")]  # doctest: +SKIP
    """
    top = os.fspath(root)
    if not stat.S_ISDIR(os.stat(top).st_mode):
        raise NotADirectoryError(f"{top} is not a directory")
    return _walk(top, {f"{path}/" for path in leave_out})


def _walk(top: str, leave_out: Collection[str]) -> Iterator[FoundFile | Skipped]:
    folders = [(top, "")]  # a stack of our own: a tree may be deeper than Python's stack
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            yield _skipped(prefix.rstrip("/") or ".", f"cannot be listed: {error.strerror}")
            continue
        below: list[tuple[str, str]] = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and _is_utf8(entry.name):
                if (path := f"{prefix}{entry.name}/") not in leave_out:
                    below.append((entry.path, path))
            else:
                yield _entry(entry, prefix + entry.name)
        folders.extend(reversed(below))


def _entry(entry: os.DirEntry[str], relative_path: str) -> FoundFile | Skipped:
    if not _is_utf8(entry.name):
        return _skipped(relative_path, "its name is not UTF-8")
    if entry.is_symlink():
        return _skipped(relative_path, "a symbolic link")
    if not entry.is_file(follow_symlinks=False):
        return _skipped(relative_path, "neither a regular file nor a directory")
    try:
        return FoundFile(relative_path=relative_path, size=entry.stat(follow_symlinks=False).st_size)
    except OSError as error:
        return _skipped(relative_path, f"cannot be read: {error.strerror}")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _skipped(relative_path: str, reason: str) -> Skipped:
    """Return a skipped entry whose path can be printed."""
    printable = relative_path.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return Skipped(relative_path=printable, reason=reason)


def read_file(root: str | os.PathLike[str], relative_path: str) -> FileContent | Skipped:
    """Read and hash one file of the tree (rules 3 and 4).

    >>> read_file("/usr/lib/python3", "dist-packages/README").size  # doctest: +SKIP
    """
    digest = hashlib.sha256()
    size = 0
    try:
        # Flags: do not follow a link that has taken the file's place since the walk, and do not wait for a pipe.
        descriptor = os.open(os.path.join(os.fspath(root), relative_path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return _skipped(relative_path, "no longer a regular file")
            while piece := file.read(READ_BYTES):
                digest.update(piece)
                size += len(piece)
            after = os.fstat(descriptor)
    except OSError as error:
        return _skipped(relative_path, f"cannot be read: {error.strerror}")
    if size != after.st_size or before.st_mtime_ns != after.st_mtime_ns:
        return _skipped(relative_path, "changed while it was read")
    return FileContent(relative_path=relative_path, size=size, mtime_ns=after.st_mtime_ns, sha256=digest.hexdigest())
