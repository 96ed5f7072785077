"""What the machines of copies ask for: small values, which ``copy_upkeep`` and ``copy_actions`` carry out. Pure.

The docstring of an instruction ends with the events that may answer it; an instruction without events has no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LogLine:
    """Log a message."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportHealth:
    """Have a heartbeat sent: health has changed."""


# -- what comes next (``upkeep_plan``)


@dataclass(frozen=True, slots=True)
class SaveSources:
    """Write whom to ask about copies."""


@dataclass(frozen=True, slots=True)
class LookAt:
    """Look at a copy (``copy_look``)."""

    container_id: int


@dataclass(frozen=True, slots=True)
class RepairOne:
    """Repair a block of a copy; with WHOLE as its local id, the copy's rows and all its blocks (``copy_repair``)."""

    container_id: int
    local_id: int


Task: TypeAlias = SaveSources | LookAt | RepairOne

# -- of a look, and of the repair of a whole copy


@dataclass(frozen=True, slots=True)
class DropIfDeleted:
    """Remove the copy if no block of it is left: CopyDropped, CopyKept."""


@dataclass(frozen=True, slots=True)
class ForgetCopy:
    """Forget the copy: it has gone, and nothing of it is left to do."""


@dataclass(frozen=True, slots=True)
class CompareLengths:
    """Compare the rows' lengths with the files: LengthsCompared."""


@dataclass(frozen=True, slots=True)
class AskForRows:
    """Ask a source for its rows if it is a member, which a question about a block shows: MemberAnswered, NotHeard."""

    address: str
    local_id: int


@dataclass(frozen=True, slots=True)
class DeleteHere:
    """Delete the blocks of the copy that a member has deleted: DeletedHere, NotDeleted."""

    local_ids: tuple[int, ...]
    member: str


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read the copy's rows from the disk: RowsRead."""


@dataclass(frozen=True, slots=True)
class FetchRows:
    """Put a source's rows in place of those that cannot be read: RowsTaken, RowsRefused, RowsReadable."""

    address: str


@dataclass(frozen=True, slots=True)
class LookSoon:
    """Look at the copy again: its rows may be older than those that were here."""


@dataclass(frozen=True, slots=True)
class RepairBlock:
    """Make one block of the copy right: BlockSettled, BlockLeft."""

    local_id: int


# -- of the repair of a block


@dataclass(frozen=True, slots=True)
class FindBadCells:
    """Read the block from the disk: CellsRead."""


@dataclass(frozen=True, slots=True)
class FetchCells:
    """Take cells (ascending) from a source, each only if it has the row's checksum: CellsCame."""

    address: str
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckCells:
    """Read cells from the disk again: CellsChecked."""

    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountFiles:
    """Count the copy's files anew."""


Instruction: TypeAlias = (
    LogLine
    | ReportHealth
    | DropIfDeleted
    | ForgetCopy
    | CompareLengths
    | AskForRows
    | DeleteHere
    | ReadRows
    | FetchRows
    | LookSoon
    | RepairBlock
    | FindBadCells
    | FetchCells
    | CheckCells
    | CountFiles
)
Instructions: TypeAlias = tuple[Instruction, ...]
