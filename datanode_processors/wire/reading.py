"""ReadBlock and SalvageBlock: a block's cells as DATA frames, each verified against its checksum, then END.

A cell that does not have its checksum is never sent. The reader is told CHECKSUM_MISMATCH with the block and the
offset; the pipeline is told too, and repairs the cell from a peer. The cells before it have been sent, and those behind
it can be requested: damage in one place of a block says nothing of the others. A cell that is not here whole ends the
answer with NOT_COMMITTED in the same way.

What a reader may have ends at its block token's length: the cell that goes on beyond is verified whole, and cut there.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from datanode_processors.errors import BlockError
from datanode_processors.wire.forwarding import StreamHost
from datanode_processors.wire.ports import Readable
from datanode_processors.wire.wire import Wire
from schemas import stream_errors
from schemas.conversation.conversation import Conversation
from schemas.records.datanode import ReadBlock, SalvageBlock
from schemas.records.packets import FrameHeader, Kind

_CHECKSUM = Struct(">I")
_NOT_THERE = frozenset({stream_errors.FAILED, stream_errors.NO_SUCH_BLOCK})
"""The store's codes for stored bytes that cannot be read: the file was cut or removed, or the disk fails."""


def cells_of(request: ReadBlock | SalvageBlock, readable: Readable) -> tuple[int, int]:
    """Return (offset, length) of the whole cells that hold the requested range; length 0 at the end of the block.

    Raises INVALID_REQUEST for a range that begins beyond the end, or is not a range.
    """
    if request.offset < 0 or request.length < 0 or request.offset > readable.length:
        raise BlockError(
            stream_errors.INVALID_REQUEST,
            f"offset {request.offset}, length {request.length} of block {request.container_id}/{request.local_id},"
            f" of which {readable.length} bytes may be read",
        )
    if not request.length or request.offset == readable.length:
        return request.offset, 0
    cell = readable.bytes_per_checksum
    start = request.offset // cell * cell
    stop = min(readable.length, -(-(request.offset + request.length) // cell) * cell)
    return start, stop - start


def send_block(
    node: StreamHost, wire: Wire, talk: Conversation, asked: FrameHeader, request: ReadBlock | SalvageBlock,
    limit_bytes: int,
) -> None:  # fmt: skip
    """Answer a request for bytes. Raises BlockError to tell the reader, WireClosed if it has gone.

    ``limit_bytes``: up to where the reader may have the block's bytes; the request asks for no more.
    """
    readable = node.pipelines.readable(request)
    start, length = cells_of(request, readable)
    reached, end = start, min(start + length, max(start, limit_bytes))
    try:
        for offset, data, crc in _cells(node, request, readable, start, start + length):
            _check(node, request, readable, offset, len(data), crc)
            if offset + len(data) > end:
                data = data[: end - offset]
                crc = crc32c(data)
            header = talk.header(
                Kind.DATA, stream=asked.stream, sequence=asked.sequence, offset=offset, length=len(data), crc=crc
            )
            reached = offset + len(data)
            if reached == end:  # END goes with the last cell: a small block is one call
                wire.wait_send(header, data, _end(talk, asked, reached), timeout_s=node.limits.send_timeout_s)
                return
            wire.wait_send(header, data, timeout_s=node.limits.send_timeout_s)
    except BlockError as error:
        if error.code in _NOT_THERE:
            node.pipelines.on_corrupt_cell(request.container_id, request.local_id, reached)
        raise
    if reached != end:
        raise BlockError(
            stream_errors.NOT_COMMITTED,
            f"block {request.container_id}/{request.local_id} ends here at {reached}; {end} bytes were expected",
        )
    wire.wait_send(_end(talk, asked, reached), timeout_s=node.limits.send_timeout_s)


def _end(talk: Conversation, asked: FrameHeader, reached: int) -> bytes:
    return talk.say(Kind.END, stream=asked.stream, sequence=asked.sequence, offset=reached)


def _cells(
    node: StreamHost, request: ReadBlock | SalvageBlock, readable: Readable, start: int, stop: int
) -> Iterable[tuple[int, memoryview, int]]:
    if readable.stored is not None and readable.stored < readable.length:
        # A cell that is cut through has no checksum against which it could be verified.
        stop = min(stop, readable.stored // readable.bytes_per_checksum * readable.bytes_per_checksum)
    if stop <= start:
        return ()
    return node.blocks.read(
        request.container_id,
        request.local_id,
        start,
        stop - start,
        bytes_per_checksum=readable.bytes_per_checksum,
        end=readable.length,
    )


def _check(
    node: StreamHost, request: ReadBlock | SalvageBlock, readable: Readable, offset: int, length: int, crc: int
) -> None:
    cell, within = divmod(offset, readable.bytes_per_checksum)
    whole = min(readable.bytes_per_checksum, readable.length - offset)
    if not within and length == whole and _CHECKSUM.unpack_from(readable.checksums, cell * _CHECKSUM.size)[0] == crc:
        return
    node.pipelines.on_corrupt_cell(request.container_id, request.local_id, offset)
    raise BlockError(
        stream_errors.CHECKSUM_MISMATCH,
        f"block {request.container_id}/{request.local_id}: {length} bytes at offset {offset} "
        "do not have their checksum",
        offset=offset,
    )
