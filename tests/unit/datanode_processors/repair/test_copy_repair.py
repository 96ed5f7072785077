"""The repair of a block and of a whole copy: every state, every event, whom it asks for what."""

from __future__ import annotations

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair.core.copy_look import CopyDropped, CopyKept
from datanode_processors.repair.core.copy_repair import (
    BlockLeft,
    BlockRepair,
    BlockSettled,
    CellsCame,
    CellsChecked,
    CellsRead,
    CopyRepair,
    RepairBegins,
    RepairEvent,
    RepairState,
    RowsRead,
    RowsReadable,
    RowsRefused,
    RowsTaken,
    WholeRepair,
)
from datanode_processors.repair.core.instructions import (
    CheckCells,
    CountFiles,
    DropIfDeleted,
    FetchCells,
    FetchRows,
    FindBadCells,
    ForgetCopy,
    Instructions,
    LogLine,
    LookSoon,
    ReadRows,
    RepairBlock,
)
from schemas import stream_errors as codes
from schemas.transitions import NoSuchTransition

BEGINS = RepairBegins()
BAD = CellsRead((1, 4, 9), ("a:1", "b:1"))
ALL_CAME = CellsCame(frozenset({1, 4, 9}))
ROWS, NO_ROWS = RowsRead((7, 8), ("a:1",)), RowsRead((), ("a:1", "b:1"))
LEFT = BlockLeft(BlockError(codes.NOT_COMMITTED, "the first"))
EVENTS: list[RepairEvent] = [
    BEGINS, CopyDropped(), CopyKept(), BAD, ALL_CAME, CellsChecked(()), ROWS, RowsTaken("dn1"), RowsReadable(),
    RowsRefused("away"), BlockSettled(), LEFT,
]  # fmt: skip

S = RepairState
BLOCK_PATHS: dict[RepairState, list[RepairEvent]] = {
    S.NEW: [],
    S.READING: [BEGINS],
    S.FETCHING: [BEGINS, BAD],
    S.CHECKING: [BEGINS, BAD, ALL_CAME],
    S.RIGHT: [BEGINS, CellsRead((), ())],
    S.FAILED: [BEGINS, BAD, ALL_CAME, CellsChecked((4,))],
}
BLOCK_NEXT = {
    (S.NEW, RepairBegins): S.READING,
    (S.READING, CellsRead): S.FETCHING,
    (S.FETCHING, CellsCame): S.CHECKING,
    (S.CHECKING, CellsChecked): S.RIGHT,
}
WHOLE_PATHS: dict[RepairState, list[RepairEvent]] = {
    S.NEW: [],
    S.DROPPING: [BEGINS],
    S.READING_ROWS: [BEGINS, CopyKept()],
    S.FETCHING_ROWS: [BEGINS, CopyKept(), NO_ROWS],
    S.READING_NEW_ROWS: [BEGINS, CopyKept(), NO_ROWS, RowsTaken("dn1")],
    S.REPAIRING: [BEGINS, CopyKept(), ROWS],
    S.RIGHT: [BEGINS, CopyDropped()],
    S.FAILED: [BEGINS, CopyKept(), RowsRead((), ())],
}
WHOLE_NEXT = {
    (S.NEW, RepairBegins): S.DROPPING,
    (S.DROPPING, CopyDropped): S.RIGHT,
    (S.DROPPING, CopyKept): S.READING_ROWS,
    (S.READING_ROWS, RowsRead): S.REPAIRING,
    (S.FETCHING_ROWS, RowsTaken): S.READING_NEW_ROWS,
    (S.FETCHING_ROWS, RowsReadable): S.READING_NEW_ROWS,
    (S.FETCHING_ROWS, RowsRefused): S.FETCHING_ROWS,
    (S.READING_NEW_ROWS, RowsRead): S.REPAIRING,
    (S.REPAIRING, BlockSettled): S.REPAIRING,
    (S.REPAIRING, BlockLeft): S.REPAIRING,
}


def after(repair: CopyRepair, *events: RepairEvent) -> Instructions:
    """Tell a repair events, and return what it asked for last."""
    asked: Instructions = ()
    for event in events:
        asked = repair.step(event)
    return asked


def block(*events: RepairEvent) -> tuple[BlockRepair, Instructions]:
    repair = BlockRepair(259, 7)
    return repair, after(repair, *events)


def whole(*events: RepairEvent) -> tuple[WholeRepair, Instructions]:
    repair = WholeRepair(259)
    return repair, after(repair, *events)


def check(repair: CopyRepair, state: RepairState, event: RepairEvent, expected: RepairState | None) -> None:
    assert repair.state is state
    if expected is None:
        name = type(event).__name__
        with pytest.raises(NoSuchTransition, match=rf"{name} cannot happen in RepairState\.{state.name}"):
            repair.step(event)
        assert repair.state is state
    else:
        repair.step(event)
        assert repair.state is expected


@pytest.mark.parametrize("state", BLOCK_PATHS)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_in_every_state_of_a_block(state: RepairState, event: RepairEvent) -> None:
    check(block(*BLOCK_PATHS[state])[0], state, event, BLOCK_NEXT.get((state, type(event))))


