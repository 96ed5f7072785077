"""Count what the running audit finds, how soon, and what it must not mistake for a fault.

    python -m tests.chaos.audit --divergences 20 --audit-kills 20 --false-alarms 60 [--seed 1]

``--divergences N``: N injections over six kinds (a flipped bit in a value, a missing row, an extra row, a batch skipped, one applied
twice, a wrong merge), and the seconds from the replica's report that shows it to the verdict, and to the verdict with all keys named.

``--audit-kills N``: the audit's process is killed so often, at any moment. ``--false-alarms M``: for M minutes leaders are killed and
moved, followers restarted, disks lost, all nodes restarted in turn, and the audit killed. Both under load; every replica must have a last
word at every barrier, none of them ``diverged``, and no verdict may be in Parquet twice.

A real stack (one broker, three nodes, the Spark audit). Prints what happens on standard error and one JSON line for each campaign on
standard output. Exit status 1 if anything is wrong; then the folder with the logs is kept and named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.audit import divergences, turmoil
from tests.chaos.audit.world import AuditWorld, audit_world
from tests.chaos.command import note, run_campaign

Campaign = Callable[[AuditWorld], dict[str, Any]]


def main() -> int:
    """Run the campaigns that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--divergences", type=int, default=0)
    parser.add_argument("--audit-kills", type=int, default=0)
    parser.add_argument("--false-alarms", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    campaigns: list[tuple[str, float, Campaign]] = [
        ("divergences", options.divergences, lambda w: divergences.run(w, options.divergences, options.seed, note)),
        (
            "audit-kills",
            options.audit_kills,
            lambda w: turmoil.audit_kills(w, options.audit_kills, options.seed, note),
        ),
        (
            "false-alarms",
            options.false_alarms,
            lambda w: turmoil.false_alarms(w, options.false_alarms, options.seed, note),
        ),
    ]
    if not any(times for _, times, _ in campaigns):
        parser.error("nothing to do: say how much of which campaign")
    sound = [
        run_campaign("tests.chaos.audit", {"campaign": name}, partial(_one, campaign), name)
        for name, times, campaign in campaigns
        if times
    ]
    return 0 if all(sound) else 1


def _one(campaign: Campaign, folder: Path) -> tuple[dict[str, Any], bool]:
    """Run one campaign; return its figures, and whether nothing is wrong."""
    with audit_world(folder) as world:
        figures = campaign(world)
    return figures, not figures.get("wrong", [])


if __name__ == "__main__":
    sys.exit(main())
