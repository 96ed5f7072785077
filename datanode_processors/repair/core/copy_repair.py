"""Repairing a block of a copy cell by cell, and a copy as a whole: its rows, then every block. Pure.

One block; FETCHING asks one source after the other::

    NEW ─► READING ─► FETCHING ─► CHECKING ─► RIGHT or FAILED

A whole copy::

    NEW ─► DROPPING ─► READING_ROWS ─► REPAIRING ─► RIGHT or FAILED
                            └─► FETCHING_ROWS ─► READING_NEW_ROWS ─► REPAIRING

Rules: A source's cell is believed only when it has been read from the disk again. Rows are fetched only if those here
cannot be read, or if there are none. A block that fails does not keep the others from being repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, TypeAlias

from datanode_processors.errors import BlockError
from datanode_processors.repair.core.copy_look import CopyDropped, CopyKept
from datanode_processors.repair.core.instructions import (
    CheckCells,
    CountFiles,
    DropIfDeleted,
    FetchCells,
    FetchRows,
    FindBadCells,
    ForgetCopy,
    Instructions,
    LogLine,
    LookSoon,
    ReadRows,
    RepairBlock,
)
from schemas.stream_errors import FAILED, NOT_COMMITTED
from schemas.transitions import handler_of


class RepairState(Enum):
    """How far a repair is; RIGHT and FAILED end it."""

    NEW = auto()
    READING = auto()
    FETCHING = auto()
    CHECKING = auto()
    DROPPING = auto()
    READING_ROWS = auto()
    FETCHING_ROWS = auto()
    READING_NEW_ROWS = auto()
    REPAIRING = auto()
    RIGHT = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class RepairBegins:
    """The repair is to begin; the first event."""


@dataclass(frozen=True, slots=True)
class CellsRead:
    """A block was read from the disk."""

    bad: tuple[int, ...]
    """Cells, ascending, whose bytes are not the row's."""
    sources: tuple[str, ...]
    """Addresses of datanodes that may hold the container too."""


@dataclass(frozen=True, slots=True)
class CellsCame:
    """A source has sent all of the cells that were asked for, some or none."""

    cells: frozenset[int]
    refusal: str = ""
    """Why the other cells did not come; empty if all came."""


@dataclass(frozen=True, slots=True)
class CellsChecked:
    """Cells were read from the disk again."""

    bad: tuple[int, ...]
    """Cells that are still not right, ascending."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The copy's rows were read."""

    local_ids: tuple[int, ...]
    """Local ids of the copy's blocks, ascending; empty if the rows cannot be read, or there are none."""
    sources: tuple[str, ...]
    """Addresses of datanodes that may hold the container too."""
    error: BlockError | None = None
    """Why the rows cannot be read."""


@dataclass(frozen=True, slots=True)
class RowsTaken:
    """A source's rows have replaced those that were here."""

    source: str
    """The source's name."""


@dataclass(frozen=True, slots=True)
class RowsReadable:
    """The rows here can be read after all, and stay."""


@dataclass(frozen=True, slots=True)
class RowsRefused:
    """A source did not give its rows, or they could not be written."""

    reason: str


@dataclass(frozen=True, slots=True)
class BlockSettled:
    """A block is right, or is tried again by itself."""


@dataclass(frozen=True, slots=True)
class BlockLeft:
    """A block could not be repaired, and is not tried again by itself."""

    error: BlockError


RepairEvent: TypeAlias = (
    RepairBegins
    | CopyDropped
    | CopyKept
    | CellsRead
    | CellsCame
    | CellsChecked
    | RowsRead
    | RowsTaken
    | RowsReadable
    | RowsRefused
    | BlockSettled
    | BlockLeft
)
Transitions: TypeAlias = Mapping[tuple[RepairState, type], Callable[[Any, Any], Instructions]]


class CopyRepair:
    """What both repairs share. Pass it events and carry out what it says; it has ended when it
    asks for nothing more.
    """

    TRANSITIONS: ClassVar[Transitions] = {}

    def __init__(self, container_id: int) -> None:
        self.state = RepairState.NEW
        self.failure: BlockError | None = None
        """Why it has FAILED."""
        self._container_id = container_id
        self._left: list[str] = []
        """Sources that were not asked yet."""
        self._refusals: list[str] = []

    def step(self, event: RepairEvent) -> Instructions:
        """Take an event and return what is to be done; raises NoSuchTransition."""
        return handler_of(self.TRANSITIONS, self.state, event)(self, event)

    def _end(self, failure: BlockError | None = None) -> Instructions:
        self.failure = failure
        self.state = RepairState.RIGHT if failure is None else RepairState.FAILED
        return ()

    def _said(self) -> str:
        return "; ".join(self._refusals) or "no source"


