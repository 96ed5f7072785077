"""Nodes made of the real cores and shells: replica, leader and its loop, follower, gateway, service, quorum, over simulated ports.

A node is one process. It starts (and compares its replica with the log), follows, leads when it is told that it owns the shard, answers
readers. It ends by a crash (what was written stays, except an unsynced tail), or stops itself with a StopProcess, which must be justified.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from om_processors.execution.late import OMExecutor
from om_processors.execution.service import OM_FAMILIES, OMService
from om_processors.fleet.snapshot_cleanup import SnapshotCheckpoints
from om_processors.intake.direct_calls import DirectCalls
from om_processors.intake.gateway import Gateway, Received, resume_offset
from om_processors.intake.request_reader import RESUME_BACK_MS
from om_processors.namespace import ids as object_ids
from om_processors.namespace.context import Allocation, Contexts
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX
from replicated_db.core.applying.evidence import audit_report
from replicated_db.core.applying.replica import Identity, Offered, Replica
from replicated_db.core.errors import StopProcess
from replicated_db.core.leading.leader import LeaderLimits, Proposal, Reply
from replicated_db.core.log.position import POSITION_KEY, Position
from replicated_db.core.ports import Entry, LogUnavailable, OffsetOutOfRange, Write
from replicated_db.core.tables.column_families import LOCAL_FAMILIES, TRANSACTION_INFO
from replicated_db.core.tables.digests import Digests
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.trimming.places import MemberPlace
from replicated_db.shell.claiming import UnfitToLead
from replicated_db.shell.database.database import DatabaseService, ReplicatedDatabase
from replicated_db.shell.database.follower import Follower
from replicated_db.shell.kafka.faust_transport import BEYOND_END_WAIT_S
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.read_index import NotLeading, ReadIndex
from replicated_db.shell.startup import check_replica
from schemas.codecs.codec import encode
from schemas.records.log import RequestPosition
from schemas.records.messages import Request
from schemas.topics import OM_AUDIT, OM_LOG
from tests.simulation.broker import EVER_MS, LogView, RequestPartition
from tests.simulation.scheduler import Killed, Scheduler, Task
from tests.simulation.truth import SWITCHED_OFF
from tests.support.local.secret import SECRET

CLUSTER = "simulated"
NAMES = ("n1", "n2", "n3")
PIPELINES = ("pipeline-0", "pipeline-1")
LIMITS = LeaderLimits(max_batch_requests=3, max_in_flight=3, early_removal_calls=2)
UNSYNCED_WRITES = 8
"""How many of a store's last writes a power failure may take."""
READ_DEADLINE_MS = 5_000
FETCH_WAIT_MS = 500
START_MS = 1_750_000_000_000
CHOICE_MS = 50
"""So long a node has one picture of the pipelines."""


class EveryContainer(AbstractSet[int]):
    """All containers there may be, for a node that believes that each has room."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        raise TypeError("nobody may look at all of them")

    def __len__(self) -> int:
        raise TypeError("nobody may look at all of them")


EVERY_CONTAINER = EveryContainer()


class Store(MemoryStore):
    """The in-memory twin, with a tail that is not synced yet, and a power switch. ``crash`` is armed by a fault: before or after a write."""

    def __init__(self) -> None:
        super().__init__(OM_FAMILIES.names, kept=CHECKPOINT_PREFIX)
        self.undo: list[list[Write]] = []
        self.crash = ""

    def write(self, writes: Iterable[Write]) -> None:
        crash, self.crash = self.crash, ""
        if crash == "before":
            raise Killed
        rows = list(writes)
        self.undo.append([(cf, key, self.get(cf, key)) for cf, key, _ in rows])
        del self.undo[:-UNSYNCED_WRITES]
        super().write(rows)
        if crash == "after":
            raise Killed

    def sync(self) -> None:
        super().sync()
        self.undo.clear()

    def damage(self, cf: str, key: bytes, value: bytes) -> None:
        """Change a row behind the replica's back, for good."""
        super().write([(cf, key, value)])
        self.undo.clear()

    def lose_tail(self, count: int) -> None:
        for _ in range(min(count, len(self.undo))):
            super().write(reversed(self.undo.pop()))


