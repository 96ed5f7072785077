"""Blocks of keys: which blocks a request gets, and what a commit does with them.

An allocated block's length is the block size of the settings, its offset is its place among the allocated blocks. A
commit names the blocks that were written: of its own session, in order, without gaps, each with the index at which its
pipeline committed it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from om_processors.errors import OMError
from om_processors.namespace import ids
from om_processors.namespace.context import NumberedPipeline, PreExecuteContext
from om_processors.namespace.names import shown
from schemas.records.messages import CommitKey, CommitReserved
from schemas.records.rows import BlockLocation
from schemas.result_codes import FAILED_TO_FIND_ACTIVE_PIPELINE, INVALID_REQUEST
from schemas.small_objects import SMALL_FILE_BYTES

SMALL_FILES_RUN = 64
"""So many indices in a row give small files blocks of one pipeline: only blocks of one pipeline travel together."""


def allocate(
    context: PreExecuteContext, object_id: int, count: int, excluded: Collection[str] = (), *, small: bool = False
) -> list[BlockLocation]:
    """Return ``count`` new blocks, spread over the pipelines by index, those of ``small`` files by runs of indices.

    Raises OMError: FAILED_TO_FIND_ACTIVE_PIPELINE if no pipeline takes blocks, INVALID_REQUEST if the request excludes
    all that do.
    ids.MAX_BLOCKS_PER_REQUEST bounds ``count``.
    """
    candidates = _candidates(context, excluded)
    first = context.index // SMALL_FILES_RUN if small else context.index
    chosen = [candidates[(first + position) % len(candidates)] for position in range(count)]
    return _blocks(context, object_id, chosen, context.block_size_bytes)


def reserve(context: PreExecuteContext, object_id: int, count: int) -> list[BlockLocation]:
    """Return ``count`` new blocks of one pipeline, each with room for a small file; raises as :func:`allocate`."""
    candidates = _candidates(context, ())
    chosen = candidates[context.index // SMALL_FILES_RUN % len(candidates)]
    return _blocks(context, object_id, [chosen] * count, min(context.block_size_bytes, SMALL_FILE_BYTES))


def _candidates(context: PreExecuteContext, excluded: Collection[str]) -> Sequence[NumberedPipeline]:
    pipelines = context.allocation.pipelines
    if not pipelines:
        raise OMError(
            FAILED_TO_FIND_ACTIVE_PIPELINE,
            "no pipeline takes blocks now: each is closed, or one of its datanodes is away, unhealthy or full",
        )
    candidates: Sequence[NumberedPipeline] = (
        [pipeline for pipeline in pipelines if pipeline[1] not in excluded] if excluded else pipelines
    )
    if not candidates:
        names = [name for _, name in pipelines]
        raise OMError(INVALID_REQUEST, f"no pipeline is left: of {names}, the request excludes {list(excluded)}")
    return candidates


def _blocks(
    context: PreExecuteContext, object_id: int, chosen: Sequence[NumberedPipeline], size_bytes: int
) -> list[BlockLocation]:
    where, fill = context.allocation, context.containers
    return [
        BlockLocation(
            container_id=fill.take(
                number,
                object_id,
                context.now_ms,
                generation=where.generations.get(number, 1),
                closed=where.closed_containers,
                with_room=where.with_room,
            ),
            local_id=ids.block_local_id(object_id, position),
            offset=position * size_bytes,
            length=size_bytes,
            pipeline=pipeline,
        )
        for position, (number, pipeline) in enumerate(chosen)
    ]


def check_written(body: CommitKey | CommitReserved, context: PreExecuteContext) -> None:
    """Refuse a commit without proof that its blocks were written, if blocks are on datanodes.

    The leader decides this before it looks at any state. So replicas do not repeat the check on a commit that late
    validation has logged, whatever their settings. Raises OMError INVALID_REQUEST.
    """
    if not context.datanodes:
        return
    if body.size and not body.blocks:
        raise OMError(
            INVALID_REQUEST,
            f"key {shown(body.key)} is committed with {body.size} bytes and names no blocks: a writer names those that it has written",
        )
    for block in body.blocks:
        if block.bcs_id == 0:
            raise _refusal(body, block, "has no committed index: its bytes were never committed on the datanodes")


def settle(body: CommitKey, allocated: list[BlockLocation]) -> tuple[list[BlockLocation], list[BlockLocation]]:
    """Return the committed key's blocks, and those that its session was given and did not use.

    A commit without blocks takes the allocated ones in order, cut to its size. Raises OMError INVALID_REQUEST for
    blocks that are not the session's, that overlap, leave gaps, exceed what was allocated, or do not sum to the size.
    """
    return match(body, allocated) if body.blocks else _cut(body, allocated)


def _cut(body: CommitKey, allocated: list[BlockLocation]) -> tuple[list[BlockLocation], list[BlockLocation]]:
    blocks = []
    offset = 0
    for block in allocated:
        if offset == body.size:
            break
        left = body.size - offset
        length = min(left, block.length)
        blocks.append(
            BlockLocation(
                container_id=block.container_id, local_id=block.local_id, offset=offset, length=length,
                pipeline=block.pipeline, bcs_id=block.bcs_id,
            )
        )  # fmt: skip
        offset += length
    if offset != body.size:
        raise OMError(
            INVALID_REQUEST,
            f"key {shown(body.key)} is committed with {body.size} bytes, but the blocks allocated hold {offset}",
        )
    return blocks, allocated[len(blocks) :]


def match(
    body: CommitKey | CommitReserved, allocated: list[BlockLocation]
) -> tuple[list[BlockLocation], list[BlockLocation]]:
    """Return the blocks that a commit names, which is at least one, and those of ``allocated`` that it does not name.

    Raises OMError as :func:`settle`.
    """
    left = {block.local_id: block for block in allocated}
    offset = 0
    for block in body.blocks:
        given = left.pop(block.local_id, None)
        if given is None or given.container_id != block.container_id or given.pipeline != block.pipeline:
            raise _refusal(body, block, f"was not allocated to session {body.session_id}, or is named twice")
        if not 0 < block.length <= given.length:
            raise _refusal(body, block, f"has length {block.length}; 1 to {given.length} bytes were allocated")
        if block.bcs_id < 0:
            raise _refusal(body, block, f"has the negative committed index {block.bcs_id}")
        if block.offset != offset:
            raise _refusal(body, block, f"has offset {block.offset} where {offset} follows")
        offset += block.length
    if offset != body.size:
        raise OMError(
            INVALID_REQUEST, f"the blocks of key {shown(body.key)} sum to {offset} bytes, but its size is {body.size}"
        )
    return body.blocks, list(left.values())


def _refusal(body: CommitKey | CommitReserved, block: BlockLocation, fault: str) -> OMError:
    where = f"({block.container_id}, {block.local_id}) on {shown(block.pipeline)}"
    return OMError(INVALID_REQUEST, f"block {where} of key {shown(body.key)} {fault}")
