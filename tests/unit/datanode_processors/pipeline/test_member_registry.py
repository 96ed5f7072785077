"""The pipelines that a member knows: every state, every event, and what is done when one is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import CLOSED, OPEN
from datanode_processors.pipeline.core.member_registry import (
    PIPELINE_TRANSITIONS,
    Adopt,
    MemberRegistry,
    OpenReplica,
    PipelineEvent,
    PipelineState,
    SaveRegistry,
    TellOpened,
)
from schemas import stream_errors as codes
from schemas.records.datanode import Member, OpenPipeline, PipelineRow
from schemas.transitions import NoSuchTransition, next_state

PARTITION = 3
MEMBERS = [Member(datanode=name, address=f"{name}:1", http_address="", rack="") for name in ("dn1", "dn2", "dn3")]
FIRST = OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=1, members=MEMBERS)
SECOND = replace(FIRST, generation=2)
MOVED = replace(FIRST, members=[replace(MEMBERS[0], address="elsewhere:1"), *MEMBERS[1:]])

S, E = PipelineState, PipelineEvent
NEXT = {
    (S.ABSENT, E.ASKED): S.OPENING,
    (S.OPENING, E.REPLICA_OPENED): S.FOLLOWED,
    (S.OPENING, E.REPLICA_FAILED): S.ABSENT,
    (S.OPENING, E.REPLICA_WANTS_CHECKPOINT): S.INSTALLING,
    (S.INSTALLING, E.ASKED): S.INSTALLING,
    (S.INSTALLING, E.ASKED_LATER): S.INSTALLING,
    (S.INSTALLING, E.REPLICA_OPENED): S.FOLLOWED,
    (S.FOLLOWED, E.ASKED): S.FOLLOWED,
    (S.FOLLOWED, E.ASKED_LATER): S.FOLLOWED,
    (S.FOLLOWED, E.ROW_OPEN): S.OPEN,
    (S.FOLLOWED, E.ROW_CLOSED): S.CLOSED,
    (S.FOLLOWED, E.ROW_EARLIER): S.REOPENING,
    (S.OPEN, E.ASKED): S.OPEN,
    (S.OPEN, E.ASKED_LATER): S.REOPENING,
    (S.OPEN, E.ROW_OPEN): S.OPEN,
    (S.OPEN, E.ROW_CLOSED): S.CLOSED,
    (S.CLOSED, E.ASKED): S.CLOSED,
    (S.CLOSED, E.ASKED_LATER): S.REOPENING,
    (S.CLOSED, E.ROW_OPEN): S.OPEN,
    (S.CLOSED, E.ROW_CLOSED): S.CLOSED,
    (S.REOPENING, E.ASKED): S.REOPENING,
    (S.REOPENING, E.ASKED_LATER): S.REOPENING,
    (S.REOPENING, E.ROW_OPEN): S.OPEN,
    (S.REOPENING, E.ROW_CLOSED): S.CLOSED,
    (S.REOPENING, E.ROW_EARLIER): S.REOPENING,
}


def row(generation: int = 1, state: str = OPEN) -> PipelineRow:
    return PipelineRow(
        pipeline="pipeline-3", partition=PARTITION, generation=generation, members=MEMBERS, state=state, opened_at_ms=0
    )


@pytest.fixture
def registry() -> MemberRegistry:
    """Return a registry with one pipeline that is followed and saved; the log has nothing of it."""
    registry = MemberRegistry()
    registry.ask(FIRST)
    registry.on_replica(PARTITION)
    registry.on_saved(PARTITION)
    return registry


@pytest.mark.parametrize("state", PipelineState)
@pytest.mark.parametrize("event", PipelineEvent)
def test_every_event_in_every_state(state: PipelineState, event: PipelineEvent) -> None:
    expected = NEXT.get((state, event))
    if expected is None:
        with pytest.raises(NoSuchTransition, match=rf"{event.name} cannot happen in PipelineState\.{state.name}"):
            next_state(PIPELINE_TRANSITIONS, state, event)
    else:
        assert next_state(PIPELINE_TRANSITIONS, state, event) is expected


# ------------------------------------------------------------------------------------------------- what is asked for


def test_a_pipeline_that_is_not_known_is_opened_and_then_saved() -> None:
    registry = MemberRegistry()
    assert registry.state_of(PARTITION) is S.ABSENT
    assert registry.ask(FIRST) == (TellOpened(), OpenReplica(), SaveRegistry())
    assert (registry.state_of(PARTITION), registry.opened()) == (S.OPENING, [])
    registry.on_replica(PARTITION)
    assert (registry.state_of(PARTITION), registry.opened()) == (S.FOLLOWED, [FIRST])


def test_a_pipeline_whose_replica_could_not_be_opened_is_asked_for_anew() -> None:
    registry = MemberRegistry()
    registry.ask(FIRST)
    with pytest.raises(NoSuchTransition):
        registry.ask(FIRST)
    registry.on_failure(PARTITION)
    assert registry.state_of(PARTITION) is S.ABSENT
    assert registry.ask(FIRST) == (TellOpened(), OpenReplica(), SaveRegistry())


def test_what_is_known_and_saved_needs_nothing(registry: MemberRegistry) -> None:
    assert registry.ask(FIRST) == ()


def test_what_could_not_be_saved_is_saved_by_the_next_who_asks() -> None:
    registry = MemberRegistry()
    registry.ask(FIRST)
    registry.on_replica(PARTITION)
    assert registry.ask(FIRST) == (SaveRegistry(),)
    registry.on_saved(PARTITION)
    assert registry.ask(FIRST) == ()


def test_what_the_registry_file_has_is_opened_and_not_saved_again() -> None:
    registry = MemberRegistry()
    registry.remember(FIRST)
    assert registry.state_of(PARTITION) is S.OPENING
    registry.on_replica(PARTITION)
    assert registry.ask(FIRST) == ()


def test_members_that_have_moved_are_adopted_and_saved(registry: MemberRegistry) -> None:
    assert registry.ask(MOVED) == (Adopt(), SaveRegistry())
    assert registry.opened() == [FIRST], "until it is adopted"
    registry.adopt(MOVED)
    assert registry.opened() == [MOVED]
    assert registry.ask(MOVED) == (SaveRegistry(),)


def test_pipelines_are_listed_by_partition(registry: MemberRegistry) -> None:
    other = replace(FIRST, pipeline="pipeline-1", partition=1)
    registry.ask(other)
    registry.on_replica(1)
    assert registry.opened() == [other, FIRST]


@pytest.mark.parametrize(
    "request_",
    [
        replace(FIRST, pipeline="another"),
        replace(FIRST, members=MEMBERS[:2]),
        replace(FIRST, members=MEMBERS[::-1]),
        replace(FIRST, generation=0),
    ],
    ids=["another pipeline", "fewer members", "another order", "an earlier generation"],
)
def test_another_pipeline_on_the_partition_is_refused(registry: MemberRegistry, request_: OpenPipeline) -> None:
    with pytest.raises(BlockError, match="partition 3 is pipeline-3, generation 1, of dn1, dn2, dn3 here") as caught:
        registry.ask(request_)
    assert caught.value.code == codes.INVALID_REQUEST
    assert registry.ask(FIRST) == ()


# ------------------------------------------------------------------------------------------------- what the log says


def test_a_pipeline_is_open_and_closed_as_the_log_says(registry: MemberRegistry) -> None:
    registry.on_row(row())
    assert registry.state_of(PARTITION) is S.OPEN
    assert registry.is_for_the_log(FIRST)
    registry.on_row(row(state=CLOSED))
    assert registry.state_of(PARTITION) is S.CLOSED
    assert not registry.is_for_the_log(FIRST)


def test_a_closed_pipeline_is_opened_again_as_a_later_generation(registry: MemberRegistry) -> None:
    registry.on_row(row(state=CLOSED))
    assert registry.ask(SECOND) == (TellOpened(), Adopt(), SaveRegistry())
    registry.adopt(SECOND)
    assert registry.state_of(PARTITION) is S.REOPENING
    assert registry.is_for_the_log(SECOND)
    registry.on_row(row(state=CLOSED))
    assert registry.state_of(PARTITION) is S.REOPENING, "it is the earlier generation that is closed"
    registry.on_row(row(2))
    assert registry.state_of(PARTITION) is S.OPEN


def test_a_generation_that_the_log_has_already_is_open_when_it_is_asked_for(registry: MemberRegistry) -> None:
    registry.on_row(row(2))
    assert registry.ask(SECOND) == (TellOpened(), Adopt(), SaveRegistry())
    registry.adopt(SECOND)
    assert registry.state_of(PARTITION) is S.OPEN


def test_a_generation_that_was_closed_before_anybody_opened_it_is_not_brought_to_the_log(
    registry: MemberRegistry,
) -> None:
    registry.on_row(row(2, CLOSED))
    registry.ask(SECOND)
    registry.adopt(SECOND)
    assert registry.state_of(PARTITION) is S.CLOSED
    assert not registry.is_for_the_log(SECOND)


def test_a_pipeline_of_the_registry_file_is_as_its_row_says() -> None:
    registry = MemberRegistry()
    registry.remember(SECOND)
    registry.on_replica(PARTITION)
    registry.on_row(row(1))
    assert registry.state_of(PARTITION) is S.REOPENING


def test_a_row_that_comes_late_says_nothing(registry: MemberRegistry) -> None:
    registry.on_row(row(2))
    registry.on_row(row(1, CLOSED))
    assert registry.state_of(PARTITION) is S.OPEN
    registry.on_row(row(2, CLOSED))
    registry.on_row(row(2))
    assert registry.state_of(PARTITION) is S.CLOSED


def test_a_replica_that_wants_a_checkpoint_is_in_the_registry_and_takes_what_is_asked_for() -> None:
    registry = MemberRegistry()
    assert registry.ask(FIRST) == (TellOpened(), OpenReplica(), SaveRegistry())
    registry.on_wants_checkpoint(PARTITION)
    assert registry.opened() == [FIRST]
    registry.on_saved(PARTITION)
    assert registry.ask(FIRST) == ()
    for asked, first in ((MOVED, (Adopt(), SaveRegistry())), (SECOND, (TellOpened(), Adopt(), SaveRegistry()))):
        assert registry.ask(asked) == first
        registry.adopt(asked)
        registry.on_saved(PARTITION)
        assert registry.asked_for(PARTITION) == asked
    assert registry.state_of(PARTITION) is PipelineState.INSTALLING
    registry.on_replica(PARTITION)
    registry.on_row(row())
    assert registry.state_of(PARTITION) is PipelineState.REOPENING
    registry.on_row(row(2))
    assert registry.state_of(PARTITION) is PipelineState.OPEN
