"""Changes of the leader while a node fetches a checkpoint: the leadership is moved, or the leader, which serves, is killed.

What must hold: the node installs in the end, from whichever peer, and its rows are those of the other replicas.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from stratolog.cluster.leadership import move
from stratolog.drills.installs.core.kill_findings import CandidateSight
from stratolog.drills.installs.core.stages import ORDER, InstallStage
from stratolog.drills.installs.kills import InstallKills
from stratolog.drills.installs.watch import InstallWatch, candidate_of
from tests.chaos.campaign import Fault
from tests.chaos.damage import LogMark
from tests.chaos.installs.world import SHARD, InstallWorld, StackVictim

BYTES_PER_S = 1024 * 1024
FAULT = Fault(
    name="install-leader-change", inject=lambda _chaos, _round: None, brokers=1,
    settings=(("bootstrap_bytes_per_s", BYTES_PER_S),),
)  # fmt: skip
NAMES, NAME_BYTES = 4_000, 4_000
"""Keys that make a transfer of about 15 seconds."""

KILL_SHARE = 0.4
LONGEST_PAUSE_S = 2.0
"""Between two changes, so that they fall anywhere in a transfer."""


def run(world: InstallWorld, changes: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Change the leader so often while files come; return the figures."""
    world.fill(NAMES, NAME_BYTES)
    done: Counter[str] = Counter()
    listings = kept = 0
    while world.goes_on() and done.total() < changes:
        world.need_install()
        mark = LogMark(world.chaos, world.victim)
        watch = InstallKills(StackVictim(world.stack, world.victim, world.database)).see(InstallStage.FETCHING)
        while world.goes_on() and done.total() < changes and _fetches(watch):
            time.sleep(world.random.uniform(0, LONGEST_PAUSE_S))
            before = candidate_of(world.database)
            how = "kill" if world.random.random() < KILL_SHARE else "move"
            (_kill if how == "kill" else _move)(world)
            if not _fetches(watch):
                break  # it was over before the new leader led: not counted
            done[how] += 1
            kept += _kept(before, candidate_of(world.database))
            note(f"change {done.total()}: {how}, {world.chaos.wait_leader(SHARD)} leads; {watch.listings} listings")
        listings += watch.listings
        world.compare(mark)
    return {"leader_changes": done.total(), "how": dict(done), "listings": listings, "kept_bytes": kept}


def _fetches(watch: InstallWatch) -> bool:
    return ORDER[InstallStage.SEEKING] <= ORDER[watch.stage()] <= ORDER[InstallStage.SECOND_ROUND]


def _move(world: InstallWorld) -> None:
    old = world.chaos.wait_leader(SHARD)
    new = next(name for name in world.peers if name != old)
    if new not in world.stack.nodes:
        world.stack.start_node(new)
    world.chaos.wait_caught_up(new)
    move(world.stack.settings, SHARD, new)
    world.chaos.wait_leader(SHARD, other_than=old)


def _kill(world: InstallWorld) -> None:
    old = world.chaos.wait_leader(SHARD)
    other = next(name for name in world.peers if name != old)
    world.chaos.wait_caught_up(other)
    world.stack.kill_node(old)
    world.chaos.wait_leader(SHARD, other_than=old)
    world.stack.start_node(old)


def _kept(before: CandidateSight | None, after: CandidateSight | None) -> int:
    if before is None or after is None:
        return 0
    return sum(file[2] for digest, file in after.whole.items() if before.whole.get(digest) == file)
