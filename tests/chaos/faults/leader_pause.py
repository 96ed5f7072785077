"""SIGSTOP of the leader until another leads and writes go on, then SIGCONT.

What must hold: what the stale leader goes on appending is void and what it answers is right or missing; it learns that it was deposed,
follows, and catches up. Whoever asked it is answered by the new leader, once.
"""

from __future__ import annotations

from tests.chaos.campaign import PATIENCE_S, Chaos, Fault


def inject(chaos: Chaos, _round: int) -> None:
    shard = chaos.random.choice(chaos.shards)
    stale = chaos.leader(shard)
    chaos.stack.pause_node(stale)
    successor = chaos.leader(shard, other_than=stale)
    chaos.wait_progress()
    chaos.stack.resume_node(stale)
    chaos.stack.wait(
        f"{stale} knows that it does not lead by the claim that it led by",
        lambda: chaos.stack.shard(stale, shard).get("term", -1) >= chaos.stack.shard(successor, shard).get("term", 0),
        PATIENCE_S,
    )
    chaos.wait_caught_up(stale)
    chaos.wait_progress()


FAULT = Fault(name="leader-pause", inject=inject)
