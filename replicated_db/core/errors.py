"""What can go wrong, in three kinds: fix the input, stop the process, or give up leadership.

Nothing here is caught and swallowed: a :class:`Refused` becomes an answer, a :class:`StopProcess` ends the process
with its message as the reason.
"""

from __future__ import annotations


class Refused(ValueError):
    """The caller's operations are not legal; nothing has happened. The message names the input."""


class DigestsDiffer(Refused):
    """A digest base differs from the digests that its shard's leader holds."""


class NotSettled(Refused):
    """The request needs every earlier batch to be effective and applied, and one is not; ask again."""


class StopProcess(Exception):
    """The replica must not go on; an operator has to look. A replica never skips part of the log."""


class AheadOfLog(StopProcess):
    """AHEAD_OF_LOG: the log is not the one that this replica has read, or part of it was missed."""

    def __init__(self, message: str) -> None:
        super().__init__(f"AHEAD_OF_LOG: {message}")


class NeedsCheckpoint(AheadOfLog):
    """The log no longer has what this replica needs next: it needs a checkpoint from a peer."""


class BrokenLog(StopProcess):
    """A counting record contradicts what precedes it, or cannot be understood."""


def corrupt_record(topic: str, partition: int, offset: int, said: str) -> BrokenLog:
    """Return the error for a record that fails its checksum.

    The record is damaged on the disk of the broker that serves it, or on the way from there.
    """
    return BrokenLog(
        f"{topic}/{partition}: the record at offset {offset} fails its checksum ({said}). Nothing of it was applied. "
        "If the broker's disk is at fault, stop that broker, remove the partition's directory and start it again: "
        "it copies the others' replica"
    )


class WrongCluster(StopProcess):
    """The log belongs to another cluster, or to one with other fixed settings."""


class UpgradeNeeded(StopProcess):
    """The log has reached a feature level that this software does not know."""


class StoreFailure(StopProcess):
    """The local store failed. Nothing goes on without it."""
