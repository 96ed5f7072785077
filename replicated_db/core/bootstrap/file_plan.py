"""From two lists of files to a transfer: what is listed, what is fetched, how the tree is put together.

Rules:
    - Content decides, never a name: file 000012.sst of one node is another file on the next one. A file that the asking
      replica has under any name is not fetched.
    - The tree is put together from one listing alone. So files of two checkpoints never lie in one tree, whatever else
      the candidate's folder still holds (decision 0045).
    - Only immutable files are linked, and only those that are one file at the serving node. All others are copied,
      because RocksDB changes them.
    - A checkpoint's folder that the asking replica holds whole is not listed: by name and by the digest over its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xxhash import xxh3_128_hexdigest

from replicated_db.core.bootstrap.listing import CHECKPOINTS, Content, ListedFile, Listing, TransferRequest

NOT_CARRIED = ("LOG", "LOCK")
"""Names, or beginnings of names, of files that say something about one process only."""

UNFINISHED_SUFFIXES = (".tmp", ".dbtmp")
"""Endings of files and folders that are being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedFile:
    """A file on the serving node's disk; ``inode`` tells which paths are one file."""

    file: ListedFile
    inode: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the content of ``paths`` goes: the first is linked or copied from the content, the others link to it."""

    content: Content
    paths: tuple[str, ...]
    linked: bool


def is_carried(name: str) -> bool:
    """Whether a file of a database or checkpoint belongs to a transfer.

    >>> is_carried("000012.sst"), is_carried("LOG.old.17"), is_carried("LOCK"), is_carried("CURRENT")
    (True, False, False, True)
    """
    return not name.startswith(NOT_CARRIED) and not name.endswith(UNFINISHED_SUFFIXES)


def folder_digest(files: Iterable[ListedFile]) -> str:
    """Return the digest over a folder's files: over the name and the content of each, in the order of names."""
    lines = sorted(f"{one.path.rpartition('/')[2]} {one.content.digest} {one.content.size}" for one in files)
    return xxh3_128_hexdigest("\n".join(lines).encode())


def folders_of(files: Iterable[ListedFile]) -> dict[str, list[ListedFile]]:
    """Return the files of each checkpoint's folder, by the folder's name."""
    found: dict[str, list[ListedFile]] = {}
    for one in files:
        top, _, rest = one.path.partition("/")
        if top == CHECKPOINTS:
            found.setdefault(rest.partition("/")[0], []).append(one)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What to answer a request with: parts of a :class:`Listing`."""

    files: tuple[ListedFile, ...]
    links: tuple[tuple[str, ...], ...]
    kept: frozenset[str]
    remove: frozenset[Content]


def offer(found: Sequence[CarriedFile], request: TransferRequest) -> Offer:
    """Return what to list for a checkpoint with the files ``found``."""
    folders = folders_of(one.file for one in found)
    kept = frozenset(name for name, files in folders.items() if request.folders.get(name) == folder_digest(files))
    listed = [
        one
        for one in found
        if not (one.file.path.startswith(f"{CHECKPOINTS}/") and one.file.path.split("/")[1] in kept)
    ]
    groups: dict[tuple[int, int], list[str]] = {}
    for one in listed:
        if one.file.is_immutable:
            groups.setdefault(one.inode, []).append(one.file.path)
    needed = {one.file.content for one in listed}
    return Offer(
        files=tuple(sorted((one.file for one in listed), key=lambda file: file.path)),
        links=tuple(sorted(tuple(sorted(paths)) for paths in groups.values() if len(paths) > 1)),
        kept=kept,
        remove=frozenset(request.have - needed),
    )


def missing(listing: Listing, have: Iterable[Content]) -> tuple[Content, ...]:
    """Return the content to fetch, each once; small files first, so that a first answer comes early."""
    wanted = {one.content for one in listing.files} - set(have)
    return tuple(sorted(wanted, key=lambda content: (content.size, content.digest)))


def placement(listing: Listing) -> tuple[Placed, ...]:
    """Return how the tree is put together: every listed path once."""
    by_path: Mapping[str, ListedFile] = {one.path: one for one in listing.files}
    grouped = {path for group in listing.links for path in group}
    placed = [Placed(content=by_path[group[0]].content, paths=group, linked=True) for group in listing.links if group]
    placed += [
        Placed(content=one.content, paths=(one.path,), linked=one.is_immutable)
        for one in listing.files
        if one.path not in grouped
    ]
    return tuple(placed)
