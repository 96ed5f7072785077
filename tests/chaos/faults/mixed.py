"""Kills of every kind in random order, under as much load as the machine bears: leader, follower, broker, client, and pauses of a leader.

What must hold is what holds for each; with ``--acknowledged 1000000`` the rounds go on until a million requests are acknowledged, and all of them
are compared at the end.
"""

from __future__ import annotations

from tests.chaos.campaign import Chaos, Fault, Load
from tests.chaos.faults import broker_kill, client_kill, follower_kill, leader_kill, leader_pause

KINDS = (leader_kill, leader_pause, follower_kill, client_kill, broker_kill)
WRITES_BETWEEN = 25_000


def inject(chaos: Chaos, round_number: int) -> None:
    kinds = KINDS if len(chaos.stack.kafka.processes) > 1 else KINDS[:-1]
    chaos.random.choice(kinds).inject(chaos, round_number)
    chaos.wait_progress(WRITES_BETWEEN)


FAULT = Fault(name="mixed", inject=inject, load=Load(in_flight=1000, rate=0.0))
