"""Containers: directories of block files, and the counts of their blocks and bytes.

Layout::

    DATA/containers/<container id>/<local id>.block    the bytes of a block, nothing else
    DATA/containers/<container id>/closed              marks a container whose blocks do not grow any more
    DATA/containers/<container id>/rows                blocks of a container that was copied from a peer (``transfer``)
    DATA/containers/.import-<container id>             a copy that is not complete; removed at start

Ids are decimal. The directories are read once, at start; from then on blocks and bytes are counted as they change. A
container is removed with its last block, and its mark too: a row of its pipeline also says that the container is
closed.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from datanode_processors.blocks.fsync import FsyncCount
from schemas.records.record import record

CONTAINERS = "containers"
CLOSED_MARK = "closed"
ROWS_FILE = "rows"
NEW_ROWS_FILE = "rows.new"
IMPORTING = ".import-"
_BLOCK = ".block"

logger = logging.getLogger(__name__)


def block_name(local_id: int) -> str:
    """Return the name of a block's file within its container."""
    return f"{local_id}{_BLOCK}"


def local_id_of(name: str) -> int | None:
    """Return the local id in a file's name; None if the file is no block's."""
    stem = name.removesuffix(_BLOCK)
    return int(stem) if stem != name and stem.isdecimal() else None


@record
class ContainerUsage:
    """A container as it is stored here."""

    container_id: int
    closed: bool
    blocks: int
    used_bytes: int


class Container:
    """Counts of one container. For many threads."""

    def __init__(self, folder: Path, container_id: int) -> None:
        self.container_id = container_id
        self.path = folder / str(container_id)
        self.closed = False
        self.linked = False
        """Whether the container's entry in its parent directory is known to be stored.

        Used with ``linking``: a directory may go while a block comes, and a stored entry of the old directory says
        nothing of the new one.
        """
        self.linking = Lock()
        self._blocks = 0
        self._used_bytes = 0
        self._lock = Lock()

    def add(self, *, blocks: int = 0, used_bytes: int = 0) -> None:
        """Count blocks and bytes that came (or went, if negative)."""
        with self._lock:
            self._blocks += blocks
            self._used_bytes += used_bytes

    def usage(self) -> ContainerUsage:
        """Return the container as it is stored here."""
        with self._lock:
            return ContainerUsage(
                container_id=self.container_id, closed=self.closed, blocks=self._blocks, used_bytes=self._used_bytes
            )

    def read_directory(self) -> None:
        """Count the files on the disk; raises OSError."""
        blocks = used_bytes = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                if local_id_of(entry.name) is not None:
                    blocks += 1
                    used_bytes += entry.stat().st_size
        self.closed = (self.path / CLOSED_MARK).exists()
        with self._lock:
            self._blocks, self._used_bytes = blocks, used_bytes


