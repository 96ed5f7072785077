"""Taking a block's cells from a peer: only cells that have the committed row's checksum are written.

Rules:
    - Cells are requested in runs of RUN_CELLS, so that an answer which breaks off has still brought something.
    - A cell that is damaged at the peer too is left to another peer; the cells behind it may still be right there.
    - Nothing is written behind a gap: a restart goes by the file's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from crc32c import crc32c

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.block_writer import BlockFileWriter
from datanode_processors.blocks.core.checksums import cell_range, checksum_at
from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from schemas import stream_errors as codes
from schemas.records.datanode import BlockRow, ReadBlock, SalvageBlock

RUN_CELLS = 64
"""Cells in one request."""

Ask = Callable[[int, int], ReadBlock | SalvageBlock]
"""Makes the request for (offset, length) of the block, which are whole cells."""


def fetch_cells(
    blocks: BlockStore, peer: Peer, ask: Ask, block: tuple[int, int], row: BlockRow, cells: list[int],
    fetched: set[int], *, sync: bool = False,
) -> BlockError | None:  # fmt: skip
    """Write cells (ascending, one at least) of ``block`` (container id, local id) as a peer has them.

    The numbers of the cells that came are added to ``fetched``, whatever happens. They are stored under the fsync
    policy, or always by an fsync if ``sync``. Returns an error if the peer has some of them damaged, else None. Raises
    BlockError: the peer's, the connection's or the store's.
    """
    cell_bytes = row.bytes_per_checksum
    refused: BlockError | None = None
    runs = list(runs_of(cells))
    with blocks.open_writer(*block, cells[0] * cell_bytes, cell_bytes, repair=True) as writer:
        try:
            while runs:
                first, last = runs.pop(0)
                if refused is not None and first * cell_bytes > blocks.written_length(*block):
                    break  # it would leave a gap
                start, end = first * cell_bytes, min((last + 1) * cell_bytes, row.length)
                try:
                    _fetch_run(peer, writer, ask(start, end - start), row, fetched)
                except BlockError as error:
                    at = error.offset // cell_bytes
                    if error.code != codes.CHECKSUM_MISMATCH or not first <= at <= last:
                        raise
                    refused = error
                    if at < last:
                        runs.insert(0, (at + 1, last))
        finally:
            # Cells that came count even if the peer broke off: the caller reads them from the disk next.
            if fetched and sync:
                writer.sync()
        if not sync:
            writer.flush()
    return refused


def _fetch_run(
    peer: Peer, writer: BlockFileWriter, request: ReadBlock | SalvageBlock, row: BlockRow, fetched: set[int]
) -> None:
    """Write the cells of a request as they come from a peer, and add their numbers to ``fetched``."""
    for offset, data, _ in peer.read_block(request):
        cell = offset // row.bytes_per_checksum
        size = cell_range(cell, row.length, row.bytes_per_checksum)[1]
        if offset % row.bytes_per_checksum or len(data) < size or size <= 0:
            raise BlockError(codes.NOT_COMMITTED, f"{len(data)} bytes at {offset}, where {size} were needed")
        crc = crc32c(data[:size])
        if crc != checksum_at(row.checksums, cell):
            raise BlockError(codes.CHECKSUM_MISMATCH, f"its bytes at {offset} are not the committed ones")
        writer.write(offset, data[:size], crc)
        fetched.add(cell)


def bytes_of(cells: set[int], row: BlockRow) -> int:
    """Return how many bytes some cells of a block have."""
    return sum(cell_range(cell, row.length, row.bytes_per_checksum)[1] for cell in cells)


def runs_of(cells: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of runs of consecutive cells, RUN_CELLS long at most.

    >>> list(runs_of([0, 1, 2, 5]))
    [(0, 2), (5, 5)]
    """
    run: list[int] = []
    for cell in cells:
        if run and (cell != run[-1] + 1 or len(run) == RUN_CELLS):
            yield run[0], run[-1]
            run = []
        run.append(cell)
    if run:
        yield run[0], run[-1]
