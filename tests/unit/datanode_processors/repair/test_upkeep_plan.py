"""The plan of upkeep: every state of a copy and of a damaged block, every event, and when the next task is due."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from datanode_processors.repair.core import upkeep_plan
from datanode_processors.repair.core.copy_states import (
    COPY_TRANSITIONS,
    DAMAGE_TRANSITIONS,
    CopyEvent,
    CopyState,
    DamageEvent,
    DamageState,
)
from datanode_processors.repair.core.instructions import LogLine, LookAt, RepairOne, ReportHealth, SaveSources
from datanode_processors.repair.core.upkeep_plan import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    LOOK_S,
    SAVE_S,
    SETTLE_S,
    WHOLE,
    UpkeepPlan,
)
from schemas.transitions import NoSuchTransition, next_state

CONTAINER, BLOCK = 259, 7
HERE = (CONTAINER, BLOCK)
LOOK, REPAIR, REPAIR_WHOLE = LookAt(CONTAINER), RepairOne(CONTAINER, BLOCK), RepairOne(CONTAINER, WHOLE)

COPY_TABLE = """
                 STARTED  NAMED          LOOK_BEGAN     MEMBER_HEARD  NOBODY_HEARD  GONE
ABSENT           FRESH    FRESH          LOOKING        -             -             ABSENT
FRESH            FRESH    FRESH          LOOKING_FRESH  -             -             ABSENT
LOOKED_AT        -        FRESH          LOOKING        -             -             ABSENT
LOOKING          -        LOOKING_NAMED  -              LOOKED_AT     LOOKED_AT     ABSENT
LOOKING_FRESH    -        LOOKING_NAMED  -              LOOKED_AT     FRESH         ABSENT
LOOKING_NAMED    -        LOOKING_NAMED  -              FRESH         FRESH         ABSENT
"""
DAMAGE_TABLE = """
                 FOUND          LEFT  WORK_BEGAN  REPAIRED  FAILED  COPY_GONE
SOUND            DUE            DUE   -           SOUND     SOUND   SOUND
DUE              DUE            DUE   AT_WORK     DUE       DUE     SOUND
AT_WORK          FOUND_AT_WORK  -     -           SOUND     DUE     SOUND
FOUND_AT_WORK    FOUND_AT_WORK  -     -           DUE       DUE     SOUND
"""


def cells_of(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield (state, event, next state or "-") of a table."""
    heads, *lines = [line.split() for line in table.strip().splitlines()]
    for state, *cells in lines:
        yield from ((state, event, cell) for event, cell in zip(heads, cells, strict=True))


def test_the_tables_have_every_state_and_event() -> None:
    copy = {(state.name, event.name) for state in CopyState for event in CopyEvent}
    damage = {(state.name, event.name) for state in DamageState for event in DamageEvent}
    assert {cell[:2] for cell in cells_of(COPY_TABLE)} == copy
    assert {cell[:2] for cell in cells_of(DAMAGE_TABLE)} == damage


@pytest.mark.parametrize(("state", "event", "after"), list(cells_of(COPY_TABLE)))
def test_what_happens_to_a_copy(state: str, event: str, after: str) -> None:
    if after == "-":
        with pytest.raises(NoSuchTransition, match=rf"{event} cannot happen in CopyState\.{state}"):
            next_state(COPY_TRANSITIONS, CopyState[state], CopyEvent[event])
    else:
        assert next_state(COPY_TRANSITIONS, CopyState[state], CopyEvent[event]) is CopyState[after]


@pytest.mark.parametrize(("state", "event", "after"), list(cells_of(DAMAGE_TABLE)))
def test_what_happens_to_a_damaged_block(state: str, event: str, after: str) -> None:
    if after == "-":
        with pytest.raises(NoSuchTransition, match=rf"{event} cannot happen in DamageState\.{state}"):
            next_state(DAMAGE_TRANSITIONS, DamageState[state], DamageEvent[event])
    else:
        assert next_state(DAMAGE_TRANSITIONS, DamageState[state], DamageEvent[event]) is DamageState[after]


# ------------------------------------------------------------------------------------------------------------- looks


@pytest.fixture
def plan() -> UpkeepPlan:
    return UpkeepPlan(0)


def look(plan: UpkeepPlan, now_s: float, *, heard: bool) -> tuple[object, ...]:
    assert plan.take(now_s) == LOOK
    plan.begin_look(CONTAINER)
    return plan.end_look(CONTAINER, now_s, heard=heard)


def due_s(plan: UpkeepPlan) -> float:
    due = plan.next_due_s()
    assert due is not None
    return due


@pytest.mark.parametrize(("interval_s", "expected_s"), [(0, LOOK_S), (600, 600), (2 * LOOK_S, LOOK_S)])
def test_a_fresh_copy_is_looked_at_at_once_once_more_and_then_in_intervals(
    interval_s: float, expected_s: float
) -> None:
    plan = UpkeepPlan(interval_s)
    plan.start_with(CONTAINER, 0)
    assert plan.is_unconfirmed(CONTAINER)
    assert look(plan, 0, heard=True) == ()
    assert not plan.is_unconfirmed(CONTAINER)
    assert due_s(plan) == SETTLE_S
    look(plan, SETTLE_S, heard=True)
    assert due_s(plan) == SETTLE_S + expected_s


