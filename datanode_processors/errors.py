"""The one error of the datanode's protocol: a code and a message that names the input.

Rule: whatever the peer, the disk or the state of a pipeline makes impossible is a :class:`BlockError`, which becomes a
StreamError on the wire. Any other exception is a defect, and is answered with FAILED.
"""

from __future__ import annotations

from transport.datanodes.core.failures import DatanodeFailed

MAX_MESSAGE_CHARACTERS = 2_000
"""Limit of an error's message in characters. Messages go to peers and into logs, and may repeat a peer's text."""
MAX_NAME_CHARACTERS = 255
"""The same limit for names and addresses that peers give."""
UNKNOWN_OFFSET = -1
"""Offset of an error that does not say how far a stream came."""


def shown(text: str, limit: int) -> str:
    r"""Return a peer's text as it may be logged: at most ``limit`` characters, no line breaks, nothing invisible.

    >>> shown("a\nb" * 10, 4)
    'a\\nba… (30 characters)'
    """
    cut = text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)


class BlockError(DatanodeFailed):
    """A stream or request that is refused or has failed: ``code`` is one of ``schemas.stream_errors``.

    ``offset`` (bytes) is what every replica of a stream's tree has, or UNKNOWN_OFFSET. ``hint`` names the leader to ask
    instead (NOT_LEADER), or gives the code of the datanode that failed (DOWNSTREAM_FAILED). ``datanode`` names the
    datanode that failed, if another one reports it. Both may be empty. Texts are cut and made visible (``shown``).
    """

    def __init__(
        self, code: str, message: str, offset: int = UNKNOWN_OFFSET, hint: str = "", datanode: str = "", doing: str = ""
    ) -> None:
        super().__init__(
            shown(code, MAX_NAME_CHARACTERS), shown(message, MAX_MESSAGE_CHARACTERS), offset=offset,
            hint=shown(hint, MAX_NAME_CHARACTERS), datanode=shown(datanode, MAX_NAME_CHARACTERS), doing=doing,
        )  # fmt: skip
        self.code = self.status

    def __str__(self) -> str:
        """Return code and message in one line."""
        return f"{self.code}: {self.message}"