@dataclass(slots=True, eq=False)
class Clock:
    """Time since boot cannot jump; the wall clock can."""

    scheduler: Scheduler
    skew_ms: int = 0

    def elapsed_ms(self) -> int:
        return self.scheduler.now_ms

    def wall_ms(self) -> int:
        return START_MS + self.scheduler.now_ms + self.skew_ms


class Intake:
    """Twin of ``RequestIntake``: the same resuming, the same gateway, over the simulated partition; and the direct door's queue."""

    def __init__(self, node: Node, hint: RequestPosition | None) -> None:
        self.node = node
        self.requests = node.requests
        self.direct: deque[Received] = deque()
        self.connections: dict[bytes, Knocker] = {}
        """By client."""
        self.calls = DirectCalls(0)
        self.offset = 0
        self.epoch = 0
        self.resume(hint)
        node.intake = self

    def resume(self, hint: RequestPosition | None) -> None:
        requests = self.requests

        def at(offset: int) -> bytes | None:
            received = requests.at(offset)
            return None if received is None else received.value

        def since() -> int:
            found = requests.since(self.node.clock.wall_ms() - RESUME_BACK_MS)
            return -1 if found is None else found

        self.offset = resume_offset(hint, requests.first, requests.end, at, since)
        self.node.seen["hint trusted" if hint and self.offset == hint.offset else "resumed ten minutes back"] += 1
        self.epoch = requests.epoch

    def knock(self, request: Request | None, value: bytes) -> None:
        """Bytes arrive by a client's connection; without a request in them they have no call to answer."""
        client_id = b"" if request is None else request.client_id
        way = self.connections.setdefault(client_id, Knocker(self.node, client_id))
        if request is not None:
            way.asked[request.call_id] += 1
        self.direct.append(self.requests.received(value, offset=-1, way=way))

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        requests = self.requests
        self.node.scheduler.wait(lambda: requests.end > self.offset or bool(self.direct), wait_s * 1000)
        if not requests.first <= self.offset <= requests.end:
            self.node.seen["requests truncated under a leader"] += 1
            self.resume(None)
        taken: list[Proposal] = []
        while len(taken) < limit and (received := requests.at(self.offset)) is not None:
            self.offset += 1
            self._take(received, taken)
        while len(taken) < limit and self.direct:
            self._take(self.direct.popleft(), taken)
        return taken

    def _take(self, received: Received, taken: list[Proposal]) -> None:
        admitted = self._admit(received)
        if isinstance(admitted, Proposal):
            self.node.seen["taken by the direct door"] += received.way is not None
            taken.append(admitted)
        elif admitted is not None:
            self.node.watch.refused_at_once(self.node, admitted)
            self.calls.answer([admitted])

    def _admit(self, received: Received) -> Proposal | Reply | None:
        admitted = self.node.gateway.admit(received, self.node.clock.wall_ms())
        if not isinstance(admitted, Proposal | Reply):
            self.node.seen["rejected"] += 1
            return None
        if received.way is not None:
            self.calls.begin(admitted if isinstance(admitted, Proposal) else admitted.proposal, received.way)
        return admitted

    def wake(self) -> None:
        """The scheduler looks by itself at what is waited for."""

    def close(self) -> None:
        """Tell all direct calls that are left that the leadership has ended; a process that is killed says nothing."""
        node = self.node
        node.intake = None
        if isinstance(sys.exception(), Killed):
            node.hung_up |= self.connections.keys()
            return
        for received in self.direct:
            self._admit(received)
        self.calls.end("the leadership ended")
        node.watch.closed(node, list(self.connections.values()))


@dataclass(slots=True, eq=False)
class Knocker:
    """One client's connection to the direct door of a node that leads, and the way back to this client."""

    node: Node
    client_id: bytes
    asked: Counter[int] = field(default_factory=Counter)
    """By call: how many requests came by this connection and have no answer yet."""

    def answer(self, shard: int, responses: Sequence[bytes]) -> None:
        for response in responses:
            self.node.watch.answered_directly(self.node, self, response)

    def reject(self, message: str) -> None:
        self.node.seen["rejected"] += 1


