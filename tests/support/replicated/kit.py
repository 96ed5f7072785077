"""A tiny service and a simulated shard over the in-memory twins, for the tests of ``replicated_db``.

A proposal's body is a list of operations (executed), an exception (raised), or a refusal's text (answered, nothing kept).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from replicated_db.core.applying.replica import Identity, Offered, Replica
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import (
    Append,
    Effective,
    Executed,
    Leader,
    LeaderLimits,
    Proposal,
    Refusal,
    Reply,
    Wait,
    claim_for,
)
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import DeliveryReport
from replicated_db.core.tables.column_families import families
from replicated_db.core.tables.digests import row_hash
from replicated_db.core.tables.memory import ManualClock, MemoryAppender, MemoryLog, MemoryStore, SequenceIds
from replicated_db.core.tables.merge import ADD_INT64, MAX_BYTES, encode_int64
from schemas.codecs.codec import encode
from schemas.records.log import (
    Batch,
    Delete,
    Genesis,
    LateRequest,
    Merge,
    Operation,
    Put,
    RequestBatch,
    RequestPosition,
    Result,
)

FAMILIES = families(["things", "counters"], [ADD_INT64, MAX_BYTES])
CLUSTER = "test"
NODES = ["n1", "n2", "n3"]
START_MS = 1_750_000_000_000
NONCE, CHAIN, HASH = b"n" * 16, bytes(32), b"h" * 16
LIMITS = LeaderLimits(barrier_interval_ms=1)


def put(key: bytes, value: bytes, cf: str = "things", prev: int | None = None) -> Put:
    return Put(cf=cf, key=key, value=value, prev=prev)


def delete(key: bytes, cf: str = "things", prev: int | None = None) -> Delete:
    return Delete(cf=cf, key=key, prev=prev)


def add(key: bytes, amount: int, prev: int | None = None, next: int = 0) -> Merge:  # noqa: A002 - the field's name
    return Merge(cf="counters", key=key, operator="add_int64", operand=encode_int64(amount), prev=prev, next=next)


def hash_of(cf: str, key: bytes, value: bytes) -> int:
    found = row_hash(FAMILIES, cf, key, value)
    assert found is not None
    return found


class Kit:
    """The service."""

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        body = proposal.body
        if isinstance(body, BaseException):
            raise body
        if isinstance(body, str):
            return Executed(response=body.encode(), keep=False)
        if callable(body):
            return Executed(response=body(transaction), keep=True)
        for operation in body:
            transaction.submit(operation)
        return Executed(response=b"done %d" % transaction.index, keep=True)

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:
        return f"{refusal.value}|{message}|{index}".encode()


_calls = iter(range(1, 1 << 60))


def propose(
    *operations: Operation, body: Any = None, client: bytes = b"c" * 16, call: int | None = None,
    sent_ms: int = START_MS, hashed: bytes | None = None, position: RequestPosition | None = None,
    answered_below: int = 0, request_type: str = "Test",
) -> Proposal:  # fmt: skip
    """A request; by default with a call id of its own."""
    number = next(_calls) if call is None else call
    return Proposal(
        client_id=client, call_id=number.to_bytes(8, "big"), request_hash=hashed or number.to_bytes(16, "big"),
        first_sent_at_ms=sent_ms, request_type=request_type, body=list(operations) if body is None else body,
        reply_to=f"reply {number}", position=position, answered_below=answered_below,
    )  # fmt: skip


@dataclass
class Node:
    """A replica on a shared log."""

    log: MemoryLog
    name: str = "n1"
    shards: int = 1
    store: MemoryStore = field(default_factory=lambda: MemoryStore(FAMILIES.names))

    def __post_init__(self) -> None:
        self.replica = Replica(
            Identity(cluster=CLUSTER, shard=0, shards=self.shards, node=self.name), FAMILIES, self.store
        )
        self.outcomes: list[Offered] = []

    def open(self) -> None:
        """Check the log as a node does at start."""
        offset = self.replica.position.offset
        entries = self.log.read(offset, 1, 0) if 0 <= offset < len(self.log.entries) else []
        self.replica.adopt_topic(self.log.topic_id(), entries[0].value if entries else None)

    def restart(self) -> Node:
        return Node(log=self.log, name=self.name, shards=self.shards, store=self.store)

    def catch_up(self, end: int | None = None) -> list[Offered]:
        end = len(self.log.entries) if end is None else end
        outcomes: list[Offered] = []
        while (offset := self.replica.read_offset + 1) < end:
            entries = self.log.read(offset, min(100, end - offset), 0)
            outcomes += [self.replica.offer(entry.offset, entry.value) for entry in entries]
        self.outcomes += outcomes
        return outcomes

    def claim(self, ids: SequenceIds, clock: ManualClock, limits: LeaderLimits = LIMITS) -> Leader:
        """Claim and lead; the claim is read from the log as the rule demands."""
        self.catch_up()
        nonce = ids.nonce()
        offset = self.log.append(encode(claim_for(self.replica, nonce, f"{self.name}:1", clock.wall_ms())))
        self.catch_up()
        assert self.replica.position.nonce == nonce
        return Leader(
            self.replica, Kit(), limits, claim_offset=offset, claim_time_ms=self.log.entries[offset].timestamp_ms,
            elapsed_ms=clock.elapsed_ms(),
        )  # fmt: skip


class Shard:
    """A log, a clock and nodes; ``n1`` leads unless told otherwise."""

    def __init__(
        self, limits: LeaderLimits = LIMITS, nodes: Sequence[str] = ("n1", "n2"), genesis: bool = True
    ) -> None:
        self.clock = ManualClock(now_ms=START_MS, elapsed=5_000)
        self.log = MemoryLog(self.clock, auto=False)
        self.ids = SequenceIds(seed=7)
        self.limits = limits
        self.nodes = {name: Node(log=self.log, name=name) for name in nodes}
        for node in self.nodes.values():
            node.open()
        self.lead(nodes[0], genesis=genesis)

    def lead(self, name: str, genesis: bool = True) -> Leader:
        """Let ``name`` claim; what the former appender had in flight stays with it."""
        self.node = self.nodes[name]
        self.leader = self.node.claim(self.ids, self.clock, self.limits)
        self.appender: MemoryAppender = self.log.appender()
        if genesis:
            self.append(self.leader.genesis(CLUSTER, NODES))
            self.deliver()
        return self.leader

    @property
    def replica(self) -> Replica:
        return self.node.replica

    def append(self, *appends: Append | None) -> None:
        for append in appends:
            if append is not None:
                self.appender.append(append.token, append.value)

    def execute(self, proposal: Proposal) -> Reply | None:
        """Have the leader take a proposal that need not wait."""
        said = self.leader.take(proposal, self.clock.elapsed_ms())
        assert not isinstance(said, Wait), said
        return said

    def batch(self, *proposals: Proposal) -> list[Reply | None]:
        """Execute proposals as one batch and append it."""
        replies = [self.execute(proposal) for proposal in proposals]
        self.append(*self.leader.seal())
        return replies

    def reports(self) -> list[DeliveryReport]:
        while self.appender.in_flight:
            self.appender.deliver()
        return list(self.appender.poll(0))

    def deliver(self) -> list[Effective]:
        """Deliver all that is in flight and take the reports, reading where the leader must."""
        effective: list[Effective] = []
        for report in self.reports():
            effective += self.take(report)
        return effective

    def take(self, report: DeliveryReport) -> list[Effective]:
        effective = self.leader.on_report(report)
        while (offset := self.leader.must_read) is not None:
            self.node.catch_up(offset + 1)
            effective += self.leader.on_read()
        return effective

    def do(self, *operations: Operation, **more: Any) -> bytes:
        """One request, one batch, delivered: the response."""
        proposal = propose(*operations, sent_ms=self.leader.timestamp_ms(self.clock.elapsed_ms()), **more)
        at_once = self.batch(proposal)[0]
        if at_once is not None:
            return at_once.response
        [reply] = [reply for one in self.deliver() for reply in one.replies if reply.proposal is proposal]
        return reply.response

    def catch_up(self) -> None:
        for node in self.nodes.values():
            node.catch_up()


def responses(effective: Iterable[Effective]) -> list[bytes]:
    return [reply.response for one in effective for reply in one.replies]


def batch(*operations: Operation, results: Sequence[Result] = (), first_index: int = 1, last_index: int | None = None,
          seq: int = 1, timestamp_ms: int = START_MS, **header: Any) -> Batch:  # fmt: skip
    fields: dict[str, Any] = {"term": 1, "nonce": NONCE, "prev_chain": CHAIN} | header
    return Batch(
        seq=seq, first_index=first_index, last_index=first_index if last_index is None else last_index,
        timestamp_ms=timestamp_ms, request_position=None, operations=list(operations), results=list(results), **fields,
    )  # fmt: skip


def request_batch(*requests: LateRequest, first_index: int = 1, last_index: int | None = None, seq: int = 1,
                  timestamp_ms: int = START_MS, **header: Any) -> RequestBatch:  # fmt: skip
    fields: dict[str, Any] = {"term": 1, "nonce": NONCE, "prev_chain": CHAIN} | header
    return RequestBatch(
        seq=seq, first_index=first_index, last_index=first_index if last_index is None else last_index,
        timestamp_ms=timestamp_ms, request_position=None, requests=list(requests), **fields,
    )  # fmt: skip


def result(
    call: int, response: bytes = b"r", *, recorded: bool = True, client: bytes = b"c" * 16, index: int = 1
) -> Result:
    return Result(
        client_id=client, call_id=call.to_bytes(8, "big"), request_hash=HASH, first_sent_at_ms=START_MS,
        request_type="Test", index=index, recorded=recorded, response=response,
    )  # fmt: skip


def genesis(**changed: Any) -> Genesis:
    fields: dict[str, Any] = {
        "term": 1, "nonce": NONCE, "seq": 1, "prev_chain": CHAIN, "cluster": CLUSTER, "shard": 0, "shards": 1,
        "replicas": NODES, "column_families": list(FAMILIES.names),
    } | changed  # fmt: skip
    return Genesis(**fields)


def rows(replica: Replica) -> dict[tuple[str, bytes], bytes]:
    """All digested rows."""
    return {(cf, key): value for cf in FAMILIES.names for key, value in replica.store.iterate(cf, b"")}


def assert_sound(replica: Replica) -> None:
    """The incremental digest equals a scan's, and what is in memory equals what is stored."""
    assert replica.scan(replica.store) == replica.digests
    reopened = Replica(replica.identity, FAMILIES, replica.store)
    assert reopened.position == replica.position
    assert reopened.digests == replica.digests
    assert reopened.evidence == replica.evidence


def prune(replica: Replica) -> None:
    """Have a replica forget dead expiry rows now, as it does with a write of its own."""
    with replica.lock:
        replica.flush()
        replica._pruning.due_ms = 0
        if writes := replica._pruning.writes(replica.position.timestamp_ms, replica.store):
            replica.store.write(writes)


def effective_records(node: Node) -> list[Offered]:
    return [outcome for outcome in node.outcomes if outcome.reading in (Reading.COUNTS, Reading.VALID_CLAIM)]
