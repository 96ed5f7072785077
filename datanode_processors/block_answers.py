"""What a member, or a copy's holder, answers about its blocks: rows, readable bytes, and whether a stream may write.

Every answer comes from this node's own replica or copy. Damage that is noticed on the way is handed to the repairers.
"""

from __future__ import annotations

from collections.abc import Iterator

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import block_row, blocks_of, containers_of, is_closed
from datanode_processors.pipeline.core.request_checks import check_block, check_container
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.repair.copies import Copies
from datanode_processors.repair.copy_upkeep import CopyUpkeep
from datanode_processors.repair.scrubber import Place
from datanode_processors.repair.verifier import Verifier
from datanode_processors.wire.ports import Readable
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.records.datanode import (
    BlockInfo,
    BlockRow,
    ContainerBlocks,
    GetBlock,
    ListContainer,
    ReadBlock,
    SalvageBlock,
)
from schemas.records.packets import CELL_BYTES
from schemas.sharding import pipeline_of

MAX_LISTED_BYTES = 3 * 1024 * 1024
"""Rows in one answer to ListContainer."""


class BlockAnswers:
    """The answers of one datanode; for many threads."""

    def __init__(
        self, blocks: BlockStore, pipelines: PipelineTable, verifier: Verifier, copies: Copies, upkeep: CopyUpkeep
    ) -> None:
        self._blocks = blocks
        self._pipelines = pipelines
        self._verifier = verifier
        self._copies = copies
        self._upkeep = upkeep

    # -- rows ------------------------------------------------------------------------------------------------------

    def committed_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        """Yield (partition, container id, local id, row) of what the pipelines here have committed behind a place.

        The blocks come in the order of places.
        """
        for pipeline in self._pipelines.all():
            if after is not None and pipeline.partition < after[0]:
                continue
            for container_id in list(containers_of(pipeline.store)):
                for local_id, row in list(blocks_of(pipeline.store, container_id)):
                    if not row.deleted and (after is None or (pipeline.partition, container_id, local_id) > after):
                        yield pipeline.partition, container_id, local_id, row

    def block_info(self, request: GetBlock) -> BlockInfo:
        """Return a block as it is committed here; raises BlockError."""
        check_block(request.partition, request.container_id, request.local_id)
        row = self._row(request.partition, request.container_id, request.local_id)
        if row is None:
            raise BlockError(
                codes.NO_SUCH_BLOCK, f"block {request.container_id}/{request.local_id} is not committed here"
            )
        stored = 0 if row.deleted else self._blocks.written_length(request.container_id, request.local_id)
        return BlockInfo(
            container_id=request.container_id, local_id=request.local_id, length=row.length, bcs_id=row.bcs_id,
            bytes_per_checksum=row.bytes_per_checksum, checksums=row.checksums, deleted=row.deleted,
            stored_length=stored,
        )  # fmt: skip

    def _row(self, partition: int, container_id: int, local_id: int) -> BlockRow | None:
        """Return a block's row: the replica's, or a copy's. Raises NO_SUCH_PIPELINE."""
        pipeline = self._pipelines.get(partition)
        row = None if pipeline is None else pipeline.block(container_id, local_id)
        if row is None:
            row = self._copies.block(container_id, local_id)
        return self._pipelines.member(partition).block(container_id, local_id) if row is None else row

    def list_container(self, request: ListContainer) -> ContainerBlocks:
        """Return a container's rows; raises BlockError."""
        check_container(request.partition, request.container_id)
        if request.partition not in self._pipelines:
            return self._copies.listed(request.container_id)
        store = self._pipelines.member(request.partition).store
        rows, size = [], 0
        for local_id, row in blocks_of(store, request.container_id):
            rows.append(block_key(request.container_id, local_id) + encode_block_row(row))
            size += len(rows[-1])
            if size > MAX_LISTED_BYTES:
                raise BlockError(
                    codes.OVERLOADED, f"the rows of container {request.container_id} take over {MAX_LISTED_BYTES} bytes"
                )
        return ContainerBlocks(
            container_id=request.container_id, closed=is_closed(store, request.container_id), blocks=rows
        )

    def check_stream(self, partition: int, container_id: int, local_id: int) -> None:
        """Raise an error if a block takes no bytes here.

        The error is NO_SUCH_PIPELINE, PIPELINE_CLOSED, CONTAINER_CLOSED or BLOCK_DELETED.
        """
        check_block(partition, container_id, local_id)
        pipeline = self._pipelines.member(partition)
        if pipeline.is_closed():
            raise BlockError(codes.PIPELINE_CLOSED, f"{pipeline.opened.pipeline} is closed")
        if is_closed(pipeline.store, container_id):
            raise BlockError(codes.CONTAINER_CLOSED, f"container {container_id} is closed")
        row = pipeline.block(container_id, local_id)
        if row is None:
            return
        if row.deleted:
            raise BlockError(codes.BLOCK_DELETED, f"block {container_id}/{local_id} is deleted")
        self._blocks.committed(container_id, local_id, row.length)

    def readable(self, request: ReadBlock | SalvageBlock) -> Readable:
        """Return what may be read of a block: committed bytes, or if not ``committed_only`` (a repair) all stored ones.

        A block that is unhealthy here answers only a SalvageBlock: a reader with a choice reads a healthy replica. Each
        cell is verified before it is sent, whoever reads. Raises NO_SUCH_PIPELINE, NO_SUCH_BLOCK, BLOCK_DELETED, or
        NOT_COMMITTED if this replica has not applied ``bcs_id`` or does not have the bytes.
        """
        container_id, local_id = request.container_id, request.local_id
        check_block(request.partition, container_id, local_id)
        name = f"block {container_id}/{local_id}"
        if request.partition not in self._pipelines:
            return self._readable_copy(name, request)
        pipeline = self._pipelines.member(request.partition)
        # The index is read first, so the row that is read after it is at least as new.
        index = pipeline.replica.position.index
        row = pipeline.block(container_id, local_id)
        if row is not None and row.deleted:
            raise BlockError(codes.BLOCK_DELETED, f"{name} is deleted")
        salvage = isinstance(request, SalvageBlock)
        if isinstance(request, ReadBlock) and not request.committed_only:
            return self._stored(name, request, row)
        if index < request.bcs_id:
            raise BlockError(
                codes.NOT_COMMITTED, f"{name}: index {index} is applied here, {request.bcs_id} is asked for"
            )
        if row is None:
            raise BlockError(codes.NO_SUCH_BLOCK, f"{name} is not committed")
        reason = pipeline.unhealthy.get(block_key(container_id, local_id))
        if reason is not None and not salvage:
            raise BlockError(codes.NOT_COMMITTED, f"{name} is being repaired here: {reason}")
        written = self._blocks.written_length(container_id, local_id)
        if written < row.length:
            if reason is None:
                self._verifier.verify(pipeline, block_key(container_id, local_id))
            if not salvage:
                raise BlockError(codes.NOT_COMMITTED, f"{name}: its bytes are not here")
        return _committed(row, written)

    def _readable_copy(self, name: str, request: ReadBlock | SalvageBlock) -> Readable:
        """Return what may be read of a copy: what its rows say is committed, whatever its files hold."""
        row = self._row(request.partition, request.container_id, request.local_id)
        if row is None or row.deleted:
            raise BlockError(codes.BLOCK_DELETED if row else codes.NO_SUCH_BLOCK, f"{name} is not in the copy here")
        if row.bcs_id < request.bcs_id:
            raise BlockError(
                codes.NOT_COMMITTED, f"{name}: the copy here is of index {row.bcs_id}, not {request.bcs_id}"
            )
        written = self._blocks.written_length(request.container_id, request.local_id)
        if written < row.length:
            reason = f"{name}: the copy here has {written} of {row.length} bytes, it is damaged"
            self._upkeep.damaged(request.container_id, request.local_id, reason)
            if not isinstance(request, SalvageBlock):
                raise BlockError(codes.NOT_COMMITTED, reason)
        return _committed(row, written)

    def _stored(self, name: str, request: ReadBlock, row: BlockRow | None) -> Readable:
        """Return what a peer may read for its repair. It verifies against its own row what is not committed here."""
        written = self._blocks.written_length(request.container_id, request.local_id)
        if row is not None and (written or not row.length):
            return _committed(row, written)
        found = self._blocks.checksums(request.container_id, request.local_id, written, CELL_BYTES) if written else None
        if found is None:
            raise BlockError(codes.NO_SUCH_BLOCK, f"{name} is not stored here")
        return Readable(length=written, bytes_per_checksum=CELL_BYTES, checksums=found)

    def on_corrupt_cell(self, container_id: int, local_id: int, offset: int) -> None:
        """Note that the cell at ``offset`` is missing or does not have its checksum.

        The cell is fetched from a peer; the block is unhealthy until then.
        """
        pipeline = self._pipelines.get(pipeline_of(container_id))
        if pipeline is None:
            self._found_corrupt_copy(container_id, local_id, offset)
            return
        key = block_key(container_id, local_id)
        row = block_row(pipeline.store, key)
        if row is None or row.deleted or offset >= row.length:
            return
        self._verifier.repair(pipeline, key, offset // row.bytes_per_checksum)

    def _found_corrupt_copy(self, container_id: int, local_id: int, offset: int) -> None:
        try:
            row = self._copies.block(container_id, local_id)
        except BlockError:  # the copy's rows are damaged too: the next look or scrub reports it
            return
        if row is not None and not row.deleted and offset < row.length:
            reason = f"the copy of block {container_id}/{local_id} here is damaged at {offset}"
            self._upkeep.damaged(container_id, local_id, reason)


def _committed(row: BlockRow, written: int) -> Readable:
    """Return a block as it is committed, of which ``written`` bytes are here."""
    return Readable(
        length=row.length, bytes_per_checksum=row.bytes_per_checksum, checksums=row.checksums,
        stored=min(written, row.length),
    )  # fmt: skip
