"""What can go wrong, in three kinds: fix the input, stop the process, or give up leadership.

Nothing here is caught and swallowed: a :class:`Refused` becomes an answer, a :class:`StopProcess` ends the process
with its message as the reason.
"""

from __future__ import annotations


class Refused(ValueError):
    """The caller's operations are not legal; nothing has happened. The message names the input."""


class StopProcess(Exception):
    """The replica must not go on; an operator has to look. The log is never skipped past."""


class AheadOfLog(StopProcess):
    """AHEAD_OF_LOG: the log is not the one that this replica has read, or part of it was missed."""

    def __init__(self, message: str) -> None:
        super().__init__(f"AHEAD_OF_LOG: {message}")


class BrokenLog(StopProcess):
    """A counting record contradicts what precedes it, or cannot be understood."""


class WrongCluster(StopProcess):
    """The log belongs to another cluster, or to one with other fixed settings."""


class UpgradeNeeded(StopProcess):
    """The log has reached a feature level that this software does not know."""


class StoreFailure(StopProcess):
    """The local store failed; it is never written around."""