@pytest.mark.parametrize("state", WHOLE_PATHS)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_in_every_state_of_a_whole_copy(state: RepairState, event: RepairEvent) -> None:
    check(whole(*WHOLE_PATHS[state])[0], state, event, WHOLE_NEXT.get((state, type(event))))


def test_the_paths_reach_every_state() -> None:
    assert {*BLOCK_PATHS, *WHOLE_PATHS} == set(RepairState)


# --------------------------------------------------------------------------------------------------------- one block


def test_a_block_that_is_right_by_now_asks_nobody() -> None:
    assert block(BEGINS)[1] == (FindBadCells(),)
    repair, asked = block(BEGINS, CellsRead((), ("a:1",)))
    assert (repair.state, repair.failure, asked) == (S.RIGHT, None, ())


def test_a_source_is_asked_for_what_those_before_it_did_not_give() -> None:
    repair, asked = block(BEGINS, BAD)
    assert asked == (FetchCells("a:1", (1, 4, 9)),)
    assert repair.step(CellsCame(frozenset({1, 9}), "damaged there")) == (FetchCells("b:1", (4,)),)
    assert repair.step(CellsCame(frozenset({4}))) == (CheckCells((1, 4, 9)),)
    assert repair.step(CellsChecked(())) == (
        CountFiles(),
        LogLine("the copy of block 259/7 here is repaired: 3 cells"),
    )
    assert repair.state is S.RIGHT


def test_when_all_cells_came_no_other_source_is_asked() -> None:
    assert block(BEGINS, BAD, ALL_CAME)[1] == (CheckCells((1, 4, 9)),)


def test_cells_that_nobody_has_are_named_with_what_each_source_said() -> None:
    repair, asked = block(
        BEGINS, BAD, CellsCame(frozenset(), "away"), CellsCame(frozenset({1}), "damaged"), CellsChecked((4, 9))
    )
    assert asked == ()
    assert repair.state is S.FAILED
    assert repair.failure is not None
    assert repair.failure.code == codes.NOT_COMMITTED
    assert repair.failure.message == (
        "the copy of block 259/7 here is damaged in 2 cells, the first is 4, that are not to be had "
        "(a:1: away; b:1: damaged)"
    )


def test_a_block_without_sources_is_read_again_all_the_same() -> None:
    repair, asked = block(BEGINS, CellsRead((2,), ()))
    assert asked == (CheckCells((2,)),)
    repair.step(CellsChecked((2,)))
    assert repair.failure is not None
    assert repair.failure.message.endswith("(no source)")


# ------------------------------------------------------------------------------------------------------ a whole copy


def test_a_copy_of_which_nothing_is_left_is_dropped() -> None:
    assert whole(BEGINS)[1] == (DropIfDeleted(),)
    assert ForgetCopy() in whole(BEGINS, CopyDropped())[1]


def test_rows_that_can_be_read_are_kept_and_every_block_is_repaired_in_order() -> None:
    repair, asked = whole(BEGINS, CopyKept())
    assert asked == (ReadRows(),)
    assert repair.step(ROWS) == (RepairBlock(7),)
    assert repair.step(BlockSettled()) == (RepairBlock(8),)
    assert repair.step(BlockSettled()) == ()
    assert (repair.state, repair.failure) == (S.RIGHT, None)


def test_a_block_that_fails_does_not_keep_the_others_and_the_first_failure_is_told() -> None:
    second = BlockLeft(BlockError(codes.FAILED, "the second"))
    repair, asked = whole(BEGINS, CopyKept(), ROWS, LEFT)
    assert asked == (RepairBlock(8),)
    repair.step(second)
    assert (repair.state, repair.failure) == (S.FAILED, LEFT.error)


def test_rows_come_from_the_first_source_that_has_them_and_the_copy_is_looked_at_again() -> None:
    repair, asked = whole(BEGINS, CopyKept(), NO_ROWS)
    assert asked == (FetchRows("a:1"),)
    assert repair.step(RowsRefused("away")) == (FetchRows("b:1"),)
    assert repair.step(RowsTaken("dn2")) == (
        LogLine("container 259: the rows of the copy here are taken from dn2"),
        LookSoon(),
        ReadRows(),
    )
    assert repair.step(ROWS) == (RepairBlock(7),)


def test_rows_that_can_be_read_by_now_are_not_said_to_be_taken() -> None:
    assert whole(BEGINS, CopyKept(), NO_ROWS, RowsReadable())[1] == (ReadRows(),)


def test_rows_that_nobody_has_are_named_with_what_each_source_said() -> None:
    repair, _ = whole(BEGINS, CopyKept(), NO_ROWS, RowsRefused("away"), RowsRefused("none there"))
    assert repair.failure is not None
    assert (repair.state, repair.failure.code) == (S.FAILED, codes.FAILED)
    assert repair.failure.message == "the rows of container 259 are not to be had (a:1: away; b:1: none there)"


def test_rows_that_came_and_cannot_be_read_fail_the_repair() -> None:
    error = BlockError(codes.FAILED, "the rows are damaged")
    repair, asked = whole(*WHOLE_PATHS[S.READING_NEW_ROWS], RowsRead((), ("a:1",), error))
    assert (repair.state, repair.failure, asked) == (S.FAILED, error, ())
