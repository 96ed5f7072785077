"""SIGKILL of a client process with requests in flight; another takes its place.

What must hold: each request of the dead client had its effect once or not at all, whether it was acknowledged or not, and its
acknowledged ones are there. (What was tried and not answered is *unknown* in the journal that it left.)
"""

from __future__ import annotations

from tests.chaos.campaign import Chaos, Fault


def inject(chaos: Chaos, _round: int) -> None:
    victim = chaos.random.choice(sorted(chaos.clients))
    chaos.kill_client(victim)
    chaos.start_client()
    chaos.wait_progress()


FAULT = Fault(name="client-kill", inject=inject)
