"""Who leads on this node: threads that end by themselves leave room for those that come after them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from om_processors.leading.leadership import Leadership
from replicated_db.shell.claiming import UnfitToLead
from schemas.topics import OM_REQUESTS
from stratolog.local.processes import wait_until

DEADLINE_S = 30.0


class Loop:
    """A loop that leads until it is stopped, deposed or found unfit."""

    def __init__(self) -> None:
        self.replica = SimpleNamespace(
            evidence=None, state=SimpleNamespace(replicas=("n1", "n2")), read_offset=0, position=SimpleNamespace(term=3),
            identity=SimpleNamespace(shard=0),
        )  # fmt: skip
        self.leading = False
        self.times_led = 0
        self.deposed, self.unfit = threading.Event(), threading.Event()

    def beat(self) -> None:
        pass

    def turned_ago_ms(self) -> int:
        return 0

    def lead(self, stop: threading.Event) -> str:
        self.times_led += 1
        self.leading = True
        try:
            while not stop.wait(0.001):
                if self.deposed.is_set():
                    return "did not count: another term leads"
                if self.unfit.is_set():
                    raise UnfitToLead("its clock is wrong")
        finally:
            self.leading = False
        return "stopped"


class Consumer:
    def incremental_assign(self, _: Any) -> None:
        pass

    def pause(self, _: Any) -> None:
        pass


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def leadership(loop: Loop) -> Iterator[Leadership]:
    config: Any = SimpleNamespace(
        node="n2", replicas=("n1", "n2"), watchdog_ms=10_000, session_timeout_ms=6_000, bootstrap_servers="127.0.0.1:1"
    )
    errors: list[BaseException] = []
    loops: Any = {0: loop}
    found = Leadership(config, loops, lambda: 0.0, lambda *_, **__: None, errors.append)
    found._ends.lags = {0: 0}
    yield found
    found._end([0], drain=True)
    assert errors == []


def assign(leadership: Leadership) -> None:
    consumer: Any = Consumer()
    leadership._assigned(consumer, [TopicPartition(OM_REQUESTS, 0, 0)])


def ends(leadership: Leadership, loop: Loop, how: threading.Event) -> None:
    """Have the shard's thread end by itself."""
    how.set()
    assert wait_until(lambda: not loop.leading and 0 not in leadership._threads, DEADLINE_S, interval_s=0.001)
    how.clear()


def leads(loop: Loop) -> bool:
    return wait_until(lambda: loop.leading, DEADLINE_S, interval_s=0.001)


@pytest.mark.parametrize("how", ["deposed", "unfit"])
def test_a_borrower_that_led_no_more_leads_once_the_shard_is_its_own(leadership: Leadership, loop: Loop, how: str):
    assert leadership.borrow(0, "n1") == {"shard": 0, "term": 3}
    ends(leadership, loop, getattr(loop, how))
    assign(leadership)
    assert leads(loop)
    assert loop.times_led == 2


def test_a_deposed_borrower_loses_the_loan_and_nothing_else(leadership: Leadership, loop: Loop):
    leadership.borrow(0, "n1")
    ends(leadership, loop, loop.deposed)
    assert not leadership._leave.is_set()
    assert leadership.renew(0, "n1") == {"shard": 0, "leads": False}
    assert leadership.roles(0)["borrowed_from"] is None


def test_a_borrower_that_is_deposed_while_it_gives_the_shard_back_stays_in_the_group(
    leadership: Leadership, loop: Loop
):
    """Its loan is over, so it is not to be taken for an owner."""
    leadership.borrow(0, "n1")
    thread = leadership._threads[0]
    with leadership._lock:  # its thread waits for this to say that it was deposed
        loop.deposed.set()
        assert wait_until(lambda: not loop.leading, DEADLINE_S, interval_s=0.001)
        leadership._end([0], drain=False)
    assert wait_until(lambda: not thread.running, DEADLINE_S, interval_s=0.001)
    assert not leadership._leave.is_set()


def test_a_borrower_that_cannot_claim_a_shard_loses_the_loan_and_nothing_else(leadership: Leadership, loop: Loop):
    leadership.borrow(0, "n1")
    thread = leadership._threads[0]
    with leadership._lock:
        thread.thread, itself = threading.current_thread(), thread.thread
        leadership._failing(0)
        thread.thread = itself
    assert not leadership._leave.is_set()
    assert leadership.roles(0)["borrowed_from"] is None
    thread.stop.set()


def test_a_deposed_borrower_may_borrow_again(leadership: Leadership, loop: Loop):
    leadership.borrow(0, "n1")
    ends(leadership, loop, loop.deposed)
    assert wait_until(lambda: leadership.fitness()["against"] == [], DEADLINE_S, interval_s=0.001)
    assert leadership.borrow(0, "n1")["shard"] == 0
    assert loop.leading


def test_a_deposed_owner_leaves_the_group(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    ends(leadership, loop, loop.deposed)
    assert wait_until(leadership._leave.is_set, DEADLINE_S, interval_s=0.001)


def test_a_borrower_that_is_assigned_the_shard_goes_on(leadership: Leadership, loop: Loop):
    leadership.borrow(0, "n1")
    assign(leadership)
    assert loop.times_led == 1
    assert loop.leading
    assert leadership.roles(0) == {"owner": True, "lent_to": None, "borrowed_from": None, "lag_records": 0}


def test_a_partition_that_nobody_can_read_keeps_no_node_from_leading_others(leadership: Leadership):
    leadership._ends.lags = {0: None}
    assert leadership.fitness()["against"] == ["shard 0: the brokers do not say where its log ends"]
    leadership._ends.leaderless = frozenset({0})
    assert leadership.fitness()["against"] == []
