"""Each campaign of installs, shortly. Counts: ``python -m tests.chaos.installs``."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.campaign import Fault
from tests.chaos.installs import bit_flips, kills, leader_changes
from tests.chaos.installs.world import InstallWorld, install_world

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]
FLIPS = bit_flips.Flips(random.Random(1))


def few_kills(world: InstallWorld) -> dict[str, Any]:
    return kills.run(world, 4, print)


def few_changes(world: InstallWorld) -> dict[str, Any]:
    return leader_changes.run(world, 2, print)


def few_flips(world: InstallWorld) -> dict[str, Any]:
    return bit_flips.run(world, FLIPS, 4, print)


@pytest.mark.parametrize(
    ("fault", "campaign", "figure", "least"),
    [
        (kills.FAULT, few_kills, "kills", 4),
        (leader_changes.FAULT, few_changes, "leader_changes", 2),
        (bit_flips.fault(FLIPS), few_flips, "flips", 4),
    ],
    ids=["kills", "leader changes", "bit flips"],
)
def test_installs_withstand(
    fault: Fault, campaign: Callable[[InstallWorld], dict[str, Any]], figure: str, least: int, tmp_path: Path
) -> None:
    with install_world(fault, tmp_path, seed=1, times=1) as world:
        figures = campaign(world)
        world.have_back()
        findings = world.chaos.conclude()
    assert figures[figure] >= least
    assert world.wrong == []
    assert world.installs + world.logs_read > 0
    assert findings.sound, findings.words
    assert findings.acknowledged > 0
