"""SIGKILL of all brokers at the same moment, and their restart.

What must hold: nodes and clients wait for them and go on by themselves; everything that was acknowledged is in the log. Killed processes
leave what they wrote in the page cache; with the machine's power lost, only ``durability = "fsync"`` promises as much.
"""

from __future__ import annotations

import signal

from tests.chaos.brokers import wait_in_sync
from tests.chaos.campaign import Chaos, Fault


def inject(chaos: Chaos, _round: int) -> None:
    kafka = chaos.stack.kafka
    for process in kafka.processes.values():
        process.signal(signal.SIGKILL)
    for number in list(kafka.processes):
        kafka.kill_broker(number)
    kafka.start_brokers()
    wait_in_sync(chaos.stack)
    chaos.wait_progress()
    chaos.stack.wait_led()
    chaos.wait_all_caught_up()


FAULT = Fault(name="all-brokers", inject=inject)
