"""A store's containers as a whole: closing, counting, listing and removing them, and the room on their disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datanode_processors.blocks.containers import CONTAINERS, Containers, ContainerUsage
from datanode_processors.blocks.file_bytes import block_error
from datanode_processors.blocks.fsync import FsyncCount
from datanode_processors.blocks.space import DiskSpace


class ContainerStore:
    """Containers in ``DATA/containers``. For many threads."""

    def __init__(self, folder: Path, *, reserve_bytes: int = 0) -> None:
        """Open the store in a datanode's folder; ``reserve_bytes`` of the disk stay free.

        Raises BlockError if the disk refuses.
        """
        self.fsyncs = FsyncCount()
        folder = folder / CONTAINERS
        try:
            self._containers = Containers(folder, self.fsyncs)
        except OSError as error:
            raise block_error(error, "open the blocks in", folder) from error
        self.space = DiskSpace(folder, reserve_bytes)

    def recount(self, container_id: int) -> None:
        """Count a closed container's files anew after some were cut, removed or restored. Raises BlockError FAILED."""
        try:
            self._containers.recount(container_id)
        except OSError as error:
            raise block_error(error, "count", self._containers.path(container_id)) from error

    def drop_if_empty(self, container_id: int) -> None:
        """Remove a container's directory, its mark and its rows if no block is left in it. Raises BlockError FAILED."""
        try:
            self._containers.drop_if_empty(container_id)
        except OSError as error:
            raise block_error(error, "remove", self._containers.path(container_id)) from error

    def close_container(self, container_id: int) -> None:
        """Take no more bytes for a container's blocks; streams that write there end.

        Raises BlockError FAILED, DISK_FULL.
        """
        try:
            self._containers.close(container_id)
        except OSError as error:
            raise block_error(error, "close", self._containers.path(container_id)) from error

    def is_closed(self, container_id: int) -> bool:
        """Return whether a container is marked closed here."""
        container = self._containers.peek(container_id)
        return container is not None and container.closed

    def import_folder(self, container_id: int) -> Path:
        """Return where a copy of a container is put together until it is complete; the folder is removed at start."""
        return self._containers.import_folder(container_id)

    def container_folder(self, container_id: int) -> Path:
        """Return a container's directory, which need not exist."""
        return self._containers.path(container_id)

    def containers(self) -> list[ContainerUsage]:
        """Return what is stored of each container, ascending by id."""
        return self._containers.usage()

    def blocks(self, container_id: int) -> Iterator[tuple[int, int]]:
        """Iterate over (local id, bytes of its file) of a container, ascending. Raises BlockError FAILED."""
        try:
            yield from self._containers.blocks(container_id)
        except OSError as error:
            raise block_error(error, "list", self._containers.path(container_id)) from error

    def used_bytes(self) -> int:
        """Return the bytes of all block files."""
        return sum(usage.used_bytes for usage in self._containers.usage())

    def free_bytes(self) -> int:
        """Return how many bytes may be written until the reserve is reached."""
        return self.space.free_bytes()

    def capacity_bytes(self) -> int:
        """Return the size of the disk without the reserve, in bytes."""
        return self.space.capacity_bytes()
