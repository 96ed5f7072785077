"""Reading a log when the broker that answers may not know its end.

A broker that is cut off from the others serves an old end (decision 0026). So a replica may have read further than the
end that such a broker reports. Rules:
    - A position beyond the end is no error of the replica's for END_BEHIND_WAIT_S: another broker may know better. The
      caller tries again.
    - If brokers say so for longer, and serve no record in between, the log has lost what this replica has read:
      AHEAD_OF_LOG.
    - A position before the log's first record is AHEAD_OF_LOG at once: the records in between are gone. The process
      ends, and installs a peer's checkpoint when it starts again (``NeedsCheckpoint``).
"""

from __future__ import annotations

from collections.abc import Sequence

from replicated_db.core.errors import AheadOfLog, NeedsCheckpoint
from replicated_db.core.ports import Entry, Log, LogUnavailable, OffsetOutOfRange

END_BEHIND_WAIT_S = 30.0
"""How long to wait while the log's end is at or below the replica's position: a cut-off broker serves an old end."""


class EndBehind(LogUnavailable):
    """The broker that was asked says that the log ends before the position."""


def read_log(log: Log, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
    """Return what ``Log.read`` returns; judge an offset that is not in the log by the rules above.

    Raises EndBehind and AheadOfLog, and what ``Log.read`` raises except OffsetOutOfRange.
    """
    try:
        return log.read(offset, limit, wait_s)
    except OffsetOutOfRange as error:
        low = log.bounds().first
        if offset < low:
            raise NeedsCheckpoint(
                f"{error}: the log's first record is {low}; this replica needs a checkpoint from a peer"
            ) from error
        raise EndBehind(f"the log ends before offset {offset}, says the broker that was asked: {error}") from error


class EndPatience:
    """Measures how long brokers have said that the log ends before one replica's position."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def on_answer(self) -> None:
        """Take note that the log has answered, and not with an end before the position."""
        self._since_s = None

    def on_failure(self, error: LogUnavailable, now_s: float) -> None:
        """Take note of an attempt that failed at ``now_s``.

        Raises AheadOfLog if the end has been behind for END_BEHIND_WAIT_S.
        """
        if not isinstance(error, EndBehind):
            return
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s > END_BEHIND_WAIT_S:
            raise AheadOfLog(f"{error}; it has been so for {END_BEHIND_WAIT_S:.0f} s") from error
