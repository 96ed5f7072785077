"""The two tables, cell by cell: ``=`` stays as it is, ``!`` cannot come about."""

from __future__ import annotations

from enum import Enum

import pytest

from om_processors.leading.core.leadership_states import (
    IN_GROUP,
    MEMBER_TABLE,
    OWNED,
    SHARD_TABLE,
    STOPS,
    WITH_THREAD,
    MemberSignal,
    MemberState,
    ShardRole,
    ShardSignal,
)
from schemas.transitions import NoSuchTransition, next_state

MEMBER = """
signal     OUTSIDE  JOINING   MEMBER    LEAVING   STOPPING  STOPPED
JOIN       JOINING  !         !         !         !         !
SETTLED    =        MEMBER    =         =         =         =
UNSETTLED  =        =         JOINING   =         =         =
LEAVE      =        LEAVING   LEAVING   =         =         =
LEFT       !        !         !         OUTSIDE   STOPPED   !
STOP       STOPPED  STOPPING  STOPPING  STOPPING  =         =
"""

SHARD = """
signal          ELSEWHERE  LEADING    MOVING     LENT       VACANT     BORROWED
ASSIGNED        LEADING    =          =          =          LEADING    LEADING
TAKEN_AWAY      =          ELSEWHERE  ELSEWHERE  ELSEWHERE  ELSEWHERE  ELSEWHERE
NODE_LEAVES     =          VACANT     VACANT     =          =          ELSEWHERE
THREAD_ENDED    !          VACANT     !          !          !          ELSEWHERE
STEP_DOWN       !          MOVING     !          MOVING     !          !
BORROWER_LEADS  =          =          LENT       !          =          =
MOVE_ENDED      =          =          LEADING    =          =          =
BORROW          BORROWED   !          !          !          !          !
LOAN_ENDED      =          =          =          =          =          ELSEWHERE
TAKEN_BACK      !          !          !          LEADING    !          !
LOAN_LOST       !          !          !          VACANT     !          !
"""


def cells(grid: str) -> list[tuple[str, str, str]]:
    """Return (state, signal, what follows) of every cell."""
    head, *rows = [line.split() for line in grid.strip().splitlines()]
    return [(state, row[0], cell) for row in rows for state, cell in zip(head[1:], row[1:], strict=True)]


@pytest.mark.parametrize(("state", "signal", "following"), cells(MEMBER))
def test_the_table_of_membership(state: str, signal: str, following: str):
    before, what = MemberState[state], MemberSignal[signal]
    if following == "!":
        with pytest.raises(NoSuchTransition, match=rf"{signal} cannot happen in MemberState\.{state}"):
            next_state(MEMBER_TABLE, before, what)
    else:
        assert next_state(MEMBER_TABLE, before, what) is (before if following == "=" else MemberState[following])


@pytest.mark.parametrize(("role", "signal", "following"), cells(SHARD))
def test_the_table_of_a_shard(role: str, signal: str, following: str):
    before, what = ShardRole[role], ShardSignal[signal]
    if following == "!":
        with pytest.raises(NoSuchTransition, match=rf"{signal} cannot happen in ShardRole\.{role}"):
            next_state(SHARD_TABLE, before, what)
    else:
        assert next_state(SHARD_TABLE, before, what) is (before if following == "=" else ShardRole[following])


@pytest.mark.parametrize(
    ("grid", "states", "signals"), [(MEMBER, MemberState, MemberSignal), (SHARD, ShardRole, ShardSignal)]
)
def test_the_grids_have_every_cell(grid: str, states: type[Enum], signals: type[Enum]):
    found = [(state, signal) for state, signal, _ in cells(grid)]
    assert len(found) == len(set(found)) == len(states) * len(signals)


def test_a_node_that_leaves_or_stops_takes_on_nothing_as_owner():
    """What a leaving node's shards become, no signal but an assignment makes a leader of."""
    left = {next_state(SHARD_TABLE, role, ShardSignal.NODE_LEAVES) for role in ShardRole}
    assert left == {ShardRole.ELSEWHERE, ShardRole.VACANT, ShardRole.LENT}
    lead = {signal for role in left for signal, after in SHARD_TABLE[role].items() if after is ShardRole.LEADING}
    assert lead == {ShardSignal.ASSIGNED, ShardSignal.TAKEN_BACK}  # refused, or another signal, outside the group


def test_from_stopping_there_is_no_way_back():
    assert {following for state in STOPS for following in MEMBER_TABLE[state].values()} == STOPS
    assert STOPS.isdisjoint(IN_GROUP)


def test_who_leads_owns_or_borrows():
    assert {ShardRole.BORROWED} == WITH_THREAD - OWNED
    assert set(ShardRole) - {ShardRole.ELSEWHERE, ShardRole.BORROWED} == OWNED
