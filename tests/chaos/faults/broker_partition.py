"""A broker cut off from the two others: by turns the one that leads the log's partition, the active controller, and any. In every other
round nodes and clients still reach it, in the others nobody does. Every fourth cut is held for so long that all have asked brokers again
and again who leads, and have heard it from the wrong one too.

What must hold: the majority goes on. The broker that is cut off and does not know it may take requests and answer questions about the log, but can
acknowledge no record of it (min.insync 2), and what it alone holds is gone when the cut heals: no client was told that it was done.
"""

from __future__ import annotations

import time

from tests.chaos.brokers import active_controller, is_in_sync, leader_of_log, wait_in_sync
from tests.chaos.campaign import Chaos, Fault
from tests.support.faults.netns import why_not

HELD_S = 45.0


def inject(chaos: Chaos, round_number: int) -> None:
    choices = (leader_of_log, active_controller, lambda stack: chaos.random.choice(sorted(stack.kafka.processes)))
    number = choices[round_number % len(choices)](chaos.stack)
    name = f"kafka{number}"
    network = chaos.network
    everybody = [host for host in (*network.hosts.values(), network.machine) if host.name != name]
    brokers = [host for host in everybody if host.name.startswith("kafka")]
    network.cut(network.hosts[name], everybody if round_number % 2 else brokers)
    try:
        chaos.wait_progress()
        # It is given up by the others only after its session; what comes then is what the round is for.
        chaos.stack.wait(f"{name} is out of sync", lambda: not is_in_sync(chaos.stack, number))
        chaos.wait_progress()
        if round_number % 4 == 0:
            time.sleep(HELD_S)
            chaos.check_alive()
            chaos.wait_progress()
    finally:
        network.heal()
    wait_in_sync(chaos.stack)
    chaos.wait_all_caught_up()
    chaos.wait_progress()


FAULT = Fault(name="broker-partition", inject=inject, hosts=True, why_not=why_not)
