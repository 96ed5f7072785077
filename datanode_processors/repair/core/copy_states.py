"""The states of a copy and of a damaged block, and what may happen in each (``upkeep_plan`` uses the tables). Pure."""

from __future__ import annotations

from enum import Enum, auto


class CopyState(Enum):
    """What is known of a copy."""

    ABSENT = auto()
    FRESH = auto()
    """The copy is to be looked at, and once more after a member was heard."""
    LOOKED_AT = auto()
    LOOKING = auto()
    LOOKING_FRESH = auto()
    """As LOOKING; the copy was FRESH before."""
    LOOKING_NAMED = auto()
    """As LOOKING; the copy's sources were named since the look began."""


class CopyEvent(Enum):
    """What may happen to a copy."""

    STARTED = auto()
    """The datanode has found the copy when it started."""
    NAMED = auto()
    """The copy was fetched, or its sources were named."""
    LOOK_BEGAN = auto()
    MEMBER_HEARD = auto()
    """The look has ended, and a member of the copy's pipeline has sent its rows."""
    NOBODY_HEARD = auto()
    GONE = auto()


_WHILE_LOOKING = {
    CopyEvent.NAMED: CopyState.LOOKING_NAMED,
    CopyEvent.MEMBER_HEARD: CopyState.LOOKED_AT,
    CopyEvent.NOBODY_HEARD: CopyState.LOOKED_AT,
    CopyEvent.GONE: CopyState.ABSENT,
}

COPY_TRANSITIONS = {
    CopyState.ABSENT: {
        CopyEvent.STARTED: CopyState.FRESH,
        CopyEvent.NAMED: CopyState.FRESH,
        CopyEvent.LOOK_BEGAN: CopyState.LOOKING,  # a look was asked for because the copy's rows were damaged
        CopyEvent.GONE: CopyState.ABSENT,
    },
    CopyState.FRESH: {
        CopyEvent.STARTED: CopyState.FRESH,  # the copy was fetched while the datanode started
        CopyEvent.NAMED: CopyState.FRESH,
        CopyEvent.LOOK_BEGAN: CopyState.LOOKING_FRESH,
        CopyEvent.GONE: CopyState.ABSENT,
    },
    CopyState.LOOKED_AT: {
        CopyEvent.NAMED: CopyState.FRESH,
        CopyEvent.LOOK_BEGAN: CopyState.LOOKING,
        CopyEvent.GONE: CopyState.ABSENT,
    },
    CopyState.LOOKING: _WHILE_LOOKING,
    CopyState.LOOKING_FRESH: {**_WHILE_LOOKING, CopyEvent.NOBODY_HEARD: CopyState.FRESH},
    CopyState.LOOKING_NAMED: {
        **_WHILE_LOOKING,
        CopyEvent.MEMBER_HEARD: CopyState.FRESH,
        CopyEvent.NOBODY_HEARD: CopyState.FRESH,
    },
}


class DamageState(Enum):
    """What is known of a block of a copy."""

    SOUND = auto()
    DUE = auto()
    """The block is damaged, and on the agenda."""
    AT_WORK = auto()
    FOUND_AT_WORK = auto()
    """As AT_WORK; the block was found damaged once more since the work began."""


class DamageEvent(Enum):
    """What may happen to a block of a copy."""

    FOUND = auto()
    """The block's bytes are not its row's."""
    LEFT = auto()
    """The repair of the whole copy could not repair the block."""
    WORK_BEGAN = auto()
    REPAIRED = auto()
    FAILED = auto()
    COPY_GONE = auto()


DAMAGE_TRANSITIONS = {
    DamageState.SOUND: {
        DamageEvent.FOUND: DamageState.DUE,
        DamageEvent.LEFT: DamageState.DUE,
        # The copy went while its block was at work.
        DamageEvent.REPAIRED: DamageState.SOUND,
        DamageEvent.FAILED: DamageState.SOUND,
        DamageEvent.COPY_GONE: DamageState.SOUND,
    },
    DamageState.DUE: {
        DamageEvent.FOUND: DamageState.DUE,
        DamageEvent.LEFT: DamageState.DUE,
        DamageEvent.WORK_BEGAN: DamageState.AT_WORK,
        # The copy went while its block was at work, came again, and was found damaged: the work was on the old copy.
        DamageEvent.REPAIRED: DamageState.DUE,
        DamageEvent.FAILED: DamageState.DUE,
        DamageEvent.COPY_GONE: DamageState.SOUND,
    },
    DamageState.AT_WORK: {
        DamageEvent.FOUND: DamageState.FOUND_AT_WORK,
        DamageEvent.REPAIRED: DamageState.SOUND,
        DamageEvent.FAILED: DamageState.DUE,
        DamageEvent.COPY_GONE: DamageState.SOUND,
    },
    DamageState.FOUND_AT_WORK: {
        DamageEvent.FOUND: DamageState.FOUND_AT_WORK,
        DamageEvent.REPAIRED: DamageState.DUE,
        DamageEvent.FAILED: DamageState.DUE,
        DamageEvent.COPY_GONE: DamageState.SOUND,
    },
}
