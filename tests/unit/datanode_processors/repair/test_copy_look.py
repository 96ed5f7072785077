"""A look at a copy: every state, every event, and what is deleted for whose word."""

from __future__ import annotations

import pytest

from datanode_processors.repair.core.copy_look import (
    CopyDropped,
    CopyKept,
    CopyLook,
    DeletedHere,
    LengthsCompared,
    LookBegins,
    LookEvent,
    LookState,
    MemberAnswered,
    NotDeleted,
    NotHeard,
)
from datanode_processors.repair.core.instructions import (
    AskForRows,
    CompareLengths,
    DeleteHere,
    DropIfDeleted,
    ForgetCopy,
    Instructions,
    LogLine,
)
from schemas.transitions import NoSuchTransition

BEGINS = LookBegins()
COMPARED = LengthsCompared((7, 8), ("a:1", "b:1"))
NO_NEWS = MemberAnswered("dn1", {7: False, 8: False})
TOMBSTONE = MemberAnswered("dn1", {7: True, 8: False})
EVENTS: list[LookEvent] = [
    BEGINS, CopyDropped(), CopyKept(), COMPARED, NO_NEWS, NotHeard(), DeletedHere((8,)), NotDeleted("full"),
]  # fmt: skip
PATHS: dict[LookState, list[LookEvent]] = {
    LookState.NEW: [],
    LookState.DROPPING: [BEGINS],
    LookState.COMPARING: [BEGINS, CopyKept()],
    LookState.ASKING: [BEGINS, CopyKept(), COMPARED],
    LookState.DELETING: [BEGINS, CopyKept(), COMPARED, TOMBSTONE],
    LookState.GONE: [BEGINS, CopyDropped()],
    LookState.HEARD: [BEGINS, CopyKept(), COMPARED, NO_NEWS, NO_NEWS],
    LookState.SILENT: [BEGINS, CopyKept(), COMPARED, NotHeard(), NotHeard()],
}
"""How each state is reached."""
NEXT = {
    (LookState.NEW, LookBegins): LookState.DROPPING,
    (LookState.DROPPING, CopyDropped): LookState.GONE,
    (LookState.DROPPING, CopyKept): LookState.COMPARING,
    (LookState.COMPARING, LengthsCompared): LookState.ASKING,
    (LookState.ASKING, MemberAnswered): LookState.ASKING,
    (LookState.ASKING, NotHeard): LookState.ASKING,
    (LookState.DELETING, DeletedHere): LookState.ASKING,
    (LookState.DELETING, NotDeleted): LookState.SILENT,
}


def after(*events: LookEvent) -> tuple[CopyLook, Instructions]:
    """Return a look that was told events, and what it asked for last."""
    look, asked = CopyLook(259), ()
    for event in events:
        asked = look.step(event)  # type: ignore[assignment]
    return look, asked


@pytest.mark.parametrize("state", LookState)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_in_every_state(state: LookState, event: LookEvent) -> None:
    look, _ = after(*PATHS[state])
    assert look.state is state
    expected = NEXT.get((state, type(event)))
    if expected is None:
        with pytest.raises(NoSuchTransition, match=rf"{type(event).__name__} cannot happen in LookState\.{state.name}"):
            look.step(event)
        assert look.state is state
    else:
        look.step(event)
        assert look.state is expected


def test_a_copy_without_blocks_is_dropped_and_forgotten() -> None:
    assert after(BEGINS)[1] == (DropIfDeleted(),)
    assert after(BEGINS, CopyDropped())[1] == (
        LogLine("container 259: no block of the copy here is left, and it is dropped"),
        ForgetCopy(),
    )


def test_lengths_are_compared_before_anybody_is_asked() -> None:
    assert after(BEGINS, CopyKept())[1] == (CompareLengths(),)
    assert after(BEGINS, CopyKept(), COMPARED)[1] == (AskForRows("a:1", 7),)


@pytest.mark.parametrize("compared", [LengthsCompared((), ("a:1",)), LengthsCompared((7,), ())])
def test_without_blocks_or_sources_nobody_is_asked(compared: LengthsCompared) -> None:
    look, asked = after(BEGINS, CopyKept(), compared)
    assert (look.state, asked) == (LookState.SILENT, ())


def test_all_sources_are_asked_and_one_member_is_enough_to_be_heard() -> None:
    look, asked = after(BEGINS, CopyKept(), COMPARED, NO_NEWS)
    assert asked == (AskForRows("b:1", 7),)
    assert look.step(NotHeard()) == ()
    assert look.state is LookState.HEARD


def test_what_a_member_has_a_tombstone_of_is_deleted_and_a_row_that_it_lacks_is_said() -> None:
    look, asked = after(BEGINS, CopyKept(), COMPARED, MemberAnswered("dn2", {8: True, 9: True}))
    assert asked == (
        LogLine("container 259: dn2 has no row of 1 blocks of the copy here"),
        DeleteHere((8,), "dn2"),
    )
    assert look.step(DeletedHere((7,))) == (AskForRows("b:1", 7),)
    assert look.step(NO_NEWS) == ()
    assert look.state is LookState.HEARD


def test_when_all_is_deleted_nobody_else_is_asked() -> None:
    look, asked = after(BEGINS, CopyKept(), COMPARED, MemberAnswered("dn1", {7: True, 8: True}), DeletedHere(()))
    assert (look.state, asked) == (LookState.HEARD, ())


def test_what_cannot_be_deleted_has_the_copy_looked_at_again_soon() -> None:
    look, asked = after(BEGINS, CopyKept(), COMPARED, TOMBSTONE, NotDeleted("DISK_FULL: no room"))
    assert asked == (LogLine("container 259: blocks of the copy here cannot be deleted: DISK_FULL: no room"),)
    assert look.state is LookState.SILENT
