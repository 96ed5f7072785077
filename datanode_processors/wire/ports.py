"""What the stream server needs from the rest of a datanode: block files, and the pipelines that know what is committed.

The real ones are ``block_store`` and ``pipelines``. Methods raise :class:`BlockError` for every error that a client can
be told. Any other exception is a defect, is logged, and is answered with FAILED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from datanode_processors.errors import BlockError
from schemas.records.datanode import ReadBlock, SalvageBlock

Note = Callable[..., None]
"""Logs a message; keywords become fields."""


class Writer(Protocol):
    """Writes one stream's bytes into one block's file. One thread uses it."""

    def write_packets(self, offset: int, packets: Sequence[tuple[memoryview, int]]) -> None:
        """Write packets (bytes, their CRC32C) one after the other from ``offset`` on.

        The caller reuses the packets' memory afterwards.
        """

    def flush(self) -> None:
        """Store the written bytes under the fsync policy."""

    def close(self) -> None:
        """Release the file; further calls do nothing."""


class Blocks(Protocol):
    """The block files of this datanode. Many threads use it."""

    def open_writer(
        self,
        container_id: int,
        local_id: int,
        offset: int,
        bytes_per_checksum: int,
        *,
        alive: Callable[[], bool] | None = None,
    ) -> Writer:
        """Return a writer whose first bytes will lie at ``offset``.

        ``alive`` says whether the stream still lives, if a newer one wants the block; other threads call it.
        """

    def read(
        self,
        container_id: int,
        local_id: int,
        offset: int,
        length: int,
        *,
        bytes_per_checksum: int | None = None,
        end: int | None = None,
    ) -> Iterator[tuple[int, memoryview, int]]:
        """Yield (offset, bytes, CRC32C of these bytes) of each cell in the range; ``end`` is where the block ends."""


class SmallBlockFiles(Protocol):
    """The block files again, for whole small blocks that are written together. Many threads use it."""

    def write(
        self,
        blocks: Sequence[tuple[int, int, Sequence[tuple[memoryview, int]]]],
        bytes_per_checksum: int,
        alive: Callable[[], bool],
    ) -> Sequence[BlockError | None]:
        """Write blocks (container id, local id, cells with their CRC32C), and store them under the fsync policy.

        Return what went wrong with each, None if nothing did. ``alive`` is as in ``Blocks.open_writer``.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """What may be read of a block, and which checksums it must have."""

    length: int
    """Bytes of the block that may be read."""
    bytes_per_checksum: int
    """Bytes of a checksum cell."""
    checksums: bytes
    """CRC32C of each cell of the first ``length`` bytes, 4 bytes big-endian each."""
    stored: int | None = None
    """Bytes of the block that are here (None: all); fewer in an unhealthy block, of which the
    whole cells may be read.
    """


class PipelineRequests(Protocol):
    """The pipelines of this datanode. Many threads use it."""

    def check_stream(self, partition: int, container_id: int, local_id: int) -> None:
        """Raise an error if a block takes no bytes here.

        The error is NO_SUCH_PIPELINE, PIPELINE_CLOSED, CONTAINER_CLOSED or BLOCK_DELETED.
        """

    def address_of(self, partition: int, datanode: str) -> str:
        """Return where a member of a pipeline is, as the Object Manager has told.

        Raises NO_SUCH_PIPELINE, and INVALID_REQUEST for a datanode that is no member.
        """

    def members_for(self, request: Any) -> tuple[int, Sequence[str]]:
        """Return partition and members of the pipeline that a forwarded request or stream is for.

        Raises NO_SUCH_PIPELINE, INVALID_REQUEST.
        """

    def handle(self, request: Any) -> Any:
        """Carry out a request and return its answer; may block.

        A request is a record of ``schemas.records.datanode``, never ReadBlock or SalvageBlock.
        """

    def readable(self, request: ReadBlock | SalvageBlock) -> Readable:
        """Return what may be read: the committed bytes, or all stored ones if not ``committed_only``.

        Only a SalvageBlock may read a block that is unhealthy.
        """

    def on_corrupt_cell(self, container_id: int, local_id: int, offset: int) -> None:
        """Note that the cell at ``offset`` is missing or does not have its checksum.

        The cell must be repaired from a peer.
        """
