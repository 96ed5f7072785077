"""A leader's loop, turn by turn, as a test tells it: what is taken, what the log holds back, what was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

from replicated_db.core.applying.replica import Offered
from replicated_db.core.leading.leader import Effective, LeaderLimits, Proposal, Reply
from replicated_db.core.ports import AppendRefused, DeliveryReport
from replicated_db.core.tables.memory import ManualClock, MemoryAppender, MemoryLog, SequenceIds
from replicated_db.shell.leader_loop import (
    LeaderLoop,
)
from schemas.codecs.codec import decode
from tests.support.replicated.kit import NODES, START_MS, Kit, Node

LIMITS = LeaderLimits(scrub_interval_ms=0)


class HeldAppender(MemoryAppender):
    """Reports what is in flight unless the story holds it back; takes ``room`` records."""

    room = 1_000
    waits: list[float]
    on_poll: Callable[[], None] = staticmethod(lambda: None)

    def append(self, token: int, value: bytes) -> None:
        if len(self.in_flight) >= self.room:
            raise AppendRefused("the queue is full")
        MemoryAppender.append(self, token, value)

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        self.waits.append(wait_s)
        self.on_poll()
        while self.in_flight and not self.log.holds:  # type: ignore[attr-defined]
            self.deliver()
        return MemoryAppender.poll(self, wait_s)


class HeldLog(MemoryLog):
    """A log whose appenders report only while ``holds`` is not set."""

    holds = False

    def appender(self) -> MemoryAppender:
        self.last = HeldAppender(self, auto=False)
        self.last.waits = []
        return self.last


class Story:
    """A loop of n1, and the steps that its intake runs."""

    def __init__(self, limits: LeaderLimits = LIMITS) -> None:
        self.clock = ManualClock(now_ms=START_MS)
        self.log = HeldLog(self.clock)
        self.node = Node(log=self.log)
        self.node.open()
        self.stop = Event()
        self.steps: list[Callable[[], Sequence[Proposal]]] = []
        self.asked: list[tuple[int, float]] = []
        self.replies: list[Reply] = []
        self.published: list[Offered] = []
        self.settled: list[Effective] = []
        self.opened_for: list[Any] = []
        self.beaten_ms = 0
        self.closed = 0
        self.woken = 0
        script: Any = self
        self.loop = LeaderLoop(
            self.node.replica, self.log, Kit(), limits, clock=self.clock, ids=SequenceIds(seed=3), address="n1:1",
            outbox=script, intake=self.open, replicas=NODES,
            on_settled=self.settled.append,
        )  # fmt: skip

    # what the loop asks for

    def open(self, hint: Any) -> Any:
        self.opened_for.append(hint)
        self.beaten_ms = self.loop._turned_ms - self.clock.elapsed_ms()
        return self

    def wake(self) -> None:
        self.woken += 1

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        self.asked.append((limit, wait_s))
        assert len(self.asked) < 100, "the story does not end"
        if self.steps:
            return self.steps.pop(0)()
        self.log.holds = False
        self.stop.set()
        return []

    def close(self) -> None:
        self.closed += 1

    def reply(self, replies: Sequence[Reply]) -> None:
        self.replies += replies

    def publish(self, replica: Any, outcome: Offered) -> None:
        assert replica is self.node.replica
        self.published.append(outcome)

    # what the story says

    def lead(self, *steps: Callable[[], Sequence[Proposal]]) -> str:
        self.steps = list(steps)
        return self.loop.lead(self.stop)

    def hold(self) -> Sequence[Proposal]:
        self.log.holds = True
        return []

    def release(self) -> Sequence[Proposal]:
        self.log.holds = False
        return []

    @property
    def in_flight(self) -> int:
        return len(self.log.last.in_flight)

    def kinds(self) -> list[str]:
        return [type(decode(entry.value)).__name__ for entry in self.log.entries]
