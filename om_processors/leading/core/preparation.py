"""When a shard takes a snapshot: at once, or when its newest rows have been written to files. Pure.

A snapshot is a checkpoint, and a checkpoint writes to files what is in memory. The shard takes no other request
meanwhile, so it should be little. If it is more, it is written beside the leader's work first, and CreateSnapshot is
refused with OVERLOADED until then: the client sends it again. What comes in between is little again.

======= ======== ============================== ======================
state   event    if                             then
======= ======== ============================== ======================
IDLE    asked    few rows are in memory         admit, IDLE
IDLE    asked                                   write, refuse, WRITING
WRITING asked    for MAX_WRITING_MS or longer   admit, WRITING
WRITING asked                                   refuse, WRITING
WRITING written                                 READY
READY   asked    for READY_MS at most           admit, READY
READY   asked                                   as in IDLE
======= ======== ============================== ======================

So nobody is refused for long: a disk that writes slowly delays a snapshot by MAX_WRITING_MS, and the checkpoint waits
for it as it would have done without all this.
"""

from __future__ import annotations

from enum import Enum

PREPARED_ROWS = 5_000
"""With so many rows in memory, or fewer, a snapshot is taken at once."""

READY_MS = 2_000
"""For so long after the rows were written, snapshots are taken at once. A client comes back much sooner."""

MAX_WRITING_MS = 2_000
"""For so long snapshots wait for rows that are being written, at most."""

RETRY_AFTER_MS = 50
"""When a client should ask again."""


class PreparationState(Enum):
    """Where the newest rows are."""

    IDLE = "in memory"
    WRITING = "being written"
    READY = "written shortly before"


class Admission(Enum):
    """What to do with a request for a snapshot."""

    ADMIT = "take the snapshot"
    REFUSE = "refuse"
    WRITE = "begin to write, and refuse"


class SnapshotPreparation:
    """Decides for one shard; for one thread at a time."""

    def __init__(self) -> None:
        self.state = PreparationState.IDLE
        self._since_ms = 0

    def on_asked(self, rows: int, now_ms: int) -> Admission:
        """Take a request for a snapshot while ``rows`` rows are in memory. After WRITE, :meth:`on_written` follows."""
        waited_ms = now_ms - self._since_ms
        if self.state is PreparationState.WRITING:
            return Admission.ADMIT if waited_ms >= MAX_WRITING_MS else Admission.REFUSE
        if rows <= PREPARED_ROWS or (self.state is PreparationState.READY and waited_ms <= READY_MS):
            return Admission.ADMIT
        self._enter(PreparationState.WRITING, now_ms)
        return Admission.WRITE

    def on_written(self, now_ms: int) -> None:
        """Take note that the rows have been written."""
        self._enter(PreparationState.READY, now_ms)

    def _enter(self, state: PreparationState, now_ms: int) -> None:
        self.state = state
        self._since_ms = now_ms
