"""The instructions of copies' machines (``core/instructions``), done on the disk and with peers; each returns an event.

Rule: blocks are read from the disk at the scrubber's pace (``read``): all background work shares one rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import TypeGuard

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.repair.cell_fetch import bytes_of, fetch_cells
from datanode_processors.repair.copies import Copies, closed_rows
from datanode_processors.repair.copy_peers import CopyPeers
from datanode_processors.repair.copy_sources import CopySources
from datanode_processors.repair.core.copy_look import (
    CopyDropped,
    CopyKept,
    DeletedHere,
    LengthsCompared,
    MemberAnswered,
    NotDeleted,
    NotHeard,
)
from datanode_processors.repair.core.copy_repair import (
    CellsCame,
    CellsChecked,
    CellsRead,
    RowsReadable,
    RowsRefused,
    RowsTaken,
)
from datanode_processors.repair.core.instructions import AskForRows, CheckCells, DeleteHere, FetchCells, FetchRows
from datanode_processors.repair.core.upkeep_plan import WHOLE
from datanode_processors.repair.scrubber import Place, bad_cells, is_good
from datanode_processors.wire.peer import Peer
from replicated_db.shell.logs import Note
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_of_key, decode_block_row
from schemas.records.datanode import BlockId, BlockRow, BlockWatched, DeleteBlocks, SalvageBlock, WatchBlock
from schemas.sharding import pipeline_of

Found = Callable[[int, int, str], None]
"""Called with (container id, local id or WHOLE, reason) of what is damaged."""


class CopyActions:
    """The actions of one datanode. Rows are read by many threads, everything else is done by one."""

    def __init__(
        self, blocks: BlockStore, copies: Copies, sources: CopySources, peers: CopyPeers, *, note: Note, found: Found,
        is_own: Callable[[int], bool], deleted: Callable[[Sequence[BlockId]], None], stopping: Event,
    ) -> None:  # fmt: skip
        """``is_own`` says whether a container is of a pipeline of this node; ``deleted`` is called after deletions."""
        self._blocks = blocks
        self._copies = copies
        self._sources = sources
        self._peers = peers
        self._note = note
        self._found = found
        self._is_own = is_own
        self._deleted = deleted
        self._stopping = stopping
        self.read: Callable[[int], None] = lambda _: None
        self.fetched_bytes = 0

    # -- rows ------------------------------------------------------------------------------------------------------

    def here(self) -> list[int]:
        """Return the containers that copies are of, ascending."""
        found = (usage.container_id for usage in self._blocks.containers())
        return [container_id for container_id in found if not self._is_own(container_id)]

    def is_copy(self, container_id: int) -> bool:
        """Whether a copy of a container is here, even a damaged one."""
        return not self._is_own(container_id) and self._copies.is_here(container_id)

    def rows(self, container_id: int) -> dict[int, BlockRow]:
        """Return a copy's rows as they are on the disk. If they cannot be read: none, and the copy is damaged."""
        try:
            rows = self._copies.stored(container_id)
        except BlockError as error:
            self._found(container_id, WHOLE, f"the copy of container {container_id} here: {error.message}")
            return {}
        if not rows and self.is_copy(container_id):
            self._found(container_id, WHOLE, f"the copy of container {container_id} here has lost its rows")
        return rows

    def committed_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        """Yield (partition, container id, local id, row) of the copies' blocks behind a place.

        The blocks come in the order of places.
        """
        places = sorted((pipeline_of(container_id), container_id) for container_id in self.here())
        for partition, container_id in places:
            if after is not None and (partition, container_id) < after[:2]:
                continue
            for local_id, row in sorted(self.rows(container_id).items()):
                if not row.deleted and (after is None or (partition, container_id, local_id) > after):
                    yield partition, container_id, local_id, row

    # -- a look ----------------------------------------------------------------------------------------------------

    def drop(self, container_id: int) -> CopyDropped | CopyKept:
        """Remove a copy of which no block is left."""
        try:
            return CopyDropped() if self._copies.drop_if_deleted(container_id) else CopyKept()
        except BlockError:  # the copy's rows are damaged, or its files cannot be removed now: the next look tries again
            return CopyKept()

    def compare_lengths(self, container_id: int, rows: Mapping[int, BlockRow]) -> LengthsCompared:
        """Find the blocks whose files end early."""
        found: dict[int, str] = {}
        live = _live(rows)
        for local_id in live:
            name = f"the copy of block {container_id}/{local_id} here"
            try:
                written = self._blocks.written_length(container_id, local_id)
            except BlockError as error:
                found[local_id] = f"{name}: {error.message}"
            else:
                if written < rows[local_id].length:
                    found[local_id] = f"{name} has {written} of {rows[local_id].length} bytes"
        now = self.rows(container_id) if found else {}
        for local_id, reason in found.items():
            if is_live(now.get(local_id)):  # it may have been deleted meanwhile
                self._found(container_id, local_id, reason)
        return LengthsCompared(live, self._sources.of(container_id))

    def ask_for_rows(self, container_id: int, asked: AskForRows) -> MemberAnswered | NotHeard:
        """Ask a source for its rows, if it is a member of the container's pipeline."""
        if self._stopping.is_set():
            return NotHeard()
        try:
            with self._peers.connect(asked.address) as peer:
                if not _is_member(peer, container_id, asked.local_id):
                    return NotHeard()
                listed = closed_rows(peer, container_id)
                deleted = {block_of_key(key)[1]: decode_block_row(value).deleted for key, value in listed}
        except BlockError:  # the source is away, or has the container not closed: another may tell
            return NotHeard()
        return MemberAnswered(peer.name, deleted)

    def delete(self, container_id: int, asked: DeleteHere) -> DeletedHere | NotDeleted:
        """Delete the blocks here that a member has deleted."""
        blocks = [BlockId(container_id=container_id, local_id=local_id) for local_id in asked.local_ids]
        try:
            self._copies.delete(DeleteBlocks(partition=pipeline_of(container_id), blocks=blocks))
            self._note(
                f"container {container_id}: {len(blocks)} blocks of the copy here are deleted, as {asked.member} has"
            )
            self._deleted(blocks)
            return DeletedHere(_live(self._copies.stored(container_id)))
        except BlockError as error:
            return NotDeleted(str(error))

    # -- a repair --------------------------------------------------------------------------------------------------

    def fetch_rows(self, container_id: int, asked: FetchRows) -> RowsTaken | RowsReadable | RowsRefused:
        """Put a source's rows in place of damaged or lost ones."""
        try:
            with self._peers.connect(asked.address) as peer:
                rows = closed_rows(peer, container_id)
                if not rows:  # a copy without rows would be damaged again at once
                    raise BlockError(codes.NO_SUCH_BLOCK, f"container {container_id} has no rows there")
                replaced = self._copies.restore_rows(container_id, rows)
        except BlockError as error:
            return RowsRefused(str(error))
        return RowsTaken(peer.name) if replaced else RowsReadable()

    def find_bad_cells(self, container_id: int, local_id: int, row: BlockRow) -> CellsRead:
        """Read a block from the disk; raises BlockError."""
        bad = bad_cells(self._blocks, container_id, local_id, row, self.read)
        if bad:
            self._blocks.forget_checksums(container_id, local_id)
        return CellsRead(tuple(bad), self._sources.of(container_id))

    def fetch_cells(self, container_id: int, local_id: int, row: BlockRow, asked: FetchCells) -> CellsCame:
        """Take cells of a block from a source; raises BlockError STOPPING."""
        if self._stopping.is_set():
            raise BlockError(codes.STOPPING, f"block {container_id}/{local_id}: the datanode is stopping")
        fetched: set[int] = set()
        block = (container_id, local_id)
        try:
            with self._peers.connect(asked.address) as peer:
                refused = fetch_cells(
                    self._blocks, peer, ask_for(*block), block, row, list(asked.cells), fetched, sync=True
                )
        except BlockError as error:
            refused = error
        self.fetched_bytes += bytes_of(fetched, row)
        return CellsCame(frozenset(fetched), "" if refused is None else str(refused))

    def check_cells(self, container_id: int, local_id: int, row: BlockRow, asked: CheckCells) -> CellsChecked:
        """Read cells from the disk again; raises BlockError OVERLOADED."""
        good = (is_good(self._blocks, container_id, local_id, row, cell) for cell in asked.cells)
        return CellsChecked(tuple(cell for cell, right in zip(asked.cells, good, strict=True) if not right))


