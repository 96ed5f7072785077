"""Keeping copies right (``copies``): what is damaged is repaired from whoever has it, what its pipeline has deleted is deleted here too.

What belongs here: one thread, its agenda, and what is known to be damaged. The rules:

1. A copy is *looked at* when the datanode starts, when it has been fetched or the Object Manager has named its sources, SETTLE_S after that,
   and then once in ``interval_s``. A look compares lengths with files, and asks the sources for their rows.
2. A block is deleted here because a member of its pipeline has its tombstone, for nothing else: a tombstone is in the log, and final. That
   nobody answers, that a source is no member, or that a member has no such row says nothing; the last is noted, for it cannot be.
   All sources are asked: a member may be behind.
3. A block is *damaged* if its bytes are not those of its row, whoever finds out: a reader, the scrubber, a look. It is repaired cell by cell;
   a source's cell is written only if it has the row's checksum, and believed when it has been read from the disk again. If the rows
   themselves are damaged, a source's take their place and every block is read. A block that is deleted meanwhile is not damaged.
4. What nobody has right stays damaged, and is tried again after a pause that grows; the container is unhealthy in heartbeats until then.
   It is logged when it is found, when it could not be repaired for the first time, and when it is.
5. Blocks are read from the disk at the scrubber's pace (``read``): the background has one rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import TypeGuard

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import PARTITIONS
from datanode_processors.repair.cell_fetch import bytes_of, fetch_cells
from datanode_processors.repair.copies import Copies, closed_rows
from datanode_processors.repair.copy_sources import CopySources
from datanode_processors.repair.core.agenda import Agenda
from datanode_processors.repair.core.away import Away
from datanode_processors.repair.scrubber import Place, bad_cells, is_good
from datanode_processors.wire.peer import Peer
from replicated_db.shell.logs import Note
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_of_key, decode_block_row
from schemas.records.datanode import BlockId, BlockRow, BlockWatched, DeleteBlocks, SalvageBlock, WatchBlock

WHOLE = 0
"""In place of a local id, which is never 0: the copy's rows, and with them all its blocks."""
MAX_DAMAGED = 10_000
"""Damaged blocks that are known one by one; where there are more, their containers are repaired as a whole."""
MAX_NAMED = 20
"""Damaged blocks that the status names."""
FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 600.0
"""Pauses between two attempts at one repair, or one look that nobody answered."""
SETTLE_S = 30.0
"""What is deleted while the Object Manager has not heard of a copy yet (it has just been fetched, or its datanode was away) is asked
for so long after its first look."""
LOOK_S = 3600.0
"""Between two looks at a copy, at most."""
SAVE_S = 5.0
"""The sources are written no more often."""
PEER_TIMEOUT_S = 10.0
IDLE_WAIT_S = 1.0

Repair = tuple[int, int]
"""(container id, local id)"""
Look = tuple[int, None]
"""(container id, None)"""
SAVE = (-1, None)
"""The sources are to be written."""


@dataclass(slots=True)
class _Damage:
    reason: str
    pause_s: float
    tried: bool = False
    again: bool = False
    """It was found once more, perhaps while it was being repaired."""


