"""The states of a node in the leaders' group, its roles for each shard, and how signals change them: two tables. Pure.

A pair of state and signal that a table does not name cannot happen (``schemas.transitions.next_state`` raises). A
signal that arrives too late to matter is in the table, and leaves the state as it is.

The machine acts on the change of state (``leadership_machine``): it starts a thread when the node takes on a role that
has one, and tells the thread to end when the node gives the role up. So no shard ever has two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeVar


class MemberState(Enum):
    """The node's state in the leaders' group."""

    OUTSIDE = auto()
    """Not a member. The node joins once no sign speaks against it."""
    JOINING = auto()
    """The consumer has subscribed; the group has not settled yet, or is not settled any more. The node may have shards
    already.
    """
    MEMBER = auto()
    """The group is settled."""
    LEAVING = auto()
    """All threads have been told to end; the consumer closes once they are drained."""
    STOPPING = auto()
    """As LEAVING, but the process ends."""
    STOPPED = auto()
    """Nothing is ever started again."""


IN_GROUP = frozenset({MemberState.JOINING, MemberState.MEMBER})
"""States in which the group may assign shards, and in which this node may lead the shards that it owns."""

STOPS = frozenset({MemberState.STOPPING, MemberState.STOPPED})


class MemberSignal(Enum):
    """What happens to the node's membership."""

    JOIN = auto()
    SETTLED = auto()
    UNSETTLED = auto()
    LEAVE = auto()
    LEFT = auto()
    STOP = auto()


class ShardRole(Enum):
    """The node's role for a shard."""

    ELSEWHERE = auto()
    """Neither owner nor leader: the replica follows."""
    LEADING = auto()
    """Owner, with a thread that leads, or tries to."""
    MOVING = auto()
    """Owner that has stepped down because the shard is being moved."""
    LENT = auto()
    """Owner; a borrower leads."""
    VACANT = auto()
    """Owner whose thread has ended. The node is leaving the group, so it leads the shard only once it is assigned it
    anew.
    """
    BORROWED = auto()
    """Not the owner; a thread leads for the owner."""


OWNED = frozenset({ShardRole.LEADING, ShardRole.MOVING, ShardRole.LENT, ShardRole.VACANT})
WITH_THREAD = frozenset({ShardRole.LEADING, ShardRole.BORROWED})


class ShardSignal(Enum):
    """What happens to a shard."""

    ASSIGNED = auto()
    """The group assigns it to this node."""
    TAKEN_AWAY = auto()
    """The group revokes it or counts it as lost, or the node has left the group."""
    NODE_LEAVES = auto()
    """The node begins to leave the group with all its shards."""
    THREAD_ENDED = auto()
    """Its thread has ended by itself."""
    STEP_DOWN = auto()
    """The shard is being moved, so this node, as the owner or as the borrower, steps down."""
    BORROWER_LEADS = auto()
    """The borrower leads it."""
    MOVE_ENDED = auto()
    """The move is over, with whatever result."""
    BORROW = auto()
    """Its owner asks this node to lead it."""
    LOAN_ENDED = auto()
    """The borrower stops leading: the owner wants the shard back or has not renewed the loan, or the claim
    has failed.
    """
    TAKEN_BACK = auto()
    """The borrower does not lead, so the owner leads again."""
    LOAN_LOST = auto()
    """The borrower does not lead, and the owner is about to leave the group."""


_State = TypeVar("_State", bound=Enum)
_Signal = TypeVar("_Signal", bound=Enum)


def _by_state(
    states: type[_State], rows: Mapping[_Signal, Mapping[_State, _State]]
) -> Mapping[_State, Mapping[_Signal, _State]]:
    """Return the table that is written down by signal, turned: by state, the state after each signal."""
    return {state: {signal: row[state] for signal, row in rows.items() if state in row} for state in states}


def _leaving_others_alone(
    states: type[_State], changed: Mapping[_State, _State], *, but: frozenset[_State] = frozenset()
) -> Mapping[_State, _State]:
    """Return a row with ``changed`` and no change of every other state, except those in ``but``."""
    return {state: changed.get(state, state) for state in states if state not in but}


_M, _R = MemberState, ShardRole

MEMBER_TABLE: Mapping[MemberState, Mapping[MemberSignal, MemberState]] = _by_state(
    _M,
    {
        MemberSignal.JOIN: {_M.OUTSIDE: _M.JOINING},
        MemberSignal.SETTLED: _leaving_others_alone(_M, {_M.JOINING: _M.MEMBER}),
        MemberSignal.UNSETTLED: _leaving_others_alone(_M, {_M.MEMBER: _M.JOINING}),
        MemberSignal.LEAVE: _leaving_others_alone(_M, {_M.JOINING: _M.LEAVING, _M.MEMBER: _M.LEAVING}),
        MemberSignal.LEFT: {_M.LEAVING: _M.OUTSIDE, _M.STOPPING: _M.STOPPED},
        MemberSignal.STOP: {
            _M.OUTSIDE: _M.STOPPED, _M.JOINING: _M.STOPPING, _M.MEMBER: _M.STOPPING, _M.LEAVING: _M.STOPPING,
            _M.STOPPING: _M.STOPPING, _M.STOPPED: _M.STOPPED,
        },
    },
)  # fmt: skip

SHARD_TABLE: Mapping[ShardRole, Mapping[ShardSignal, ShardRole]] = _by_state(
    _R,
    {
        ShardSignal.ASSIGNED: _leaving_others_alone(
            _R, {_R.ELSEWHERE: _R.LEADING, _R.VACANT: _R.LEADING, _R.BORROWED: _R.LEADING}
        ),
        ShardSignal.TAKEN_AWAY: dict.fromkeys(_R, _R.ELSEWHERE),
        ShardSignal.NODE_LEAVES: _leaving_others_alone(
            _R, {_R.LEADING: _R.VACANT, _R.MOVING: _R.VACANT, _R.BORROWED: _R.ELSEWHERE}
        ),
        ShardSignal.THREAD_ENDED: {_R.LEADING: _R.VACANT, _R.BORROWED: _R.ELSEWHERE},
        ShardSignal.STEP_DOWN: {_R.LEADING: _R.MOVING, _R.LENT: _R.MOVING},
        ShardSignal.BORROWER_LEADS: _leaving_others_alone(_R, {_R.MOVING: _R.LENT}, but=frozenset({_R.LENT})),
        ShardSignal.MOVE_ENDED: _leaving_others_alone(_R, {_R.MOVING: _R.LEADING}),
        ShardSignal.BORROW: {_R.ELSEWHERE: _R.BORROWED},
        ShardSignal.LOAN_ENDED: _leaving_others_alone(_R, {_R.BORROWED: _R.ELSEWHERE}),
        ShardSignal.TAKEN_BACK: {_R.LENT: _R.LEADING},
        ShardSignal.LOAN_LOST: {_R.LENT: _R.VACANT},
    },
)