def is_live(row: BlockRow | None) -> TypeGuard[BlockRow]:
    """Whether there is a block that is not deleted."""
    return row is not None and not row.deleted


def _live(rows: Mapping[int, BlockRow]) -> tuple[int, ...]:
    return tuple(local_id for local_id, row in rows.items() if not row.deleted)


def ask_for(container_id: int, local_id: int) -> Callable[[int, int], SalvageBlock]:
    """Return a function that requests cells of a block that may be damaged at the source: its right cells are sent."""

    def ask(offset: int, length: int) -> SalvageBlock:
        return SalvageBlock(
            partition=pipeline_of(container_id), container_id=container_id, local_id=local_id, offset=offset,
            length=length, bcs_id=0,
        )  # fmt: skip

    return ask


def _is_member(peer: Peer, container_id: int, local_id: int) -> bool:
    """Ask whether a datanode follows the container's pipeline: only a member answers a watch. Raises BlockError."""
    watch = WatchBlock(
        partition=pipeline_of(container_id), container_id=container_id, local_id=local_id, length=0, bcs_id=0,
        timeout_ms=0,
    )  # fmt: skip
    try:
        return isinstance(peer.request(watch), BlockWatched)
    except BlockError as error:
        if error.code == codes.NO_SUCH_PIPELINE:
            return False
        if error.code == codes.BLOCK_DELETED:
            return True
        raise
