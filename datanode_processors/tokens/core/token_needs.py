"""Which block tokens a request needs (decision 0074). Pure.

A stream needs a token to be opened; how far it may be written is a number that the stream already compares each packet
with. Every other request about bytes of blocks needs its tokens each time: it is one message. A watch needs none: it
says whether a replica has a length, and no byte.
"""

from __future__ import annotations

from schemas.access.block_tokens import READ_BLOCK, WRITE_BLOCK, TokenNeed
from schemas.records.datanode import (
    GetBlock,
    OpenBlocks,
    OpenStream,
    PutBlock,
    PutBlocks,
    ReadBlock,
    SalvageBlock,
    WriteChunk,
)


def needs_of(request: object) -> list[TokenNeed]:
    """Return what a request, or the opening of WriteBlocks, needs tokens for; nothing for other requests.

    >>> needs_of(GetBlock(partition=0, container_id=7, local_id=1))[0].block
    'block 7/1'
    """
    if isinstance(request, OpenStream):
        return [_need(WRITE_BLOCK, request, request.offset)]
    if isinstance(request, PutBlock):
        return [_need(WRITE_BLOCK, request, request.length)]
    if isinstance(request, WriteChunk):
        return [_need(WRITE_BLOCK, request, request.offset + len(request.data))]
    if isinstance(request, ReadBlock | SalvageBlock):
        return [_need(READ_BLOCK, request, request.offset + request.length)]
    if isinstance(request, GetBlock):
        return [_need(READ_BLOCK, request, 0)]
    if isinstance(request, PutBlocks | OpenBlocks):
        return [_need(WRITE_BLOCK, block, block.length) for block in request.blocks]
    return []


def _need(operation: int, named: object, length: int) -> TokenNeed:
    container_id: int = getattr(named, "container_id")  # noqa: B009 - of several records
    local_id: int = getattr(named, "local_id")  # noqa: B009
    return TokenNeed(operation=operation, container_id=container_id, local_id=local_id, length=length)
