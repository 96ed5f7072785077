"""A node cut off from all brokers, by turns the leader and a follower, until writes go on without it; then the cut heals.

What must hold: a leader that is cut off acknowledges nothing, another claims, and what it still had on its way is void; once healed it learns of
that from the log, follows and catches up. It is never restarted.
"""

from __future__ import annotations

from tests.chaos.campaign import Chaos, Fault
from tests.support.faults.netns import why_not


def inject(chaos: Chaos, round_number: int) -> None:
    leader = chaos.wait_leader()
    cut_off = leader if round_number % 2 else chaos.random.choice(chaos.followers())
    brokers = [host for name, host in chaos.network.hosts.items() if name.startswith("kafka")]
    chaos.network.cut(chaos.network.hosts[cut_off], brokers)
    try:
        if cut_off == leader:
            chaos.stack.wait(
                f"another leader than {cut_off}",
                lambda: [name for name in chaos.stack.leaders(0) if name != cut_off],
            )
        chaos.wait_progress()
    finally:
        chaos.network.heal()
    chaos.wait_caught_up(cut_off)
    chaos.wait_progress()


FAULT = Fault(name="node-partition", inject=inject, hosts=True, why_not=why_not)
