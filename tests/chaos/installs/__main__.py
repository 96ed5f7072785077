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
import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Fault
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
        (kills.FAULT, options.kills, lambda world, times: kills.run(world, times, _note)),
        (leader_changes.FAULT, options.leader_changes, lambda world, times: leader_changes.run(world, times, _note)),
        (bit_flips.fault(flips), options.bit_flips, lambda world, times: bit_flips.run(world, flips, times, _note)),
    ]
    if not any(times for _, times, _ in campaigns):
        parser.error("nothing to do: give --kills, --leader-changes or --bit-flips")
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: _stop_soon(stop))
    sound = [
        _one(fault, times, options.seed, campaign, stop)
        for fault, times, campaign in campaigns
        if times and not stop.is_set()
    ]
    return 0 if all(sound) else 1


def _stop_soon(stop: threading.Event) -> None:
    if stop.is_set():
        raise KeyboardInterrupt
    _note("this round is the last one")
    stop.set()


def _one(fault: Fault, times: int, seed: int, campaign: Campaign, stop: threading.Event) -> bool:
    """Run one campaign, print its line, and return whether all holds."""
    folder = Path(tempfile.mkdtemp(prefix=f"stratolog-chaos-{fault.name}-"))
    begun_s = time.monotonic()
    try:
        with install_world(fault, folder, seed=seed, times=times, stop=stop) as world:
            figures = campaign(world, times)
            world.have_back()
            findings = world.chaos.conclude()
    except BaseException:
        _note(f"journals and logs are in {folder}")
        raise
    for word in (*world.wrong, *findings.words):
        _note(word)
    judged = {name: value for name, value in asdict(findings).items() if name != "words"}
    line = {
        "fault": fault.name, **figures, "installs": world.installs, "logs_read": world.logs_read,
        "mixed": len(world.wrong), **judged, "seconds": round(time.monotonic() - begun_s),
        "command": "python -m tests.chaos.installs " + shlex.join(sys.argv[1:]),
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    if world.wrong or not findings.sound:
        _note(f"journals and logs are in {folder}")
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
