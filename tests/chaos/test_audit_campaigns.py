"""Each campaign of the audit, shortly. Counts: ``python -m tests.chaos.audit``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.audit import divergences, turmoil
from tests.chaos.audit.damage import INJECTIONS
from tests.chaos.audit.world import audit_world

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_audit_names_what_was_damaged(tmp_path: Path):
    with audit_world(tmp_path) as world:
        found = divergences.run(world, len(INJECTIONS), 1, print)
    assert found["kinds"] == {one.name: 1 for one in INJECTIONS}


def test_no_verdict_is_missing_when_the_audit_is_killed(tmp_path: Path):
    with audit_world(tmp_path) as world:
        found = turmoil.audit_kills(world, 2, 1, print)
    assert found["wrong"] == []
    assert found["last_words"]["equal"] > 0


def test_nothing_is_taken_for_a_fault_that_is_none(tmp_path: Path):
    with audit_world(tmp_path) as world:
        found = turmoil.false_alarms(world, 1.0, 1, print)
    assert found["wrong"] == []
    assert found["last_words"]["equal"] > 0
