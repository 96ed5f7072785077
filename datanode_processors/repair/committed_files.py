"""A member's files against the log: wrong cells, files that end early, containers that the log has closed."""

from __future__ import annotations

import os

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.core.checksums import cell_count, differing_cells
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import blocks_of, is_closed
from datanode_processors.pipeline.pipeline import Pipeline
from replicated_db.shell.logs import Note
from schemas import stream_errors as codes
from schemas.records.datanode import BlockRow


class CommittedFiles:
    """The files of one datanode; for many threads."""

    def __init__(self, blocks: BlockStore, *, note: Note) -> None:
        self._blocks = blocks
        self._note = note

    def wrong_cells(self, container_id: int, local_id: int, row: BlockRow) -> list[int]:
        """Return the cells that this node does not have as they are committed; raises BlockError."""
        blocks = self._blocks
        blocks.committed(container_id, local_id, row.length)
        length = min(blocks.flush(container_id, local_id), row.length)
        while (found := blocks.checksums(container_id, local_id, length, row.bytes_per_checksum)) is None:
            # The reading has found fewer bytes: the file was cut behind the store's back, or the disk fails.
            left = blocks.written_length(container_id, local_id)
            if left >= length:
                raise BlockError(codes.FAILED, f"block {container_id}/{local_id}: its {length} bytes cannot be read")
            length = left
        if length == row.length and found == row.checksums:
            return []
        whole = length if length == row.length else length - length % row.bytes_per_checksum
        count = cell_count(whole, row.bytes_per_checksum)
        mine = found[: 4 * count]
        wrong = differing_cells(mine, whole, row.checksums, row.length, row.bytes_per_checksum)
        return [*wrong, *range(count, cell_count(row.length, row.bytes_per_checksum))]

    def is_to_close(self, pipeline: Pipeline, container_id: int) -> bool:
        """Whether the log has closed a container that is still open here, and that has anything here."""
        if self._blocks.is_closed(container_id) or not is_closed(pipeline.store, container_id):
            return False
        # Emptied containers may be many, and none of them has anything here.
        there = os.path.exists(self._blocks.container_folder(container_id))
        return there or any(not row.deleted for _, row in blocks_of(pipeline.store, container_id))

    def is_short(self, container_id: int, local_id: int, row: BlockRow) -> bool:
        """Whether a block's file ends before its committed length."""
        try:
            self._blocks.committed(container_id, local_id, row.length)
            return self._blocks.written_length(container_id, local_id) < row.length
        except BlockError:
            return True

    def close(self, pipeline: Pipeline, container_id: int) -> None:
        """Close a container in the store, and remove everything there but its committed blocks; failures are noted."""
        try:
            self._blocks.close_container(container_id)
            committed = dict(blocks_of(pipeline.store, container_id))
            for local_id, _ in list(self._blocks.blocks(container_id)):
                row = committed.get(local_id)
                if row is None or row.deleted:
                    self._blocks.delete(container_id, local_id)
                else:
                    self._blocks.reclaim(container_id, local_id, row.length)
            if all(row.deleted for row in committed.values()):
                # The container's directory has gone with its last block, and must not come back. A closed container
                # without a block would be reported, and the Object Manager would miss replicas that nobody can make.
                self._blocks.drop_if_empty(container_id)
        except BlockError as error:
            self._note(f"container {container_id} is not closed here: {error}", shard=pipeline.partition)