class Containers:
    """All containers in a folder. For many threads; during I/O no lock is held but a container's ``linking``."""

    def __init__(self, folder: Path, count: FsyncCount) -> None:
        """Make the folder if it is missing, remove incomplete copies, count what is stored. Raises OSError."""
        self.folder = folder
        self._count = count
        self._lock = Lock()
        self._known: dict[int, Container] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(IMPORTING):
                logger.warning("%s: an incomplete copy is removed", entry)
                shutil.rmtree(entry)
            elif entry.name.isdecimal():
                container = Container(folder, int(entry.name))
                container.read_directory()
                self._known[container.container_id] = container
                if not container.closed:  # emptying it was interrupted: it would be in the way of a copy
                    with suppress(OSError):  # leftover files there belong to nobody, and are no reason not to start
                        self.drop_if_empty(container.container_id)
        count.directory(folder.parent)
        count.directory(folder)
        for container in self._known.values():
            container.linked = True

    def enter(self, container_id: int) -> Container:
        """Return a container with its count raised by a block that is about to be made. Undo that if it fails."""
        with self._lock:
            found = self._find(container_id)
            found.add(blocks=1)
            return found

    def _find(self, container_id: int) -> Container:
        found = self._known.get(container_id)
        if found is None:
            found = self._known[container_id] = Container(self.folder, container_id)
        return found

    def find(self, container_id: int) -> Container:
        """Return a container, which may have nothing stored yet."""
        with self._lock:
            return self._find(container_id)

    def path(self, container_id: int) -> Path:
        """Return a container's directory, which need not exist."""
        return self.folder / str(container_id)

    def file(self, container_id: int, local_id: int) -> Path:
        """Return a block's file, which need not exist."""
        return self.folder / f"{container_id}/{block_name(local_id)}"  # joined once: each block asks for it

    def peek(self, container_id: int) -> Container | None:
        """Return a container if anything of it is stored."""
        with self._lock:
            return self._known.get(container_id)

    def usage(self) -> list[ContainerUsage]:
        """Return the containers as they are stored, ascending by id; those without a block or a mark are left out."""
        with self._lock:
            known = list(self._known.values())
        return sorted(
            (found for container in known if (found := container.usage()).blocks or found.closed),
            key=lambda found: found.container_id,
        )

    def close(self, container_id: int) -> None:
        """Mark a container closed, and have the mark stored. Raises OSError."""
        with self._lock:
            container = self._find(container_id)
        if container.closed:
            return
        with container.linking:
            container.path.mkdir(exist_ok=True)
            (container.path / CLOSED_MARK).touch()
            self._count.directory(container.path)
            self._count.directory(self.folder)
            container.linked = container.closed = True

    def make_directory(self, container: Container) -> None:
        """Make a container's directory, which was missing a moment ago. Raises OSError."""
        with container.linking:
            container.path.mkdir(exist_ok=True)
            container.linked = False

    def link(self, container: Container) -> None:
        """Have the entry of a container's directory stored, after a file has been made in it. Raises OSError."""
        with container.linking:
            if not container.linked:
                self._count.directory(self.folder)
                container.linked = True

    def import_folder(self, container_id: int) -> Path:
        """Return where a copy of a container is put together."""
        return self.folder / f"{IMPORTING}{container_id}"

    def adopt(self, container_id: int, folder: Path) -> None:
        """Rename a complete directory into place and count it. Raises FileExistsError, OSError."""
        with self._lock:
            container = self._find(container_id)
        if container.path.exists():  # an empty directory would be replaced
            raise FileExistsError(container.path)
        with container.linking:
            folder.rename(container.path)
            self._count.directory(self.folder)
            container.linked = True
        container.read_directory()

    def recount(self, container_id: int) -> None:
        """Count a container's files anew, while nobody writes to it. Raises OSError."""
        container = self.peek(container_id)
        if container is not None:
            with suppress(FileNotFoundError):
                container.read_directory()

    def drop_if_empty(self, container_id: int) -> None:
        """Remove a container's directory if no block is left in it. Raises OSError."""
        container = self.peek(container_id)
        if container is None or container.usage().blocks:
            return
        try:
            # The rows are removed last: without them a copy could not be emptied a second time.
            for name in (CLOSED_MARK, NEW_ROWS_FILE, ROWS_FILE):
                (container.path / name).unlink(missing_ok=True)
            container.path.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            if any(local_id_of(name) is not None for name in os.listdir(container.path)):
                return  # a block came meanwhile
            raise
        with self._lock:
            if not container.usage().blocks:
                self._known.pop(container_id, None)

    def blocks(self, container_id: int) -> Iterator[tuple[int, int]]:
        """Iterate over (local id, bytes of its file) as they are on the disk now, ascending. Raises OSError."""
        container = self.peek(container_id)
        if container is None:
            return
        try:
            names = os.listdir(container.path)
        except FileNotFoundError:
            return
        for local_id in sorted(found for name in names if (found := local_id_of(name)) is not None):
            try:
                yield local_id, (container.path / block_name(local_id)).stat().st_size
            except FileNotFoundError:
                continue
