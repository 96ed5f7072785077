"""What a pipeline's leader does with a request: rows and answer, executed once against the transaction. Pure.

Rules (design, section 8; decision 0023):

1. A longer PutBlock replaces the block's row. A shorter one, or one of equal length, is answered with the committed
   state and writes nothing. A committed length never shrinks.
2. Cells that two PutBlocks of a block have in common must have the same checksums, or the later one is refused.
3. A delete leaves a tombstone, which voids every PutBlock and chunk that comes after it. Block ids are never reused.
4. A closed container or pipeline takes nothing new. Requests for what is committed already are still answered, and it
   may be deleted. The members open a pipeline again as a later generation. Its closed containers stay closed, and
   requests of an earlier generation are refused.
5. A chunk (the old way) is a row of its bytes until a PutBlock covers it. Chunks of a block do not overlap, and a chunk
   that is sent again must have the same bytes.
6. A base of the log (LogPipelineBase) changes no row. Its leader asks for it when its log is to be trimmed.
7. PutBlocks is as many PutBlocks as it has blocks, in one entry: what refuses one block refuses no other. It is
   refused as a whole if no block of it is taken.
8. All requests here are idempotent by themselves, so proposals have no retry rows.

Rows and their keys are in ``block_tables``, checks of a request by itself in ``request_checks``. Answers are encoded
records of ``schemas.records.datanode``; a refusal is a StreamError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from datanode_processors.blocks.core.checksums import differing_cells
from datanode_processors.errors import UNKNOWN_OFFSET, BlockError
from datanode_processors.pipeline.core.block_tables import (
    CLOSED,
    OPEN,
    PIPELINE_KEY,
    block_row,
    chunk_key,
    chunk_of_key,
    chunks_of,
    container_key,
    containers_of,
    is_closed,
    pipeline_row,
)
from datanode_processors.pipeline.core.request_checks import (
    MAX_BLOCK_BYTES,
    MAX_CHUNK_BYTES,
    check_chunk,
    check_container,
    check_deletion,
    check_members,
    check_put_block,
    check_together,
)
from replicated_db.core.errors import Refused
from replicated_db.core.execution.service import Executed, Proposal, Refusal
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.merge import MAX_BYTES
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.codecs.codec import encode
from schemas.column_families import (
    BLOCK_TABLE,
    CHUNK_TABLE,
    CONTAINER_TABLE,
    PIPELINE_TABLE,
)
from schemas.features import OPERATIONS
from schemas.records.datanode import (
    Accepted,
    BlockCommitted,
    BlockOutcome,
    BlockRow,
    BlocksCommitted,
    BlocksDeleted,
    ChunkWritten,
    CloseContainer,
    ClosePipeline,
    ContainerRow,
    DeleteBlocks,
    OpenPipeline,
    PipelineRow,
    PutBlock,
    PutBlocks,
    StreamError,
    WriteChunk,
)

REFUSED = {
    Refusal.EXPIRED: codes.TIMED_OUT,
    Refusal.CALL_ID_REUSED: codes.INVALID_REQUEST,
    Refusal.TOO_LARGE: codes.INVALID_REQUEST,
    Refusal.FAILED: codes.FAILED,
    Refusal.PREPARED: codes.PIPELINE_CLOSED,
}


BASIS = "the leader's own, to trim the log to"


@dataclass(frozen=True, slots=True)
class LogPipelineBase:
    """A request of the leader's process to itself: log a base, to which the log can be trimmed. Nobody can send it."""

    partition: int


