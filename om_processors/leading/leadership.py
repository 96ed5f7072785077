"""Who leads: a node's membership of the leaders' group, and a thread for each shard that it leads (design, section 4).

``core/leadership_machine`` decides; this module passes events to it and carries out its instructions. Threads:
    - *leadership* is a member of the group (``leaders_group``), or waits until the node may be one;
    - *watchdog* looks at the signs twice a second, and keeps the loans;
    - ``shard_thread`` leads a shard; last of all it says why it ended;
    - threads of the HTTP API bring requests for moves and loans.

One lock lies around the machine and the instructions that take no time, so that threads are started and told to end in
the order of the decisions. What takes time (drains, other nodes' answers) is done after that, without the lock. A
StopProcess of any shard ends the process.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer

from om_processors.config import NodeConfig
from om_processors.errors import OMError
from om_processors.leading.core import leadership_events as events
from om_processors.leading.core.leadership_events import ThreadEnd
from om_processors.leading.core.leadership_machine import LeadershipMachine
from om_processors.leading.core.leadership_states import MemberState
from om_processors.leading.core.lending import LEND_TIMEOUT_S, RENEW_INTERVAL_S, Loan
from om_processors.leading.core.watchdog import Bounds, Signs, reasons_not_to_join
from om_processors.leading.leaders_group import POLL_S, LeadersGroup, consumer_settings
from om_processors.leading.loan_calls import LoanCalls
from om_processors.leading.log_ends import ASK_TIMEOUT_S as ENDS_TIMEOUT_S
from om_processors.leading.node_signs import NodeSigns
from om_processors.leading.shard_thread import ClaimPatience, ShardThread
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from schemas.result_codes import INVALID_REQUEST
from schemas.topics import SILENT_BROKER_MS
from transport.waiting.deadline import Deadline

DRAIN_S = 5.0
"""How long a revocation waits for batches in flight."""

JOIN_STEP_S = 0.1
WATCH_INTERVAL_S = RENEW_INTERVAL_S
"""How often the signs are looked at."""

MAX_JITTER_S = 1.0


class Leadership:
    """Runs on threads of its own; ``stop`` drains and leaves the group."""

    def __init__(
        self, config: NodeConfig, loops: Mapping[int, LeaderLoop], event_loop_ago_ms: Callable[[], float | None],
        note: Note, fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._loops = loops
        self._note = note
        self._fatal = fatal
        self._bounds = Bounds(
            stall_ms=config.leader_watchdog_ms,
            settle_ms=max(2 * SILENT_BROKER_MS, config.session_timeout_ms + SILENT_BROKER_MS),
        )
        # The watchdog asks the brokers before it renews loans, and that round may take its time.
        loan_s = max(config.session_timeout_ms / 1000, 2 * (ENDS_TIMEOUT_S + WATCH_INTERVAL_S))
        self._machine = LeadershipMachine(config.node, loops, self._bounds, loan_s)
        self._lock = threading.RLock()
        self._threads: dict[int, ShardThread] = {}
        """Threads that have not ended, by the machine's number."""
        self._member_wanted = threading.Event()
        self._stop = threading.Event()
        self._signs = NodeSigns(config, loops, event_loop_ago_ms)
        self._patience = {shard: ClaimPatience() for shard in loops}
        self._calls = LoanCalls(config)
        self._group = LeadersGroup(config, self._tell)
        self._member_thread = threading.Thread(
            target=self._guarded, args=(self._membership,), name="leadership", daemon=True
        )
        self._watch_thread = threading.Thread(target=self._guarded, args=(self._watch,), name="watchdog", daemon=True)

    def start(self) -> None:
        """Start looking for shards to lead."""
        self._member_thread.start()
        self._watch_thread.start()

    def stop(self) -> None:
        """Drain, hand over and leave the group."""
        self._stop.set()
        self._tell(events.StopAsked())
        for thread in (self._member_thread, self._watch_thread):
            if thread.is_alive():
                thread.join(DRAIN_S * 2)

    def roles(self, shard: int) -> dict[str, Any]:
        """Return whether this node owns a shard, and to or from which node the shard is lent."""
        return {
            "owner": self._machine.owns(shard),
            "lent_to": self._machine.lent_to(shard),
            "borrowed_from": self._machine.borrowed_from(shard),
            "lag_records": self._signs.ends.lags[shard],
        }

    # -- events in, instructions out -------------------------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        """Pass an event to the machine and carry out its instructions; raises OMError if the machine refuses."""
        with self._lock:
            left = [one for one in self._machine.handle(event) if not self._done_at_once(one)]
        for instruction in left:
            match instruction:
                case events.AwaitDrain(threads=numbers):
                    self._await_drain(self._threads.get(number) for number in numbers)
                case events.ReturnLoan(loan=loan):
                    self._return(loan)
                case events.RenewLoan(loan=loan):
                    answer = self._calls.renew(loan)
                    self._tell(events.RenewalAnswered(loan=loan, answer=answer, now_s=time.monotonic()))

    def _done_at_once(self, instruction: events.Instruction) -> bool:
        """Carry out an instruction that takes no time and must be done before the next event; return whether this is
        one.
        """
        match instruction:
            case events.StartThread(shard=shard, thread=number):
                self._threads[number] = ShardThread(
                    self._loops[shard], self._note, ended=partial(self._thread_ended, shard, number), fatal=self._fatal,
                    patience=self._patience[shard], leaderless=lambda: shard in self._signs.ends.leaderless,
                )  # fmt: skip
            case events.EndThread(thread=number):
                self._threads[number].end()
            case events.JoinGroup():
                self._member_wanted.set()
            case events.LeaveGroup():
                self._member_wanted.clear()
            case events.LeadershipNote(text=text, shard=None):
                self._note(text)
            case events.LeadershipNote(text=text, shard=shard):
                self._note(text, shard=shard)
            case _:
                return False
        return True

    def _thread_ended(self, shard: int, number: int, why: ThreadEnd) -> None:
        with self._lock:  # the lock is held from a thread's start until it is among ``_threads``
            self._tell(events.ThreadEnded(shard=shard, thread=number, why=why, now_s=time.monotonic()))
            del self._threads[number]

    def _await_drain(self, threads: Iterable[ShardThread | None]) -> None:
        """Wait for threads that were told to end, DRAIN_S in all; None is a thread that has ended already."""
        deadline = Deadline.after_s(DRAIN_S)
        for thread in threads:
            # A thread that stands still will not drain, so the other shards' new leaders need not wait for it.
            while thread and thread.running and not deadline.has_passed and not self._stands_still(thread):
                thread.thread.join(JOIN_STEP_S)

    def _drain(self) -> None:
        with self._lock:
            ending = [thread for thread in self._threads.values() if thread.stop.is_set()]
        self._await_drain(ending)

    def _stands_still(self, thread: ShardThread) -> bool:
        return self._loops[thread.shard].turned_ago_ms() > self._bounds.stall_ms

    def _return(self, loan: Loan) -> None:
        if (problem := self._calls.want_back(loan)) is not None:
            self._note(
                f"shard {loan.shard}: {loan.node} does not give it back: {problem}; the next claim deposes it",
                shard=loan.shard,
            )

    # -- the group, and the watchdog -------------------------------------------------------------------------------

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._fatal(error)

    def _membership(self) -> None:
        while not self._stop.is_set():
            self._look()
            if self._machine.state in {MemberState.OUTSIDE, MemberState.STOPPED}:
                self._stop.wait(POLL_S)
                continue
            self._group.stay(self._member_wanted.is_set, self._drain)
            jitter_s = random.uniform(0, MAX_JITTER_S)
            self._tell(events.GroupLeft(now_s=time.monotonic(), jitter_s=jitter_s))
        self._drain()

    def _look(self) -> None:
        self._tell(events.SignsSeen(signs=self._signs_now(), now_s=time.monotonic()))

    def _signs_now(self) -> Signs:
        with self._lock:
            return self._signs.of(self._machine)

    def _watch(self) -> None:
        consumer = Consumer(consumer_settings(self._config, "stratolog-lag"))
        try:
            while not self._stop.is_set():
                self._signs.ask(consumer)
                self._look()
                self._tell(events.LoansDue(now_s=time.monotonic()))
                for loop in self._loops.values():
                    loop.look()
                self._stop.wait(WATCH_INTERVAL_S)
        finally:
            consumer.close()

    # -- requests of operators, and of other nodes -----------------------------------------------------------------

    def transfer(self, shard: int, node: str, address: str) -> dict[str, Any]:
        """Have ``node`` lead a shard that this node owns; return how long nobody led it.

        Raises OMError if this node does not own the shard, or if ``node`` will not lead; then this node leads as
        before.
        """
        own = node == self._config.node
        self._tell(events.MoveAsked(shard=shard))
        try:
            if not own:
                self._calls.check_fitness(shard, node, address)
            begun_s = time.monotonic()
            self._tell(events.StepDownAsked(shard=shard))
            if not own:
                term = self._calls.lend(shard, node, address)
                self._tell(events.BorrowerLeads(shard=shard, node=node, address=address, now_s=time.monotonic()))
        finally:
            self._tell(events.MoveEnded(shard=shard))
        if own:
            term = self._await_leading(shard)
        return {"shard": shard, "leader": node, "term": term, "gap_ms": round((time.monotonic() - begun_s) * 1000, 1)}

    def _await_leading(self, shard: int) -> int:
        """Return the term once this node leads; raises OMError if it does not get to lead."""
        deadline = Deadline.after_s(LEND_TIMEOUT_S)
        loop = self._loops[shard]
        while not loop.leading:
            if not self._machine.has_thread(shard) or deadline.has_passed:
                raise OMError(INVALID_REQUEST, f"{self._config.node} could not claim shard {shard}")
            time.sleep(0.001)
        return loop.replica.position.term

    def fitness(self) -> dict[str, Any]:
        """Return the reasons why this node should not lead."""
        return {"node": self._config.node, "against": reasons_not_to_join(self._signs_now(), self._bounds)}

    def borrow(self, shard: int, owner: str) -> dict[str, Any]:
        """Lead a shard for its owner; returns once this node leads. Raises OMError if it does not."""
        self._tell(events.BorrowAsked(shard=shard, owner=owner, signs=self._signs_now(), now_s=time.monotonic()))
        try:
            return {"shard": shard, "term": self._await_leading(shard)}
        except OMError:
            self._tell(events.BorrowFailed(shard=shard, owner=owner))
            raise

    def renew(self, shard: int, owner: str) -> dict[str, Any]:
        """Go on leading for ``owner``; return whether this node leads (or is about to)."""
        self._tell(events.LoanRenewed(shard=shard, owner=owner, now_s=time.monotonic()))
        return {"shard": shard, "leads": self._machine.borrowed_from(shard) == owner}

    def give_back(self, shard: int, owner: str) -> dict[str, Any]:
        """Drain and stop leading for ``owner``."""
        self._tell(events.LoanWantedBack(shard=shard, owner=owner))
        return {"shard": shard}
