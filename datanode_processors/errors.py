"""The one error of the datanode's protocol: a code and a message that names the input.

Rule: whatever the peer, the disk or the state of a pipeline makes impossible is a :class:`BlockError`; it becomes a StreamError on the
wire. Any other exception is a defect, and is answered with FAILED.
"""

from __future__ import annotations

UNKNOWN_OFFSET = -1
"""Offset of an error that tells nothing of how far a stream came."""


class BlockError(Exception):
    """A stream or request that is refused or has failed: ``code`` is one of ``schemas.stream_errors``.

    ``offset`` (bytes) is what every replica of a stream's tree has, or UNKNOWN_OFFSET; ``hint`` says whom to ask instead (NOT_LEADER)
    or the code that the failed datanode gave (DOWNSTREAM_FAILED); ``datanode`` names the one that failed, if it is not the one that
    says so. Both may be empty.
    """

    def __init__(
        self, code: str, message: str, offset: int = UNKNOWN_OFFSET, hint: str = "", datanode: str = ""
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.offset = offset
        self.hint = hint
        self.datanode = datanode