class BlockRepair(CopyRepair):
    """The repair of one block."""

    def __init__(self, container_id: int, local_id: int) -> None:
        super().__init__(container_id)
        self._name = f"the copy of block {container_id}/{local_id} here"
        self._bad: tuple[int, ...] = ()
        self._missing: tuple[int, ...] = ()
        """Bad cells that have not come yet."""
        self._source = ""

    def _begin(self, _: RepairBegins) -> Instructions:
        self.state = RepairState.READING
        return (FindBadCells(),)

    def _read(self, event: CellsRead) -> Instructions:
        if not event.bad:
            return self._end()
        self._bad = self._missing = event.bad
        self._left = list(event.sources)
        return self._ask_next()

    def _ask_next(self) -> Instructions:
        if self._missing and self._left:
            self.state = RepairState.FETCHING
            self._source = self._left.pop(0)
            return (FetchCells(self._source, self._missing),)
        self.state = RepairState.CHECKING
        return (CheckCells(self._bad),)

    def _came(self, event: CellsCame) -> Instructions:
        self._missing = tuple(cell for cell in self._missing if cell not in event.cells)
        if event.refusal:
            self._refusals.append(f"{self._source}: {event.refusal}")
        return self._ask_next()

    def _checked(self, event: CellsChecked) -> Instructions:
        if event.bad:
            message = (
                f"{self._name} is damaged in {len(event.bad)} cells, the first is {event.bad[0]}, "
                "that are not to be had"
            )
            return self._end(BlockError(NOT_COMMITTED, f"{message} ({self._said()})"))
        self._end()
        return CountFiles(), LogLine(f"{self._name} is repaired: {len(self._bad)} cells")

    TRANSITIONS: ClassVar[Transitions] = {
        (RepairState.NEW, RepairBegins): _begin,
        (RepairState.READING, CellsRead): _read,
        (RepairState.FETCHING, CellsCame): _came,
        (RepairState.CHECKING, CellsChecked): _checked,
    }


class WholeRepair(CopyRepair):
    """The repair of a copy whose rows cannot be read, or that has too many damaged blocks to list each."""

    def __init__(self, container_id: int) -> None:
        super().__init__(container_id)
        self._name = f"container {container_id}"
        self._source = ""
        self._blocks: list[int] = []
        """Local ids of the blocks that were not repaired yet."""
        self._first_left: BlockError | None = None

    def _begin(self, _: RepairBegins) -> Instructions:
        self.state = RepairState.DROPPING
        return (DropIfDeleted(),)

    def _dropped(self, _: CopyDropped) -> Instructions:
        self._end()
        return LogLine(f"{self._name}: no block of the copy here is left, and it is dropped"), ForgetCopy()

    def _kept(self, _: CopyKept) -> Instructions:
        self.state = RepairState.READING_ROWS
        return (ReadRows(),)

    def _rows_read(self, event: RowsRead) -> Instructions:
        if event.local_ids:
            return self._new_rows_read(event)
        self._left = list(event.sources)
        return self._ask_next()

    def _ask_next(self) -> Instructions:
        if self._left:
            self.state = RepairState.FETCHING_ROWS
            self._source = self._left.pop(0)
            return (FetchRows(self._source),)
        return self._end(BlockError(FAILED, f"the rows of {self._name} are not to be had ({self._said()})"))

    def _rows_refused(self, event: RowsRefused) -> Instructions:
        self._refusals.append(f"{self._source}: {event.reason}")
        return self._ask_next()

    def _rows_taken(self, event: RowsTaken) -> Instructions:
        self.state = RepairState.READING_NEW_ROWS
        # The new rows may be of another copy, and older than those that were here.
        return LogLine(f"{self._name}: the rows of the copy here are taken from {event.source}"), LookSoon(), ReadRows()

    def _rows_readable(self, _: RowsReadable) -> Instructions:
        self.state = RepairState.READING_NEW_ROWS
        return (ReadRows(),)

    def _new_rows_read(self, event: RowsRead) -> Instructions:
        if event.error is not None:
            return self._end(event.error)
        self._blocks = list(event.local_ids)
        return self._repair_next()

    def _repair_next(self) -> Instructions:
        if not self._blocks:
            return self._end(self._first_left)
        self.state = RepairState.REPAIRING
        return (RepairBlock(self._blocks.pop(0)),)

    def _settled(self, _: BlockSettled) -> Instructions:
        return self._repair_next()

    def _block_left(self, event: BlockLeft) -> Instructions:
        self._first_left = self._first_left or event.error
        return self._repair_next()

    TRANSITIONS: ClassVar[Transitions] = {
        (RepairState.NEW, RepairBegins): _begin,
        (RepairState.DROPPING, CopyDropped): _dropped,
        (RepairState.DROPPING, CopyKept): _kept,
        (RepairState.READING_ROWS, RowsRead): _rows_read,
        (RepairState.FETCHING_ROWS, RowsTaken): _rows_taken,
        (RepairState.FETCHING_ROWS, RowsRefused): _rows_refused,
        (RepairState.FETCHING_ROWS, RowsReadable): _rows_readable,
        (RepairState.READING_NEW_ROWS, RowsRead): _new_rows_read,
        (RepairState.REPAIRING, BlockSettled): _settled,
        (RepairState.REPAIRING, BlockLeft): _block_left,
    }
