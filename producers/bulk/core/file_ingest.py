"""A file whose metadata becomes a key: createKey, then commitKey, and how that may end. Pure.

===========  ===============================  =====================================================================
state        event                            what follows
===========  ===============================  =====================================================================
WAITING      ``begin``                        OpenFile
OPENING      ``on_opened``                    CommitFile
OPENING      ``on_refused``                   FileEnded: no key was opened, or it cannot be committed and will expire
COMMITTING   ``on_committed``                 FileEnded without a status: the key is visible
COMMITTING   ``on_refused``                   FileEnded: the open key expires; or the outcome is unknown, as its
                                              status says
===========  ===============================  =====================================================================

Nothing is tried again here: the client sends each request again until its deadline, and an ingest may be run again.
COMMITTED and FAILED take no event, so that a file ends once, and is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from schemas.records.rows import BlockLocation
from schemas.transitions import next_state


class FileState(Enum):
    """Where a file of an ingest is on its way."""

    WAITING = "waiting"
    OPENING = "opening"
    COMMITTING = "committing"
    COMMITTED = "committed"
    FAILED = "failed"


class FileEvent(Enum):
    """What happens to it."""

    BEGUN = "begun"
    OPENED = "opened"
    TAKEN = "committed"
    REFUSED = "refused"


FILE_TABLE: Mapping[FileState, Mapping[FileEvent, FileState]] = {
    FileState.WAITING: {FileEvent.BEGUN: FileState.OPENING},
    FileState.OPENING: {FileEvent.OPENED: FileState.COMMITTING, FileEvent.REFUSED: FileState.FAILED},
    FileState.COMMITTING: {FileEvent.TAKEN: FileState.COMMITTED, FileEvent.REFUSED: FileState.FAILED},
    FileState.COMMITTED: {},
    FileState.FAILED: {},
}


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Send createKey."""


@dataclass(frozen=True, slots=True)
class CommitFile:
    """Send commitKey, of this session and these blocks."""

    session_id: int
    blocks: Sequence[BlockLocation]


@dataclass(frozen=True, slots=True)
class FileEnded:
    """Count the file: committed (``status`` None) or failed."""

    status: str | None
    message: str = ""


class FileIngest:
    """One file on its way; each event may come once, in the order of the table, else it is a NoSuchTransition."""

    def __init__(self) -> None:
        self.state = FileState.WAITING

    def begin(self) -> OpenFile:
        """Begin with the file."""
        self._move(FileEvent.BEGUN)
        return OpenFile()

    def on_opened(self, session_id: int, blocks: Sequence[BlockLocation]) -> CommitFile:
        """Take the session of the key that was opened, and the blocks that hold it."""
        self._move(FileEvent.OPENED)
        return CommitFile(session_id, blocks)

    def on_committed(self) -> FileEnded:
        """Note that the key is visible."""
        self._move(FileEvent.TAKEN)
        return FileEnded(None)

    def on_refused(self, status: str, message: str) -> FileEnded:
        """Note that a request failed, could not be sent, or had an answer that is of no use."""
        self._move(FileEvent.REFUSED)
        return FileEnded(status, message)

    def _move(self, event: FileEvent) -> None:
        self.state = next_state(FILE_TABLE, self.state, event)


FileStep = OpenFile | CommitFile | FileEnded
