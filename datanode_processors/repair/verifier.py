"""Compares this node's bytes with the committed rows, and fetches missing or wrong ones from peers (design, section 8).

This module has one thread that verifies, FETCHERS threads that fetch, and their bounded lists of blocks. The rules:

1. Every PutBlock that is applied here is verified: the block is flushed under the fsync policy, and its checksums are
   compared with the row's. A block that somebody waits for is verified too, if it is not known to be (after a restart).
2. A block that fails is unhealthy and is fetched: cell by cell, only cells that differ, from every other member in
   turn. A cell is written only if it has the row's checksum. Where a peer's own cell is damaged, the next peer is asked
   for that one only. The repair is tried again after a pause that grows, as long as it is needed. A peer that was
   silent, or too slow, is asked after the others.
3. A tombstone deletes the block. A closed container is closed in the store, and bytes beyond its blocks' committed
   lengths are reclaimed. A closed container without blocks has no directory either.
4. Work that follows from the log never waits for room: if a list is full, the pipeline is looked through as a whole
   later.
5. A block is unhealthy exactly while its repair is planned: both change under one lock. So damage found during a repair
   (a longer PutBlock, a bad cell) is not hidden when the repair ends, nor when an older length has been verified.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.core.checksums import cell_count
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import blocks_of, containers_of
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.repair.cell_fetch import bytes_of, fetch_cells
from datanode_processors.repair.committed_files import CommittedFiles
from datanode_processors.repair.core.away import Away
from datanode_processors.repair.core.repairs import Place, Repairs, RepairTask
from datanode_processors.repair.core.verify_queue import CloseHere, LookThrough, VerifyBlock, VerifyQueue, VerifyStep
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.logs import Note
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, block_of_key
from schemas.records.datanode import BlockRow, Member, ReadBlock
from transport.waiting.deadline import Deadline

MAX_TO_VERIFY = 10_000
MAX_TO_FETCH = 10_000
VERIFIED_TOGETHER = 16
"""Blocks that are verified before those who wait for them are told."""
FETCHERS = 3
"""Blocks that are fetched at once: a peer that sends slowly holds up only one of them."""
PEER_TIMEOUT_S = 10.0
IDLE_WAIT_S = 1.0


class Verifier:
    """The verifier of all pipelines of a datanode."""

    def __init__(
        self, blocks: BlockStore, *, node: str, cluster: str, note: Note, fatal: Callable[[BaseException], None],
        changed: Callable[[], None], tls: WireTls | None = None,
    ) -> None:  # fmt: skip
        """``changed`` is called when a block has become healthy or unhealthy."""
        self._blocks = blocks
        self._node = node
        self._tls = tls
        self._cluster = cluster
        self._note = note
        self._fatal = fatal
        self._changed = changed
        self._lock = threading.Lock()
        self._to_verify = threading.Condition(self._lock)
        self._to_fetch = threading.Condition(self._lock)
        """Those who verify and those who fetch wait apart: each PutBlock would wake all of them."""
        self._pipelines: dict[int, Pipeline] = {}
        self._files = CommittedFiles(blocks, note=note)
        self._queue = VerifyQueue(MAX_TO_VERIFY)
        self._repairs = Repairs(MAX_TO_FETCH)
        self._away = Away()
        self._stopping = False
        self.fetched_bytes = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in [("verify", self._verify_all)] + [("fetch", self._fetch_all)] * FETCHERS
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; work that is left is found again at the next start."""
        with self._lock:
            self._stopping = True
            self._to_verify.notify_all()
            self._to_fetch.notify_all()
        deadline = Deadline.after_s(PEER_TIMEOUT_S)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(deadline.left_s)

    # -- what is to be done; on any thread, never waits for I/O ----------------------------------------------------

    def add(self, pipeline: Pipeline) -> None:
        """Look after a pipeline's blocks; first compare every committed block's length with its file's."""
        with self._lock:
            self._pipelines[pipeline.partition] = pipeline
            self._queue.look_through(pipeline.partition)
            self._to_verify.notify()

    def verify(self, pipeline: Pipeline, key: bytes) -> None:
        """Have a block verified."""
        self.verify_all(pipeline, [key])

    def verify_all(self, pipeline: Pipeline, keys: Sequence[bytes]) -> None:
        """Have blocks verified."""
        with self._lock:
            for key in keys:
                self._queue.verify((pipeline.partition, key))
            self._to_verify.notify()

    def repair(self, pipeline: Pipeline, key: bytes, cell: int) -> None:
        """Have a cell fetched whose bytes were read and found wrong."""
        container_id, local_id = block_of_key(key)
        with self._lock:
            if self._repairs.waits_for((pipeline.partition, key), cell):
                return  # read again, and nobody has it right: no news
        self._blocks.forget_checksums(container_id, local_id)
        self._unhealthy(pipeline, key, f"block {container_id}/{local_id}: cell {cell} has wrong bytes", cell)

    def close_container(self, pipeline: Pipeline, container_id: int) -> None:
        """Have a container closed in the store."""
        with self._lock:
            self._queue.close(pipeline.partition, container_id)
            self._to_verify.notify()

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
            pipeline = self._pipelines[step.partition]
            match step:
                case VerifyBlock():
                    self._verify_blocks(pipeline, [step.key, *self._more(step.partition)])
                case CloseHere():
                    self._files.close(pipeline, step.container_id)
                case LookThrough():
                    self._look_through(pipeline)

    def _next_to_verify(self) -> VerifyStep | None:
        with self._lock:
            while not self._stopping:
                if (step := self._queue.take(has_room=self._has_room())) is not None:
                    return step
                self._to_verify.wait(IDLE_WAIT_S)
        return None

    def _more(self, partition: int) -> list[bytes]:
        """Return more blocks of a pipeline that come next: what is verified together is told once."""
        with self._lock:
            return self._queue.take_blocks(partition, VERIFIED_TOGETHER - 1)

    def _has_room(self) -> bool:
        """Whether there is enough room to look for the blocks that were left out.

        With room for only one block, each search would go through all blocks of the pipeline.
        """
        return len(self._repairs) <= MAX_TO_FETCH // 2

    def _verify(self, pipeline: Pipeline, key: bytes) -> None:
        self._verify_blocks(pipeline, [key])

    def _verify_blocks(self, pipeline: Pipeline, keys: Sequence[bytes]) -> None:
        """Compare blocks with their rows; those that are right are told together."""
        right = [(key, length) for key in keys if (length := self._right_length(pipeline, key)) is not None]
        verified: list[tuple[bytes, int]] = []
        with self._lock:
            for key, length in right:
                place = (pipeline.partition, key)
                if place not in self._repairs:
                    verified.append((key, length))
                    continue
                # The repair reports the block when it ends: it may know of more damage than was compared here.
                self._repairs.hurry(place, time.monotonic())
                self._to_fetch.notify()
            if verified:
                pipeline.on_all_verified(verified)

    def _right_length(self, pipeline: Pipeline, key: bytes) -> int | None:
        """Return the committed length of a block that is right here; None for any other, of which note is taken."""
        container_id, local_id = block_of_key(key)
        row = pipeline.block(container_id, local_id)
        if row is None:
            return None
        try:
            if row.deleted:
                self._blocks.delete(container_id, local_id)
                pipeline.forget(key)
                return None
            wrong = self._files.wrong_cells(container_id, local_id, row)
        except BlockError as error:
            self._unhealthy(pipeline, key, error.message)
            return None
        if wrong:
            self._unhealthy(pipeline, key, f"block {container_id}/{local_id} has {len(wrong)} cells missing or wrong")
            return None
        return row.length

    def _unhealthy(self, pipeline: Pipeline, key: bytes, reason: str, cell: int | None = None) -> None:
        with self._lock:
            if not self._repairs.add((pipeline.partition, key), time.monotonic(), cell):
                # The block is not forgotten: a later read or watch finds it again, and so does a look for short blocks.
                self._queue.leave_out(pipeline.partition)
                return
            pipeline.on_failed(key, reason)
            self._to_fetch.notify()
        self._changed()

    def _look_through(self, pipeline: Pipeline) -> None:
        """Compare each committed block's length with its file's, and catch up on deletions and closings."""
        for container_id in list(containers_of(pipeline.store)):
            if self._files.is_to_close(pipeline, container_id):
                self._files.close(pipeline, container_id)
            for local_id, row in blocks_of(pipeline.store, container_id):
                if self._stopping:
                    return
                key = block_key(container_id, local_id)
                if row.deleted or self._files.is_short(container_id, local_id, row):
                    self._verify(pipeline, key)

    # -- fetching --------------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        while (taken := self._next_to_fetch()) is not None:
            partition, key = taken.place
            pipeline = self._pipelines[partition]
            try:
                length = self._fetch(pipeline, key)
            except BlockError as error:
                self._note(f"{pipeline.opened.pipeline}: {error}; trying again", shard=partition)
                with self._lock:
                    self._repairs.fail(taken, time.monotonic())
                    self._to_fetch.notify()
                    self._to_verify.notify()
                continue
            self._fetched(pipeline, taken, length)
            self._changed()

    def _next_to_fetch(self) -> RepairTask | None:
        with self._lock:
            while not self._stopping:
                now_s = time.monotonic()
                if (taken := self._repairs.take(now_s)) is not None:
                    return taken
                due_s = self._repairs.next_due_s()
                self._to_fetch.wait(IDLE_WAIT_S if due_s is None else min(due_s - now_s, IDLE_WAIT_S))
        return None

    def _fetched(self, pipeline: Pipeline, taken: RepairTask, length: int | None) -> None:
        """Note that a block was found right up to ``length``, or deleted (None); rule 5."""
        key = taken.place[1]
        with self._lock:
            row = pipeline.block(*block_of_key(key))
            is_deleted = row is None or row.deleted
            whole = is_deleted or (length is not None and row is not None and row.length <= length)
            if not self._repairs.finish(taken, time.monotonic(), whole=whole):
                self._to_fetch.notify()
            elif is_deleted:
                pipeline.forget(key)
            elif length is not None:
                pipeline.on_verified(key, length)

    def _fetch(self, pipeline: Pipeline, key: bytes) -> int | None:
        """Fetch a block's committed bytes and return how many there are, None for a deleted block.

        Raises BlockError if no peer could give all of them.
        """
        container_id, local_id = block_of_key(key)
        place = (pipeline.partition, key)
        reasons: list[str] = []
        for member in [*self._peers(pipeline), None]:
            row = pipeline.block(container_id, local_id)
            if row is None or row.deleted:
                return None
            with self._lock:
                forced = self._repairs.cells(place)
            count = cell_count(row.length, row.bytes_per_checksum)
            wrong = sorted(
                {*self._files.wrong_cells(container_id, local_id, row), *(one for one in forced if one < count)}
            )
            if not wrong:
                return row.length
            if member is None:
                raise BlockError(
                    codes.NOT_COMMITTED,
                    f"block {container_id}/{local_id}: committed bytes are not to be had "
                    f"({'; '.join(reasons) or 'no peer'})",
                )
            try:
                self._fetch_from(member.address, place, row, wrong)
            except BlockError as error:
                reasons.append(f"{member.datanode}: {error}")
        return None

    def _peers(self, pipeline: Pipeline) -> list[Member]:
        """Return the other members; those that were silent when last asked come last."""
        now_s = time.monotonic()
        with self._lock:
            peers = [member for member in pipeline.opened.members if member.datanode != self._node]
            return sorted(peers, key=lambda member: self._away.is_away(member.address, now_s))

    def _fetch_from(self, address: str, place: Place, row: BlockRow, wrong: list[int]) -> None:
        """Take cells of a block from one peer; raises BlockError if some did not come."""
        partition, block = place[0], block_of_key(place[1])

        def ask(offset: int, length: int) -> ReadBlock:
            return ReadBlock(
                partition=partition, container_id=block[0], local_id=block[1], offset=offset, length=length, bcs_id=0,
                committed_only=False,
            )  # fmt: skip

        fetched: set[int] = set()
        silent = True
        try:
            with Peer(address, own=self._node, cluster=self._cluster, timeout_s=PEER_TIMEOUT_S, tls=self._tls) as peer:
                silent = False
                refused = fetch_cells(self._blocks, peer, ask, block, row, wrong, fetched)
        except BlockError as error:
            silent = (silent and error.code != codes.OVERLOADED) or error.code == codes.TIMED_OUT
            raise
        finally:
            with self._lock:
                self.fetched_bytes += bytes_of(fetched, row)
                self._repairs.on_cells(place, fetched)
                if silent:
                    self._away.silent(address, time.monotonic())
                else:
                    self._away.answered(address)
        if refused is not None:
            raise refused
