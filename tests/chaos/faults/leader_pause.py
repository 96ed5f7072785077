"""SIGSTOP of the leader until another leads and writes go on, then SIGCONT.

What must hold: what the stale leader goes on appending is void and what it answers is right or missing; it learns that it was deposed,
follows, and catches up. Whoever asked it is answered by the new leader, once.
"""

from __future__ import annotations

from stratolog.drills.kit.catalogue import ProcessFault, find
from tests.chaos.campaign import Chaos, Fault


def inject(chaos: Chaos, _round: int) -> None:
    shard = chaos.random.choice(chaos.shards)
    lost = chaos.lose_leader(shard, ProcessFault.PAUSE, chaos.wait_progress)
    lost.give_back()
    chaos.stack.wait(
        f"{lost.name} knows that it does not lead by the claim that it led by",
        lambda: (
            chaos.stack.view(lost.name, shard).get("term", -1) >= chaos.stack.view(lost.successor, shard).get("term", 0)
        ),
    )
    chaos.wait_caught_up(lost.name)
    chaos.wait_progress()


FAULT = Fault(name=find("zombie-leader").campaign, inject=inject)