class CopyUpkeep:
    """Of one datanode; for many threads, with one of its own."""

    def __init__(
        self, blocks: BlockStore, copies: Copies, *, node: str, cluster: str, sources_file: Path,
        is_own: Callable[[int], bool], interval_s: float, note: Note, fatal: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """``is_own`` says whether a container is of a pipeline of this node, so no copy; ``changed`` is told when health has changed.

        ``interval_s`` is the scrubber's, in seconds; 0 = it does not run.
        """
        self._blocks = blocks
        self._copies = copies
        self._node = node
        self._cluster = cluster
        self._is_own = is_own
        self._interval_s = min(interval_s, LOOK_S) if interval_s else LOOK_S
        self._note = note
        self._fatal = fatal
        self._changed = changed
        self._read: Callable[[int], None] = lambda _: None
        self._sources = CopySources(sources_file)
        self._saved_s = -SAVE_S
        self._lock = threading.Condition()
        self._looks: Agenda[Look] = Agenda()
        self._repairs: Agenda[Repair] = Agenda()
        self._repaired = False
        """Whether the last thing that was done was a repair."""
        self._damaged: dict[tuple[int, int], _Damage] = {}
        self._unconfirmed: set[int] = set()
        """Copies of which no member has been heard since the start."""
        self._confirmed: set[int] = set()
        """All others that were looked at."""
        self._fresh: set[int] = set()
        """Copies that came, or whose sources were named, since a member was last heard of them: looked at once more in SETTLE_S."""
        self._pauses: dict[int, float] = {}
        """Copies of which no member was heard in the last look, and the pause after the next one like that, in seconds."""
        self._away = Away()
        self._stopping = False
        self.fetched_bytes = 0
        self._thread = threading.Thread(target=self._guarded, name="copy-upkeep", daemon=True)

    def start(self, read: Callable[[int], None]) -> None:
        """Begin with a look at every copy. ``read`` is told the bytes of each step of reading, and may sleep."""
        self._read = read
        for container_id in self.here():
            with self._lock:
                self._unconfirmed.add(container_id)
                self._fresh.add(container_id)
                self._looks.put((container_id, None), time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        """End; what is left is found again."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(PEER_TIMEOUT_S)

    # -- what is to be done; on any thread. Only ``damaged`` reads: a copy's rows, on a thread that has just read its blocks

    def named(self, container_id: int, addresses: Iterable[str]) -> None:
        """A copy is here, and these datanodes may hold its container too: look at it, and repair it, now."""
        named = list(addresses)
        added = self._sources.add(container_id, named)
        with self._lock:
            if added:
                self._looks.put_sooner(SAVE, self._saved_s + SAVE_S)
            for address in named:
                self._away.answered(address)
            now_s = time.monotonic()
            self._fresh.add(container_id)
            self._pauses.pop(container_id, None)
            if container_id not in self._confirmed:
                self._unconfirmed.add(container_id)
            self._looks.put((container_id, None), now_s)
            for block in self._damaged:
                if block[0] == container_id:
                    self._repairs.put_sooner(block, now_s)
            self._lock.notify_all()

    def damaged(self, container_id: int, local_id: int, reason: str) -> None:
        """Have a block repaired whose bytes here are not its row's; WHOLE: the copy, whose rows cannot be read."""
        with self._lock:
            if self._is_known(container_id, local_id):
                return
        # Whoever found it may have begun before the block was deleted, or its copy dropped.
        if local_id == WHOLE or _is_live(self._rows(container_id).get(local_id)):
            self._add_damage(container_id, local_id, reason)

    def _is_known(self, container_id: int, local_id: int) -> bool:
        """Return whether a block is known to be damaged, and if so have it looked at once more. With the lock."""
        known = self._damaged.get((container_id, local_id)) or self._damaged.get((container_id, WHOLE))
        if known is not None:
            known.again = True
        return known is not None

    def _add_damage(self, container_id: int, local_id: int, reason: str) -> None:
        with self._lock:
            block = (container_id, local_id)
            if self._is_known(container_id, local_id):
                return
            if len(self._damaged) >= MAX_DAMAGED:
                block = (container_id, WHOLE)
            self._damaged[block] = _Damage(reason=reason, pause_s=FIRST_PAUSE_S)
            self._repairs.put(block, time.monotonic())
            self._lock.notify_all()
        self._note(reason)
        self._changed()

    def deleted(self, blocks: Sequence[BlockId]) -> None:
        """Blocks were deleted from copies here, or should have been: look whether any of them still counts as damaged."""
        with self._lock:
            for block in blocks:
                if (block.container_id, block.local_id) in self._damaged:
                    self._repairs.put_sooner((block.container_id, block.local_id), time.monotonic())
            for container_id in {block.container_id for block in blocks}:
                if (container_id, WHOLE) in self._damaged or container_id in self._unconfirmed:
                    self._looks.put_sooner((container_id, None), time.monotonic())
            self._lock.notify_all()

    def _mended(self, block: tuple[int, int]) -> None:
        with self._lock:
            known = self._damaged.pop(block, None)
            self._repairs.drop(block)
        if known is not None:
            self._changed()

    # -- what it says ----------------------------------------------------------------------------------------------

    def here(self) -> list[int]:
        """Return the containers that copies are of, ascending."""
        found = (usage.container_id for usage in self._blocks.containers())
        return [container_id for container_id in found if not self._is_own(container_id)]

    def _is_copy(self, container_id: int) -> bool:
        return not self._is_own(container_id) and self._copies.is_here(container_id)

    def unhealthy_containers(self) -> set[int]:
        """Return the containers whose copies here are damaged."""
        with self._lock:
            return {container_id for container_id, _ in self._damaged}

    def unhealthy_blocks(self) -> int:
        """Return how many damaged blocks are known; a copy that is damaged as a whole counts as one."""
        with self._lock:
            return len(self._damaged)

    def named_damage(self) -> list[dict[str, object]]:
        """Return the first MAX_NAMED damaged blocks as JSON; ``block`` is null where a copy is damaged as a whole."""
        with self._lock:
            first = nsmallest(MAX_NAMED, self._damaged)
            return [
                {"container": one[0], "block": one[1] or None, "reason": self._damaged[one].reason} for one in first
            ]

    def status(self) -> dict[str, object]:
        """Return the copies for ``/status``; ``unconfirmed`` are those of which no member of their pipeline was heard since the start."""
        here = self.here()
        return {
            "containers": len(here), "unconfirmed": sum(container_id in self._unconfirmed for container_id in here),
            "unhealthy_blocks": self.unhealthy_blocks(), "unhealthy": self.named_damage(),
        }  # fmt: skip

    def committed_blocks(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        """Yield (partition, container id, local id, row) of the copies' blocks behind a place, in the order of places."""
        places = sorted((container_id % PARTITIONS, container_id) for container_id in self.here())
        for partition, container_id in places:
            if after is not None and (partition, container_id) < after[:2]:
                continue
            for local_id, row in sorted(self._rows(container_id).items()):
                if not row.deleted and (after is None or (partition, container_id, local_id) > after):
                    yield partition, container_id, local_id, row

    def _rows(self, container_id: int) -> dict[int, BlockRow]:
        """Return a copy's rows as they are on the disk; none, and the copy is damaged, if they cannot be read."""
        try:
            rows = self._copies.stored(container_id)
        except BlockError as error:
            self.damaged(container_id, WHOLE, f"the copy of container {container_id} here: {error.message}")
            return {}
        if not rows and self._is_copy(container_id):
            self.damaged(container_id, WHOLE, f"the copy of container {container_id} here has lost its rows")
        return rows

    # -- the thread ------------------------------------------------------------------------------------------------

    def _guarded(self) -> None:
        try:
            while (task := self._next()) is not None:
                container_id, local_id = task
                if task == SAVE:
                    self.save()
                elif local_id is None:
                    self._look(container_id)
                else:
                    self._repair((container_id, local_id))
            self.save()
        except BaseException as error:
            if not self._stopping:
                self._fatal(error)

    def _next(self) -> Repair | Look | None:
        """Return what is due, repairs and looks in turn: neither is to wait until there is none of the others (a start looks at all copies)."""
        with self._lock:
            while not self._stopping:
                now_s = time.monotonic()
                task: Repair | Look | None = None if self._repaired else self._repairs.take(now_s)
                task = task or self._looks.take(now_s) or self._repairs.take(now_s)
                if task is not None:
                    self._repaired = task[1] is not None
                    return task
                due_s = [due_s for one in (self._looks, self._repairs) if (due_s := one.next_due_s()) is not None]
                self._lock.wait(max(0.0, min([*due_s, now_s + IDLE_WAIT_S]) - now_s))
        return None

    def save(self) -> None:
        """Write whom to ask about copies; a disk that is full is noted, for it is a hint. On any thread."""
        with self._lock:
            self._saved_s = time.monotonic()
        here = set(self.here())
        try:
            # Asked once more: a copy may have come since.
            self._sources.save(lambda container_id: container_id in here or self._copies.is_here(container_id))
        except OSError as error:
            self._note(f"the sources of copies are not written: {error.strerror}")

    @contextmanager
    def _peer(self, address: str) -> Iterator[Peer]:
        """Connect to a source; raises BlockError, and at once if it could not be reached a moment ago or is this very node."""
        with self._lock:
            if self._away.is_away(address, time.monotonic()):
                raise BlockError(codes.FAILED, "it did not answer a moment ago")
        try:
            peer = Peer(address, own=self._node, cluster=self._cluster, timeout_s=PEER_TIMEOUT_S)
        except BlockError:
            self._did_not_answer(address)
            raise
        with peer:
            if peer.name == self._node:
                raise BlockError(codes.INVALID_REQUEST, "that is this datanode")
            try:
                yield peer
            except BlockError as error:
                if error.code == codes.TIMED_OUT:  # it greets, and then says nothing
                    self._did_not_answer(address)
                raise
        with self._lock:
            self._away.answered(address)

    def _did_not_answer(self, address: str) -> None:
        with self._lock:
            self._away.silent(address, time.monotonic())

    # -- looking at a copy -----------------------------------------------------------------------------------------

    def _look(self, container_id: int) -> None:
        if not self._is_copy(container_id):
            self._gone(container_id)
            return
        if self._is_dropped(container_id):
            return
        with self._lock:
            fresh = container_id in self._fresh
            self._fresh.discard(container_id)
        rows = self._rows(container_id)
        self._compare_lengths(container_id, rows)
        heard = self._reconcile(container_id, rows)
        with self._lock:
            if heard:
                self._unconfirmed.discard(container_id)
                self._confirmed.add(container_id)
                self._pauses.pop(container_id, None)
                pause_s = min(SETTLE_S, self._interval_s) if fresh else self._interval_s
            else:
                if fresh:
                    self._fresh.add(container_id)
                pause_s = self._pauses.get(container_id, FIRST_PAUSE_S)
                self._pauses[container_id] = min(2 * pause_s, LAST_PAUSE_S)
            self._looks.put_sooner((container_id, None), time.monotonic() + pause_s)
        if not heard and pause_s < LAST_PAUSE_S <= 2 * pause_s:
            self._note(f"container {container_id}: no member of its pipeline answers; the copy here is kept as it is")

    def _is_dropped(self, container_id: int) -> bool:
        """Drop a copy of which no block is left; return whether it has gone."""
        try:
            if not self._copies.drop_if_deleted(container_id):
                return False
        except BlockError:  # its rows are damaged, or its files cannot be removed now: the next look tries again
            return False
        self._note(f"container {container_id}: no block of the copy here is left, and it is dropped")
        self._gone(container_id)
        return True

    def _gone(self, container_id: int) -> None:
        with self._lock:
            for known in (self._unconfirmed, self._confirmed, self._fresh):
                known.discard(container_id)
            self._pauses.pop(container_id, None)
            self._looks.drop((container_id, None))
            for block in [block for block in self._damaged if block[0] == container_id]:
                del self._damaged[block]
                self._repairs.drop(block)
        if self._is_copy(container_id):  # fetched again meanwhile, and perhaps named before all that was forgotten
            self.named(container_id, ())
        self._changed()

    def _compare_lengths(self, container_id: int, rows: Mapping[int, BlockRow]) -> None:
        found: dict[int, str] = {}
        for local_id, row in rows.items():
            if row.deleted:
                continue
            name = f"the copy of block {container_id}/{local_id} here"
            try:
                written = self._blocks.written_length(container_id, local_id)
            except BlockError as error:
                found[local_id] = f"{name}: {error.message}"
            else:
                if written < row.length:
                    found[local_id] = f"{name} has {written} of {row.length} bytes"
        now = self._rows(container_id) if found else {}
        for local_id, reason in found.items():
            if _is_live(now.get(local_id)):  # or it was deleted meanwhile
                self._add_damage(container_id, local_id, reason)

    def _reconcile(self, container_id: int, mine: Mapping[int, BlockRow]) -> bool:
        """Delete what members of the pipeline have deleted; return whether a member has answered (rule 2)."""
        heard = False
        for address in self._sources.of(container_id):
            live = [local_id for local_id, row in mine.items() if not row.deleted]
            if not live or self._stopping:
                break
            try:
                with self._peer(address) as peer:
                    if not _is_member(peer, container_id, live[0]):
                        continue
                    theirs = _listed(peer, container_id)
            except BlockError:  # it is away, or has the container not closed: another may tell
                continue
            heard = True
            deleted = [local_id for local_id in live if local_id in theirs and theirs[local_id].deleted]
            if missing := [local_id for local_id in live if local_id not in theirs]:
                self._note(
                    f"container {container_id}: {peer.name} has no row of {len(missing)} blocks of the copy here"
                )
            if deleted:
                try:
                    self._delete(container_id, deleted, peer.name)
                    mine = self._copies.stored(container_id)
                except BlockError as error:
                    self._note(f"container {container_id}: blocks of the copy here cannot be deleted: {error}")
                    return False
        return heard

    def _delete(self, container_id: int, local_ids: list[int], member: str) -> None:
        """Delete blocks here as a member has; raises BlockError."""
        blocks = [BlockId(container_id=container_id, local_id=local_id) for local_id in local_ids]
        self._copies.delete(DeleteBlocks(partition=container_id % PARTITIONS, blocks=blocks))
        self._note(f"container {container_id}: {len(blocks)} blocks of the copy here are deleted, as {member} has")
        self.deleted(blocks)

    # -- repairing -------------------------------------------------------------------------------------------------

    def _repair(self, block: tuple[int, int]) -> None:
        with self._lock:
            damage = self._damaged.get(block)
            if damage is None:
                return
            damage.again = False
        container_id, local_id = block
        try:
            if local_id == WHOLE:
                self._repair_whole(container_id)
            else:
                self._repair_block(container_id, local_id, self._rows(container_id).get(local_id))
        except BlockError as error:
            self._try_later(block, damage, error)
            return
        with self._lock:
            if damage.again:  # found once more meanwhile, perhaps in cells that were right when they were read
                self._repairs.put(block, time.monotonic())
                return
        self._mended(block)

    def _try_later(self, block: tuple[int, int], damage: _Damage, error: BlockError) -> None:
        with self._lock:
            if block not in self._damaged:
                return
            first, damage.tried = not damage.tried, True
            damage.reason = error.message
            self._repairs.put(block, time.monotonic() + damage.pause_s)
            damage.pause_s = min(2 * damage.pause_s, LAST_PAUSE_S)
        if first and not self._stopping:
            self._note(f"{error.message}; trying again, with growing pauses")

    def _repair_whole(self, container_id: int) -> None:
        """Have readable rows, then every block right. Those that are not are damaged one by one from then on, or all would be read again
        for one that nobody has; raises BlockError for the first that finds no place among MAX_DAMAGED.
        """
        if not self._is_copy(container_id) or self._is_dropped(container_id):
            return
        try:
            rows = self._copies.stored(container_id)
        except BlockError:
            rows = {}
        if not rows:
            self._restore_rows(container_id)
            rows = self._copies.stored(container_id)
        failure: BlockError | None = None
        for local_id, row in sorted(rows.items()):
            if self._stopping:
                raise BlockError(codes.STOPPING, f"container {container_id}: the datanode is stopping")
            try:
                self._repair_block(container_id, local_id, row)
            except BlockError as error:  # the others may be mended
                if not self._is_tried_alone(container_id, local_id, error):
                    failure = failure or error
        if failure is not None:
            raise failure

    def _is_tried_alone(self, container_id: int, local_id: int, error: BlockError) -> bool:
        """Have a block that could not be repaired tried again by itself; return False if there is no place for it, or the end has come."""
        block = (container_id, local_id)
        with self._lock:
            if block in self._damaged:
                return True
            if self._stopping or len(self._damaged) >= MAX_DAMAGED:
                return False
            self._damaged[block] = _Damage(reason=error.message, pause_s=2 * FIRST_PAUSE_S, tried=True)
            self._repairs.put(block, time.monotonic() + FIRST_PAUSE_S)
        self._note(f"{error.message}; trying again, with growing pauses")
        return True

    def _restore_rows(self, container_id: int) -> None:
        reasons = []
        for address in self._sources.of(container_id):
            try:
                with self._peer(address) as peer:
                    rows = closed_rows(peer, container_id)
                    if not rows:  # a copy without rows would be damaged again at once
                        raise BlockError(codes.NO_SUCH_BLOCK, f"container {container_id} has no rows there")
                    replaced = self._copies.restore_rows(container_id, rows)
            except BlockError as error:
                reasons.append(f"{address}: {error}")
                continue
            if not replaced:
                return
            self._note(f"container {container_id}: the rows of the copy here are taken from {peer.name}")
            with self._lock:  # they may be another copy's, and older than those that were here
                self._looks.put((container_id, None), time.monotonic())
            return
        raise BlockError(
            codes.FAILED,
            f"the rows of container {container_id} are not to be had ({'; '.join(reasons) or 'no source'})",
        )

    def _repair_block(self, container_id: int, local_id: int, row: BlockRow | None) -> None:
        """Have a block's bytes right; raises BlockError if nobody has all of them."""
        if not _is_live(row):
            return
        blocks = self._blocks
        bad = bad_cells(blocks, container_id, local_id, row, self._read)
        if not bad:
            return
        blocks.forget_checksums(container_id, local_id)
        left = list(bad)
        reasons = []
        for address in self._sources.of(container_id):
            if self._stopping:
                raise BlockError(codes.STOPPING, f"block {container_id}/{local_id}: the datanode is stopping")
            fetched: set[int] = set()
            try:
                with self._peer(address) as peer:
                    refused = fetch_cells(
                        blocks, peer, _ask_for(container_id, local_id), (container_id, local_id), row, left, fetched, sync=True
                    )  # fmt: skip
            except BlockError as error:
                refused = error
            self.fetched_bytes += bytes_of(fetched, row)
            left = [cell for cell in left if cell not in fetched]
            if refused is not None:
                reasons.append(f"{address}: {refused}")
            if not left:
                break
        still = [cell for cell in bad if not is_good(blocks, container_id, local_id, row, cell)]
        if still:
            raise BlockError(
                codes.NOT_COMMITTED,
                f"the copy of block {container_id}/{local_id} here is damaged in {len(still)} cells, the first is {still[0]}, that are not "
                f"to be had ({'; '.join(reasons) or 'no source'})",
            )
        self._copies.recount(container_id)
        self._note(f"the copy of block {container_id}/{local_id} here is repaired: {len(bad)} cells")


def _is_live(row: BlockRow | None) -> TypeGuard[BlockRow]:
    return row is not None and not row.deleted


def _ask_for(container_id: int, local_id: int) -> Callable[[int, int], SalvageBlock]:
    """Return what asks for cells of a block that may be damaged where they are asked for: those that are right come."""

    def ask(offset: int, length: int) -> SalvageBlock:
        return SalvageBlock(
            partition=container_id % PARTITIONS, container_id=container_id, local_id=local_id, offset=offset, length=length, bcs_id=0,
        )  # fmt: skip

    return ask


def _is_member(peer: Peer, container_id: int, local_id: int) -> bool:
    """Ask whether a datanode follows the container's pipeline: only a member answers a watch. Raises BlockError."""
    watch = WatchBlock(
        partition=container_id % PARTITIONS, container_id=container_id, local_id=local_id, length=0, bcs_id=0, timeout_ms=0
    )  # fmt: skip
    try:
        return isinstance(peer.request(watch), BlockWatched)
    except BlockError as error:
        if error.code == codes.NO_SUCH_PIPELINE:
            return False
        if error.code == codes.BLOCK_DELETED:
            return True
        raise


def _listed(peer: Peer, container_id: int) -> dict[int, BlockRow]:
    """Return the rows of a closed container as a datanode has them, by local id; raises BlockError."""
    return {block_of_key(key)[1]: decode_block_row(value) for key, value in closed_rows(peer, container_id)}