class Watch:
    """What a node tells the world; the invariants listen."""

    def replied(self, node: Node, replies: Sequence[Reply]) -> None: ...

    def refused_at_once(self, node: Node, reply: Reply) -> None: ...

    def answered_directly(self, node: Node, way: Knocker, response: bytes) -> None: ...

    def closed(self, node: Node, connections: Sequence[Knocker]) -> None: ...

    def published(self, node: Node, outcome: Offered) -> None: ...

    def stopped(self, node: Node, error: BaseException) -> None: ...


class Outbox:
    """Answers and reports of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def reply(self, replies: Sequence[Reply]) -> None:
        self.node.watch.replied(self.node, replies)
        for reply in replies:
            if isinstance(calls := reply.proposal.reply_to, DirectCalls):
                calls.answer([reply])

    def publish(self, replica: Replica, outcome: Offered) -> None:
        self.node.watch.published(self.node, outcome)


class Node:
    """One Object Manager node with one shard."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        view: LogView,
        requests: RequestPartition,
        watch: Watch,
        seen: Any,
        ids: Any,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.log = view
        self.requests = requests
        self.watch = watch
        self.seen = seen
        self.ids = ids
        self.clock = Clock(scheduler)
        self.gateway = self.new_gateway()
        self.service: OMService
        self.store = Store()
        self.replica: Replica
        self.loop: LeaderLoop
        self.database: ReplicatedDatabase
        self.follower: Follower
        self.cleanup: SnapshotCheckpoints
        self.intake: Intake | None = None
        """The intake of a node that leads, or takes itself for the leader."""
        self.hung_up: set[bytes] = set()
        """The clients whose connections to the direct door ended with the process, and who have not noticed that."""
        self.running = True
        """Whether the scheduler may run it: neither paused nor down."""
        self.up = False
        self.ready = False
        self.stop = Event()
        self.leading: Task | None = None
        self.tasks: list[Task] = []
        self.fetch_offset = 0
        self.reason = ""
        """Why this node led no more, the last time."""
        self.boot()

    def new_gateway(self) -> Gateway:
        return Gateway(shard=0, node=self.name, secret=SECRET)

    def _contexts(self) -> Contexts:
        return Contexts(shard=0, shards=1, pipelines=PIPELINES, choose=self._choose)

    def _choose(self) -> Allocation:
        """Say what blocks may be allocated on as this node sees it: each sees something else, and another thing later."""
        moment = self.scheduler.now_ms // CHOICE_MS + NAMES.index(self.name)
        numbered = list(enumerate(PIPELINES))
        index = self.replica.position.index + moment % 3
        full = object_ids.container_id(object_ids.object_id(0, index), moment % len(PIPELINES))
        return Allocation(
            pipelines=tuple(numbered[moment % 2 :] + numbered[: moment % 2][moment // 2 % 2 :]),
            closed_containers=frozenset({full} if moment % 3 else ()),
            generations={0: 1 + moment % 3},
            with_room=(frozenset(), EVERY_CONTAINER, None)[moment % 3],
            gone=SWITCHED_OFF,
        )

    # -- the process -------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return Identity(cluster=CLUSTER, shard=0, shards=1, node=self.name)

    def boot(self) -> None:
        """Start the process."""
        self._open()
        self.up, self.ready, self.running = True, False, True
        self._start("follow", self._follow)

    def _open(self) -> None:
        contexts = self._contexts()
        self.service = OMService(contexts)
        executor = OMExecutor(contexts)
        self.replica = Replica(self.identity, OM_FAMILIES, self.store, executor=executor)
        outbox: Any = Outbox(self)
        service = DatabaseService(
            executes=self.service, intake=lambda hint: Intake(self, hint), outbox=outbox, reports=outbox, limits=LIMITS,
            address=self.name, replicas=NAMES,
        )  # fmt: skip
        self.database = ReplicatedDatabase(
            self.replica, self.log, service, clock=self.clock, ids=self.ids, members=frozenset(NAMES),
            now_s=lambda: self.scheduler.now_ms / 1000, sleep=self._sleep,
        )  # fmt: skip
        self.loop = self.database.loop
        self.follower = Follower(OM_LOG, OM_AUDIT, {0: self.database}, lambda *_, **__: None, self._fatal)
        self.cleanup = SnapshotCheckpoints(self.replica, lambda *_, **__: None)

    def crash(self, lost_writes: int = 0) -> None:
        """SIGKILL; with ``lost_writes`` the machine lost power, and the unsynced tail of the store with it."""
        for task in self.tasks:
            self.scheduler.kill(task)
        self.tasks.clear()
        self.up = self.ready = self.running = False
        self.leading = self.intake = None
        self.store.crash = ""
        self.store.lose_tail(lost_writes)

    def stored_position(self) -> Position:
        """Return where the replica stands by what is on its disk, even while the node is down."""
        stored = self.store.get(TRANSACTION_INFO, POSITION_KEY)
        return Position() if stored is None else Position.decode(stored)

    def rebuild(self, peer: Node | None = None) -> None:
        """Start with an empty disk, or with a copy of a peer's."""
        self.crash()
        self.store = Store()
        if peer is not None:
            names = (*OM_FAMILIES.names, *LOCAL_FAMILIES)
            self.store.write([(cf, key, value) for cf in names for key, value in peer.store.iterate(cf, b"")])
            self.store.checkpoints = dict(peer.store.checkpoints)
            self.store.sync()
        self.boot()

    def durable_place(self) -> MemberPlace | str:
        """Answer the trimmer."""
        if not self.up or not self.running or self.store.crash:
            return "it does not answer"
        return self.replica.durable_place()

    def _start(self, name: str, body: Callable[[], None]) -> Task:
        task = self.scheduler.start(self, f"{self.name} {name}", body)
        self.tasks = [one for one in self.tasks if not one.done]
        self.tasks.append(task)
        return task

    def _fatal(self, error: BaseException) -> None:
        raise error

    def _sleep(self, seconds: float) -> None:
        self.scheduler.wait(None, seconds * 1000)

    def ended(self, task: Task) -> None:
        """A task of this node has ended: by a crash in the store, by a stop, or as it should."""
        leads = task is self.leading
        if leads:
            self.leading = None
        if task.dying or (task.error is None and not task.crashed):
            return
        self.seen["crash in a write"] += task.crashed
        self.crash()
        # A candidate that meets a broker with an old end asks again: only a follower ends itself, after a while.
        if isinstance(task.error, StopProcess) or (isinstance(task.error, OffsetOutOfRange) and not leads):
            self.watch.stopped(self, task.error)
        elif task.error is not None:
            raise task.error

    # -- following ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while True:
            with suppress(LogUnavailable):
                check_replica(
                    self.replica,
                    self.log,
                    lambda *_, **__: None,
                    now_s=lambda: self.scheduler.now_ms / 1000,
                    sleep=self._sleep,
                )
                break
            self._sleep(1)
        self.ready = True
        self.fetch_offset = self.replica.read_offset + 1
        while True:
            self._wait_for_records()
            for entry in self._fetched():
                self.fetch_offset = entry.offset + 1
                if self.database.leaves_to_leader(entry.value):
                    continue
                if self.database.has_gap(entry.offset):
                    self.seen["gap filled"] += 1
                    self.database.fill(entry.offset)
                self.database.apply(entry.offset, entry.value)

    def _fetched(self) -> list[Entry]:
        """Fetch from the consumer's place, or from the replica's, if the log was trimmed behind it (``faust_transport``)."""
        try:
            return list(self.log.read(self.fetch_offset, 5, 0))
        except OffsetOutOfRange:
            following = self.replica.read_offset + 1
            if following <= self.fetch_offset:
                raise
            self.seen["trimmed behind the replica"] += 1
            self.fetch_offset = following
            return []

    def _wait_for_records(self) -> None:
        """Wait for a record at the consumer's place, which a fault may move meanwhile."""
        view = self.log
        while (end := view._end()) <= self.fetch_offset:
            if end == self.fetch_offset:
                self.scheduler.wait(lambda: view._end() != self.fetch_offset, EVER_MS)
                continue
            # A broker that is cut off may take a position for one beyond the end; that it is so for good is believed after a while.
            until_ms = self.scheduler.now_ms + int(BEYOND_END_WAIT_S * 1000)
            self.scheduler.wait(lambda: view._end() >= self.fetch_offset, BEYOND_END_WAIT_S * 1000)
            if (end := view._end()) < self.fetch_offset and self.scheduler.now_ms >= until_ms:
                raise OffsetOutOfRange(f"offset {self.fetch_offset} is beyond the end, {end}")

    def offer_out_of_turn(self, entry: Entry) -> None:
        """Offer a record to the replica that is not the next one, unless the log has lost it by then."""

        def offer() -> None:
            if entry in self.log.partition.entries[entry.offset : entry.offset + 1]:
                self.replica.offer(entry.offset, entry.value)

        self._start("miss", offer)

    # -- leading -----------------------------------------------------------------------------------------------------

    def lead(self) -> bool:
        """The group's coordinator gives the shard to this node."""
        if not self.ready or self.leading is not None or self.replica.evidence is not None:
            return False
        self.stop = Event()
        self.leading = self._start("lead", self._lead)
        return True

    def _lead(self) -> None:
        try:
            reason = self.loop.lead(self.stop)
        except LogUnavailable:
            reason = "log unavailable"
        except UnfitToLead:
            reason = "unfit to lead"
        self.reason = reason
        self.seen["lead: " + reason.partition(":")[0].partition(" of ")[0].rstrip("0123456789 ")] += 1

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, nodes: dict[str, Node], done: Callable[[Node, str], None]) -> None:
        """A linearizable read through this node, as ``om_processors.serving.consistency`` does it."""
        if self.ready:
            self._start("read", lambda: done(self, self._read(nodes)))

    def _read(self, nodes: dict[str, Node]) -> str:
        deadline_ms = self.scheduler.now_ms + READ_DEADLINE_MS
        if self._flagged():
            return "flagged"
        found = self._read_index(nodes, deadline_ms)
        if found is None:
            return "no leader"
        while self.replica.read_offset < found.offset:
            if self.scheduler.now_ms > deadline_ms:
                return "not caught up"
            self.scheduler.wait(
                lambda: self.replica.read_offset >= found.offset, deadline_ms + 1 - self.scheduler.now_ms
            )
        if not self.replica.has_counted(found.offset, found.record_hash):
            return "too long ago"
        return "flagged" if self._flagged() else "read"

    def _flagged(self) -> bool:
        return self.replica.evidence is not None

    def _read_index(self, nodes: dict[str, Node], deadline_ms: int) -> ReadIndex | None:
        asked = self if self.loop.leading else nodes.get(self.replica.position.leader)
        if asked is None or not asked.running:
            return None
        future = asked.loop.read_index()
        while not future.done() and self.scheduler.now_ms <= deadline_ms:
            self.scheduler.wait(future.done, deadline_ms + 1 - self.scheduler.now_ms)
        if not future.done() or isinstance(future.exception(), NotLeading):
            return None
        return future.result()

    # -- reports of others -------------------------------------------------------------------------------------------

    def hear(self, sender: str, replica: Replica, outcome: Offered) -> None:
        """Take a report from the audit topic."""
        if not self.ready:
            return
        key, evidence = f"0/{sender}".encode(), outcome.evidence or replica.evidence
        if evidence is None:
            self.follower.on_report(key, {"flagged": b"0"}, b"")
        else:
            report = audit_report(replica.identity, "evidence", -1, outcome.position, Digests(OM_FAMILIES), evidence, 0)
            self.follower.on_report(key, {"flagged": b"1"}, encode(report))
