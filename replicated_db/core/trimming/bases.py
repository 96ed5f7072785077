"""The bases of a log: records from which a reader can begin that has not read what lies before.

A *base* is a DigestBase whose next record that takes effect is a Members record. The first gives the sums of all rows,
the index and the chain; the second says who the members are. A leader appends both at once. It may die in between, so a
base counts only once its Members record has been read.

A replica remembers the last MAX_BASES bases that agree with its own digests, in a row of its own (``#BASES``).
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

MAX_BASES = 64
"""Bases that a replica remembers. Regular trimming logs one for each sixteenth of the time that it keeps."""

_ENTRY = struct.Struct(">qq32s?")


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """A base: its DigestBase's offset, the managed index there, and the chain after it (32 bytes).

    Members with the same base have read the same log up to there: the chain commits to all of it. A member that has
    read a tail which the brokers have lost may name the offset and the index of a base that the log has now.
    """

    offset: int
    index: int
    chain: bytes


class Bases:
    """The bases that one replica has read."""

    def __init__(self, stored: bytes | None, offset: int) -> None:
        """Restore them from the row ``stored``; ``offset`` is that of the replica's position.

        Raises struct.error for foreign bytes.
        """
        found = [(Base(*fields), is_whole) for *fields, is_whole in _ENTRY.iter_unpack(stored or b"")]
        self.whole: tuple[Base, ...] = tuple(base for base, is_whole in found if is_whole)
        # The process may have ended right after a DigestBase: its Members record may be the next one.
        self._open = next((base for base, is_whole in found if not is_whole and base.offset == offset), None)

    def on_digest_base(self, base: Base) -> bytes:
        """Take a DigestBase that agrees with the replica; return the row to write with it."""
        self._open = base
        return self._row()

    def on_other(self, *, is_members: bool) -> bytes | None:
        """Take any other record that takes effect; return the row to write with it, None if nothing has changed."""
        base, self._open = self._open, None
        if base is None or not is_members:
            return None
        self.whole = (*self.whole, base)[-MAX_BASES:]
        return self._row()

    def _row(self) -> bytes:
        rows = [_ENTRY.pack(*astuple(base), True) for base in self.whole]
        return b"".join(rows if self._open is None else [*rows, _ENTRY.pack(*astuple(self._open), False)])
