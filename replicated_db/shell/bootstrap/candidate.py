"""The candidate's folder, ``DB.candidate``: content that was fetched, and the tree that is put together from it.

::

    mark.json        whose listing the candidate follows: peer, term, leader
    content/DIGEST   a content that is whole and was checked when it came
    content/DIGEST.part
    tree/db          the candidate's database, as in a listing
    tree/checkpoints

Rules:
    - A content gets its name only when its digest is right and it is on the disk. It is right whichever peer sent it.
    - The tree is made from one listing, from nothing, each time. A mark of another peer, term or leader removes a tree
      and parts of contents; whole contents stay, for their names say what they are (decision 0045).
    - Content that the replica itself has, in its database and its checkpoints, is linked, not copied: RocksDB never
      changes those files. All other files are copied.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from replicated_db.core.bootstrap.file_plan import folder_digest, folders_of, placement
from replicated_db.core.bootstrap.listing import CHECKPOINTS, DATABASE, Content, ListedFile, Listing
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.bootstrap.content_digests import ContentDigests
from replicated_db.shell.bootstrap.transfer_desk import checkpoints_folder
from transport.files.durable_files import copy_durably, sync_folder, write_durably

SPARE_BYTES = 256 * 1024 * 1024
"""Free space that a bootstrap leaves on the disk."""


class NoRoom(StoreFailure):
    """The checkpoint does not fit on the disk. Nothing has changed; a process with other work may ask again."""


class Candidate:
    """The candidate of the database in ``database``. Methods raise StoreFailure if the disk fails or is full."""

    def __init__(self, database: Path, digests: ContentDigests) -> None:
        self.folder = candidate_folder(database)
        self.tree = self.folder / "tree"
        self._content = self.folder / "content"
        self._database = database
        self._digests = digests
        self._own: dict[Content, Path] = {}
        self._whole: set[Content] = set()
        self._own_folders: dict[str, list[ListedFile]] = {}

    def open(self) -> None:
        """Read what is there: contents of the candidate and of the replica, each by its digest. It takes long."""
        with _disk(self.folder):
            self._content.mkdir(parents=True, exist_ok=True)
            for path in self._content.iterdir():
                if path.suffix == ".part":
                    continue
                content = self._digests.of(path, fresh=True)
                if content.digest == path.name:
                    self._whole.add(content)
                else:
                    path.unlink()
        checkpoints = checkpoints_folder(self._database)
        found = self._digests.found_in(self._database, checkpoints)
        for one in found:
            if one.file.is_immutable:
                self._own[one.file.content] = self._path_of(one.file.path)
        self._own_folders = folders_of(one.file for one in found)

    @property
    def have(self) -> frozenset[Content]:
        """All content that needs no fetching."""
        return frozenset(self._whole) | frozenset(self._own)

    @property
    def folders(self) -> dict[str, str]:
        """The digest over the files of each of the replica's checkpoints, by name."""
        return {name: folder_digest(files) for name, files in self._own_folders.items()}

    def mark(self, peer: ServingPeer, listing: Listing) -> None:
        """Follow a listing: content that it does not need goes; so does a tree of another mark, with unfinished parts.

        Raises StoreFailure if the disk has no room for what is missing.
        """
        mark = {"peer": peer.node, "term": listing.position.term, "leader": listing.leader}
        needed = {one.content for one in listing.files}
        with _disk(self.folder):
            path = self.folder / "mark.json"
            try:
                same = json.loads(path.read_text()) == mark
            except (OSError, ValueError):
                same = False
            if not same:
                shutil.rmtree(self.tree, ignore_errors=True)
                for part in self._content.glob("*.part"):
                    part.unlink()
                write_durably(path, json.dumps(mark))
            for content in self._whole - needed:
                (self._content / content.digest).unlink()
            self._whole &= needed
            wanted = {content.digest for content in needed}
            for part in self._content.glob("*.part"):
                if part.stem not in wanted:
                    part.unlink()
            missing = sum(content.size for content in needed - self.have)
            free = shutil.disk_usage(self.folder).free
        if missing + SPARE_BYTES > free:
            raise NoRoom(
                f"{self.folder}: a checkpoint of {missing} more bytes does not fit: {free} are free, and "
                f"{SPARE_BYTES} of them are to stay free"
            )

    def part_of(self, content: Content) -> Path:
        """Return the file to which a content is appended while it comes."""
        return self._content / f"{content.digest}.part"

    def accept(self, content: Content) -> bool:
        """Take the finished part of a content if it is what its digest says; else delete it and return False."""
        part = self.part_of(content)
        with _disk(part):
            if self._digests.of(part, fresh=True) != content:
                part.unlink()
                return False
            part.rename(self._content / content.digest)
            sync_folder(self._content)
        self._whole.add(content)
        return True

    def build(self, listing: Listing, progress: Callable[[int], None] = lambda _: None) -> None:
        """Put the tree together, on the disk; ``progress`` is told bytes that were copied."""
        with _disk(self.tree):
            shutil.rmtree(self.tree, ignore_errors=True)
            (self.tree / DATABASE).mkdir(parents=True)
            (self.tree / CHECKPOINTS).mkdir()
            for name in listing.kept:
                self._keep(name, progress)
            for placed in placement(listing):
                source = self._source(placed.content)
                first, *others = (self.tree / path for path in placed.paths)
                first.parent.mkdir(parents=True, exist_ok=True)
                if placed.linked:
                    os.link(source, first)
                else:
                    copy_durably(source, first)
                    progress(placed.content.size)
                for other in others:
                    other.parent.mkdir(parents=True, exist_ok=True)
                    os.link(first, other)
            for folder in (*self._folders_of_tree(), self.tree, self.folder, self.folder.parent):
                sync_folder(folder)

    def _folders_of_tree(self) -> Iterable[Path]:
        yield self.tree / DATABASE
        yield from (self.tree / CHECKPOINTS).iterdir()
        yield self.tree / CHECKPOINTS

    def _keep(self, name: str, progress: Callable[[int], None]) -> None:
        """Take a checkpoint over from the replica that is replaced."""
        if name not in self._own_folders:
            raise StoreFailure(f"{self.folder}: the listing leaves out checkpoint {name}, which is not here")
        target = self.tree / CHECKPOINTS / name
        target.mkdir()
        for one in self._own_folders[name]:
            source = self._path_of(one.path)
            if one.is_immutable:
                os.link(source, target / source.name)
            else:
                copy_durably(source, target / source.name)
                progress(one.content.size)

    def _source(self, content: Content) -> Path:
        if content in self._whole:
            return self._content / content.digest
        if content not in self._own:
            raise StoreFailure(f"{self.folder}: content {content.digest} is not here")
        return self._own[content]

    def _path_of(self, listed: str) -> Path:
        top, _, rest = listed.partition("/")
        return (self._database if top == DATABASE else checkpoints_folder(self._database)) / rest

    def discard(self) -> None:
        """Delete the candidate with all that was fetched."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._whole.clear()
        with _disk(self.folder):
            self._content.mkdir(parents=True, exist_ok=True)


def candidate_folder(database: Path) -> Path:
    """Return the folder of a database's candidate."""
    return database.with_name(database.name + ".candidate")


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailure(f"{path}: {error}") from error
