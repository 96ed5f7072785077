"""The table of a leader's phases, and that the leader goes by it."""

from __future__ import annotations

import pytest

from replicated_db.core.leading.phases import TRANSITIONS, LeaderEvent, LeaderPhase, Wait

LEGAL = [
    pytest.param(phase, event, after, id=f"{phase.name}-{event.name}")
    for phase, row in TRANSITIONS.items()
    for event, after in row.items()
]
BUILDING = {LeaderEvent.EXECUTE: LeaderPhase.EXECUTING, LeaderEvent.LOG: LeaderPhase.LOGGING}


def test_every_phase_has_its_row():
    assert set(TRANSITIONS) == set(LeaderPhase)


@pytest.mark.parametrize(
    "phase", [phase for phase in LeaderPhase if phase is not LeaderPhase.DEPOSED], ids=lambda phase: phase.name
)
def test_every_event_is_known_in_every_phase(phase: LeaderPhase):
    """Logged requests can settle only where there are some in flight."""
    settles = phase in (LeaderPhase.LOGGING, LeaderPhase.SETTLING)
    assert set(TRANSITIONS[phase]) == set(LeaderEvent) - (set() if settles else {LeaderEvent.SETTLED})


@pytest.mark.parametrize(("phase", "event", "after"), LEGAL)
def test_what_an_event_leads_to(phase: LeaderPhase, event: LeaderEvent, after: LeaderPhase | Wait):
    if event is LeaderEvent.FAILED:
        assert after is LeaderPhase.DEPOSED
    elif after is Wait.SEAL:
        assert phase in BUILDING.values(), "there is something to seal"
        sealed = TRANSITIONS[phase][LeaderEvent.SEAL]
        assert isinstance(sealed, LeaderPhase)
        assert TRANSITIONS[sealed][event] is not Wait.SEAL, "sealing helps"
    elif after is Wait.SETTLE:
        settled = TRANSITIONS[phase][LeaderEvent.SETTLED]
        assert isinstance(settled, LeaderPhase)
        assert isinstance(TRANSITIONS[settled][event], LeaderPhase), "settling helps"
    elif event in BUILDING:
        assert after is BUILDING[event]
    elif event is LeaderEvent.STAND_ALONE:
        assert after is phase


def test_nothing_is_executed_while_logged_requests_are_on_their_way():
    for phase in (LeaderPhase.LOGGING, LeaderPhase.SETTLING):
        assert isinstance(TRANSITIONS[phase][LeaderEvent.EXECUTE], Wait)


def test_there_is_no_way_back_from_deposed():
    assert set(TRANSITIONS[LeaderPhase.DEPOSED].values()) == {LeaderPhase.DEPOSED}
    assert not {LeaderEvent.EXECUTE, LeaderEvent.LOG, LeaderEvent.SEAL, LeaderEvent.STAND_ALONE} & set(
        TRANSITIONS[LeaderPhase.DEPOSED]
    )
