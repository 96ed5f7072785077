"""Count what installs of checkpoints withstand: kills at every stage, changes of the leader, flipped bits.

    python -m tests.chaos.installs --kills 100 --leader-changes 50 --bit-flips 50 [--seed 1]

Each kind runs on a stack of its own (one broker, three nodes, a client that writes and journals), and ends with the judge of all chaos:
lost, duplicated, divergent. *Mixed*: what a kill left was neither the old replica nor the new one, or its rows are not those of its digest;
content came twice; a flipped bit was not noticed; replicas differ after an install. Prints what happens on standard error and one JSON
line for each kind on standard output. Exit status 1 if anything is wrong; then the folder with journals and logs is kept and named.
Control-C ends a campaign after its round: what was done until then is compared and printed. A second one ends it at once.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from tests.chaos.campaign import Fault
from tests.chaos.command import note, run_campaign, stopped_by_interrupts
from tests.chaos.installs import bit_flips, kills, leader_changes
from tests.chaos.installs.world import InstallWorld, install_world

Campaign = Callable[[InstallWorld, int], dict[str, Any]]


def main() -> int:
    """Run the campaigns that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--leader-changes", type=int, default=0)
    parser.add_argument("--bit-flips", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    flips = bit_flips.Flips(random.Random(f"flips {options.seed}"))
    campaigns: list[tuple[Fault, int, Campaign]] = [
        (kills.FAULT, options.kills, lambda world, times: kills.run(world, times, note)),
        (leader_changes.FAULT, options.leader_changes, lambda world, times: leader_changes.run(world, times, note)),
        (bit_flips.fault(flips), options.bit_flips, lambda world, times: bit_flips.run(world, flips, times, note)),
    ]
    if not any(times for _, times, _ in campaigns):
        parser.error("nothing to do: give --kills, --leader-changes or --bit-flips")
    stop = stopped_by_interrupts()
    sound = [
        run_campaign(
            "tests.chaos.installs",
            {"fault": fault.name},
            partial(_one, fault, times, options.seed, campaign, stop),
            fault.name,
        )
        for fault, times, campaign in campaigns
        if times and not stop.is_set()
    ]
    return 0 if all(sound) else 1


def _one(
    fault: Fault, times: int, seed: int, campaign: Campaign, stop: Event, folder: Path
) -> tuple[dict[str, Any], bool]:
    """Run one campaign; return its figures, and whether all holds."""
    with install_world(fault, folder, seed=seed, times=times, stop=stop) as world:
        figures = campaign(world, times)
        world.have_back()
        found = world.chaos.conclude()
    for word in (*world.wrong, *found.words):
        note(word)
    figures |= {"installs": world.installs, "logs_read": world.logs_read, "mixed": len(world.wrong)}
    return figures | found.figures(), found.sound and not world.wrong


if __name__ == "__main__":
    sys.exit(main())