def test_the_second_look_waits_no_longer_than_an_interval() -> None:
    plan = UpkeepPlan(SETTLE_S / 3)
    plan.start_with(CONTAINER, 0)
    look(plan, 0, heard=True)
    assert due_s(plan) == SETTLE_S / 3


def test_a_copy_that_nobody_answers_for_is_asked_about_less_and_less_and_said_so_once(plan: UpkeepPlan) -> None:
    plan.name_sources(CONTAINER, 0, new=False)
    now_s = 0.0
    pauses: list[float] = []
    said: list[object] = []
    for _ in range(14):
        said += look(plan, now_s, heard=False)
        pauses.append(due_s(plan) - now_s)
        now_s = due_s(plan)
    assert pauses == [min(FIRST_PAUSE_S * 2**number, LAST_PAUSE_S) for number in range(14)]
    assert said == [
        LogLine(f"container {CONTAINER}: no member of its pipeline answers; the copy here is kept as it is"),
    ]
    assert plan.is_unconfirmed(CONTAINER)
    look(plan, now_s, heard=True)
    assert due_s(plan) - now_s == SETTLE_S, "the copy is fresh until a member is heard"


def test_sources_that_are_named_during_a_look_have_another_one(plan: UpkeepPlan) -> None:
    plan.start_with(CONTAINER, 0)
    assert plan.take(0) == LOOK
    plan.begin_look(CONTAINER)
    plan.name_sources(CONTAINER, 1, new=False)
    plan.end_look(CONTAINER, 2, heard=True)
    assert (plan.state_of(CONTAINER), due_s(plan)) == (CopyState.FRESH, 1)
    look(plan, 3, heard=True)
    assert due_s(plan) == 3 + SETTLE_S


def test_a_confirmed_copy_stays_so_when_its_sources_are_named(plan: UpkeepPlan) -> None:
    plan.start_with(CONTAINER, 0)
    look(plan, 0, heard=True)
    plan.name_sources(CONTAINER, 1, new=False)
    look(plan, 1, heard=False)
    assert not plan.is_unconfirmed(CONTAINER)
    assert plan.state_of(CONTAINER) is CopyState.FRESH


def test_new_sources_are_written_and_not_too_often(plan: UpkeepPlan) -> None:
    plan.name_sources(CONTAINER, 10, new=False)
    assert [plan.take(10), plan.take(10)] == [LOOK, None]
    plan.name_sources(CONTAINER, 10, new=True)
    assert {plan.take(10), plan.take(10)} == {SaveSources(), LOOK}
    plan.on_saving(10)
    plan.name_sources(CONTAINER, 11, new=True)
    assert [plan.take(11), plan.take(11), due_s(plan)] == [LOOK, None, 10 + SAVE_S]


def test_nothing_is_left_of_a_copy_that_has_gone(plan: UpkeepPlan) -> None:
    plan.start_with(CONTAINER, 0)
    plan.find(CONTAINER, BLOCK, "damaged", 0)
    plan.find(CONTAINER + 1, BLOCK, "another's", 5)
    plan.forget(CONTAINER)
    assert plan.state_of(CONTAINER) is CopyState.ABSENT
    assert not plan.is_unconfirmed(CONTAINER)
    assert plan.damaged() == [(CONTAINER + 1, BLOCK)]
    assert due_s(plan) == 5


def test_a_look_that_was_not_begun_does_not_end(plan: UpkeepPlan) -> None:
    plan.start_with(CONTAINER, 0)
    with pytest.raises(NoSuchTransition):
        plan.end_look(CONTAINER, 0, heard=True)


# ------------------------------------------------------------------------------------------------------------ damage


def test_a_block_that_is_found_damaged_is_said_once_and_repaired(plan: UpkeepPlan) -> None:
    assert plan.find(*HERE, "why", 3) == (LogLine("why"), ReportHealth())
    assert plan.find(*HERE, "again", 4) == ()
    assert plan.named_damage() == [{"container": CONTAINER, "block": BLOCK, "reason": "why"}]
    assert [plan.take(2), plan.take(3), plan.take(4)] == [None, REPAIR, None]
    plan.begin_repair(HERE)
    assert plan.end_repair(HERE, 5) == (ReportHealth(),)
    assert plan.damaged() == []
    assert plan.next_due_s() is None


def test_a_block_that_is_found_while_it_is_repaired_is_repaired_once_more(plan: UpkeepPlan) -> None:
    plan.find(*HERE, "why", 0)
    plan.take(0)
    plan.begin_repair(HERE)
    assert plan.find_again(*HERE)
    assert plan.end_repair(HERE, 1) == ()
    assert (plan.damaged(), plan.take(1)) == ([HERE], REPAIR)
    plan.begin_repair(HERE)
    assert plan.end_repair(HERE, 2) == (ReportHealth(),)


