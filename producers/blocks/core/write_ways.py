"""THE table of the ways on which bytes are written: whoever writes bytes asks it, and nobody else chooses. Pure.

What belongs here: from what is known of a key or a block, the way that its bytes go; and what follows when a way is
refused, or fails half-way. Who asks: ``files/key_files`` (a key is opened), ``files/inline_keys`` (it is written,
flushed, closed), ``blocks/block_writer`` (its blocks), ``blocks/block_commit`` and ``background_commits`` (their
lengths).

**A key.** ``bytes`` are those announced when it is opened, later those written, compared with what the ways take
(:class:`WayLimits`): the *row* takes ``inline_bytes`` of the options, less what the cluster refused within the last
minute (``files/core/inline_limit``; a cluster below the level SMALL_OBJECTS refuses all); a *reserved block* takes the
least of ``small_block_bytes``, ``block_bytes`` and SMALL_FILE_BYTES, and nothing with ``commit_way`` 0. ``stock`` says
whether the bucket's next small key is likely to get a reserved block (``files/core/block_stock``; a cluster below the
level BLOCK_RESERVATIONS reserves none).

========  =======================================  =====  ========
when      bytes                                    stock  way
========  =======================================  =====  ========
opened    none and for the row, for the row        any    HELD
opened    none, for a block                        yes    HELD
opened    none, for a block                        no     OPENED
opened    for neither                              any    OPENED
written   none and for the row, none, for the row  any    HELD
written   for a block                              yes    HELD
written   for a block                              no     OPENED
written   for neither                              any    OPENED
flushed   none and for the row, none               any    HELD
flushed   for the row, for a block, for neither    any    OPENED
closed    none and for the row, for the row        any    PUT
closed    for a block                              any    RESERVED
closed    none, for neither                        any    OPENED
========  =======================================  =====  ========

HELD: the client keeps the bytes. PUT: one PutKey, with the bytes. RESERVED: a reserved block, then CommitReserved.
OPENED: CreateKey, blocks, CommitKey; a key that is opened stays so.

**A block** of an opened key, or a reserved one. It is *small* with 1 to ``small_block_bytes`` bytes, *begun* once a
stream is open or a byte was sent. *Together* says whether it may be written in one exchange: not with ``commit_way`` 0,
and not after NOT_TOGETHER.

===============  =====  =====  ========  ========
when             small  begun  together  way
===============  =====  =====  ========  ========
written          yes    no     yes       KEPT
closed           yes    no     yes       TOGETHER
written, closed  yes    no     no        STREAM
written, closed  yes    yes    any       STREAM
written, closed  no     any    any       STREAM
flushed          any    any    any       STREAM
===============  =====  =====  ========  ========

**The length** of a block that is a stream, by ``commit_way``:

===  ===========  =======  ===============================  ==========================  ========
way  name         stream   PutBlock is sent                 PutBlock is answered when   together
===  ===========  =======  ===============================  ==========================  ========
0    THROUGH_LOG  chunks   by itself, at the stream's end   it is effective             no
1    SEPARATE     packets  by itself, at the stream's end   it is effective             yes
2    ON_STREAM    packets  with the stream's end            it is effective             yes
3    EARLY_CLOSE  packets  by itself, at the stream's end   the leader has appended it  yes
===  ===========  =======  ===============================  ==========================  ========

**A way that is left.** The key is not committed then, its bytes are still held, and the facts change so that the tables
give another way. A way that was left is not tried again for these bytes.

================  ===========  ==========================================================  =======================
state             way          what happened                                               what holds from then on
================  ===========  ==========================================================  =======================
NO_ROWS           PUT          the cluster keeps no bytes in its tables                    no row
ROW_TOO_LARGE     PUT          the cluster's tables take no key of this size               no row
NO_BLOCK          RESERVED     no reserved block has room for the key                      no reserved block
BLOCK_FAILED      RESERVED     the reserved block could not be written                     no reserved block
RESERVATION_GONE  RESERVED     the cluster does not know the reservation                   no reserved block
NOT_TOGETHER      TOGETHER     the exchange was not begun, or not every member watched it  the block goes alone
END_FAILED        ON_STREAM    the stream's end failed, or the one PutBlock on it did      SEPARATE
NOT_WATCHED       EARLY_CLOSE  no majority holds what the leader has appended              SEPARATE
================  ===========  ==========================================================  =======================

A stream that fails is resumed, and a block that is given up is replaced: ``stream_recovery`` and
``files/core/failed_blocks`` have the tables of that.

>>> limits = WayLimits(row_bytes=100, block_bytes=1000)
>>> key_way(KeyMoment.CLOSED, limits.fit(50), stock=True)
<KeyWay.PUT: 'one PutKey'>
>>> key_way(KeyMoment.CLOSED, limits.after(WayLeft.NO_ROWS).fit(50), stock=True)
<KeyWay.RESERVED: 'a reserved block'>
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from itertools import product

from schemas.result_codes import (
    INLINE_TOO_LARGE,
    KEY_NOT_FOUND,
    NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION,
    REQUEST_TOO_LARGE,
)


class KeyMoment(Enum):
    """When the way is asked for."""

    OPENED = "opened"
    WRITTEN = "written"
    FLUSHED = "flushed"
    CLOSED = "closed"

    __hash__ = object.__hash__  # the tables are asked with each write, and Enum's own costs as much as all the rest


class KeyBytes(Enum):
    """What takes so many bytes."""

    NONE_FOR_ROW = "none and for the row"
    """There are none; a row takes a key without bytes, too."""
    NONE = "none"
    """There are none, and no row takes any."""
    FOR_ROW = "for the row"
    FOR_BLOCK = "for a block"
    FOR_NEITHER = "for neither"

    __hash__ = object.__hash__


class KeyWay(Enum):
    """Where a key's bytes go."""

    HELD = "held in the client"
    PUT = "one PutKey"
    RESERVED = "a reserved block"
    OPENED = "CreateKey, blocks, CommitKey"


