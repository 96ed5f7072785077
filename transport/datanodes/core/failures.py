"""What a connection to a datanode reports: one exception, and the words of each package for what was wrong. Pure.

A datanode's ERROR keeps its own code. For a fault that the connection itself finds, ``FailureWords`` has the status;
a package that tells others what it met (a datanode) has other words than one that only decides what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from schemas import stream_errors
from schemas.conversation.conversation import ConversationFault

UNREACHABLE = "UNREACHABLE"
"""Status of a DatanodeFailed: the connection could not be made, or broke."""


class DatanodeFailed(Exception):
    """A datanode refused, failed or could not be reached.

    ``status`` is a code of ``schemas/stream_errors.py``, or UNREACHABLE; ``datanode`` is the one to blame (empty:
    nobody knows); ``doing`` is the request; ``offset`` is up to where all datanodes of a stream have the bytes;
    ``hint`` is the datanode to ask instead.

    >>> print(DatanodeFailed("DISK_FULL", "no space", datanode="dn2", doing="OPEN of block 1/2"))
    DISK_FULL: dn2: OPEN of block 1/2: no space
    """

    def __init__(
        self, status: str, message: str, *, datanode: str = "", doing: str = "", offset: int = 0, hint: str = ""
    ) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.datanode = datanode
        self.doing = doing
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        """Return status, datanode, request and message in one line."""
        return f"{self.status}: " + ": ".join(part for part in (self.datanode, self.doing, self.message) if part)


class ConnectionFault(Enum):
    """What is wrong with a connection, beside what its conversation finds (``ConversationFault``)."""

    NO_ADDRESS = "no address host:port"
    NO_DESCRIPTOR = "this process, or its host, has run out of descriptors"
    NO_ANSWER = "the connection could not be made in time"
    UNREACHABLE = "nobody listens, or the connection broke"
    SILENT = "nothing came, or was taken, in time"
    UNREADABLE_RECORD = "a whole payload that is not the record expected there"
    WRONG_NAME = "HELLO has another name than the certificate"


STATUSES: Mapping[ConversationFault | ConnectionFault, str] = {
    ConversationFault.BAD_FRAME: stream_errors.BAD_FRAME,
    ConversationFault.UNREADABLE: stream_errors.BAD_FRAME,
    ConversationFault.WRONG_CLUSTER: stream_errors.WRONG_CLUSTER,
    ConversationFault.UNSUPPORTED_VERSION: stream_errors.UNSUPPORTED_VERSION,
    # Two names must not lead to one datanode: its answer would count twice in a watch.
    ConversationFault.OTHER_DATANODE: UNREACHABLE,
    ConversationFault.OUT_OF_PLACE: stream_errors.BAD_FRAME,
    ConversationFault.CUT_OFF: UNREACHABLE,
    ConnectionFault.NO_ADDRESS: UNREACHABLE,
    ConnectionFault.NO_DESCRIPTOR: UNREACHABLE,
    ConnectionFault.NO_ANSWER: UNREACHABLE,
    ConnectionFault.UNREACHABLE: UNREACHABLE,
    ConnectionFault.SILENT: stream_errors.TIMED_OUT,
    ConnectionFault.UNREADABLE_RECORD: stream_errors.BAD_FRAME,
    ConnectionFault.WRONG_NAME: stream_errors.PERMISSION_DENIED,
}
"""A client's status for each fault."""


@dataclass(frozen=True, slots=True)
class FailureWords:
    """How a package says what a connection reports: its exception, and the status of each fault."""

    fails: Callable[..., DatanodeFailed] = DatanodeFailed
    """Makes the exception; its arguments are those of DatanodeFailed."""
    statuses: Mapping[ConversationFault | ConnectionFault, str] = field(default_factory=lambda: STATUSES)


ENDED = frozenset({UNREACHABLE, stream_errors.FAILED, stream_errors.BAD_FRAME, stream_errors.STOPPING})
"""Statuses after which a request that went over a kept connection is sent once more, over a fresh one."""
BROKEN = ENDED | {stream_errors.TIMED_OUT}
"""Statuses after which a connection is not kept."""
