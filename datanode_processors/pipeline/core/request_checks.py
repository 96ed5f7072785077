"""What requests to a pipeline must be in themselves, whatever the rows say. Pure."""

from __future__ import annotations

from crc32c import crc32c

from datanode_processors.blocks.core.checksums import check_cell_bytes, check_list
from datanode_processors.errors import MAX_NAME_CHARACTERS, BlockError
from schemas import stream_errors as codes
from schemas.records.datanode import (
    CloseContainer,
    ClosePipeline,
    DeleteBlocks,
    OpenPipeline,
    PutBlock,
    PutBlocks,
    WatchBlocks,
    WriteChunk,
)
from schemas.records.packets import MAX_BLOCKS_TOGETHER
from schemas.sharding import MAX_PIPELINES, pipeline_of

MAX_MEMBERS = 7
"""Datanodes of one pipeline."""

MAX_DELETED_BLOCKS = 1000
"""Blocks in one DeleteBlocks."""

MAX_CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of one WriteChunk."""

MAX_BLOCK_BYTES = 1 << 40
"""Largest length that may be committed."""

LOG_REQUESTS = (OpenPipeline, ClosePipeline, CloseContainer, PutBlock, PutBlocks, DeleteBlocks, WriteChunk)
"""Requests that go through the log."""


def check_block(partition: int, container_id: int, local_id: int) -> None:
    """Raise BlockError (INVALID_REQUEST) unless a block with these ids may lie on the pipeline."""
    if not (0 <= container_id < 1 << 63 and 0 < local_id < 1 << 63):
        raise BlockError(
            codes.INVALID_REQUEST, f"block {container_id}/{local_id}: ids have 63 bits, and a local id is not 0"
        )
    check_container(partition, container_id)


def check_container(partition: int, container_id: int) -> None:
    """Raise BlockError (INVALID_REQUEST) unless a container with this id may lie on the pipeline."""
    # The first container of a cluster has the id 0.
    if not 0 <= container_id < 1 << 63:
        raise BlockError(codes.INVALID_REQUEST, f"container {container_id}: an id has 63 bits")
    if pipeline_of(container_id) != partition:
        raise BlockError(
            codes.INVALID_REQUEST,
            f"container {container_id} belongs to partition {pipeline_of(container_id)}, not {partition}",
        )


def check_members(request: OpenPipeline) -> None:
    """Raise BlockError (INVALID_REQUEST) unless these can be a pipeline's members."""
    names = [member.datanode for member in request.members]
    if not 1 <= len(names) <= MAX_MEMBERS or len(set(names)) != len(names):
        raise BlockError(
            codes.INVALID_REQUEST, f"{request.pipeline}: members {names}: 1 to {MAX_MEMBERS} different ones are needed"
        )
    if not 0 <= request.partition < MAX_PIPELINES:
        raise BlockError(codes.INVALID_REQUEST, f"partition {request.partition} is not in 0..{MAX_PIPELINES - 1}")
    check_texts(
        request.pipeline,
        *(text for one in request.members for text in (one.datanode, one.address, one.http_address, one.rack)),
    )


def check_texts(*texts: str) -> None:
    """Raise BlockError (INVALID_REQUEST) if a name or address is too long.

    Names and addresses are kept, and appear in many lines of the log.
    """
    for text in texts:
        if len(text) > MAX_NAME_CHARACTERS:
            raise BlockError(
                codes.INVALID_REQUEST,
                f"{text[:20]}…: {len(text)} characters; at most {MAX_NAME_CHARACTERS} are taken",
            )


def check_put_block(request: PutBlock) -> None:
    """Raise BlockError (INVALID_REQUEST) for a PutBlock that is wrong in itself."""
    check_block(request.partition, request.container_id, request.local_id)
    name = f"block {request.container_id}/{request.local_id}"
    if not 0 <= request.length <= MAX_BLOCK_BYTES:
        raise BlockError(codes.INVALID_REQUEST, f"{name}: length {request.length} is not in 0..{MAX_BLOCK_BYTES}")
    try:
        check_cell_bytes(request.bytes_per_checksum)
        check_list(request.checksums, request.length, request.bytes_per_checksum)
    except ValueError as error:
        raise BlockError(codes.INVALID_REQUEST, f"{name}: {error}") from error


def check_together(request: PutBlocks | WatchBlocks) -> None:
    """Raise BlockError (INVALID_REQUEST) for too many blocks, or none; each is checked by itself later."""
    if not 1 <= len(request.blocks) <= MAX_BLOCKS_TOGETHER:
        what = f"{type(request).__name__} of {len(request.blocks)} blocks"
        raise BlockError(codes.INVALID_REQUEST, f"{what}; 1 to {MAX_BLOCKS_TOGETHER} are taken at once")
    for block in request.blocks:
        check_block(request.partition, block.container_id, block.local_id)


def check_deletion(request: DeleteBlocks) -> None:
    """Raise BlockError (INVALID_REQUEST) for a DeleteBlocks that is wrong in itself."""
    if len(request.blocks) > MAX_DELETED_BLOCKS:
        raise BlockError(
            codes.INVALID_REQUEST, f"{len(request.blocks)} blocks to delete; at most {MAX_DELETED_BLOCKS} at once"
        )
    for block in request.blocks:
        check_block(request.partition, block.container_id, block.local_id)


def check_chunk(request: WriteChunk) -> None:
    """Raise BlockError for a chunk that is wrong in itself, or whose bytes do not have their checksum."""
    check_block(request.partition, request.container_id, request.local_id)
    name = f"chunk at {request.offset} of block {request.container_id}/{request.local_id}"
    if not 1 <= len(request.data) <= MAX_CHUNK_BYTES or not 0 <= request.offset <= MAX_BLOCK_BYTES - len(request.data):
        raise BlockError(codes.INVALID_REQUEST, f"{name}: {len(request.data)} bytes; 1 to {MAX_CHUNK_BYTES} are taken")
    if crc32c(request.data) != request.checksum:
        raise BlockError(codes.CHECKSUM_MISMATCH, f"{name}: its bytes do not have the checksum {request.checksum:08x}")
