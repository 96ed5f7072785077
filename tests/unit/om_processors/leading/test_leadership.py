"""The threads around the machine of leadership: what they tell it, and that what it says is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from om_processors.errors import OMError
from om_processors.leading import leadership as leadership_module
from om_processors.leading import shard_thread
from om_processors.leading.core.leadership_events import BorrowFailed, GroupLeft, LoansDue, SignsSeen, StopAsked
from om_processors.leading.core.leadership_machine import UNFIT_WAIT_S
from om_processors.leading.core.leadership_states import IN_GROUP, MemberState
from om_processors.leading.core.lending import Answer, Loan
from om_processors.leading.core.watchdog import MAX_LEAD_LAG_RECORDS
from om_processors.leading.leaders_group import POLL_S
from om_processors.leading.leadership import Leadership
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.claiming import UnfitToLead
from schemas.result_codes import INVALID_REQUEST
from schemas.topics import OM_REQUESTS
from stratolog.local.processes import wait_until
from tests.support.local.secret import SECRET

DEADLINE_S = 30.0
SESSION_S = 60
"""A node's session; so long that it, and not the brokers' time to answer, is how long a loan lasts."""


class Loop:
    """A loop that leads until it is stopped, deposed or found unfit."""

    def __init__(self) -> None:
        self.replica = SimpleNamespace(
            evidence=None, state=SimpleNamespace(replicas=("n1", "n2")), read_offset=0, position=SimpleNamespace(term=3),
            identity=SimpleNamespace(shard=0),
        )  # fmt: skip
        self.leading = False
        self.times_led = 0
        self.deposed, self.unfit, self.failing = threading.Event(), threading.Event(), threading.Event()
        self.may_end = threading.Event()
        """A loop that is told to end has batches in flight until this is set."""
        self.may_end.set()
        self.may_lead = threading.Event()
        """A claim takes until this is set."""
        self.may_lead.set()
        self.silent_ms = 0.0

    def beat(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def turned_ago_ms(self) -> float:
        return self.silent_ms

    def lead(self, stop: threading.Event) -> str:
        if self.failing.is_set():
            raise LogUnavailable("no answer")
        self.may_lead.wait(DEADLINE_S)
        self.times_led += 1
        self.leading = True
        try:
            while not stop.wait(0.001):
                if self.deposed.is_set():
                    return "did not count: another term leads"
                if self.unfit.is_set():
                    raise UnfitToLead("its clock is wrong")
                if self.failing.is_set():
                    raise LogUnavailable("no answer")
            self.may_end.wait(DEADLINE_S)
        finally:
            self.leading = False
        return "stopped"


class Consumer:
    def __init__(self) -> None:
        self.gone: list[int] = []

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.gone += [one.partition for one in partitions]

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
        node="n2",
        replicas=("n1", "n2"),
        leader_watchdog_ms=10_000,
        session_timeout_ms=SESSION_S * 1000,
        bootstrap_servers="127.0.0.1:1",
        secret=SECRET,
        tls=None,
    )
    errors: list[BaseException] = []
    loops: Any = {0: loop}
    found = Leadership(config, loops, lambda: 0.0, lambda *_, **__: None, errors.append)
    found._signs.ends.lags = {0: 0}
    yield found
    found.stop()
    assert wait_until(lambda: not found._threads, DEADLINE_S, interval_s=0.001)
    assert errors == []


def join(leadership: Leadership) -> None:
    """What the thread of the group does, later than any reason to stay out lasts."""
    later_s = time.monotonic() + 2 * UNFIT_WAIT_S
    if leadership._machine.state is MemberState.LEAVING:
        leadership._tell(GroupLeft(now_s=later_s, jitter_s=0.0))
    leadership._tell(SignsSeen(signs=leadership._signs_now(), now_s=later_s))
    assert is_member(leadership)


def is_member(leadership: Leadership) -> bool:
    return leadership._machine.state in IN_GROUP and leadership._member_wanted.is_set()


def assign(leadership: Leadership) -> None:
    if not is_member(leadership):
        join(leadership)
    consumer: Any = Consumer()
    leadership._group.on_assigned(consumer, [TopicPartition(OM_REQUESTS, 0, 0)])


def ends(leadership: Leadership, loop: Loop, how: threading.Event) -> None:
    """Have the shard's thread end by itself."""
    how.set()
    assert wait_until(lambda: not loop.leading and not leadership._threads, DEADLINE_S, interval_s=0.001)
    how.clear()


def leads(loop: Loop) -> bool:
    return wait_until(lambda: loop.leading, DEADLINE_S, interval_s=0.001)


