"""Keeping copies right (``copies``): repairs damaged blocks from sources, and deletes what the pipeline has deleted.

This module has one thread, and the lock around the plan (``core/upkeep_plan``), which says what is next; ``copy_work``
does it. The rules:

1. A copy is *looked at* when the datanode starts, when the copy has been fetched or the Object Manager has named its
   sources, again SETTLE_S after that, and then once in ``interval_s``. A look compares lengths with files, and asks the
   sources for their rows.
2. A block is deleted here for one reason only: a member of its pipeline has its tombstone, which is in the log and
   final. A source that does not answer, or is no member, says nothing; silence deletes nothing. A member without the
   row says nothing either, but that is logged, because it should be impossible. All sources are asked, because a member
   may be behind.
3. A block is *damaged* if its bytes are not those of its row, whoever finds out: a reader, the scrubber, a look. It is
   repaired cell by cell. A source's cell is written only if it has the row's checksum, and believed only when it has
   been read from the disk again. If the rows themselves are damaged, a source's rows replace them and every block is
   read. A block that is deleted meanwhile is not damaged.
4. A block that nobody has right stays damaged, and is tried again after a pause that grows. Until then heartbeats
   report its container as unhealthy. The log gets a line when damage is found, when the first repair fails, and when
   the block is repaired.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.repair.copies import Copies
from datanode_processors.repair.copy_actions import CopyActions, is_live
from datanode_processors.repair.copy_peers import PEER_TIMEOUT_S, CopyPeers
from datanode_processors.repair.copy_sources import CopySources
from datanode_processors.repair.copy_work import CopyWork
from datanode_processors.repair.core.copy_look import LookState
from datanode_processors.repair.core.instructions import (
    Instructions,
    LogLine,
    LookAt,
    RepairOne,
    ReportHealth,
    SaveSources,
    Task,
)
from datanode_processors.repair.core.upkeep_plan import WHOLE, UpkeepPlan
from datanode_processors.repair.scrubber import Place
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.shell.logs import Note
from schemas.records.datanode import BlockId, BlockRow

IDLE_WAIT_S = 1.0


class CopyUpkeep:
    """The upkeep of one datanode's copies. It has a thread of its own; many threads may call it."""

    def __init__(
        self, blocks: BlockStore, copies: Copies, *, node: str, cluster: str, sources_file: Path,
        is_own: Callable[[int], bool], interval_s: float, note: Note, fatal: Callable[[BaseException], None],
        changed: Callable[[], None], tls: WireTls | None = None,
    ) -> None:  # fmt: skip
        """``is_own`` says whether a container is of a pipeline of this node, so that it is no copy.

        ``changed`` is called when health has changed. ``interval_s`` is the scrubber's, in seconds; 0 = the scrubber
        does not run.
        """
        self._copies = copies
        self._note = note
        self._fatal = fatal
        self._changed = changed
        self._sources = CopySources(sources_file)
        self._peers = CopyPeers(node=node, cluster=cluster, tls=tls)
        self._lock = threading.Condition()
        self._plan = UpkeepPlan(interval_s)
        self._stopping = threading.Event()
        self._actions = CopyActions(
            blocks, copies, self._sources, self._peers, note=note, found=self._found, is_own=is_own,
            deleted=self.deleted, stopping=self._stopping,
        )  # fmt: skip
        self._work = CopyWork(self._actions, copies, self._sources, self, note=note, stopping=self._stopping)
        self._thread = threading.Thread(target=self._guarded, name="copy-upkeep", daemon=True)

    def start(self, read: Callable[[int], None]) -> None:
        """Begin with a look at every copy. ``read`` is called with the bytes of each step of reading, and may sleep."""
        self._actions.read = read
        for container_id in self._actions.here():
            with self._lock:
                self._plan.start_with(container_id, time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        """End; work that is left is found again at the next start."""
        with self._lock:
            self._stopping.set()
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(PEER_TIMEOUT_S)

    # -- what is to be done; on any thread. Only ``damaged`` reads: rows, on a thread that has just read blocks -----

    def named(self, container_id: int, addresses: Iterable[str]) -> None:
        """A copy is here, and these datanodes may hold its container too: look at the copy, and repair it, now."""
        named = list(addresses)
        added = self._sources.add(container_id, named)
        self._peers.named(named)
        with self._lock:
            self._plan.name_sources(container_id, time.monotonic(), new=added)
            self._lock.notify_all()

    def damaged(self, container_id: int, local_id: int, reason: str) -> None:
        """Have a block repaired whose bytes here are not its row's; WHOLE: the copy, whose rows cannot be read."""
        with self._lock:
            if self._plan.find_again(container_id, local_id):
                return
        # The finder may have begun before the block was deleted, or its copy dropped.
        if local_id == WHOLE or is_live(self._actions.rows(container_id).get(local_id)):
            self._found(container_id, local_id, reason)

    def _found(self, container_id: int, local_id: int, reason: str) -> None:
        with self._lock:
            said = self._plan.find(container_id, local_id, reason, time.monotonic())
            self._lock.notify_all()
        self._tell(said)

    def deleted(self, blocks: Sequence[BlockId]) -> None:
        """Blocks of copies were deleted, or should have been: check whether any of them still counts as damaged."""
        with self._lock:
            self._plan.on_deletion([(block.container_id, block.local_id) for block in blocks], time.monotonic())
            self._lock.notify_all()

    # -- what it says ----------------------------------------------------------------------------------------------

    @property
    def fetched_bytes(self) -> int:
        """Bytes fetched to repair blocks of copies."""
        return self._actions.fetched_bytes

    def here(self) -> list[int]:
        """Return the containers that copies are of, ascending."""
        return self._actions.here()

    def unhealthy_containers(self) -> set[int]:
        """Return the containers whose copies here are damaged."""
        with self._lock:
            return {container_id for container_id, _ in self._plan.damaged()}

    def unhealthy_blocks(self) -> int:
        """Return how many damaged blocks are known; a copy that is damaged as a whole counts as one."""
        with self._lock:
            return len(self._plan.damaged())

    def named_damage(self) -> list[dict[str, object]]:
        """Return the first MAX_NAMED damaged blocks as JSON; ``block`` is null where a copy is damaged as a whole."""
        with self._lock:
            return self._plan.named_damage()

    def status(self) -> dict[str, object]:
        """Return the copies for ``/status``.

        ``unconfirmed`` are the copies of which no member of their pipeline was heard since the start.
        """
        here = self._actions.here()
        with self._lock:
            unconfirmed = sum(map(self._plan.is_unconfirmed, here))
        return {
            "containers": len(here), "unconfirmed": unconfirmed, "unhealthy_blocks": self.unhealthy_blocks(),
            "unhealthy": self.named_damage(),
        }  # fmt: skip

    def committed_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        """Yield (partition, container id, local id, row) of the copies' blocks behind a place.

        The blocks come in the order of places.
        """
        return self._actions.committed_blocks(after)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _guarded(self) -> None:
        try:
            while (task := self._next()) is not None:
                if isinstance(task, SaveSources):
                    self.save()
                elif isinstance(task, LookAt):
                    self._look(task.container_id)
                else:
                    self._repair(task)
            self.save()
        except BaseException as error:
            if not self._stopping.is_set():
                self._fatal(error)

    def _next(self) -> Task | None:
        """Wait for the next task; None: the end."""
        with self._lock:
            while not self._stopping.is_set():
                now_s = time.monotonic()
                if (task := self._plan.take(now_s)) is not None:
                    return task
                due_s = self._plan.next_due_s()
                self._lock.wait(IDLE_WAIT_S if due_s is None else min(max(0.0, due_s - now_s), IDLE_WAIT_S))
        return None

    def save(self) -> None:
        """Write whom to ask about copies. A full disk is only noted, because the file is a hint. On any thread."""
        with self._lock:
            self._plan.on_saving(time.monotonic())
        here = set(self._actions.here())
        try:
            # The second question counts: a copy may have come since the first.
            self._sources.save(lambda container_id: container_id in here or self._copies.is_here(container_id))
        except OSError as error:
            self._note(f"the sources of copies are not written: {error.strerror}")

    def _tell(self, said: Instructions) -> None:
        for instruction in said:
            if isinstance(instruction, LogLine):
                self._note(instruction.text)
            elif isinstance(instruction, ReportHealth):
                self._changed()

    # -- what the work says (``copy_work.CopyReports``) ------------------------------------------------------------

    def gone(self, container_id: int) -> None:
        """A copy has gone: nothing of it is left to do."""
        with self._lock:
            self._plan.forget(container_id)
        if self._actions.is_copy(
            container_id
        ):  # fetched again meanwhile, and perhaps named before all that was forgotten
            self.named(container_id, ())
        self._changed()

    def look_soon(self, container_id: int) -> None:
        """Look at a copy again: its rows have come from another datanode."""
        with self._lock:
            self._plan.look_soon(container_id, time.monotonic())

    def on_left(self, container_id: int, local_id: int, reason: str) -> bool:
        """The repair of a whole copy could not repair this block: return whether it is tried again by itself."""
        with self._lock:
            said = self._plan.leave(container_id, local_id, reason, time.monotonic())
        self._tell(said or ())
        return said is not None

    # -- looking and repairing -------------------------------------------------------------------------------------

    def _look(self, container_id: int) -> None:
        with self._lock:
            self._plan.begin_look(container_id)
        if not self._actions.is_copy(container_id):
            self.gone(container_id)
            return
        ended = self._work.look(container_id)
        if ended is not LookState.GONE:
            with self._lock:
                said = self._plan.end_look(container_id, time.monotonic(), heard=ended is LookState.HEARD)
            self._tell(said)

    def _repair(self, task: RepairOne) -> None:
        block = (task.container_id, task.local_id)
        with self._lock:
            self._plan.begin_repair(block)
        try:
            if task.local_id == WHOLE:
                self._work.repair_whole(task.container_id)
            else:
                self._work.repair_block(*block, self._actions.rows(task.container_id).get(task.local_id))
        except BlockError as error:
            with self._lock:
                said = self._plan.fail_repair(block, error.message, time.monotonic())
            if not self._stopping.is_set():
                self._tell(said)
            return
        with self._lock:
            said = self._plan.end_repair(block, time.monotonic())
        self._tell(said)
