"""WriteBlocks: what such a request must be, and what its answers amount to. Pure.

Rules
    1. There are 1 to MAX_BLOCKS_TOGETHER blocks of one pipeline, none of them twice, each with the checksums of its
       cells. All together they have at most MAX_BYTES_TOGETHER bytes, which are the request's data, one block after the
       other.
    2. The routes are a spanning tree, as those of a stream (``stream``, rule 1).
    3. A block is stored by a datanode and everything below once none of them says otherwise. An answer that does not
       have an outcome for each block is no answer.
    4. The root commits the blocks that everyone has stored, and no others.

Every violation raises :class:`BlockError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from datanode_processors.blocks.core.checksums import cell_count, checksum_at
from datanode_processors.errors import BlockError
from datanode_processors.wire.core.stream import MAX_CELL_BYTES, MIN_CELL_BYTES
from schemas import stream_errors
from schemas.records.datanode import BlockOutcome, OpenBlocks, WholeBlock
from schemas.records.packets import MAX_BLOCKS_TOGETHER, MAX_BYTES_TOGETHER

STORED = BlockOutcome(code="", message="", bcs_id=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallBlock:
    """A block of a request, and its bytes as cells with the CRC32C of each."""

    block: WholeBlock
    cells: Sequence[tuple[memoryview, int]]


def check_opening(request: OpenBlocks, data_bytes: int) -> None:
    """Raise INVALID_REQUEST if the request breaks rule 1."""
    blocks = request.blocks
    if not 1 <= len(blocks) <= MAX_BLOCKS_TOGETHER:
        raise _refuse(f"{len(blocks)} blocks together; 1 to {MAX_BLOCKS_TOGETHER} are taken")
    if not MIN_CELL_BYTES <= request.bytes_per_checksum <= MAX_CELL_BYTES:
        cell = request.bytes_per_checksum
        raise _refuse(f"bytes_per_checksum {cell} of WriteBlocks is not in {MIN_CELL_BYTES} to {MAX_CELL_BYTES}")
    if data_bytes > MAX_BYTES_TOGETHER:
        raise _refuse(f"{data_bytes} bytes of blocks together; at most {MAX_BYTES_TOGETHER} are taken")
    ids = {(block.container_id, block.local_id) for block in blocks}
    if len(ids) < len(blocks):
        raise _refuse("a block stands twice among those that are written together")
    for block in blocks:
        name = f"block {block.container_id}/{block.local_id}"
        if not (0 <= block.container_id < 1 << 63 and 0 <= block.local_id < 1 << 63):
            raise _refuse(f"{name}: ids have 63 bits")
        if block.length < 1:
            raise _refuse(f"{name} has {block.length} bytes; at least 1 is written")
        if len(block.checksums) != 4 * cell_count(block.length, request.bytes_per_checksum):
            raise _refuse(f"{name}: {len(block.checksums)} bytes of checksums for {block.length} bytes")
    total = sum(block.length for block in blocks)
    if total != data_bytes:
        raise _refuse(f"blocks of {total} bytes together, with {data_bytes} bytes of data")


def small_blocks(request: OpenBlocks, data: memoryview) -> Iterator[SmallBlock]:
    """Yield the blocks of a checked request with their bytes; raises CHECKSUM_MISMATCH for bytes that are not theirs."""
    offset, size = 0, request.bytes_per_checksum
    for block in request.blocks:
        cells: list[tuple[memoryview, int]] = []
        for start in range(0, block.length, size):
            cell = data[offset + start : offset + min(start + size, block.length)]
            crc = checksum_at(block.checksums, start // size)
            if crc32c(cell) != crc:
                raise BlockError(
                    stream_errors.CHECKSUM_MISMATCH,
                    f"block {block.container_id}/{block.local_id}: its bytes at {start} do not have their checksum",
                )
            cells.append((cell, crc))
        offset += block.length
        yield SmallBlock(block=block, cells=cells)


def joined(own: Sequence[BlockOutcome], below: Sequence[BlockOutcome], child: str) -> list[BlockOutcome]:
    """Return what this datanode and a child have made of the blocks, the first failure of each; rule 3.

    Raises DOWNSTREAM_FAILED for an answer that is none.
    """
    if len(below) != len(own):
        raise BlockError(
            stream_errors.DOWNSTREAM_FAILED,
            f"datanode {child}: {len(below)} outcomes of {len(own)} blocks",
            hint=stream_errors.BAD_FRAME,
            datanode=child,
        )
    return [mine if mine.code else theirs for mine, theirs in zip(own, below, strict=True)]


def child_error(child: str, error: BlockError) -> BlockError:
    """Return what to tell upwards when a child has failed, as ``StreamState`` does for a stream."""
    if error.code == stream_errors.DOWNSTREAM_FAILED:
        return BlockError(error.code, error.message, hint=error.hint, datanode=error.datanode or child)
    return BlockError(stream_errors.DOWNSTREAM_FAILED, f"datanode {child}: {error}", hint=error.code, datanode=child)


def outcome_of(error: BlockError | None) -> BlockOutcome:
    """Return the outcome of a block on one datanode."""
    return STORED if error is None else BlockOutcome(code=error.code, message=error.message, bcs_id=0)


def _refuse(message: str) -> BlockError:
    return BlockError(stream_errors.INVALID_REQUEST, message)
