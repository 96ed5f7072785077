"""Who leads: this node's membership of the leaders' group, and a thread for each shard it leads (design, section 4).

Rules:
    - The group's consumer only says who owns a shard; it never reads. Assignment is cooperative and sticky.
    - A node joins only while no sign speaks against it (``watchdog``), and leaves with all its shards when one does.
    - Revocation drains before it is acknowledged.
    - A deposed leader leaves the group and claims only after a new assignment, with jitter.
    - The owner of a shard may lend it to a named node (``lending``); the borrower's failures cost it the loan and nothing else.
    - A StopProcess of any shard ends the process.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from om_processors.config import NodeConfig
from om_processors.errors import OMError
from om_processors.leading.core.lending import (
    LEND_TIMEOUT_S,
    RENEW_INTERVAL_S,
    Answer,
    Borrowed,
    Loan,
    gives_up,
    takes_back,
)
from om_processors.leading.core.membership import MembershipCheck
from om_processors.leading.core.watchdog import Bounds, ShardSigns, Signs, reasons_not_to_join, reasons_to_leave
from om_processors.leading.log_ends import ASK_TIMEOUT_S as ENDS_TIMEOUT_S
from om_processors.leading.log_ends import LogEnds
from om_processors.leading.shard_thread import ClaimPatience, ShardThread
from replicated_db.core.applying.replica import Replica
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from schemas.leader_names import member_name
from schemas.result_codes import INVALID_REQUEST
from schemas.topics import LEADER_GROUP, OM_REQUESTS, SILENT_BROKER_MS

DRAIN_S = 5.0
"""How long a revocation waits for batches in flight."""

JOIN_STEP_S = 0.1
POLL_S = 0.2
STATISTICS_MS = 2_000
"""How often librdkafka tells how it stands with the group."""
WATCH_INTERVAL_S = RENEW_INTERVAL_S
"""How often the signs are looked at."""

ASK_TIMEOUT_S = 2.0
"""How long another node may take to answer."""

MAX_JITTER_S = 1.0
UNFIT_WAIT_S = 60.0
"""How long a node that is unfit to lead (its clock is wrong) stays out of the group."""


class Leadership:
    """Runs on threads of its own; ``stop`` drains and leaves the group."""

    def __init__(
        self, config: NodeConfig, loops: Mapping[int, LeaderLoop], event_loop_ago_ms: Callable[[], float | None],
        note: Note, fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._loops = loops
        self._event_loop_ago_ms = event_loop_ago_ms
        self._note = note
        self._fatal = fatal
        self._bounds = Bounds(
            stall_ms=config.watchdog_ms,
            settle_ms=max(2 * SILENT_BROKER_MS, config.session_timeout_ms + SILENT_BROKER_MS),
        )
        # Loans are renewed behind a round of questions to the brokers, which may take its time.
        self._loan_s = max(config.session_timeout_ms / 1000, 2 * (ENDS_TIMEOUT_S + WATCH_INTERVAL_S))
        self._lock = threading.RLock()
        self._owned: set[int] = set()
        self._threads: dict[int, ShardThread] = {}
        self._ending: list[ShardThread] = []
        self._loans: dict[int, Loan] = {}
        self._borrowed: dict[int, Borrowed] = {}
        self._moving: set[int] = set()
        self._in_group = False
        self._unsettled_since: float | None = None
        self._ends = LogEnds({shard: loop.replica for shard, loop in loops.items()})
        self._patience = {shard: ClaimPatience() for shard in loops}
        self._membership_check = MembershipCheck(config.node, config.replicas)
        self._stop = threading.Event()
        self._leave = threading.Event()
        self._out_until = 0.0
        self._http = httpx.Client(timeout=ASK_TIMEOUT_S, trust_env=False)
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
        for thread in (self._member_thread, self._watch_thread):
            if thread.is_alive():
                thread.join(DRAIN_S * 2)

    def roles(self, shard: int) -> dict[str, Any]:
        """Return what this node has to do with a shard's leadership: whether it owns it, to or from whom it is lent."""
        loan, borrowed = self._loans.get(shard), self._borrowed.get(shard)
        return {
            "owner": shard in self._owned,
            "lent_to": None if loan is None else loan.node,
            "borrowed_from": None if borrowed is None else borrowed.owner,
            "lag_records": self._ends.lags[shard],
        }

    # -- the group -------------------------------------------------------------------------------------------------

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._fatal(error)

    def _membership(self) -> None:
        told: list[str] = []
        while not self._stop.is_set():
            against = reasons_not_to_join(self._signs(), self._bounds)
            if against != told and (told := against):
                self._note(f"not joining the leaders: {'; '.join(against)}")
            if against or time.monotonic() < self._out_until:
                self._stop.wait(POLL_S)
                continue
            self._member()
            self._stop.wait(random.uniform(0, MAX_JITTER_S))
        self._end(list(self._threads), drain=True)

    def _member(self) -> None:
        """Be a member of the group until told to leave."""
        self._leave.clear()
        self._unsettled_since = None
        consumer = Consumer(
            self._settings(LEADER_GROUP) | {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._look_at_group}
        )
        consumer.subscribe([OM_REQUESTS], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        self._in_group = True
        try:
            while not (self._stop.is_set() or self._leave.is_set()):
                consumer.poll(POLL_S)
        finally:
            self._in_group = False
            self._end(list(self._threads), drain=True)
            with self._lock:
                self._owned.clear()
                self._loans.clear()
            consumer.close()

    def _settings(self, group: str) -> dict[str, Any]:
        timeout_ms = self._config.session_timeout_ms
        return {
            "bootstrap.servers": self._config.bootstrap_servers,
            "group.id": group,
            "client.id": member_name(self._config.node, self._config.address),
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": timeout_ms,
            "heartbeat.interval.ms": max(timeout_ms // 5, 100),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # as all readers (kafka_log): the log's end is behind its last record
            "topic.metadata.refresh.interval.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": SILENT_BROKER_MS,
        }

    def _look_at_group(self, statistics: str) -> None:
        """Take how the group's consumer stands, which it tells now and then."""
        if json.loads(statistics).get("cgrp", {}).get("join_state") == "steady":
            self._unsettled_since = None
        elif self._unsettled_since is None:
            self._unsettled_since = time.monotonic()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        fresh = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(fresh)
        if fresh:
            consumer.pause(fresh)
        with self._lock:
            for partition in partitions:
                self._note(f"shard {partition.partition} is assigned here", shard=partition.partition)
                self._owned.add(partition.partition)
                if self._borrowed.pop(partition.partition, None) is None and partition.partition not in self._threads:
                    self._start_thread(partition.partition)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._disown([p.partition for p in partitions], drain=True)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note(f"lost shards {[p.partition for p in partitions]}: silent for longer than the session time-out")
        self._disown([p.partition for p in partitions], drain=False)
        consumer.incremental_unassign(partitions)

    def _disown(self, shards: list[int], *, drain: bool) -> None:
        self._end(shards, drain=drain)
        with self._lock:
            for shard in shards:
                self._owned.discard(shard)
                self._loans.pop(shard, None)

    # -- threads ---------------------------------------------------------------------------------------------------

    def _start_thread(self, shard: int) -> None:
        self._threads[shard] = ShardThread(
            self._loops[shard], self._note, deposed=lambda: self._deposed(shard),
            failing=lambda: self._failing(shard), unfit=lambda: self._unfit(shard), fatal=self._fatal, patience=self._patience[shard], leaderless=lambda: shard in self._ends.leaderless,
        )  # fmt: skip

    def _forgets_ending(self, shard: int) -> bool:
        """Forget a shard's thread, which calls this and ends now: one that is dead must not keep another from being started.

        Returns False if it has been told to end already: whoever did so has seen to all that follows, and the shard may be another thread's.
        """
        thread = self._threads.get(shard)
        if thread is None or thread.thread is not threading.current_thread():
            return False
        self._ending.append(self._threads.pop(shard))
        return True

    def _deposed(self, shard: int) -> None:
        with self._lock:
            if self._forgets_ending(shard) and self._borrowed.pop(shard, None) is None:
                self._leave.set()

    def _failing(self, shard: int) -> None:
        """Have others try; a borrower gives up the loan and nothing else."""
        with self._lock:
            if self._forgets_ending(shard) and self._borrowed.pop(shard, None) is None:
                self._out_until = time.monotonic() + UNFIT_WAIT_S
                self._leave.set()

    def _unfit(self, shard: int) -> None:
        with self._lock:
            if self._forgets_ending(shard):
                self._borrowed.pop(shard, None)
            self._out_until = time.monotonic() + UNFIT_WAIT_S
            self._leave.set()

    def _end(self, shards: list[int], *, drain: bool) -> None:
        """Stop leading shards; with ``drain``, wait for what is in flight."""
        with self._lock:
            ending = [self._threads.pop(shard) for shard in shards if shard in self._threads]
            for thread in ending:
                thread.stop.set()
                self._ending.append(thread)
                self._borrowed.pop(thread.shard, None)
        deadline = time.monotonic() + (DRAIN_S if drain else 0)
        for thread in ending:
            # One that stands still will not drain: the others' new leaders need not wait for it.
            while thread.running and time.monotonic() < deadline and not self._stands_still(thread):
                thread.thread.join(JOIN_STEP_S)

    def _stands_still(self, thread: ShardThread) -> bool:
        return self._loops[thread.shard].turned_ago_ms() > self._bounds.stall_ms

    # -- the watchdog ----------------------------------------------------------------------------------------------

    def _signs(self) -> Signs:
        with self._lock:
            self._ending = [thread for thread in self._ending if thread.running]
            lingering = {thread.shard for thread in self._ending}
            shards = tuple(
                ShardSigns(
                    shard=shard,
                    turned_ago_ms=loop.turned_ago_ms() if shard in self._threads and self._threads[shard].running else None,
                    lag_records=self._ends.lags[shard], leaderless=shard in self._ends.leaderless,
                    flagged=loop.replica.evidence is not None,
                    member=not loop.replica.state.replicas or self._config.node in loop.replica.state.replicas,
                    lingering=shard in lingering,
                )
                for shard, loop in self._loops.items()
            )  # fmt: skip
        # The owner of a shard is left in peace, also of one that it has lent.
        since = None if self._owned else self._unsettled_since
        unsettled_ms = 0.0 if since is None else (time.monotonic() - since) * 1000
        return Signs(shards=shards, event_loop_ago_ms=self._event_loop_ago_ms(), unsettled_ms=unsettled_ms)

    def _watch(self) -> None:
        consumer = Consumer(self._settings("stratolog-lag"))
        try:
            while not self._stop.is_set():
                self._ends.ask(consumer, self._check_members)
                if (
                    self._in_group
                    and not self._leave.is_set()
                    and (reasons := reasons_to_leave(self._signs(), self._bounds))
                ):
                    self._note(f"this node leads nothing any more: {'; '.join(reasons)}")
                    self._leave.set()
                self._keep_loans()
                for loop in self._loops.values():
                    loop.look()
                self._stop.wait(WATCH_INTERVAL_S)
        finally:
            consumer.close()

    def _check_members(self, replica: Replica, end: int) -> None:
        self._membership_check.look(replica.identity.shard, replica.read_offset, end, replica.known_members)

    # -- lending ---------------------------------------------------------------------------------------------------

    def transfer(self, shard: int, node: str, address: str) -> dict[str, Any]:
        """Have ``node`` lead a shard that this node owns; return how long nobody led it.

        Raises OMError: this node does not own the shard, or ``node`` will not lead. This node leads it then, as before.
        """
        own = node == self._config.node
        with self._lock:
            if shard not in self._owned:
                raise OMError(INVALID_REQUEST, f"{self._config.node} does not own shard {shard}")
            if shard in self._moving:
                raise OMError(INVALID_REQUEST, f"shard {shard} is being moved already")
            self._moving.add(shard)
        try:
            if not own:
                self._ask_first(node, address, shard)
            begun_s = time.monotonic()
            self._step_down(shard)
            term = -1 if own else self._lend(shard, node, address)
        finally:
            with self._lock:
                self._moving.discard(shard)
                if shard in self._owned and shard not in self._loans and shard not in self._threads:
                    self._start_thread(shard)
        if own:
            term = self._await_leading(shard)
        return {"shard": shard, "leader": node, "term": term, "gap_ms": round((time.monotonic() - begun_s) * 1000, 1)}

    def _lend(self, shard: int, node: str, address: str) -> int:
        """Have ``node`` claim the shard; return its term. Raises OMError if it does not."""
        try:
            answer = self._post(address, shard, "borrow", {"owner": self._config.node}, LEND_TIMEOUT_S)
        except (httpx.HTTPError, OMError, ValueError) as error:
            raise OMError(INVALID_REQUEST, f"{node} does not lead shard {shard}: {error}") from error
        with self._lock:
            if shard in self._owned:
                self._loans[shard] = Loan(shard=shard, node=node, address=address, heard_s=time.monotonic())
        self._note(f"shard {shard} is lent to {node}", shard=shard)
        return int(answer["term"])

    def _ask_first(self, node: str, address: str, shard: int) -> None:
        """Raise OMError if ``node`` will not lead: better to know before stepping down."""
        try:
            found = self._http.get(f"http://{address}/v1/shards/{shard}/fitness").json()
        except (httpx.HTTPError, ValueError) as error:
            raise OMError(INVALID_REQUEST, f"{node} does not answer at {address}: {error!r}") from error
        if found.get("node") != node:
            raise OMError(INVALID_REQUEST, f"{found.get('node')} answers at {address}, not {node}")
        if found["against"]:
            raise OMError(INVALID_REQUEST, f"{node} may not lead now: {'; '.join(found['against'])}")

    def _step_down(self, shard: int) -> None:
        """Drain and stop leading, or have the borrower do so."""
        loan = self._loans.pop(shard, None)
        if loan is not None:
            try:
                self._post(loan.address, shard, "give-back", {"owner": self._config.node}, DRAIN_S * 2)
            except (httpx.HTTPError, OMError) as error:
                self._note(
                    f"shard {shard}: {loan.node} does not give it back: {error!r}; the next claim deposes it",
                    shard=shard,
                )
        self._end([shard], drain=True)

    def _post(self, address: str, shard: int, what: str, query: dict[str, str], timeout_s: float) -> dict[str, Any]:
        answer = self._http.post(
            f"http://{address}/v1/shards/{shard}/{what}", params=query, timeout=timeout_s, auth=self._config.secret.sign
        )
        found: dict[str, Any] = answer.json()
        if answer.status_code != 200:
            raise OMError(str(found.get("error")), str(found.get("message")))
        return found

    def _await_leading(self, shard: int) -> int:
        """Return the term once this node leads; raises OMError if it does not come to that."""
        deadline = time.monotonic() + LEND_TIMEOUT_S
        loop = self._loops[shard]
        while not loop.leading:
            thread = self._threads.get(shard)
            if thread is None or not thread.running or time.monotonic() > deadline:
                raise OMError(INVALID_REQUEST, f"{self._config.node} could not claim shard {shard}")
            time.sleep(0.001)
        return loop.replica.position.term

    def fitness(self) -> dict[str, Any]:
        """Return what speaks against this node as a leader."""
        return {"node": self._config.node, "against": reasons_not_to_join(self._signs(), self._bounds)}

    def borrow(self, shard: int, owner: str) -> dict[str, Any]:
        """Lead a shard for its owner; returns once this node leads. Raises OMError if it does not."""
        with self._lock:
            if self._stop.is_set() or (against := reasons_not_to_join(self._signs(), self._bounds)):
                reasons = "it stops" if self._stop.is_set() else "; ".join(against)
                raise OMError(INVALID_REQUEST, f"{self._config.node} may not lead now: {reasons}")
            if shard in self._threads:
                raise OMError(INVALID_REQUEST, f"{self._config.node} leads shard {shard} already")
            # The first renewal comes when the owner has heard that this node leads.
            self._borrowed[shard] = Borrowed(shard=shard, owner=owner, renewed_s=time.monotonic() + LEND_TIMEOUT_S)
            self._note(f"shard {shard}: leading it for {owner}", shard=shard)
            self._start_thread(shard)
        try:
            return {"shard": shard, "term": self._await_leading(shard)}
        except OMError:
            self._end([shard], drain=False)
            raise

    def renew(self, shard: int, owner: str) -> dict[str, Any]:
        """Go on leading for ``owner``; says whether this node leads (or is about to)."""
        with self._lock:
            borrowed = self._borrowed.get(shard)
            if borrowed is None or borrowed.owner != owner:
                return {"shard": shard, "leads": False}
            borrowed.renewed_s = time.monotonic()
            return {"shard": shard, "leads": self._threads[shard].running}

    def give_back(self, shard: int, owner: str) -> dict[str, Any]:
        """Drain and stop leading for ``owner``."""
        with self._lock:
            borrowed = self._borrowed.get(shard)
        if borrowed is not None and borrowed.owner == owner:
            self._end([shard], drain=True)
        return {"shard": shard}

    def _keep_loans(self) -> None:
        """Renew what is lent, take back what is not led, give up what is not renewed."""
        with self._lock:
            loans, now_s = list(self._loans.values()), time.monotonic()
            over = [(b, reason) for b in self._borrowed.values() if (reason := gives_up(b, now_s, self._loan_s))]
        for borrowed, reason in over:
            self._note(f"shard {borrowed.shard}: {reason}; leading it no longer", shard=borrowed.shard)
            self._end([borrowed.shard], drain=True)
        for loan in loans:
            self._keep(loan, self._renewed(loan))

    def _renewed(self, loan: Loan) -> Answer:
        try:
            answer = self._post(loan.address, loan.shard, "renew", {"owner": self._config.node}, ASK_TIMEOUT_S)
        except httpx.ConnectError:
            return Answer.GONE
        except (httpx.HTTPError, OMError, ValueError):
            return Answer.SILENT
        return Answer.LEADS if answer["leads"] else Answer.DOES_NOT_LEAD

    def _keep(self, loan: Loan, answer: Answer) -> None:
        now_s = time.monotonic()
        with self._lock:
            if self._loans.get(loan.shard) is not loan:
                return
            if answer is Answer.LEADS:
                loan.heard_s = now_s
            elif (reason := takes_back(loan, answer, now_s, self._loan_s)) is not None:
                self._note(f"shard {loan.shard}: {reason}; leading it again", shard=loan.shard)
                del self._loans[loan.shard]
                if loan.shard not in self._threads:
                    self._start_thread(loan.shard)
