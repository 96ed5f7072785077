"""SIGKILL of one broker of three (replication factor 3, min.insync 2) and its restart: by turns the one that leads the log's partition,
the active controller, and any.

What must hold: the other two go on, with everything that was acknowledged; nodes and clients find the new leaders of the partitions and
write on. The next round waits until the broker is in sync again, as two brokers lost would rightly stop all writes.
"""

from __future__ import annotations

from stratolog.drills.kit.catalogue import find
from tests.chaos.brokers import active_controller, leader_of_log, wait_in_sync
from tests.chaos.campaign import Chaos, Fault


def inject(chaos: Chaos, round_number: int) -> None:
    kafka = chaos.stack.kafka
    choices = (leader_of_log, active_controller, lambda stack: chaos.random.choice(sorted(stack.kafka.processes)))
    victim = choices[round_number % len(choices)](chaos.stack)
    kafka.kill_broker(victim)
    chaos.wait_progress()
    kafka.start_broker(victim)
    wait_in_sync(chaos.stack)
    chaos.wait_progress()


FAULT = Fault(name=find("lost-broker").campaign, inject=inject)
