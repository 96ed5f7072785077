"""SIGKILL of a node in its install, at every stage, again and again.

What must hold after each kill, looked at in a copy: before the journal the old replica, from the journal on the new one, whole each time.
What was fetched before a kill is not fetched again. When the node is back, its rows are those of the other replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from stratolog.drills.installs.core.stages import InstallStage
from stratolog.drills.installs.kills import InstallKills
from tests.chaos.campaign import Fault
from tests.chaos.damage import LogMark
from tests.chaos.installs.world import InstallWorld, StackVictim

FAULT = Fault(name="install-kill", inject=lambda _chaos, _round: None, brokers=1)
STAGES = tuple(stage for stage in InstallStage if stage is not InstallStage.SECOND_ROUND)
"""All that an install of a small database comes by."""


def run(world: InstallWorld, kills: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Kill so often; return the figures."""
    world.keep_a_snapshot()
    met: Counter[InstallStage] = Counter()
    kept = again = 0
    while world.goes_on() and met.total() < kills:
        # With its checkpoints left the node has old ones to put aside; without, there is nothing in their place.
        world.need_install(keep_checkpoints=world.random.random() < 0.5)
        mark = LogMark(world.chaos, world.victim)
        victim = InstallKills(StackVictim(world.stack, world.victim, world.database))
        while (
            world.goes_on()
            and met.total() < kills
            and (reachable := [stage for stage in STAGES if victim.reaches(stage)])
        ):
            least = min(met[stage] for stage in reachable)
            aimed = world.random.choice([stage for stage in reachable if met[stage] == least])
            kill = victim.kill_at(aimed)
            met[kill.found] += 1
            kept += kill.kept_bytes
            again += kill.fetched_again
            world.wrong += [kill.wrong] if kill.wrong else []
            note(f"kill {met.total()}: {kill.found.value}; {kill.wrong or 'whole'}")
        world.compare(mark)
    return {
        "kills": met.total(), "stages": {stage.name.lower(): met[stage] for stage in STAGES},
        "kept_bytes": kept, "fetched_again": again,
    }  # fmt: skip
