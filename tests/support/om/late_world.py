"""An Object Manager's shard over the in-memory twins, whose request types can be switched between both modes.

``LateWorld`` drives a leader and a follower as their shells do. Worlds that are given the same steps must end in the same rows,
whatever the modes: time passes only between batches, and switching commands are sent in all of them (where they change nothing,
they log nothing).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from xxhash import xxh3_128_digest

from om_processors.execution.late import OMExecutor
from om_processors.execution.requests import LATE_REQUEST_TYPES
from om_processors.execution.service import OM_FAMILIES, OMService
from om_processors.namespace import ids
from om_processors.namespace.context import Contexts
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.execution.retry import RETENTION_MS
from replicated_db.core.leading.leader import Append, Deposed, Leader, LeaderLimits, Proposal, Wait, claim_for
from replicated_db.core.tables.memory import ManualClock, MemoryAppender, MemoryLog, MemoryStore, SequenceIds
from schemas.codecs.codec import decode, decode_as, encode
from schemas.records.identity import ProvenCaller
from schemas.records.log import LATE_MODE, LEADER_MODE, RequestBatch
from schemas.records.messages import (
    BATCH_BEGINNERS,
    SHARD_COMMANDS,
    CreateSnapshot,
    Request,
    RequestBody,
    Response,
    SetRequestMode,
)
from schemas.result_codes import CALL_ID_REUSED, REQUEST_EXPIRED

PIPELINES = ("p1", "p2")
CLUSTER = "test"
NODES = ["n1", "n2"]
START_MS = 1_750_000_000_000
LIMITS = LeaderLimits(barrier_interval_ms=1000, scrub_interval_ms=0)
UNRECORDED = (REQUEST_EXPIRED, CALL_ID_REUSED)
"""Answers without a retry row: asked again, the same is said at another index."""

Rows = dict[tuple[str, bytes], bytes]


@dataclass
class LateNode:
    """A replica; ``restart`` is what a kill leaves: the store, and nothing that was only in the cache."""

    log: MemoryLog
    name: str
    executor: OMExecutor = field(default_factory=lambda: OMExecutor(Contexts(shard=0, shards=1, pipelines=PIPELINES)))
    store: MemoryStore = field(default_factory=lambda: MemoryStore(OM_FAMILIES.names, kept=CHECKPOINT_PREFIX))

    def __post_init__(self) -> None:
        identity = Identity(cluster=CLUSTER, shard=0, shards=1, node=self.name)
        self.replica = Replica(identity, OM_FAMILIES, self.store, None, self.executor)
        offset = self.replica.position.offset
        self.replica.adopt_topic(self.log.topic_id(), self.log.entries[offset].value if offset >= 0 else None)

    def restart(self) -> LateNode:
        return LateNode(log=self.log, name=self.name, executor=self.executor, store=self.store)

    def read(self, count: int | None = None) -> None:
        """Apply what follows; at most ``count`` records."""
        first = self.replica.read_offset + 1
        for entry in self.log.entries[first : None if count is None else first + count]:
            self.replica.offer(entry.offset, entry.value)

    def rows(self) -> Rows:
        """Every digested row; the replica is flushed for it, and its digest compared with a scan."""
        self.replica.flush()
        assert self.replica.scan(self.store) == self.replica.digests
        return {(cf, key): value for cf in OM_FAMILIES.names for key, value in self.store.iterate(cf, b"")}


class LateWorld:
    """``force`` gives the mode that every switching command gets here, whatever it asks for; None leaves it as it is."""

    def __init__(self, force: str | None = None) -> None:
        self.force = force
        self.clock = ManualClock(now_ms=START_MS, elapsed=5_000)
        self.log = MemoryLog(self.clock, auto=False)
        self.ids = SequenceIds(seed=3)
        self.nodes = {name: LateNode(log=self.log, name=name) for name in NODES}
        self.sent: list[Proposal] = []
        self.answers: dict[int, bytes] = {}
        self.unanswered: list[Proposal] = []
        self.lead("n1")
        if force == LATE_MODE:
            for name in LATE_REQUEST_TYPES:
                self.command(name, LATE_MODE)
        else:
            for name in LATE_REQUEST_TYPES:
                self.command(name, LEADER_MODE)

    # Leading.

    @property
    def leader_node(self) -> LateNode:
        return self.nodes[self.leading]

    def lead(self, name: str) -> None:
        """Let a node claim; nothing is in flight."""
        node = self.nodes[name]
        node.read()
        offset = self.log.append(encode(claim_for(node.replica, self.ids.nonce(), name, self.clock.wall_ms())))
        node.read()
        self.leading = name
        self.leader = Leader(
            node.replica, OMService(Contexts(shard=0, shards=1, pipelines=PIPELINES)), LIMITS, claim_offset=offset,
            claim_time_ms=self.log.entries[offset].timestamp_ms, elapsed_ms=self.clock.elapsed_ms(),
        )  # fmt: skip
        self.appender: MemoryAppender = self.log.appender()
        self.hand_over([self.leader.genesis(CLUSTER, NODES)])
        self.deliver()
        for proposal in self.unanswered:
            self.submit(replace(proposal))
        self.unanswered = []

    def hand_over(self, appends: Iterable[Append | None]) -> None:
        for append in appends:
            if append is not None:
                self.appender.append(append.token, append.value)

    def seal(self) -> None:
        self.hand_over(self.leader.seal())

    def deliver(self) -> None:
        """Settle everything in flight, and take the answers."""
        while self.appender.in_flight:
            self.appender.deliver()
        for report in self.appender.poll(0):
            effective = list(self.leader.on_report(report))
            while (offset := self.leader.must_read) is not None:
                self.leader_node.read(offset + 1 - self.leader_node.replica.read_offset - 1)
                effective += self.leader.on_read()
            for one in effective:
                for reply in one.replies:
                    self.answered(reply.proposal, reply.response)

    def answered(self, proposal: Proposal, response: bytes) -> None:
        number = int(proposal.reply_to)
        known = self.answers.get(number)
        if known is not None and decode_as(Response, known).status not in UNRECORDED:
            assert known == response, "a retry gets the first answer"
        self.answers[number] = response

    def settle(self) -> None:
        self.seal()
        self.deliver()

    def fail(self, *bodies: RequestBody) -> None:
        """Requests are logged, but the reports say that they were not: the claim is over, and the clients ask the next leader."""
        self.settle()
        self.unanswered = [self.request(body) for body in bodies]
        for proposal in self.unanswered:
            self.submit(proposal)
        self.seal()
        while self.appender.in_flight:
            self.appender.fail(appended=True)
        try:
            for report in self.appender.poll(0):
                self.leader.on_report(report)
        except Deposed:
            pass

    # Requests.

    def request(
        self, body: RequestBody, *, sent_ms: int | None = None, call: int | None = None, caller: str = "ann",
        standing: ProvenCaller | None = None,
    ) -> Proposal:  # fmt: skip
        """A request as the gateway makes it; with a ``call`` id that was used before, another payload under it.

        With a ``standing`` it is signed, and its caller's rights are judged.
        """
        number = len(self.sent) + 1
        call_id = number if call is None else call
        now_ms = self.leader.timestamp_ms(self.clock.elapsed_ms())
        found = Request(
            client_id=b"c" * 16, call_id=call_id, first_sent_at_ms=now_ms if sent_ms is None else now_ms + sent_ms,
            answered_below=0, reply_partition=0, caller=caller, body=body,
        )  # fmt: skip
        proposal = Proposal(
            client_id=found.client_id, call_id=call_id.to_bytes(8, "big"),
            # Switching commands differ between worlds, and are to leave the same row.
            request_hash=xxh3_128_digest(b"%d" % number), first_sent_at_ms=found.first_sent_at_ms,
            request_type=type(body).__name__, body=found, reply_to=number, begins_batch=isinstance(body, BATCH_BEGINNERS),
            judged_first=isinstance(body, CreateSnapshot), when_prepared=isinstance(body, SHARD_COMMANDS), standing=standing,
        )  # fmt: skip
        self.sent.append(proposal)
        return proposal

    def submit(self, proposal: Proposal) -> None:
        """Take a proposal as the leader's shell does: logged behind what is executed, executed after what is logged."""
        while isinstance(said := self.leader.take(proposal, self.clock.elapsed_ms()), Wait):
            if said is Wait.SEAL:
                self.seal()
            else:
                self.settle()
        if said is not None:
            self.answered(said.proposal, said.response)

    def do(self, body: RequestBody, **more: Any) -> Response:
        """Submit and settle one request."""
        proposal = self.request(body, **more)
        self.submit(proposal)
        self.settle()
        return decode_as(Response, self.answers[int(proposal.reply_to)])

    def repeat(self, number: int) -> None:
        """Send a request again: the same bytes, a moment later."""
        self.submit(replace(self.sent[number]))

    def command(self, request_type: str, mode: str) -> None:
        self.submit(self.request(SetRequestMode(shard=0, request_type=request_type, mode=self.force or mode)))

    def pass_time(self, ms: int) -> None:
        """Not so long that retry rows grow old: each mode removes those at moments of its own."""
        self.settle()
        self.clock.advance(min(ms, START_MS + RETENTION_MS // 2 - self.clock.now_ms))

    # What is there.

    def session_at(self, index: int) -> int:
        """The session that the request of this index began, if it was a CreateKey."""
        return ids.session_id(ids.object_id(0, index))

    def late_records(self) -> list[RequestBatch]:
        found = [decode(entry.value) for entry in self.log.entries]
        return [record for record in found if isinstance(record, RequestBatch)]
