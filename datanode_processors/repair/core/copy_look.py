"""One look at a copy: is any block left, are the files long enough, what have the pipeline's members deleted. Pure.

    NEW ─► DROPPING ─► COMPARING ─► ASKING ◄─► DELETING        one source after the other
               │            └───────────┴───────┬──┘
              GONE                       HEARD or SILENT

Rules: A block is deleted here only because a member has its tombstone. All sources are asked, because a member may be
behind. A source that does not answer, or is no member, says nothing. A member that lacks a row says nothing either, but
that is logged, because it should be impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, TypeAlias

from datanode_processors.repair.core.instructions import (
    AskForRows,
    CompareLengths,
    DeleteHere,
    DropIfDeleted,
    ForgetCopy,
    Instructions,
    LogLine,
)
from schemas.transitions import handler_of


class LookState(Enum):
    """How far a look is."""

    NEW = auto()
    DROPPING = auto()
    COMPARING = auto()
    ASKING = auto()
    DELETING = auto()
    GONE = auto()
    """The look has ended: no block of the copy was left."""
    HEARD = auto()
    """The look has ended: a member has sent its rows."""
    SILENT = auto()
    """The look has ended: no member has sent its rows, or the deletions that one sent could not be made."""


@dataclass(frozen=True, slots=True)
class LookBegins:
    """The look is to begin; the first event."""


@dataclass(frozen=True, slots=True)
class CopyDropped:
    """No block of the copy was left, and it has gone."""


@dataclass(frozen=True, slots=True)
class CopyKept:
    """The copy is still here."""


@dataclass(frozen=True, slots=True)
class LengthsCompared:
    """The files were compared with the rows."""

    live: tuple[int, ...]
    """Local ids of the blocks that are not deleted here."""
    sources: tuple[str, ...]
    """Addresses of datanodes that may hold the container too."""


@dataclass(frozen=True, slots=True)
class MemberAnswered:
    """A member of the copy's pipeline has sent its rows."""

    member: str
    deleted: Mapping[int, bool]
    """By local id: whether the member has a tombstone of the block."""


@dataclass(frozen=True, slots=True)
class NotHeard:
    """A source is silent, is no member, or has the container not closed: another source may tell."""


@dataclass(frozen=True, slots=True)
class DeletedHere:
    """Blocks were deleted."""

    live: tuple[int, ...]
    """Local ids of the blocks that are left."""


@dataclass(frozen=True, slots=True)
class NotDeleted:
    """Blocks could not be deleted: the disk is full or fails, or the rows are damaged."""

    reason: str


LookEvent: TypeAlias = (
    LookBegins | CopyDropped | CopyKept | LengthsCompared | MemberAnswered | NotHeard | DeletedHere | NotDeleted
)


class CopyLook:
    """One look at one copy. Pass it events and carry out what it says; it has ended when it asks for nothing more."""

    def __init__(self, container_id: int) -> None:
        self.state = LookState.NEW
        self._name = f"container {container_id}"
        self._live: tuple[int, ...] = ()
        self._left: list[str] = []
        """Sources that were not asked yet."""
        self._heard = False

    def step(self, event: LookEvent) -> Instructions:
        """Take an event and return what is to be done; raises NoSuchTransition."""
        return handler_of(self.TRANSITIONS, self.state, event)(self, event)

    def _begin(self, _: LookBegins) -> Instructions:
        self.state = LookState.DROPPING
        return (DropIfDeleted(),)

    def _dropped(self, _: CopyDropped) -> Instructions:
        self.state = LookState.GONE
        return LogLine(f"{self._name}: no block of the copy here is left, and it is dropped"), ForgetCopy()

    def _kept(self, _: CopyKept) -> Instructions:
        self.state = LookState.COMPARING
        return (CompareLengths(),)

    def _compared(self, event: LengthsCompared) -> Instructions:
        self._live, self._left = event.live, list(event.sources)
        return self._ask_next()

    def _ask_next(self) -> Instructions:
        if self._live and self._left:
            self.state = LookState.ASKING
            return (AskForRows(self._left.pop(0), self._live[0]),)
        self.state = LookState.HEARD if self._heard else LookState.SILENT
        return ()

    def _answered(self, event: MemberAnswered) -> Instructions:
        self._heard = True
        said: Instructions = ()
        if missing := sum(local_id not in event.deleted for local_id in self._live):
            said = (LogLine(f"{self._name}: {event.member} has no row of {missing} blocks of the copy here"),)
        deleted = tuple(local_id for local_id in self._live if event.deleted.get(local_id, False))
        if not deleted:
            return said + self._ask_next()
        self.state = LookState.DELETING
        return (*said, DeleteHere(deleted, event.member))

    def _not_heard(self, _: NotHeard) -> Instructions:
        return self._ask_next()

    def _deleted(self, event: DeletedHere) -> Instructions:
        self._live = event.live
        return self._ask_next()

    def _not_deleted(self, event: NotDeleted) -> Instructions:
        self.state = LookState.SILENT
        return (LogLine(f"{self._name}: blocks of the copy here cannot be deleted: {event.reason}"),)

    TRANSITIONS: ClassVar[Mapping[tuple[LookState, type], Callable[[CopyLook, Any], Instructions]]] = {
        (LookState.NEW, LookBegins): _begin,
        (LookState.DROPPING, CopyDropped): _dropped,
        (LookState.DROPPING, CopyKept): _kept,
        (LookState.COMPARING, LengthsCompared): _compared,
        (LookState.ASKING, MemberAnswered): _answered,
        (LookState.ASKING, NotHeard): _not_heard,
        (LookState.DELETING, DeletedHere): _deleted,
        (LookState.DELETING, NotDeleted): _not_deleted,
    }
