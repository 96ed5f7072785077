"""SIGKILL of the leader.

What must hold: another node claims and writes are acknowledged again, whatever the leader had appended, answered or left half done;
nothing that was acknowledged is missing, no call is executed twice. The victim starts again at once, and the next round may kill the new leader
while it is still reading the log: one node that has caught up is enough.
"""

from __future__ import annotations

from stratolog.drills.kit.catalogue import ProcessFault, find
from tests.chaos.campaign import Chaos, Fault


def inject(chaos: Chaos, _round: int) -> None:
    shard = chaos.random.choice(chaos.shards)
    chaos.lose_leader(shard, ProcessFault.KILL).give_back()
    chaos.wait_progress()
    chaos.wait_spare()


FAULT = Fault(name=find("kill-leader").campaign, inject=inject)