@pytest.mark.parametrize("how", ["deposed", "unfit"])
def test_a_borrower_that_led_no_more_leads_once_the_shard_is_its_own(leadership: Leadership, loop: Loop, how: str):
    join(leadership)
    assert leadership.borrow(0, "n1") == {"shard": 0, "term": 3}
    ends(leadership, loop, getattr(loop, how))
    assert is_member(leadership) == (how == "deposed")
    assign(leadership)
    assert leads(loop)
    assert loop.times_led == 2


def test_a_deposed_borrower_loses_the_loan_and_nothing_else(leadership: Leadership, loop: Loop):
    join(leadership)
    leadership.borrow(0, "n1")
    ends(leadership, loop, loop.deposed)
    assert is_member(leadership)
    assert leadership.renew(0, "n1") == {"shard": 0, "leads": False}
    assert leadership.roles(0)["borrowed_from"] is None


def test_a_borrower_that_is_deposed_while_it_gives_the_shard_back_stays_in_the_group(
    leadership: Leadership, loop: Loop
):
    """Its loan is over, so it is not to be taken for an owner."""
    join(leadership)
    leadership.borrow(0, "n1")
    (thread,) = leadership._threads.values()
    with leadership._lock:  # its thread waits for this to say that it was deposed
        loop.deposed.set()
        assert wait_until(lambda: not loop.leading, DEADLINE_S, interval_s=0.001)
        leadership._tell(BorrowFailed(shard=0, owner="n1"))
        assert leadership.fitness()["against"] == ["shard 0: its last leader thread has not ended"]
    assert wait_until(lambda: not thread.running, DEADLINE_S, interval_s=0.001)
    assert is_member(leadership)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_thread, "MAX_FAILING_S", 0.001)
    monkeypatch.setattr(shard_thread, "RETRY_S", 0.001)


@pytest.mark.usefixtures("no_patience")
def test_a_borrower_that_cannot_claim_a_shard_loses_the_loan_and_nothing_else(leadership: Leadership, loop: Loop):
    join(leadership)
    leadership.borrow(0, "n1")
    ends(leadership, loop, loop.failing)
    assert is_member(leadership)
    assert leadership.roles(0)["borrowed_from"] is None


