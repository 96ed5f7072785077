"""The plan of keeping copies right: the state of each copy and of each damaged block, and what comes next. Pure.

Rules:

1. A copy is *fresh* if no member was heard since it came, or since its sources were named. The look in which a member
   is first heard is followed by one more SETTLE_S later. All other copies are looked at once in ``interval_s``. Looks
   that nobody answered are repeated after pauses that grow.
2. A copy is *confirmed* once a member was heard, for as long as the copy is here.
3. A damaged block stays planned until it is repaired or its copy has gone; attempts that fail are repeated after pauses
   that grow. The work on a block may miss damage that is found meanwhile, so the block is then due again at once.
4. Beyond MAX_DAMAGED damaged blocks, copies are repaired as a whole.
5. Repairs and looks take turns: neither waits until the other list is empty.

For one thread at a time: the owner has a lock. Times are seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from datanode_processors.repair.core.agenda import Agenda
from datanode_processors.repair.core.copy_states import (
    COPY_TRANSITIONS,
    DAMAGE_TRANSITIONS,
    CopyEvent,
    CopyState,
    DamageEvent,
    DamageState,
)
from datanode_processors.repair.core.instructions import (
    Instructions,
    LogLine,
    LookAt,
    RepairOne,
    ReportHealth,
    SaveSources,
    Task,
)
from schemas.transitions import next_state
from transport.waiting.core.backoff import Backoff

WHOLE: Final = 0
"""Stands for a local id, which is never 0: the copy's rows, and with them all its blocks."""
MAX_DAMAGED = 10_000
"""Damaged blocks that are known one by one; beyond that, copies are repaired as a whole."""
MAX_NAMED = 20
"""Damaged blocks that the status names."""
FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 600.0
"""First and longest pause between two attempts at one repair, or between two looks that nobody answered."""
PAUSES = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
SETTLE_S = 30.0
"""Time from the first look at a copy to the second.

The second look finds deletions from the time when the Object Manager had not heard of the copy yet (it was just
fetched, or its datanode was away).
"""
LOOK_S = 3600.0
"""Longest time between two looks at a copy."""
SAVE_S = 5.0
"""Shortest time between two writings of the sources."""

Block = tuple[int, int]
"""(container id, local id or WHOLE)"""


@dataclass(slots=True)
class _Copy:
    state: CopyState = CopyState.ABSENT
    confirmed: bool = False
    unheard: int = 0
    """Looks in a row that nobody answered."""


@dataclass(slots=True)
class _Damage:
    reason: str
    failures: int = 0
    """Attempts in a row that did not repair it."""
    state: DamageState = DamageState.SOUND
    tried: bool = False


