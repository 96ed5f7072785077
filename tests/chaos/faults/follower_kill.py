"""SIGKILL of a node that does not lead, and its restart under load.

What must hold: writes go on meanwhile; the node goes on from the position in its own store, and holds what the others hold.
"""

from __future__ import annotations

from stratolog.drills.kit.catalogue import find
from tests.chaos.campaign import Chaos, Fault


def inject(chaos: Chaos, _round: int) -> None:
    victim = chaos.random.choice(chaos.followers(chaos.random.choice(chaos.shards)))
    chaos.stack.kill_node(victim)
    chaos.wait_progress()
    chaos.stack.start_node(victim)
    chaos.wait_caught_up(victim)


FAULT = Fault(name=find("kill-follower").campaign, inject=inject)