@pytest.mark.usefixtures("no_patience")
def test_an_owner_that_cannot_claim_a_shard_leaves_the_group(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    ends(leadership, loop, loop.failing)
    assert not is_member(leadership)


@pytest.mark.usefixtures("no_patience")
def test_one_that_cannot_claim_does_not_borrow(leadership: Leadership, loop: Loop):
    loop.failing.set()
    with pytest.raises(OMError, match="n2 could not claim shard 0"):
        leadership.borrow(0, "n1")
    assert leadership.roles(0)["borrowed_from"] is None


def test_a_shard_that_is_given_back_is_drained(leadership: Leadership, loop: Loop):
    leadership.borrow(0, "n1")
    assert leadership.give_back(0, "n3") == {"shard": 0}
    assert loop.leading
    assert leadership.give_back(0, "n1") == {"shard": 0}
    assert not loop.leading


def test_a_revoked_shard_is_drained_before_that_is_acknowledged(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    consumer: Any = Consumer()
    leadership._group.on_revoked(consumer, [TopicPartition(OM_REQUESTS, 0, 0)])
    assert not loop.leading
    assert consumer.gone == [0]
    assert is_member(leadership)


def revoked(leadership: Leadership, loop: Loop) -> threading.Thread:
    """Revoke the shard while its batches are in flight, on a thread of the group's; it ends when that is acknowledged."""
    assign(leadership)
    assert leads(loop)
    loop.may_end.clear()
    consumer: Any = Consumer()
    partitions = [TopicPartition(OM_REQUESTS, 0, 0)]
    thread = threading.Thread(target=leadership._group.on_revoked, args=(consumer, partitions), daemon=True)
    thread.start()
    return thread


def test_a_revocation_waits_for_batches_in_flight(leadership: Leadership, loop: Loop):
    loop.silent_ms = leadership._bounds.stall_ms  # as long as it may take, and no longer
    group = revoked(leadership, loop)
    group.join(0.05)
    assert group.is_alive()
    loop.may_end.set()
    group.join(DEADLINE_S)
    assert not group.is_alive()
    assert not loop.leading


def test_a_thread_that_stands_still_keeps_no_shard_from_its_next_leader(
    leadership: Leadership, loop: Loop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leadership_module, "DRAIN_S", 10 * DEADLINE_S)
    loop.silent_ms = leadership._bounds.stall_ms + 1
    group = revoked(leadership, loop)
    group.join(DEADLINE_S)
    assert not group.is_alive()
    assert loop.leading
    loop.may_end.set()


def test_a_drain_takes_no_longer_than_it_may(leadership: Leadership, loop: Loop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leadership_module, "DRAIN_S", 0.05)
    group = revoked(leadership, loop)
    group.join(DEADLINE_S)
    assert not group.is_alive()
    assert loop.leading
    loop.may_end.set()


def test_who_leaves_the_group_drains_the_shards_that_it_gives_up_and_no_others(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    leadership._drain()  # nobody was told to end, so nobody is waited for
    assert loop.leading
    loop.may_end.clear()
    leadership._tell(StopAsked())
    threading.Timer(0.05, loop.may_end.set).start()
    leadership._drain()
    assert not loop.leading


def test_an_owner_that_is_asked_to_lead_claims_anew(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    moved = leadership.transfer(0, "n2", "nowhere:1")
    assert (moved["leader"], moved["term"], loop.times_led) == ("n2", 3, 2)


def test_a_shard_is_not_moved_to_a_node_that_does_not_answer(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    with pytest.raises(OMError, match="n1 does not answer at 127.0.0.1:1"):
        leadership.transfer(0, "n1", "127.0.0.1:1")
    assert (loop.leading, loop.times_led) == (True, 1)
    with pytest.raises(OMError, match="n1 does not answer at 127.0.0.1:1"):
        leadership.transfer(0, "n1", "127.0.0.1:1")


def test_nothing_is_started_once_it_stops(leadership: Leadership, loop: Loop):
    assign(leadership)
    assert leads(loop)
    leadership.stop()
    assert wait_until(lambda: not loop.leading and not leadership._threads, DEADLINE_S, interval_s=0.001)
    with pytest.raises(OMError, match="n2 may not lead now: it stops"):
        leadership.borrow(0, "n1")
    assert loop.times_led == 1


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
    assert not is_member(leadership)


def test_a_borrower_that_is_assigned_the_shard_goes_on(leadership: Leadership, loop: Loop):
    leadership.borrow(0, "n1")
    assign(leadership)
    assert loop.times_led == 1
    assert loop.leading
    assert leadership.roles(0) == {"owner": True, "lent_to": None, "borrowed_from": None, "lag_records": 0}


def test_a_partition_that_nobody_can_read_keeps_no_node_from_leading_others(leadership: Leadership):
    leadership._signs.ends.lags = {0: None}
    assert leadership.fitness()["against"] == ["shard 0: the brokers do not say where its log ends"]
    leadership._signs.ends.leaderless = frozenset({0})
    assert leadership.fitness()["against"] == []


class Calls:
    """Another node, as loans are told to it: takes them, and answers what the test says."""

    def __init__(self) -> None:
        self.answer = Answer.LEADS
        self.problem: str | None = None
        self.refuses = False
        self.asked: list[tuple[Any, ...]] = []

    def check_fitness(self, shard: int, node: str, address: str) -> None:
        self.asked.append(("fitness", shard, node, address))

    def lend(self, shard: int, node: str, address: str) -> int:
        self.asked.append(("lend", shard, node, address))
        if self.refuses:
            raise OMError(INVALID_REQUEST, f"{node} does not lead")
        return 8

    def renew(self, loan: Loan) -> Answer:
        self.asked.append(("renew", loan.shard, loan.node))
        return self.answer

    def want_back(self, loan: Loan) -> str | None:
        self.asked.append(("want back", loan.shard, loan.node))
        return self.problem


@pytest.fixture
def calls(leadership: Leadership) -> Calls:
    found = Calls()
    calls: Any = found
    leadership._calls = calls
    return found


def lend(leadership: Leadership, loop: Loop) -> dict[str, Any]:
    assign(leadership)
    assert leads(loop)
    return leadership.transfer(0, "n1", "n1:1")


def test_a_shard_is_lent_to_a_node_that_is_fit(leadership: Leadership, loop: Loop, calls: Calls):
    moved = lend(leadership, loop)
    assert (moved["shard"], moved["leader"], moved["term"]) == (0, "n1", 8)
    assert 0 <= moved["gap_ms"] < DEADLINE_S * 1000
    assert calls.asked == [("fitness", 0, "n1", "n1:1"), ("lend", 0, "n1", "n1:1")]
    assert not loop.leading
    assert leadership.roles(0) == {"owner": True, "lent_to": "n1", "borrowed_from": None, "lag_records": 0}


def test_an_owner_leads_on_if_nobody_takes_the_loan(leadership: Leadership, loop: Loop, calls: Calls):
    calls.refuses = True
    with pytest.raises(OMError, match="n1 does not lead"):
        lend(leadership, loop)
    assert leads(loop)
    assert leadership.roles(0)["lent_to"] is None


def renewed(leadership: Leadership, calls: Calls) -> None:
    calls.asked.clear()
    leadership._tell(LoansDue(now_s=time.monotonic()))
    assert calls.asked == [("renew", 0, "n1")]


def test_a_loan_is_renewed_while_the_borrower_leads(leadership: Leadership, loop: Loop, calls: Calls):
    lend(leadership, loop)
    for answer in (Answer.LEADS, Answer.SILENT):
        calls.answer = answer
        renewed(leadership, calls)
        assert leadership.roles(0)["lent_to"] == "n1"
    assert loop.times_led == 1


def test_a_borrower_that_does_not_answer_has_the_time_of_a_session(
    leadership: Leadership, loop: Loop, calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    lend(leadership, loop)
    calls.answer = Answer.SILENT
    ago_s = 0.0
    monkeypatch.setattr(leadership_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ago_s))
    ago_s = SESSION_S - 1
    leadership._tell(LoansDue(now_s=0.0))
    assert leadership.roles(0)["lent_to"] == "n1"
    ago_s = SESSION_S + 1
    leadership._tell(LoansDue(now_s=0.0))
    assert leadership.roles(0)["lent_to"] is None


def test_a_shard_is_given_back_once_its_owner_has_not_renewed_the_loan_for_a_session(
    leadership: Leadership, loop: Loop
):
    join(leadership)
    leadership.borrow(0, "n1")
    before_s = time.monotonic()
    assert leadership.renew(0, "n1") == {"shard": 0, "leads": True}
    after_s = time.monotonic()
    leadership._tell(LoansDue(now_s=before_s + SESSION_S - 0.1))
    assert leadership.roles(0)["borrowed_from"] == "n1"
    leadership._tell(LoansDue(now_s=after_s + SESSION_S + 0.1))
    assert leadership.roles(0)["borrowed_from"] is None
    assert wait_until(lambda: not loop.leading, DEADLINE_S, interval_s=0.001)


@pytest.mark.parametrize("answer", [Answer.GONE, Answer.DOES_NOT_LEAD])
def test_an_owner_takes_a_shard_back_that_its_borrower_does_not_lead(
    leadership: Leadership, loop: Loop, calls: Calls, answer: Answer
):
    lend(leadership, loop)
    calls.answer = answer
    renewed(leadership, calls)
    assert leads(loop)
    assert (leadership.roles(0)["lent_to"], loop.times_led) == (None, 2)


def test_a_borrower_is_told_to_give_back_what_its_owner_wants_to_lead(
    leadership: Leadership, loop: Loop, calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    noted: list[tuple[str, Any]] = []
    monkeypatch.setattr(leadership, "_note", lambda text, shard=None: noted.append((text, shard)))
    lend(leadership, loop)
    calls.problem = "it is busy"
    assert leadership.transfer(0, "n2", "")["leader"] == "n2"
    assert calls.asked[-1] == ("want back", 0, "n1")
    assert leads(loop)
    assert ("shard 0: n1 does not give it back: it is busy; the next claim deposes it", 0) in noted


def test_what_ends_a_thread_ends_the_process():
    config: Any = SimpleNamespace(
        node="n2",
        replicas=("n1",),
        leader_watchdog_ms=1,
        session_timeout_ms=1,
        bootstrap_servers="127.0.0.1:1",
        tls=None,
    )
    errors: list[BaseException] = []
    found = Leadership(config, {}, lambda: 0.0, lambda *_, **__: None, errors.append)
    failure = ValueError("a defect")

    def fails() -> None:
        raise failure

    found._guarded(fails)
    assert errors == [failure]


def test_a_member_stays_as_long_as_it_is_wanted_and_then_waits(leadership: Leadership, monkeypatch: pytest.MonkeyPatch):
    """While there is a sign against it, it looks again now and then."""
    stays: list[bool] = []
    waits: list[float] = []
    told: list[Any] = []
    tell = leadership._tell

    def stay(wanted: Any, drain: Any) -> None:
        stays.append(wanted())
        drain()
        leadership._signs.ends.lags = {0: MAX_LEAD_LAG_RECORDS + 1}
        leadership._look()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        leadership._stop.set()
        return True

    def telling(event: Any) -> None:
        told.append(event)
        tell(event)

    leadership._signs.ends.lags = {0: 0}
    later_s = time.monotonic() + 2 * UNFIT_WAIT_S
    monkeypatch.setattr(leadership_module, "time", SimpleNamespace(monotonic=lambda: later_s))
    monkeypatch.setattr(leadership._group, "stay", stay)
    monkeypatch.setattr(leadership._stop, "wait", wait)
    monkeypatch.setattr(leadership, "_tell", telling)
    leadership._membership()
    monkeypatch.undo()
    assert stays == [True]
    assert waits == [POLL_S]
    left = [event for event in told if isinstance(event, GroupLeft)]
    assert [0 <= event.jitter_s <= leadership_module.MAX_JITTER_S for event in left] == [True]


def test_who_borrows_hears_of_it_once_the_claim_is_won(leadership: Leadership, loop: Loop):
    loop.may_lead.clear()
    threading.Timer(0.05, loop.may_lead.set).start()
    assert leadership.borrow(0, "n1") == {"shard": 0, "term": 3}
    assert loop.leading