def test_what_nobody_has_right_is_tried_less_and_less_and_said_once(plan: UpkeepPlan) -> None:
    plan.find(*HERE, "found", 0)
    now_s = 0.0
    pauses: list[float] = []
    said: list[object] = []
    for number in range(14):
        assert plan.take(now_s) == REPAIR
        plan.begin_repair(HERE)
        said += plan.fail_repair(HERE, f"attempt {number}", now_s)
        pauses.append(due_s(plan) - now_s)
        now_s = due_s(plan)
    assert pauses == [min(FIRST_PAUSE_S * 2**number, LAST_PAUSE_S) for number in range(14)]
    assert said == [LogLine("attempt 0; trying again, with growing pauses")]
    assert plan.named_damage()[0]["reason"] == "attempt 13"


def test_sources_that_are_named_and_deletions_hurry_repairs(plan: UpkeepPlan) -> None:
    plan.find(*HERE, "found", 0)
    for hurry in (
        lambda: plan.name_sources(CONTAINER, 0.5, new=False),
        lambda: plan.on_deletion([HERE, (CONTAINER, 99)], 0.5),
    ):
        assert REPAIR in {plan.take(0.5), plan.take(0.5)}
        plan.begin_repair(HERE)
        plan.fail_repair(HERE, "nobody has it", 0)
        hurry()
    assert REPAIR in {plan.take(0.5), plan.take(0.5)}


def test_a_deletion_has_a_copy_looked_at_that_is_unconfirmed_or_damaged_as_a_whole(plan: UpkeepPlan) -> None:
    plan.on_deletion([HERE], 0)
    assert plan.next_due_s() is None
    plan.start_with(CONTAINER, 0)
    look(plan, 0, heard=False)
    plan.on_deletion([HERE], 0.5)
    assert plan.take(0.5) == LOOK
    plan.begin_look(CONTAINER)
    plan.end_look(CONTAINER, 0.5, heard=True)
    plan.on_deletion([HERE], 1)
    assert plan.take(1) is None
    plan.find(CONTAINER, WHOLE, "no rows", 1)
    plan.on_deletion([HERE], 1)
    assert {plan.take(1), plan.take(1)} == {LOOK, REPAIR_WHOLE}


def test_a_block_of_a_copy_that_is_damaged_as_a_whole_is_no_news(plan: UpkeepPlan) -> None:
    plan.find(CONTAINER, WHOLE, "no rows", 0)
    assert plan.find(*HERE, "a cell", 0) == ()
    assert plan.named_damage() == [{"container": CONTAINER, "block": None, "reason": "no rows"}]


def test_more_damage_than_there_is_room_for_is_repaired_by_copy(
    plan: UpkeepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_plan, "MAX_DAMAGED", 2)
    for number in range(5):
        plan.find(CONTAINER, BLOCK + number, "damaged", 0)
    assert plan.damaged() == [HERE, (CONTAINER, BLOCK + 1), (CONTAINER, WHOLE)]
    assert plan.leave(CONTAINER, BLOCK + 2, "no room", 0) is None
    assert plan.leave(*HERE, "it is known", 0) == ()


def test_what_the_repair_of_a_whole_copy_leaves_is_tried_by_itself(plan: UpkeepPlan) -> None:
    assert plan.leave(*HERE, "one cell", 10) == (LogLine("one cell; trying again, with growing pauses"),)
    assert due_s(plan) == 10 + FIRST_PAUSE_S
    plan.take(20)
    plan.begin_repair(HERE)
    assert plan.fail_repair(HERE, "one cell", 20) == (), "it was said"
    assert due_s(plan) == 20 + 2 * FIRST_PAUSE_S


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_repair_says_nothing_of_the_copy_that_came_after_its_own(plan: UpkeepPlan, fails: bool, back: bool) -> None:
    plan.find(*HERE, "found", 0)
    plan.take(0)
    plan.begin_repair(HERE)
    plan.forget(CONTAINER)
    if back:
        plan.find(*HERE, "of the new one", 1)
    said = plan.fail_repair(HERE, "of the old one", 2) if fails else plan.end_repair(HERE, 2)
    assert said == ()
    assert [one["reason"] for one in plan.named_damage()] == (["of the new one"] if back else [])
    assert plan.take(1) == (REPAIR if back else None)


def test_what_is_sound_is_not_worked_at(plan: UpkeepPlan) -> None:
    with pytest.raises(NoSuchTransition):
        plan.begin_repair(HERE)


def test_repairs_and_looks_take_turns(plan: UpkeepPlan) -> None:
    for number in range(1, 6):
        plan.start_with(number, 0)
    for number in range(1, 4):
        plan.find(number, BLOCK, "damaged", 0)
    taken = list(itertools.takewhile(lambda task: task is not None, (plan.take(0) for _ in range(20))))
    assert [type(task).__name__ for task in taken] == ["RepairOne", "LookAt"] * 3 + ["LookAt"] * 2
