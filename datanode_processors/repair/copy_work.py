"""Looks and repairs of copies.

The machines (``core/copy_look``, ``core/copy_repair``) say what is to be done, ``copy_actions`` does it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any, Protocol

from datanode_processors.errors import BlockError
from datanode_processors.repair.copies import Copies
from datanode_processors.repair.copy_actions import CopyActions, is_live
from datanode_processors.repair.copy_sources import CopySources
from datanode_processors.repair.core.copy_look import CopyLook, LookBegins, LookState
from datanode_processors.repair.core.copy_repair import (
    BlockLeft,
    BlockRepair,
    BlockSettled,
    CopyRepair,
    RepairBegins,
    RowsRead,
    WholeRepair,
)
from datanode_processors.repair.core.instructions import (
    AskForRows,
    CheckCells,
    CompareLengths,
    CountFiles,
    DeleteHere,
    DropIfDeleted,
    FetchCells,
    FetchRows,
    FindBadCells,
    ForgetCopy,
    Instruction,
    LogLine,
    LookSoon,
    ReadRows,
    RepairBlock,
)
from replicated_db.shell.logs import Note
from schemas import stream_errors as codes
from schemas.records.datanode import BlockRow


class CopyReports(Protocol):
    """Receives what a look or a repair has found."""

    def gone(self, container_id: int) -> None:
        """A copy has gone: nothing of it is left to do."""

    def look_soon(self, container_id: int) -> None:
        """Look at a copy again: its rows have come from another datanode."""

    def on_left(self, container_id: int, local_id: int, reason: str) -> bool:
        """The repair of a whole copy could not repair this block: return whether it is tried again by itself."""


class CopyWork:
    """The work on one datanode's copies; for one thread."""

    def __init__(
        self, actions: CopyActions, copies: Copies, sources: CopySources, reports: CopyReports, *, note: Note,
        stopping: Event,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._copies = copies
        self._sources = sources
        self._reports = reports
        self._note = note
        self._stopping = stopping

    def look(self, container_id: int) -> LookState:
        """Look at a copy and return how the look has ended: GONE, HEARD or SILENT."""
        look = CopyLook(container_id)
        _drive(look, LookBegins(), lambda instruction: self._carry_out(container_id, instruction))
        return look.state

    def repair_whole(self, container_id: int) -> None:
        """Make the copy's rows readable, then every block right.

        Blocks that cannot be repaired become damaged one by one, so that one block that nobody has right does not make
        all be read again. Raises BlockError for the first that finds no place among MAX_DAMAGED.
        """
        if not self._actions.is_copy(container_id):
            return
        rows: dict[int, BlockRow] = {}

        def carry_out(instruction: Instruction) -> Any:
            if isinstance(instruction, RepairBlock):
                return self._settle(container_id, instruction.local_id, rows[instruction.local_id])
            if not isinstance(instruction, ReadRows):
                return self._carry_out(container_id, instruction)
            sources = self._sources.of(container_id)
            try:
                rows.update(self._copies.stored(container_id))
            except BlockError as error:
                return RowsRead((), sources, error)
            return RowsRead(tuple(sorted(rows)), sources)

        _drive(WholeRepair(container_id), RepairBegins(), carry_out)

    def _settle(self, container_id: int, local_id: int, row: BlockRow) -> BlockSettled | BlockLeft:
        """Repair a block of a copy that is repaired as a whole."""
        if self._stopping.is_set():
            raise BlockError(codes.STOPPING, f"container {container_id}: the datanode is stopping")
        try:
            self.repair_block(container_id, local_id, row)
        except BlockError as error:  # the other blocks may still be repaired
            if self._stopping.is_set() or not self._reports.on_left(container_id, local_id, error.message):
                return BlockLeft(error)
        return BlockSettled()

    def repair_block(self, container_id: int, local_id: int, row: BlockRow | None) -> None:
        """Make a block's bytes right; raises BlockError if nobody has all of them."""
        if not is_live(row):
            return
        actions = self._actions

        def carry_out(instruction: Instruction) -> Any:
            match instruction:
                case FindBadCells():
                    return actions.find_bad_cells(container_id, local_id, row)
                case FetchCells():
                    return actions.fetch_cells(container_id, local_id, row, instruction)
                case CheckCells():
                    return actions.check_cells(container_id, local_id, row, instruction)
            return self._carry_out(container_id, instruction)

        _drive(BlockRepair(container_id, local_id), RepairBegins(), carry_out)

    def _carry_out(self, container_id: int, instruction: Instruction) -> Any:
        """Do what a machine asks for, and return the event that results, if any; raises BlockError."""
        actions = self._actions
        match instruction:
            case LogLine():
                return self._note(instruction.text)
            case DropIfDeleted():
                return actions.drop(container_id)
            case ForgetCopy():
                return self._reports.gone(container_id)
            case CompareLengths():
                return actions.compare_lengths(container_id, actions.rows(container_id))
            case AskForRows():
                return actions.ask_for_rows(container_id, instruction)
            case DeleteHere():
                return actions.delete(container_id, instruction)
            case FetchRows():
                return actions.fetch_rows(container_id, instruction)
            case CountFiles():
                return self._copies.recount(container_id)
            case LookSoon():
                return self._reports.look_soon(container_id)
        raise TypeError(f"a {type(instruction).__name__} is for somebody else")


def _drive(machine: CopyLook | CopyRepair, event: Any, carry_out: Callable[[Instruction], Any]) -> None:
    """Feed a machine events and do what it says, until it asks for nothing more; raises the failure of a repair."""
    while event is not None:
        answers = [carry_out(instruction) for instruction in machine.step(event)]
        event = next((answer for answer in answers if answer is not None), None)
    if isinstance(machine, CopyRepair) and machine.failure is not None:
        raise machine.failure
