"""A simulated cluster: brokers, three nodes, two clients, one scheduler; and what ends a run: healing, and the last checks.

A run is a list of actions ``(name, number)``; what an action does depends on nothing but its number and the world, so a list replays to
the same trace, and any part of it is a run too (``trace`` shrinks failures by that).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from enum import Enum
from typing import Any

from xxhash import xxh3_128_digest

from om_processors.execution.service import refusal_response
from replicated_db.core.applying.replica import Offered
from replicated_db.core.ports import Entry
from replicated_db.core.tables.memory import SequenceIds
from schemas.codecs.codec import Undecodable, decode_as
from schemas.column_families import KEY_TABLE
from schemas.records.messages import CancelPrepare, Request, RequestBody
from schemas.result_codes import NOT_LEADER
from tests.simulation.broker import Appender, LogPartition, LogView, RequestPartition
from tests.simulation.clients import BUCKETS, KEYS, VOLUME, Client
from tests.simulation.cluster import LIMITS, NAMES, PIPELINES, START_MS, Node
from tests.simulation.invariants import Invariants, Question
from tests.simulation.scheduler import Scheduler
from tests.simulation.truth import Truth, Violation

CLIENTS = 2
STEP_MS = 1
HEAL_ROUNDS = 150
"""After the faults have ceased, every call must be answered within so many rounds."""
MAX_PAST_REQUESTS = 200

Action = tuple[str, int]


class Door(Enum):
    """The way that requests take."""

    KAFKA = "om.requests"
    DIRECT = "the direct door"
    BOTH = "both doors, each request twice"


class World:
    """``say`` receives one line for each thing that happens, if a trace is wanted."""

    NODE: type[Node] = Node
    INVARIANTS: type[Invariants] = Invariants

    def __init__(self, say: Any = None) -> None:
        self.seen: Counter[str] = Counter()
        self.say = say
        self.scheduler = Scheduler()
        self.broker_skew_ms = 0
        self.registry: dict[bytes, Request] = {}
        self.truth = self.new_truth()
        self.log = LogPartition(self.scheduler, self.broker_ms, self._landed)
        self.requests = self.new_requests()
        self.invariants = self.INVARIANTS(lambda: self.truth, self._reply, self._hear)
        self.ids = SequenceIds(seed=1)
        self.nodes = {
            name: self.NODE(
                name, self.scheduler, LogView(self.log, name), self.requests, self.invariants, self.seen, self.ids
            )
            for name in NAMES
        }
        self.names = list(NAMES)
        self.clients = [Client(number + 1, fleet=self.truth.model) for number in range(CLIENTS)]
        self.responses: list[tuple[bytes, bytes]] = []
        self.past_requests: list[bytes] = []
        self.lose_next_request = False
        self.door = Door.KAFKA
        self.healing_door = Door.KAFKA
        """The way that requests take once the faults have ended."""

    # -- parts -------------------------------------------------------------------------------------------------------

    def new_truth(self) -> Truth:
        return Truth(self.registry, self.seen, LIMITS.max_batch_requests, PIPELINES)

    def new_requests(self) -> RequestPartition:
        return RequestPartition(self.broker_ms)

    def broker_ms(self) -> int:
        return START_MS + self.scheduler.now_ms + self.broker_skew_ms

    def node(self, number: int) -> Node:
        return self.nodes[self.names[number % len(self.names)]]

    def appender(self, number: int) -> Appender | None:
        """Return one with records in flight."""
        busy = [appender for appender in self.log.appenders if appender.in_flight]
        return busy[number % len(busy)] if busy else None

    def note(self, what: str) -> None:
        self.seen[what] += 1

    def tell(self, line: str) -> None:
        if self.say is not None:
            self.say(f"{self.scheduler.now_ms:>9} ms  {line}")

    def _landed(self, entry: Entry) -> None:
        if self.say is not None:
            self.tell(f"lands at {entry.offset}: {describe(entry.value)}")
        self.truth.read(entry)

    def _reply(self, client_id: bytes, response: bytes) -> None:
        self.responses.append((client_id, response))

    def _hear(self, sender: Node, outcome: Offered) -> None:
        if outcome.evidence is None and outcome.digests is None:
            return
        for node in self.nodes.values():
            node.hear(sender.name, sender.replica, outcome)

    def send(self, value: bytes) -> None:
        """A request reaches ``om.requests``, or a node's direct door, or both."""
        if self.door is not Door.DIRECT:
            self.requests.append(value)
        if self.door is not Door.KAFKA and self.knock(value) and self.door is Door.BOTH:
            self.note("one call sent through both doors")

    def knock(self, value: bytes) -> bool:
        """A request reaches a node that takes itself for the leader; without one it is refused. Return whether a leader has a call of it."""
        try:
            request = decode_as(Request, value)
        except Undecodable:
            request = None
        intakes = [node.intake for node in self.nodes.values() if node.intake is not None]
        if intakes:
            intakes[len(value) % len(intakes)].knock(request, value)
            self.note("sent by the direct door")
            return request is not None
        if request is not None:
            self.note("nobody at the direct door")
            self._reply(request.client_id, refusal_response(request, 0, NOT_LEADER, "nobody leads"))
        return False

    def register(self, value: bytes) -> bytes:
        """Remember a request that somebody may send, now or later, once or often."""
        self.registry[xxh3_128_digest(value)] = decode_as(Request, value)
        self.past_requests.append(value)
        del self.past_requests[:-MAX_PAST_REQUESTS]
        return value

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, faults: Any, action: Action) -> None:
        """Do one action, then check everything that has moved."""
        name, number = action
        self.scheduler.now_ms += STEP_MS
        getattr(faults, name)(number)
        self.invariants.check_nodes(list(self.nodes.values()))
        for appender in self.log.appenders:
            self.invariants.check_queues(appender.most_in_flight, appender.node)

    def run(self, number: int, times: int) -> None:
        """Let runnable tasks go on, one port call each."""
        for _ in range(times):
            task = self.scheduler.pick(number >> 4)
            if task is None:
                return
            self.scheduler.resume(task)
            if task.done:
                self.tell(f"{task.name} ends{f': {task.error!r}' if task.error else ''}")
                task.owner.ended(task)
            number = number * 69069 + 1 & 0xFFFFFFFF

    def begin(self, client: Client, body: RequestBody) -> None:
        value = client.begin(body, self.scheduler.now_ms, START_MS + self.scheduler.now_ms + client.skew_ms)
        if value is None:
            return
        self.register(value)
        lost, self.lose_next_request = self.lose_next_request, False
        if not lost:
            self.send(value)

    def respond(self, number: int) -> None:
        """A response reaches its client."""
        if self.responses:
            client_id, value = self.responses.pop(number % min(len(self.responses), 3))
            if (client := self.client_of(client_id)) is not None:
                client.take(value, self.scheduler.now_ms)

    def client_of(self, client_id: bytes) -> Client | None:
        return self.clients[client_id[0] - 1]

    def resend(self) -> None:
        self._notice_lost_connections()
        for client in self.clients:
            for value in client.due(self.scheduler.now_ms):
                self.send(value)

    def _notice_lost_connections(self) -> None:
        """A client whose connection has ended with a process sends its calls again at once, as the SDK does."""
        for node in self.nodes.values():
            for client_id in sorted(node.hung_up):
                if client_id and (client := self.client_of(client_id)) is not None:
                    client.calls.hasten((0,), now_ms=self.scheduler.now_ms)
                    self.note("connection lost")
            node.hung_up.clear()

    def read(self, node: Node, number: int) -> None:
        row = (KEY_TABLE, f"/{VOLUME}/{BUCKETS[0]}/{KEYS[number % len(KEYS)]}".encode())
        invariants = self.invariants
        asked = Question(row=row, acknowledged=invariants.acknowledged, losses=len(invariants.lost))

        def done(at: Node, result: str) -> None:
            self.note(f"linearizable: {result}")
            if result == "read":
                invariants.check_read(at, asked)

        node.read(self.nodes, done)

    # -- the end -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Stop all faults; then everybody must get on, answer, and agree."""
        if self.truth.halted is not None:
            self._end_halted()
            return
        self._repair()
        for client in self.clients:
            client.calls.abandon()
            client.ended, client.expired = client.begun, 0
        # Behind everything that may still be in the partition: nobody prepares the shard again.
        self.begin(self.clients[0], CancelPrepare(shard=0))
        for client in self.clients:
            self.begin(client, client.body(100 * client.number))
        self._await_stops()
        for _ in range(HEAL_ROUNDS):
            self._round()
            if all(client.ended == client.begun and not client.expired for client in self.clients) and self._settled():
                break
        else:
            raise Violation(f"{self._what_is_missing()} within {HEAL_ROUNDS} rounds after the last fault")
        self.note(f"healed by {self.door.value}")
        self._read_everywhere()
        self.truth.check_model()
        for node in self.nodes.values():
            self.invariants.check_whole(node)

    def _repair(self) -> None:
        self.broker_skew_ms = 0
        self.lose_next_request = False
        self.door = self.healing_door
        for client in self.clients:
            client.skew_ms = 0
        for appender in self.log.appenders:
            appender.arrived += appender.held
            appender.held.clear()
        for node in self.nodes.values():
            node.clock.skew_ms, node.log.end = 0, None
            if node.name in self.invariants.diverged:
                self._restart_after_loss(node)
            elif node.name in self.invariants.tainted:
                self.rebuild(node)
            elif not node.up:
                node.boot()
            node.running = True

    def _restart_after_loss(self, node: Node) -> None:
        """A node that had read what the log has lost starts again, and must stop if a part of that has taken effect on its disk."""
        if node.up:
            node.crash()
        position = node.stored_position()
        where = self.truth.where_chain_is(position.chain)
        if node.name in self.invariants.tainted or where not in (None, position.offset):
            self.rebuild(
                node
            )  # of the latter kind: it took a repeated record for one that was lost, and may have missed others
            return
        if where is not None:
            self.invariants.restore(node)
        node.boot()

    def _await_stops(self) -> None:
        """Who holds on its disk what the log has lost must end itself, at the latest when the log goes on."""
        if len(self.invariants.diverged) == len(self.nodes):
            self.rebuild(self.nodes[NAMES[0]])  # else nobody could go on
        for _ in range(HEAL_ROUNDS):
            if not self.invariants.diverged:
                return
            self._round()
            self.scheduler.now_ms += 450
            for node in self.nodes.values():
                if node.name not in self.invariants.diverged:
                    self.read(node, 0)  # the log goes on: a tick
        raise Violation(f"{[*self.invariants.diverged]} hold what the log has lost, start again, and do not stop")

    def rebuild(self, node: Node) -> None:
        self.invariants.tainted.pop(node.name, None)
        self.invariants.restore(node)
        node.rebuild(self._peer_of(node) if self.log.first else None)

    def may_rebuild(self, node: Node) -> bool:
        """Whether there is a log, or a peer, to rebuild a node from."""
        return not self.log.first or bool(self._healthy_peers(node))

    def _healthy_peers(self, node: Node) -> list[Node]:
        invariants = self.invariants
        return [
            peer for name, peer in self.nodes.items()
            if peer is not node and name not in invariants.diverged and name not in invariants.tainted
            and peer.stored_position().offset >= self.log.first
        ]  # fmt: skip

    def _peer_of(self, node: Node) -> Node:
        """Return whose checkpoint a node installs: the log has no beginning to replay any more."""
        healthy = self._healthy_peers(node)
        if not healthy:
            raise Violation(f"{node.name} has no peer to take a checkpoint from")
        return max(healthy, key=lambda peer: peer.stored_position().offset)

    def _round(self) -> None:
        """What happens while nothing goes wrong."""
        nodes = list(self.nodes.values())
        for node in nodes:
            if not node.up and node.name in self.invariants.diverged:
                self.note("holder of a lost tail stopped")
                self.rebuild(node)
            elif not node.up:
                node.boot()
        if not any(node.leading for node in nodes):
            next((node for node in nodes if node.name not in self.invariants.diverged and node.lead()), None)
        self.run(self.seen["round"] * 7919, 12)
        for appender in self.log.appenders:
            while appender.in_flight:
                appender.deliver()
        while self.responses:
            self.respond(0)
        self.scheduler.now_ms += 50
        self.resend()
        self.note("round")
        self.invariants.check_nodes(nodes)

    def _what_is_missing(self) -> str:
        left = sum(client.begun - client.ended + client.expired for client in self.clients)
        return f"no answer to {left} calls by {self.door.value}" if left else "no rest of the replicas"

    def _settled(self) -> bool:
        last = max(self.truth.moments, default=-1)
        return all(node.ready and node.replica.position.offset == last for node in self.nodes.values())

    def _read_everywhere(self) -> None:
        before = self.seen["linearizable: read"]
        for _ in range(HEAL_ROUNDS):
            if self.seen["linearizable: read"] >= before + len(self.nodes):
                break
            for node in self.nodes.values():
                self.read(node, 0)
            for _ in range(4):
                self._round()
        else:
            raise Violation("no linearizable reads after the last fault")
        for _ in range(HEAL_ROUNDS):
            if self._settled():
                return
            self._round()
        raise Violation("the replicas do not come to rest")

    def _end_halted(self) -> None:
        """The log itself proves that part of it was lost: nobody may go past that record."""
        for node in self.nodes.values():
            if node.up:
                node.running, node.log.end = True, None
        for _ in range(20):
            self.run(1, 20)
            self.scheduler.now_ms += 1000
            self.invariants.check_nodes(list(self.nodes.values()))

    def close(self) -> None:
        self.scheduler.close()

    def fingerprint(self) -> str:
        """Return one figure for everything that has happened."""
        total = hashlib.sha256()
        for entry in self.log.entries:
            total.update(entry.timestamp_ms.to_bytes(8, "big", signed=True) + entry.value)
        total.update(repr(sorted(self.seen.items())).encode())
        total.update(repr([node.replica.position for node in self.nodes.values()]).encode())
        return total.hexdigest()


def describe(value: bytes) -> str:
    """Return a record of the log in one line."""
    from schemas.codecs.codec import decode
    from schemas.records.log import Batch, RequestBatch

    record = decode(value)
    where = f"{type(record).__name__} of term {record.term}"
    if isinstance(record, Batch):
        calls = ", ".join(f"{result.client_id[0]}/{int.from_bytes(result.call_id, 'big')}" for result in record.results)
        return f"{where}, seq {record.seq}, indexes {record.first_index}..{record.last_index}, calls {calls}"
    if isinstance(record, RequestBatch):
        logged = ", ".join(f"{r.client_id[0]}/{int.from_bytes(r.call_id, 'big')}" for r in record.requests)
        return f"{where}, seq {record.seq}, indexes {record.first_index}..{record.last_index}, to execute {logged}"
    return f"{where}, seq {record.seq}" if hasattr(record, "seq") else f"{where} by {record.node}"
