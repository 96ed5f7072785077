"""Leaders that are taken away, and the catalogue of what inflicts which fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratolog.drills import bodies
from stratolog.drills.core.report import StepFailed
from stratolog.drills.kit import catalogue
from stratolog.drills.kit.catalogue import DrillPlace, ProcessFault
from stratolog.drills.kit.faults import lose_leader
from stratolog.drills.kit.session import Session
from tests.chaos import registry


class Pair:
    """Two nodes; the second one leads as soon as the first is away, unless it ``cannot``."""

    def __init__(self, *, cannot: bool = False) -> None:
        self.away: list[str] = []
        self._cannot = cannot

    def wait_leader(self, _shard: int, *, other_than: str = "") -> str:
        if other_than and self._cannot:
            raise StepFailed(f"not within 120 s: a leader other than {other_than}")
        return "om2" if "om1" in self.away else "om1"

    def view(self, name: str, _shard: int) -> dict[str, object]:
        return {"node": name, "term": 7}

    def take(self, _session: Session, name: str, _fault: ProcessFault) -> Callable[[], object]:
        self.away.append(name)
        return lambda: self.away.remove(name)


def test_a_leader_is_away_until_it_is_given_back() -> None:
    pair, session, written = Pair(), Session(), []
    lost = lose_leader(session, pair, 0, ProcessFault.KILL, lambda: written.append(list(pair.away)))
    assert (lost.name, lost.successor, lost.view["term"]) == ("om1", "om2", 7)
    assert written == [["om1"]], "writes are awaited while it is away"
    assert [step.found for step in session.steps] == ["", "om2 leads"]
    lost.give_back()
    assert pair.away == []


@pytest.mark.parametrize(("fault", "away"), [(ProcessFault.PAUSE, []), (ProcessFault.KILL, ["om1"])])
def test_a_frozen_leader_does_not_stay_frozen_if_nobody_follows_it(fault: ProcessFault, away: list[str]) -> None:
    pair = Pair(cannot=True)
    with pytest.raises(StepFailed, match="other than om1"):
        lose_leader(Session(), pair, 0, fault)
    assert pair.away == away


def test_every_drill_has_a_body_and_every_campaign_that_is_named_exists() -> None:
    assert set(bodies.ABOUT_A_SHARD) == set(catalogue.names_at(DrillPlace.SHARD))
    assert set(bodies.BESIDE_THE_STACK) == set(catalogue.names_at(DrillPlace.BESIDE)) == set(registry.DRILLS)
    named = {drill.campaign for drill in catalogue.DRILLS if drill.campaign}
    assert named <= {*registry.FAULTS, *registry.DRILLS}
    assert not registry.FAULTS.keys() & registry.DRILLS.keys()