class BlockService:
    """The service of one pipeline, on the partition of that number."""

    def __init__(self, *, partition: int, node: str) -> None:
        self._partition = partition
        self._node = node
        self._executors: dict[type, Callable[[Any, Transaction, int], Any]] = {
            OpenPipeline: self._open_pipeline,
            ClosePipeline: self._close_pipeline,
            CloseContainer: self._close_container,
            PutBlock: self._put_block,
            PutBlocks: self._put_blocks,
            DeleteBlocks: self._delete_blocks,
            WriteChunk: self._write_chunk,
            LogPipelineBase: self._log_base,
        }

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a request. A refused one leaves no rows and is answered with a StreamError."""
        request = proposal.body
        try:
            if request.partition != self._partition:
                raise BlockError(
                    codes.INVALID_REQUEST, f"partition {request.partition} where {self._partition} was asked"
                )
            answer = self._executors[type(request)](request, transaction, timestamp_ms)
        except BlockError as error:
            return Executed(response=encode(self._error(error.code, error.message)), keep=False)
        return Executed(response=encode(answer), keep=True)

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:  # noqa: ARG002
        """Encode a refusal that the replicated database itself gives."""
        return encode(self._error(REFUSED[refusal], message))

    def _error(self, code: str, message: str) -> StreamError:
        return StreamError(code=code, message=message, datanode=self._node, offset=UNKNOWN_OFFSET, hint="")

    # -- the log itself --------------------------------------------------------------------------------------------

    def _log_base(self, _: LogPipelineBase, transaction: Transaction, __: int) -> Accepted:
        if transaction.feature_level < OPERATIONS:  # the Members record that belongs to a base needs this level
            raise BlockError(codes.INVALID_REQUEST, f"the log of partition {self._partition} has no bases at its level")
        try:
            transaction.base(BASIS)
        except Refused as error:
            raise BlockError(codes.OVERLOADED, f"no base of partition {self._partition}: {error}") from error
        return Accepted(detail="a base is logged")

    # -- pipelines and containers ----------------------------------------------------------------------------------

    def _open_pipeline(self, request: OpenPipeline, transaction: Transaction, timestamp_ms: int) -> Accepted:
        check_members(request)
        row = pipeline_row(transaction)
        if row is None:
            row = PipelineRow(
                pipeline=request.pipeline, partition=request.partition, generation=request.generation,
                members=request.members, state=OPEN, opened_at_ms=timestamp_ms,
            )  # fmt: skip
            transaction.put(PIPELINE_TABLE, PIPELINE_KEY, encode(row))
            return Accepted(detail=f"{request.pipeline} is open")
        names = [member.datanode for member in request.members]
        known = [member.datanode for member in row.members]
        if known != names or request.generation < row.generation:
            raise BlockError(
                codes.INVALID_REQUEST,
                f"{row.pipeline} was opened as generation {row.generation} of {', '.join(known)}, "
                f"not {request.generation} of {', '.join(names)}",
            )
        if request.generation > row.generation:
            if row.state != CLOSED:  # what its closing would have done
                self._close_containers(transaction)
            row = replace(row, generation=request.generation, state=OPEN, opened_at_ms=timestamp_ms, members=[])
        elif row.state == CLOSED:
            raise BlockError(codes.PIPELINE_CLOSED, f"{row.pipeline} is closed as generation {row.generation}")
        if row.members != request.members:
            transaction.put(PIPELINE_TABLE, PIPELINE_KEY, encode(replace(row, members=request.members)))
        return Accepted(detail=f"{request.pipeline} is open")

    def _close_pipeline(self, request: ClosePipeline, transaction: Transaction, _: int) -> Accepted:
        row = self._pipeline(transaction)
        if request.generation < row.generation:
            raise BlockError(
                codes.INVALID_REQUEST, f"{row.pipeline} is of generation {row.generation}, not {request.generation}"
            )
        closed = replace(row, state=CLOSED, generation=request.generation)
        if row != closed:  # a later generation may be closed before anybody has opened it: then it is never opened
            transaction.put(PIPELINE_TABLE, PIPELINE_KEY, encode(closed))
        if row.state != CLOSED:
            self._close_containers(transaction)
        return Accepted(detail=f"{row.pipeline} is closed")

    @staticmethod
    def _close_containers(transaction: Transaction) -> None:
        for container_id in list(containers_of(transaction)):
            _close(transaction, container_id)

    def _close_container(self, request: CloseContainer, transaction: Transaction, _: int) -> Accepted:
        self._pipeline(transaction)
        check_container(self._partition, request.container_id)
        _close(transaction, request.container_id)
        return Accepted(detail=f"container {request.container_id} is closed")

    def _pipeline(self, transaction: Transaction) -> PipelineRow:
        row = pipeline_row(transaction)
        if row is None:
            raise BlockError(codes.NO_SUCH_PIPELINE, f"partition {self._partition} has no pipeline yet")
        return row

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _put_block(self, request: PutBlock, transaction: Transaction, _: int) -> BlockCommitted:
        name = f"block {request.container_id}/{request.local_id}"
        check_put_block(request)
        pipeline = self._pipeline(transaction)
        key = block_key(request.container_id, request.local_id)
        row = block_row(transaction, key)
        if row is not None:
            _check_against(name, row, request)
            if request.length <= row.length:
                return _committed(request.container_id, request.local_id, row)
        self._check_takes(pipeline, transaction, request.container_id)
        row = BlockRow(
            bcs_id=transaction.index, length=request.length, bytes_per_checksum=request.bytes_per_checksum,
            checksums=request.checksums, deleted=False,
        )  # fmt: skip
        transaction.merge(BLOCK_TABLE, key, MAX_BYTES.name, encode_block_row(row))
        for chunk, value in list(chunks_of(transaction, key, 0, request.length)):
            if chunk_of_key(chunk)[2] + len(value) <= request.length:
                transaction.delete(CHUNK_TABLE, chunk)
        return _committed(request.container_id, request.local_id, row)

    def _put_blocks(self, request: PutBlocks, transaction: Transaction, timestamp_ms: int) -> BlocksCommitted:
        check_together(request)
        outcomes: list[BlockOutcome] = []
        refusal: BlockError | None = None
        for block in request.blocks:
            put = PutBlock(
                partition=request.partition, container_id=block.container_id, local_id=block.local_id,
                length=block.length, bytes_per_checksum=request.bytes_per_checksum, checksums=block.checksums,
                wait_effective=True,
            )  # fmt: skip
            try:
                bcs_id = self._put_block(put, transaction, timestamp_ms).bcs_id
                outcomes.append(BlockOutcome(code="", message="", bcs_id=bcs_id))
            except BlockError as error:
                refusal = refusal or error
                outcomes.append(BlockOutcome(code=error.code, message=error.message, bcs_id=0))
        if refusal is not None and not any(outcome.bcs_id for outcome in outcomes):
            raise refusal
        return BlocksCommitted(leader=self._node, outcomes=outcomes)

    def _check_takes(self, pipeline: PipelineRow, transaction: Transaction, container_id: int) -> None:
        """Raise BlockError if the pipeline or the container takes nothing new (rule 4)."""
        if pipeline.state == CLOSED:
            raise BlockError(codes.PIPELINE_CLOSED, f"{pipeline.pipeline} is closed")
        if is_closed(transaction, container_id):
            raise BlockError(codes.CONTAINER_CLOSED, f"container {container_id} is closed")

    def _delete_blocks(self, request: DeleteBlocks, transaction: Transaction, _: int) -> BlocksDeleted:
        self._pipeline(transaction)
        check_deletion(request)
        for block in request.blocks:
            key = block_key(block.container_id, block.local_id)
            row = block_row(transaction, key)
            if row is not None and row.deleted:
                continue
            tombstone = BlockRow(
                bcs_id=transaction.index, length=0 if row is None else row.length, bytes_per_checksum=0, checksums=b"",
                deleted=True,
            )  # fmt: skip
            transaction.merge(BLOCK_TABLE, key, MAX_BYTES.name, encode_block_row(tombstone))
            for chunk, _value in list(chunks_of(transaction, key, 0, MAX_BLOCK_BYTES)):
                transaction.delete(CHUNK_TABLE, chunk)
        return BlocksDeleted(bcs_id=transaction.index)

    # -- the old way -----------------------------------------------------------------------------------------------

    def _write_chunk(self, request: WriteChunk, transaction: Transaction, _: int) -> ChunkWritten:
        name = f"chunk at {request.offset} of block {request.container_id}/{request.local_id}"
        check_chunk(request)
        pipeline = self._pipeline(transaction)
        key = block_key(request.container_id, request.local_id)
        row = block_row(transaction, key)
        if row is not None and row.deleted:
            raise BlockError(codes.BLOCK_DELETED, f"block {request.container_id}/{request.local_id} is deleted")
        end = request.offset + len(request.data)
        if row is not None and request.offset < row.length:
            if end > row.length:
                raise BlockError(codes.INVALID_REQUEST, f"{name} begins below the committed length {row.length}")
            return ChunkWritten(bcs_id=row.bcs_id)
        self._check_takes(pipeline, transaction, request.container_id)
        own = chunk_key(request.container_id, request.local_id, request.offset)
        for chunk, value in chunks_of(transaction, key, request.offset - MAX_CHUNK_BYTES + 1, end):
            start = chunk_of_key(chunk)[2]
            if chunk == own and value == request.data:
                return ChunkWritten(bcs_id=transaction.index)
            if start < end and start + len(value) > request.offset:
                raise BlockError(
                    codes.INVALID_REQUEST,
                    f"{name}, {len(request.data)} bytes: another chunk at {start} has {len(value)}",
                )
        transaction.put(CHUNK_TABLE, own, request.data)
        return ChunkWritten(bcs_id=transaction.index)


def _check_against(name: str, row: BlockRow, request: PutBlock) -> None:
    """Raise BlockError if a PutBlock contradicts the committed row."""
    if row.deleted:
        raise BlockError(codes.BLOCK_DELETED, f"{name} is deleted")
    if row.bytes_per_checksum != request.bytes_per_checksum:
        raise BlockError(
            codes.INVALID_REQUEST,
            f"{name}: {request.bytes_per_checksum} bytes per checksum, "
            f"but it is committed with {row.bytes_per_checksum}",
        )
    wrong = differing_cells(row.checksums, row.length, request.checksums, request.length, row.bytes_per_checksum)
    if wrong:
        raise BlockError(
            codes.CHECKSUM_MISMATCH,
            f"{name}: cell {wrong[0]} is committed with another checksum (length {row.length}, asked {request.length})",
        )


def _committed(container_id: int, local_id: int, row: BlockRow) -> BlockCommitted:
    return BlockCommitted(
        container_id=container_id, local_id=local_id, length=row.length, bcs_id=row.bcs_id, log_offset=-1
    )


def _close(transaction: Transaction, container_id: int) -> None:
    if not is_closed(transaction, container_id):
        row = ContainerRow(container_id=container_id, closed=True)
        transaction.put(CONTAINER_TABLE, container_key(container_id), encode(row))
