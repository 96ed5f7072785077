"""Faults of processes, injected alike by drills, campaigns and fault tests: who is taken away, and until when.

What must hold afterwards is the judge's question (``kit.aftermath``). A drill tells its session each step; a campaign
has a session that nobody listens to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.session import Session
from stratolog.nodes.core.leaders import View


class FaultStack(Protocol):
    """A stack whose nodes can be taken away: ``Cluster`` for one that runs, and the stacks of tests."""

    def wait_leader(self, shard: int, *, other_than: str = "") -> str:
        """Wait for a leader of the shard."""

    def view(self, name: str, shard: int) -> View:
        """Return what a node says of a shard; empty if it does not answer."""

    def take(self, session: Session, name: str, fault: ProcessFault) -> Callable[[], object]:
        """Inflict a fault on a node; return what gives the node back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLeader:
    """A leader that was taken away at ``at_s`` of the monotonic clock, what it had said, and who leads in its place."""

    name: str
    view: View
    at_s: float
    successor: str
    give_back: Callable[[], object]


def lose_leader(
    session: Session, stack: FaultStack, shard: int, fault: ProcessFault, writes: Callable[[], None] = lambda: None
) -> LostLeader:  # fmt: skip
    """Take a shard's leader away, and wait for another one and for ``writes``; the caller gives it back.

    A frozen leader is given back at once if that does not come about.
    """
    name = stack.wait_leader(shard)
    view = stack.view(name, shard)
    with session.step(f"{fault.value} {name}, which leads shard {shard}"):
        at_s = time.monotonic()
        give_back = stack.take(session, name, fault)
    try:
        with session.step("wait for another leader, and for writes") as found:
            successor = stack.wait_leader(shard, other_than=name)
            writes()
            found(f"{successor} leads")
    except BaseException:
        if fault is ProcessFault.PAUSE:
            give_back()
        raise
    return LostLeader(name=name, view=view, at_s=at_s, successor=successor, give_back=give_back)