class BlockWay(Enum):
    """Where a block's bytes go."""

    KEPT = "kept until the block ends"
    TOGETHER = "one exchange, with other blocks"
    STREAM = "a stream of their own"


class CommitWay(IntEnum):
    """How the length of a block is committed."""

    THROUGH_LOG = 0
    """The old way, kept for comparison: chunks of 4 MiB through the log, then PutBlock."""
    SEPARATE = 1
    """End the stream, then PutBlock to the pipeline's leader, then watch."""
    ON_STREAM = 2
    """PutBlock is sent with the end of the stream, then watch."""
    EARLY_CLOSE = 3
    """PutBlock is answered as soon as the leader has appended the entry; the watch validates the length."""


class WayLeft(Enum):
    """Why a way was left, with the key not committed."""

    NO_ROWS = "the cluster keeps no bytes in its tables"
    ROW_TOO_LARGE = "the cluster's tables take no key of this size"
    NO_BLOCK = "no reserved block has room for the key"
    BLOCK_FAILED = "the reserved block could not be written"
    RESERVATION_GONE = "the cluster does not know the reservation"
    NOT_TOGETHER = "the exchange was not begun, or not every member watched it"
    END_FAILED = "the stream's end failed, or the one PutBlock on it did"
    NOT_WATCHED = "no majority holds what the leader has appended"


LEAVES: Mapping[WayLeft, KeyWay | BlockWay | CommitWay] = {
    WayLeft.NO_ROWS: KeyWay.PUT,
    WayLeft.ROW_TOO_LARGE: KeyWay.PUT,
    WayLeft.NO_BLOCK: KeyWay.RESERVED,
    WayLeft.BLOCK_FAILED: KeyWay.RESERVED,
    WayLeft.RESERVATION_GONE: KeyWay.RESERVED,
    WayLeft.NOT_TOGETHER: BlockWay.TOGETHER,
    WayLeft.END_FAILED: CommitWay.ON_STREAM,
    WayLeft.NOT_WATCHED: CommitWay.EARLY_CLOSE,
}
"""The way that each state leaves."""

REFUSALS: Mapping[KeyWay, Mapping[str, WayLeft]] = {
    KeyWay.PUT: {
        NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION: WayLeft.NO_ROWS,
        INLINE_TOO_LARGE: WayLeft.ROW_TOO_LARGE,
        REQUEST_TOO_LARGE: WayLeft.ROW_TOO_LARGE,
    },
    KeyWay.RESERVED: {KEY_NOT_FOUND: WayLeft.RESERVATION_GONE},
    KeyWay.OPENED: {},
}
"""By way, the codes with which the cluster refuses the way itself; any other code refuses the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayLimits:
    """The most bytes of a key that its row, and a reserved block, may take; 0 = none, not even a key without bytes."""

    row_bytes: int
    block_bytes: int

    def fit(self, size_bytes: int) -> KeyBytes:
        """Return what takes ``size_bytes``; the row is the first choice."""
        if 0 < self.row_bytes >= size_bytes:
            return KeyBytes.FOR_ROW if size_bytes else KeyBytes.NONE_FOR_ROW
        if not size_bytes:
            return KeyBytes.NONE
        return KeyBytes.FOR_BLOCK if size_bytes <= self.block_bytes else KeyBytes.FOR_NEITHER

    def after(self, left: WayLeft) -> WayLimits:
        """Return the limits once a way of keys was left."""
        if LEAVES[left] is KeyWay.PUT:
            return replace(self, row_bytes=0)
        return replace(self, block_bytes=0) if LEAVES[left] is KeyWay.RESERVED else self


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPath:
    """What a :class:`CommitWay` means; a row of the third table."""

    chunks: bool = False
    """Whether bytes are chunks through the log, not packets of a stream."""
    rides_end: bool = False
    """Whether PutBlock is sent with the stream's end."""
    waits_effective: bool = True
    """Whether PutBlock is answered once it is effective, not once it is appended."""
    together: bool = True
    """Whether small blocks may be written in one exchange, and blocks be reserved."""