class UpkeepPlan:
    """The plan of one datanode."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s`` is the time between two looks at a copy, in seconds: LOOK_S at most; 0 = LOOK_S."""
        self._interval_s = min(interval_s, LOOK_S) if interval_s else LOOK_S
        self._copies: dict[int, _Copy] = {}
        self._damaged: dict[Block, _Damage] = {}
        self._looks: Agenda[LookAt | SaveSources] = Agenda()
        self._repairs: Agenda[RepairOne] = Agenda()
        self._repaired = False
        """Whether the last task was a repair."""
        self._saved_s = float("-inf")

    # -- what comes next -------------------------------------------------------------------------------------------

    def take(self, now_s: float) -> Task | None:
        """Return the task that is due, repairs and others in turn (rule 5); None if none is."""
        task: Task | None = None if self._repaired else self._repairs.take(now_s)
        task = task or self._looks.take(now_s) or self._repairs.take(now_s)
        if task is not None:
            self._repaired = isinstance(task, RepairOne)
        return task

    def next_due_s(self) -> float | None:
        """Return when the next task is due; None if there is none."""
        agendas = (self._looks, self._repairs)
        return min((due_s for one in agendas if (due_s := one.next_due_s()) is not None), default=None)

    # -- copies ----------------------------------------------------------------------------------------------------

    def _move(self, container_id: int, event: CopyEvent) -> _Copy:
        copy = self._copies.get(container_id) or _Copy()
        copy.state = next_state(COPY_TRANSITIONS, copy.state, event)
        self._copies[container_id] = copy
        return copy

    def start_with(self, container_id: int, now_s: float) -> None:
        """The datanode starts, and has a copy: look at it."""
        self._move(container_id, CopyEvent.STARTED)
        self._looks.put(LookAt(container_id), now_s)

    def name_sources(self, container_id: int, now_s: float, *, new: bool) -> None:
        """The sources of a copy were named: look at it, and repair it, now; ``new`` says that they must be written."""
        if new:
            self._looks.put_sooner(SaveSources(), self._saved_s + SAVE_S)
        self._move(container_id, CopyEvent.NAMED).unheard = 0
        self._looks.put(LookAt(container_id), now_s)
        for block in self._damaged:
            if block[0] == container_id:
                self._repairs.put_sooner(RepairOne(*block), now_s)

    def on_saving(self, now_s: float) -> None:
        """The sources are being written."""
        self._saved_s = now_s

    def look_soon(self, container_id: int, now_s: float) -> None:
        """Have a copy looked at."""
        self._looks.put(LookAt(container_id), now_s)

    def begin_look(self, container_id: int) -> None:
        """A look at a copy begins; it ends by ``end_look`` or ``forget``."""
        self._move(container_id, CopyEvent.LOOK_BEGAN)

    def end_look(self, container_id: int, now_s: float, *, heard: bool) -> Instructions:
        """A look has ended; ``heard`` says whether a member of the copy's pipeline has sent its rows."""
        was = self._copies[container_id].state
        copy = self._move(container_id, CopyEvent.MEMBER_HEARD if heard else CopyEvent.NOBODY_HEARD)
        if heard:
            copy.confirmed, copy.unheard = True, 0
            fresh = was is CopyState.LOOKING_FRESH
            pause_s = min(SETTLE_S, self._interval_s) if fresh else self._interval_s
        else:
            copy.unheard += 1
            pause_s = PAUSES.pause_s(copy.unheard)
        self._looks.put_sooner(LookAt(container_id), now_s + pause_s)
        if not heard and pause_s < LAST_PAUSE_S <= 2 * pause_s:
            return (
                LogLine(f"container {container_id}: no member of its pipeline answers; the copy here is kept as it is"),
            )
        return ()

    def forget(self, container_id: int) -> None:
        """A copy has gone: forget it and everything that was to be done for it."""
        self._move(container_id, CopyEvent.GONE)
        del self._copies[container_id]
        self._looks.drop(LookAt(container_id))
        for block in [block for block in self._damaged if block[0] == container_id]:
            self._move_damage(block, self._damaged[block], DamageEvent.COPY_GONE)

    # -- damage ----------------------------------------------------------------------------------------------------

    def _move_damage(self, block: Block, damage: _Damage, event: DamageEvent) -> DamageState:
        damage.state = next_state(DAMAGE_TRANSITIONS, damage.state, event)
        if damage.state is DamageState.SOUND:
            self._damaged.pop(block, None)
            self._repairs.drop(RepairOne(*block))
        else:
            self._damaged[block] = damage
        return damage.state

    def find_again(self, container_id: int, local_id: int) -> bool:
        """A block was found damaged: return whether that is known already, of the block or of its whole copy."""
        for block in ((container_id, local_id), (container_id, WHOLE)):
            if (damage := self._damaged.get(block)) is not None:
                self._move_damage(block, damage, DamageEvent.FOUND)
                return True
        return False

    def find(self, container_id: int, local_id: int, reason: str, now_s: float) -> Instructions:
        """A block (with WHOLE: the rows of a copy) was found damaged: have it repaired."""
        if self.find_again(container_id, local_id):
            return ()
        block = (container_id, local_id if len(self._damaged) < MAX_DAMAGED else WHOLE)
        self._move_damage(block, _Damage(reason=reason), DamageEvent.FOUND)
        self._repairs.put(RepairOne(*block), now_s)
        return LogLine(reason), ReportHealth()

    def leave(self, container_id: int, local_id: int, reason: str, now_s: float) -> Instructions | None:
        """The repair of a whole copy could not repair a block: have the block tried again by itself.

        Returns None if there is no room for it.
        """
        block = (container_id, local_id)
        known = self._damaged.get(block)
        if known is None and len(self._damaged) >= MAX_DAMAGED:
            return None
        damage = known or _Damage(reason=reason, failures=1, tried=True)
        self._move_damage(block, damage, DamageEvent.LEFT)
        if known is not None:
            return ()
        self._repairs.put(RepairOne(*block), now_s + FIRST_PAUSE_S)
        return (LogLine(f"{reason}; trying again, with growing pauses"),)

    def on_deletion(self, blocks: Iterable[Block], now_s: float) -> None:
        """Blocks of copies were deleted, or should have been: check whether any of them still counts as damaged."""
        deleted = set(blocks)
        for block in deleted & self._damaged.keys():
            self._repairs.put_sooner(RepairOne(*block), now_s)
        for container_id in {container_id for container_id, _ in deleted}:
            if (container_id, WHOLE) in self._damaged or self.is_unconfirmed(container_id):
                self._looks.put_sooner(LookAt(container_id), now_s)

    def begin_repair(self, block: Block) -> None:
        """The work on a task RepairOne begins; it ends by ``end_repair``, ``fail_repair`` or ``forget``."""
        damage = self._damaged.get(block) or _Damage(reason="")
        self._move_damage(block, damage, DamageEvent.WORK_BEGAN)

    def _end_work(self, block: Block, event: DamageEvent) -> _Damage | None:
        """Return the damage that was at work.

        None if it went with its copy meanwhile; damage that is known now is then another copy's.
        """
        damage = self._damaged.get(block)
        if damage is None:
            next_state(DAMAGE_TRANSITIONS, DamageState.SOUND, event)
            return None
        was = damage.state
        self._move_damage(block, damage, event)
        return None if was is DamageState.DUE else damage

    def end_repair(self, block: Block, now_s: float) -> Instructions:
        """A block was read and is right, or needs no repair any more."""
        damage = self._end_work(block, DamageEvent.REPAIRED)
        if damage is None:
            return ()
        if damage.state is DamageState.SOUND:
            return (ReportHealth(),)
        # Damage found during the work was perhaps in cells that were still right when they were read.
        self._repairs.put(RepairOne(*block), now_s)
        return ()

    def fail_repair(self, block: Block, reason: str, now_s: float) -> Instructions:
        """No source has the block right, or not all of it: it is tried again after a pause."""
        damage = self._end_work(block, DamageEvent.FAILED)
        if damage is None:
            return ()
        first, damage.tried, damage.reason = not damage.tried, True, reason
        damage.failures += 1
        self._repairs.put(RepairOne(*block), now_s + PAUSES.pause_s(damage.failures))
        return (LogLine(f"{reason}; trying again, with growing pauses"),) if first else ()

    # -- what it says ----------------------------------------------------------------------------------------------

    def state_of(self, container_id: int) -> CopyState:
        """Return the state of a copy."""
        copy = self._copies.get(container_id)
        return CopyState.ABSENT if copy is None else copy.state

    def is_unconfirmed(self, container_id: int) -> bool:
        """Whether a copy is known of which no member was heard since the start."""
        copy = self._copies.get(container_id)
        return copy is not None and not copy.confirmed

    def damaged(self) -> list[Block]:
        """Return what is damaged: blocks, and WHOLE copies."""
        return list(self._damaged)

    def named_damage(self) -> list[dict[str, object]]:
        """Return the first MAX_NAMED damaged blocks as JSON; ``block`` is null where a copy is damaged as a whole."""
        return [
            {"container": block[0], "block": block[1] or None, "reason": self._damaged[block].reason}
            for block in nsmallest(MAX_NAMED, self._damaged)
        ]
