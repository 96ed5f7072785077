"""The rows of a pipeline's database: their keys, and reading them from a transaction, a store or a snapshot. Pure.

Keys: block ``block_key``; chunk ``block_key`` and its offset, 8 bytes big-endian; container 8 bytes big-endian; the
pipeline's one row PIPELINE_KEY.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicated_db.core.tables.column_families import families
from replicated_db.core.tables.merge import MAX_BYTES
from schemas.codecs.block_rows import block_key, block_of_key, decode_block_row
from schemas.codecs.codec import decode_as
from schemas.column_families import BLOCK_TABLE, CHUNK_TABLE, CONTAINER_TABLE, DN_COLUMN_FAMILIES, PIPELINE_TABLE
from schemas.records.datanode import BlockRow, ContainerRow, PipelineRow

OPEN, CLOSED = "OPEN", "CLOSED"
"""States of a pipeline."""

PIPELINE_KEY = b"pipeline"

DN_FAMILIES = families(DN_COLUMN_FAMILIES[1:], [MAX_BYTES])

_KEY_BYTES = 16
_NUMBER_BYTES = 8
_LAST_NUMBER = (1 << 64) - 1


def chunk_key(container_id: int, local_id: int, offset: int) -> bytes:
    """Return a chunk's key in chunkTable."""
    return block_key(container_id, local_id) + offset.to_bytes(_NUMBER_BYTES, "big")


def chunk_of_key(key: bytes) -> tuple[int, int, int]:
    """Return (container id, local id, offset)."""
    return *block_of_key(key[:_KEY_BYTES]), int.from_bytes(key[_KEY_BYTES:], "big")


def container_key(container_id: int) -> bytes:
    """Return a container's key in containerTable."""
    return container_id.to_bytes(_NUMBER_BYTES, "big")


def pipeline_row(view: Any) -> PipelineRow | None:
    """Return the pipeline's row, None if the log does not have one yet."""
    value = view.get(PIPELINE_TABLE, PIPELINE_KEY)
    return None if value is None else decode_as(PipelineRow, value)


def block_row(view: Any, key: bytes) -> BlockRow | None:
    """Return a block's row, a tombstone included."""
    value = view.get(BLOCK_TABLE, key)
    return None if value is None else decode_block_row(value)


def is_closed(view: Any, container_id: int) -> bool:
    """Whether a container is closed; one without a row is open."""
    value = view.get(CONTAINER_TABLE, container_key(container_id))
    return value is not None and decode_as(ContainerRow, value).closed


def containers_of(view: Any) -> Iterator[int]:
    """Yield the containers that have rows in blockTable, ascending.

    It takes one step per container, however many blocks the container has.
    """
    start = b""
    while (found := next(iter(view.iterate(BLOCK_TABLE, start, None)), None)) is not None:
        container_id, _ = block_of_key(found[0])
        yield container_id
        start = block_key(container_id, _LAST_NUMBER) + b"\x00"


def blocks_of(view: Any, container_id: int) -> Iterator[tuple[int, BlockRow]]:
    """Yield (local id, row) of a container's blocks, tombstones included."""
    for key, value in view.iterate(BLOCK_TABLE, block_key(container_id, 0), block_key(container_id, _LAST_NUMBER)):
        yield block_of_key(key)[1], decode_block_row(value)


def chunks_of(view: Any, key: bytes, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, bytes) of the chunks of a block that begin in start..stop-1."""
    low, high = (max(0, offset).to_bytes(_NUMBER_BYTES, "big") for offset in (start, stop))
    yield from view.iterate(CHUNK_TABLE, key + low, key + high)