COMMIT_PATHS: Mapping[int, CommitPath] = {
    CommitWay.THROUGH_LOG: CommitPath(chunks=True, together=False),
    CommitWay.SEPARATE: CommitPath(),
    CommitWay.ON_STREAM: CommitPath(rides_end=True),
    CommitWay.EARLY_CLOSE: CommitPath(waits_effective=False),
}
PATHS_AFTER: Mapping[WayLeft, CommitPath] = {
    WayLeft.END_FAILED: COMMIT_PATHS[CommitWay.SEPARATE],
    WayLeft.NOT_WATCHED: COMMIT_PATHS[CommitWay.SEPARATE],
}
"""How the length is committed once a commit way was left."""


@dataclass(frozen=True, slots=True)
class KeyWayRow:
    """A row of the first table; ``stock`` is None if it does not matter."""

    when: KeyMoment
    bytes: Collection[KeyBytes]
    stock: bool | None
    way: KeyWay


@dataclass(frozen=True, slots=True)
class BlockWayRow:
    """A row of the second table; None stands for what does not matter."""

    when: Collection[KeyMoment]
    small: bool | None
    begun: bool | None
    together: bool | None
    way: BlockWay


_O, _W, _F, _C = KeyMoment
_EMPTY, _NONE, _ROW, _BLOCK, _LARGE = KeyBytes
KEY_ROWS = (
    KeyWayRow(_O, (_EMPTY, _ROW), None, KeyWay.HELD),
    KeyWayRow(_O, (_NONE, _BLOCK), True, KeyWay.HELD),
    KeyWayRow(_O, (_NONE, _BLOCK), False, KeyWay.OPENED),
    KeyWayRow(_O, (_LARGE,), None, KeyWay.OPENED),
    KeyWayRow(_W, (_EMPTY, _NONE, _ROW), None, KeyWay.HELD),
    KeyWayRow(_W, (_BLOCK,), True, KeyWay.HELD),
    KeyWayRow(_W, (_BLOCK,), False, KeyWay.OPENED),
    KeyWayRow(_W, (_LARGE,), None, KeyWay.OPENED),
    KeyWayRow(_F, (_EMPTY, _NONE), None, KeyWay.HELD),
    KeyWayRow(_F, (_ROW, _BLOCK, _LARGE), None, KeyWay.OPENED),
    KeyWayRow(_C, (_EMPTY, _ROW), None, KeyWay.PUT),
    KeyWayRow(_C, (_BLOCK,), None, KeyWay.RESERVED),
    KeyWayRow(_C, (_NONE, _LARGE), None, KeyWay.OPENED),
)
BLOCK_ROWS = (
    BlockWayRow((_W,), True, False, True, BlockWay.KEPT),
    BlockWayRow((_C,), True, False, True, BlockWay.TOGETHER),
    BlockWayRow((_W, _C), True, False, False, BlockWay.STREAM),
    BlockWayRow((_W, _C), True, True, None, BlockWay.STREAM),
    BlockWayRow((_W, _C), False, None, None, BlockWay.STREAM),
    BlockWayRow((_F,), None, None, None, BlockWay.STREAM),
)


def _either(fact: bool | None) -> tuple[bool, ...]:
    return (True, False) if fact is None else (fact,)


_KEY_WAYS = {
    (row.when, size, stock): row.way for row in KEY_ROWS for size, stock in product(row.bytes, _either(row.stock))
}
_BLOCK_WAYS = {
    facts: row.way
    for row in BLOCK_ROWS
    for facts in product(row.when, _either(row.small), _either(row.begun), _either(row.together))
}


def key_way(when: KeyMoment, size: KeyBytes, *, stock: bool) -> KeyWay:
    """Return the way of a key's bytes: the first table."""
    return _KEY_WAYS[when, size, stock]


def block_way(when: KeyMoment, *, small: bool, begun: bool, together: bool) -> BlockWay:
    """Return the way of a block's bytes: the second table. A block is not asked for when it is opened."""
    return _BLOCK_WAYS[when, small, begun, together]


def left_by(way: KeyWay, status: str) -> WayLeft | None:
    """Return the state that a refusal of the cluster leads to; None if it refuses the key, whichever way it goes."""
    return REFUSALS[way].get(status)
