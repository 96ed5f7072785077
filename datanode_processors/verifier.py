"""Compares this node's bytes with what is committed, and fetches from peers what is missing or wrong (design, section 8).

What belongs here: one thread that verifies, one that fetches, and their bounded lists of blocks. The rules:

1. Every PutBlock that is applied here is verified: the block is flushed under the fsync policy, and its checksums are compared with the
   row's. Whoever waits for a block that is not known to be verified (after a restart) has it verified too.
2. A block that fails is unhealthy and is fetched: cell by cell, only cells that differ, from every other member in turn; a cell is written
   only if it has the row's checksum. Where a peer's own cell is damaged, the next peer is asked for that one only. Again after a pause
   that grows, as long as it is needed.
3. A tombstone deletes the block; a closed container is closed in the store, and what lies beyond its blocks' committed lengths reclaimed.
   One that has no block left has no directory either.
4. Nothing that follows from the log waits here for room: if a list is full, the pipeline is looked through as a whole later.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from datanode_processors.block_service import blocks_of, containers_of, is_closed
from datanode_processors.block_store import BlockStore
from datanode_processors.cell_fetch import bytes_of, fetch_cells
from datanode_processors.checksums import cell_count, differing_cells
from datanode_processors.errors import BlockError
from datanode_processors.peer import Peer
from datanode_processors.pipeline import Pipeline
from replicated_db.errors import StoreFailure
from replicated_db.logs import Note
from schemas import stream_errors as codes
from schemas.block_rows import block_key, block_of_key
from schemas.datanode import BlockRow, ReadBlock

MAX_TO_VERIFY = 10_000
MAX_TO_FETCH = 10_000
FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0
PEER_TIMEOUT_S = 10.0
IDLE_WAIT_S = 1.0


@dataclass(slots=True)
class _Repair:
    """``cells`` are to be fetched whatever their remembered checksums say: they were read and found wrong."""

    due_s: float
    pause_s: float = FIRST_PAUSE_S
    cells: set[int] = field(default_factory=set)


class Verifier:
    """Of all pipelines of a datanode."""

    def __init__(
        self, blocks: BlockStore, *, node: str, cluster: str, note: Note, fatal: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """``changed`` is told when a block has become healthy or unhealthy."""
        self._blocks = blocks
        self._node = node
        self._cluster = cluster
        self._note = note
        self._fatal = fatal
        self._changed = changed
        self._lock = threading.Condition()
        self._pipelines: dict[int, Pipeline] = {}
        self._to_verify: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._to_close: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._to_look_through: set[int] = set()
        self._to_fetch: OrderedDict[tuple[int, bytes], _Repair] = OrderedDict()
        self._stopping = False
        self.fetched_bytes = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (("verify", self._verify_all), ("fetch", self._fetch_all))
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; what is left is found again at the next start."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(PEER_TIMEOUT_S)

    # -- what is to be done; on any thread, never waits for I/O ----------------------------------------------------

    def add(self, pipeline: Pipeline) -> None:
        """Look after a pipeline's blocks; first compare every committed block's length with its file's."""
        with self._lock:
            self._pipelines[pipeline.partition] = pipeline
            self._to_look_through.add(pipeline.partition)
            self._lock.notify_all()

    def verify(self, pipeline: Pipeline, key: bytes) -> None:
        """Have a block verified."""
        with self._lock:
            if len(self._to_verify) >= MAX_TO_VERIFY:
                self._to_look_through.add(pipeline.partition)
            else:
                self._to_verify[pipeline.partition, key] = None
            self._lock.notify_all()

    def repair(self, pipeline: Pipeline, key: bytes, cell: int) -> None:
        """Have a cell fetched whose bytes were read and are not the committed ones."""
        container_id, local_id = block_of_key(key)
        with self._lock:
            known = self._to_fetch.get((pipeline.partition, key))
            if known is not None and cell in known.cells:
                return  # somebody reads again what nobody has right: nothing is new
        self._blocks.forget_checksums(container_id, local_id)
        self._unhealthy(pipeline, key, f"block {container_id}/{local_id}: cell {cell} has wrong bytes", cell)

    def close_container(self, pipeline: Pipeline, container_id: int) -> None:
        """Have a container closed in the store."""
        with self._lock:
            if len(self._to_close) >= MAX_TO_VERIFY:
                self._to_look_through.add(pipeline.partition)
            else:
                self._to_close[pipeline.partition, container_id] = None
            self._lock.notify_all()

    # -- verifying -------------------------------------------------------------------------------------------------

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except StoreFailure as error:
            if not self._stopping:
                self._fatal(error)
        except BaseException as error:
            self._fatal(error)

    def _verify_all(self) -> None:
        while (step := self._next_to_verify()) is not None:
            step()

    def _next_to_verify(self) -> Callable[[], None] | None:
        with self._lock:
            while not self._stopping:
                if self._to_verify:
                    (partition, key), _ = self._to_verify.popitem(last=False)
                    return lambda: self._verify(self._pipelines[partition], key)
                if self._to_close:
                    (partition, container_id), _ = self._to_close.popitem(last=False)
                    return lambda: self._close(self._pipelines[partition], container_id)
                if self._to_look_through:
                    number = self._to_look_through.pop()
                    return lambda: self._look_through(self._pipelines[number])
                self._lock.wait(IDLE_WAIT_S)
        return None

    def _verify(self, pipeline: Pipeline, key: bytes) -> None:
        container_id, local_id = block_of_key(key)
        row = pipeline.block(container_id, local_id)
        if row is None:
            return
        try:
            if row.deleted:
                self._blocks.delete(container_id, local_id)
                pipeline.forget(key)
                return
            wrong = self._wrong_cells(container_id, local_id, row)
        except BlockError as error:
            self._unhealthy(pipeline, key, error.message)
            return
        if wrong:
            self._unhealthy(pipeline, key, f"block {container_id}/{local_id} has {len(wrong)} cells missing or wrong")
        else:
            pipeline.verified(key, row.length)

    def _wrong_cells(self, container_id: int, local_id: int, row: BlockRow) -> list[int]:
        """Return the cells that this node does not have as they are committed; raises BlockError."""
        blocks = self._blocks
        blocks.committed(container_id, local_id, row.length)
        length = min(blocks.flush(container_id, local_id), row.length)
        while (found := blocks.checksums(container_id, local_id, length, row.bytes_per_checksum)) is None:
            # Reading them has shown that there are fewer bytes: the file was cut behind the store's back, or the disk fails.
            left = blocks.written_length(container_id, local_id)
            if left >= length:
                raise BlockError(codes.FAILED, f"block {container_id}/{local_id}: its {length} bytes cannot be read")
            length = left
        if length == row.length and found == row.checksums:
            return []
        whole = length if length == row.length else length - length % row.bytes_per_checksum
        count = cell_count(whole, row.bytes_per_checksum)
        mine = found[: 4 * count]
        wrong = differing_cells(mine, whole, row.checksums, row.length, row.bytes_per_checksum)
        return [*wrong, *range(count, cell_count(row.length, row.bytes_per_checksum))]

    def _unhealthy(self, pipeline: Pipeline, key: bytes, reason: str, cell: int | None = None) -> None:
        with self._lock:
            place = (pipeline.partition, key)
            if place not in self._to_fetch:
                if len(self._to_fetch) >= MAX_TO_FETCH:
                    # Not forgotten: whoever reads or watches the block, or the next start, finds it again.
                    self._to_look_through.add(pipeline.partition)
                    return
                self._to_fetch[place] = _Repair(due_s=time.monotonic())
            if cell is not None:
                self._to_fetch[place].cells.add(cell)
            self._lock.notify_all()
        pipeline.failed(key, reason)
        self._changed()

    def _close(self, pipeline: Pipeline, container_id: int) -> None:
        try:
            self._blocks.close_container(container_id)
            committed = dict(blocks_of(pipeline.store, container_id))
            for local_id, _ in list(self._blocks.blocks(container_id)):
                row = committed.get(local_id)
                if row is None or row.deleted:
                    self._blocks.delete(container_id, local_id)
                else:
                    self._blocks.reclaim(container_id, local_id, row.length)
            if all(row.deleted for row in committed.values()):
                # Its directory has gone with the last block, and is not to come back: a closed container without a block would be
                # reported, and replicas be missed that nobody can make.
                self._blocks.drop_if_empty(container_id)
        except BlockError as error:
            self._note(f"container {container_id} is not closed here: {error}", shard=pipeline.partition)

    def _look_through(self, pipeline: Pipeline) -> None:
        """Compare each committed block's length with its file's, and do again what the log asked for while nobody was there."""
        for container_id in list(containers_of(pipeline.store)):
            if self._is_to_close(pipeline, container_id):
                self._close(pipeline, container_id)
            for local_id, row in blocks_of(pipeline.store, container_id):
                if self._stopping:
                    return
                key = block_key(container_id, local_id)
                if row.deleted or self._is_short(container_id, local_id, row):
                    self._verify(pipeline, key)

    def _is_to_close(self, pipeline: Pipeline, container_id: int) -> bool:
        if self._blocks.is_closed(container_id) or not is_closed(pipeline.store, container_id):
            return False
        # Of those that are emptied there may be many, and none has anything here.
        there = os.path.exists(self._blocks.container_folder(container_id))
        return there or any(not row.deleted for _, row in blocks_of(pipeline.store, container_id))

    def _is_short(self, container_id: int, local_id: int, row: BlockRow) -> bool:
        try:
            self._blocks.committed(container_id, local_id, row.length)
            return self._blocks.written_length(container_id, local_id) < row.length
        except BlockError:
            return True

    # -- fetching --------------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        while (place := self._next_to_fetch()) is not None:
            partition, key = place
            pipeline = self._pipelines[partition]
            try:
                self._fetch(pipeline, key, self._to_fetch[place].cells)
            except BlockError as error:
                self._note(f"{pipeline.opened.pipeline}: {error}; trying again", shard=partition)
                with self._lock:
                    repair = self._to_fetch[place]
                    repair.due_s, repair.pause_s = (
                        time.monotonic() + repair.pause_s,
                        min(2 * repair.pause_s, LAST_PAUSE_S),
                    )
                    self._to_fetch.move_to_end(place)
                continue
            with self._lock:
                if not self._to_fetch[place].cells:
                    del self._to_fetch[place]
            self._changed()

    def _next_to_fetch(self) -> tuple[int, bytes] | None:
        with self._lock:
            while not self._stopping:
                due = min(self._to_fetch.items(), key=lambda item: item[1].due_s, default=None)
                left_s = IDLE_WAIT_S if due is None else due[1].due_s - time.monotonic()
                if due is not None and left_s <= 0:
                    return due[0]
                self._lock.wait(min(left_s, IDLE_WAIT_S))
        return None

    def _fetch(self, pipeline: Pipeline, key: bytes, forced: set[int]) -> None:
        """Bring a block's committed bytes here; raises BlockError if no peer could give all of them."""
        container_id, local_id = block_of_key(key)
        reasons: list[str] = []
        peers = [member for member in pipeline.opened.members if member.datanode != self._node]
        for member in [*peers, None]:
            row = pipeline.block(container_id, local_id)
            if row is None or row.deleted:
                forced.clear()
                pipeline.forget(key)
                return
            wrong = sorted({*self._wrong_cells(container_id, local_id, row), *forced})
            if not wrong:
                pipeline.verified(key, row.length)
                return
            if member is None:
                raise BlockError(
                    codes.NOT_COMMITTED,
                    f"block {container_id}/{local_id}: committed bytes are not to be had ({'; '.join(reasons) or 'no peer'})",
                )
            try:
                self._fetch_from(member.address, pipeline.partition, (container_id, local_id), row, wrong, forced)
            except BlockError as error:
                reasons.append(f"{member.datanode}: {error}")

    def _fetch_from(
        self, address: str, partition: int, block: tuple[int, int], row: BlockRow, wrong: list[int], forced: set[int]
    ) -> None:
        """Take cells from one peer, those that came out of ``forced`` too; raises BlockError if some did not come."""

        def ask(offset: int, length: int) -> ReadBlock:
            return ReadBlock(
                partition=partition, container_id=block[0], local_id=block[1], offset=offset, length=length, bcs_id=0,
                committed_only=False,
            )  # fmt: skip

        fetched: set[int] = set()
        try:
            with Peer(address, own=self._node, cluster=self._cluster, timeout_s=PEER_TIMEOUT_S) as peer:
                refused = fetch_cells(self._blocks, peer, ask, block, row, wrong, fetched)
        finally:
            self.fetched_bytes += bytes_of(fetched, row)
        forced.difference_update(fetched)
        if refused is not None:
            raise refused
