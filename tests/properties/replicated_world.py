"""A whole shard under faults, for the tests of ``test_replicated_shard``: two candidates that claim in turn, appends that fail or
arrive late or twice, clocks that jump, restarts.

What must hold (design, section 10): what was acknowledged is in the final state exactly once, with the same answer ever after;
all replicas at one position are equal; incremental = scan = the log's own sum; nothing a stale leader does counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xxhash import xxh64_intdigest

from replicated_db.column_families import RETRY
from replicated_db.digests import MASK, Digests, row_hash
from replicated_db.leader import Append, Deposed, Leader, Limits, Proposal, claim_for
from replicated_db.memory import ManualClock, MemoryAppender, MemoryLog, SequenceIds
from replicated_db.merge import decode_int64
from replicated_db.position import Position
from replicated_db.reading import Reading, advance, judge
from replicated_db.replica import Replica
from replicated_db.retry import rows_of
from schemas.codec import decode, encode
from schemas.log import Batch, Delete, DigestBase, Merge, Operation, Put, Tick
from tests.unit.replicated_db.kit import (
    CLUSTER,
    FAMILIES,
    NODES,
    START_MS,
    Node,
    add,
    assert_sound,
    propose,
    rows,
)

CANDIDATES = ("n1", "n2")
LIMITS = Limits(barrier_interval_ms=1000, scrub_interval_ms=60_000)
OTHER_PAYLOAD = b"another payload!"


class LogSum:
    """What the log alone says: the reading rule, and Σ(next − prev) per slot."""

    def __init__(self) -> None:
        self.position = Position()
        self.digests = Digests(FAMILIES)
        self.batches: list[Batch] = []

    def read(self, log: MemoryLog) -> None:
        for entry in log.entries:
            record = decode(entry.value)
            reading = judge(self.position, record)
            if reading.takes_effect:
                self.position = advance(self.position, record, entry.offset, entry.value)
            if reading is Reading.COUNTS and isinstance(record, Batch):
                self.batches.append(record)
                self.add(record)
            assert not isinstance(record, DigestBase)

    def add(self, batch: Batch) -> None:
        for operation in batch.operations:
            assert isinstance(operation, Put | Delete | Merge)
            made: int | None = None
            if isinstance(operation, Put):
                made = row_hash(FAMILIES, operation.cf, operation.key, operation.value)
            elif isinstance(operation, Merge):
                made = operation.next
            self.change(operation.cf, operation.key, made, operation.prev)
        for key, value in rows_of(batch):
            self.change(RETRY, key, row_hash(FAMILIES, RETRY, key, value), None)

    def change(self, cf: str, key: bytes, made: int | None, prev: int | None) -> None:
        row = self.digests.sums[FAMILIES.positions[cf]]
        bucket = xxh64_intdigest(key, FAMILIES.seeds[cf]) & 255
        row[bucket] = (row[bucket] + (made or 0) - (prev or 0)) & MASK


class World:
    """``leading`` holds who believes to lead, with its appender; ``late`` what may still arrive of abandoned claims."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=START_MS, elapsed=1)
        self.log = MemoryLog(self.clock, auto=False)
        self.ids = SequenceIds(seed=1)
        self.nodes = {name: Node(log=self.log, name=name) for name in NODES}
        for node in self.nodes.values():
            node.open()
        self.leading: dict[str, tuple[Leader, MemoryAppender]] = {}
        self.late: list[bytes] = []
        self.proposals: list[Proposal] = []
        self.answers: dict[bytes, bytes] = {}
        self.seen: Counter[str] = Counter()

    # Leadership.

    def abandon(self, name: str) -> None:
        _, appender = self.leading.pop(name)
        self.late += [value for _, value in appender.in_flight]
        appender.close()

    def claim(self, name: str) -> None:
        if name in self.leading:
            self.abandon(name)
        leader = self.nodes[name].claim(self.ids, self.clock, LIMITS)
        self.leading[name] = leader, self.log.appender()
        self.hand_over(name, [leader.genesis(CLUSTER, NODES)])

    def claim_late(self, name: str) -> None:
        """A candidate that is paused after reading: its claim will meet a log that has gone on."""
        replica = self.nodes[name].replica
        self.late.append(encode(claim_for(replica, self.ids.nonce(), name, self.clock.wall_ms())))

    def restart(self, name: str) -> None:
        if name in self.leading:
            self.abandon(name)
        self.nodes[name] = self.nodes[name].restart()
        self.nodes[name].open()

    # Requests.

    def propose(self, name: str, operations: Sequence[Operation]) -> None:
        number = len(self.proposals) + 1
        sent_ms = self.leading[name][0].timestamp_ms(self.clock.elapsed_ms())
        proposal = propose(*operations, add(b"call %d" % number, 1), add(b"total", 1), call=number, sent_ms=sent_ms)
        self.proposals.append(proposal)
        self.submit(name, proposal)

    def retry(self, name: str, back: int) -> None:
        self.submit(name, self.proposals[-1 - back % len(self.proposals)])

    def reuse_call_id(self, name: str, pick: int) -> None:
        """Another payload under the id of a call that was answered."""
        call_id = sorted(self.answers)[pick % len(self.answers)]
        original = next(proposal for proposal in self.proposals if proposal.call_id == call_id)
        self.submit(name, replace(original, request_hash=OTHER_PAYLOAD, body=[add(b"stolen", 1)]))

    def submit(self, name: str, proposal: Proposal) -> None:
        reply = self.leading[name][0].execute(proposal, self.clock.elapsed_ms())
        if reply is not None:
            self.seen["at once"] += 1
            self.answered(reply.proposal, reply.response)

    def answered(self, proposal: Proposal, response: bytes) -> None:
        if response.startswith((b"expired|", b"call id reused|")):
            self.seen[response.split(b"|")[0].decode()] += 1
            return
        assert proposal.request_hash != OTHER_PAYLOAD, "executed under the id of another request"
        self.seen["answered"] += 1
        known = self.answers.setdefault(proposal.call_id, response)
        assert known == response, "a retry gets the first answer"

    # The leaders' appends.

    def hand_over(self, name: str, appends: Sequence[Append | None]) -> None:
        for append in appends:
            if append is not None:
                self.leading[name][1].append(append.token, append.value)

    def seal(self, name: str) -> None:
        self.hand_over(name, self.leading[name][0].seal())

    def tick(self, name: str) -> None:
        self.hand_over(name, [self.leading[name][0].tick()])

    def barrier(self, name: str) -> None:
        self.hand_over(name, [self.leading[name][0].barrier(self.clock.elapsed_ms())])

    def deliver(self, name: str, count: int, *, backwards: bool) -> None:
        """Deliver some of what is in flight; reports may come in another order than the records."""
        appender = self.leading[name][1]
        for _ in range(min(count, len(appender.in_flight))):
            appender.deliver()
        self.take_reports(name, backwards=backwards)

    def fail(self, name: str, *, appended: bool, rest_arrives: bool) -> None:
        """The oldest append fails, appended or not; what was in flight behind it may arrive all the same."""
        appender = self.leading[name][1]
        if appender.in_flight:
            appender.fail(appended=appended)
            rest = [value for _, value in appender.in_flight]
            self.take_reports(name, backwards=False)
            if rest_arrives and name not in self.leading:
                for value in rest:
                    self.late.remove(value)
                    self.log.append(value)

    def take_reports(self, name: str, *, backwards: bool) -> None:
        leader, appender = self.leading[name]
        reports = list(appender.poll(0))
        try:
            for report in reversed(reports) if backwards else reports:
                effective = leader.on_report(report)
                while (offset := leader.must_read) is not None:
                    self.seen["must read"] += 1
                    self.nodes[name].catch_up(offset + 1)
                    effective = [*effective, *leader.on_read()]
                for one in effective:
                    self.check_outcome(one.outcome)
                    for reply in one.replies:
                        self.answered(reply.proposal, reply.response)
        except Deposed:
            self.seen["deposed"] += 1
            self.abandon(name)

    def check_outcome(self, outcome: Any) -> None:
        assert outcome.evidence is None
        if outcome.snapshot is not None:
            self.seen["scrub"] += 1
            assert self.nodes["n1"].replica.scan(outcome.snapshot) == outcome.digests

    # The rest of the world.

    def something_arrives_late(self, pick: int) -> None:
        self.seen["late"] += 1
        self.log.append(self.late.pop(pick % len(self.late)))

    def something_arrives_twice(self, back: int) -> None:
        self.log.append(self.log.entries[-1 - back % len(self.log.entries)].value)

    def twin_appends(self, name: str) -> None:
        """A candidate that did not wait to read its own claim writes under the term that another has."""
        position = self.nodes[name].replica.position
        if position.term:
            twin = Tick(term=position.term, nonce=self.ids.nonce(), seq=position.seq + 1, prev_chain=position.chain)
            self.late.append(encode(twin))

    def time_passes(self, seconds: int, jump_ms: int) -> None:
        self.clock.advance(seconds * 1000)
        self.clock.now_ms += jump_ms

    def follow(self, name: str, count: int) -> None:
        if name not in self.leading:
            node = self.nodes[name]
            node.catch_up(min(len(self.log.entries), node.replica.read_offset + 1 + count))

    def prune(self, name: str) -> None:
        self.nodes[name].replica.prune()

    # What must hold.

    def check_replicas(self) -> None:
        for node in self.nodes.values():
            assert node.replica.scan(node.store) == node.replica.digests
            assert node.replica.evidence is None

    def check_all(self) -> None:
        """Let everybody read to the end, and compare."""
        if not self.log.entries:
            return
        log_sum = LogSum()
        log_sum.read(self.log)
        for node in self.nodes.values():
            node.catch_up()
            assert_sound(node.replica)
        first = self.nodes["n1"].replica
        for node in self.nodes.values():
            assert node.replica.position == first.position
            assert rows(node.replica) == rows(first)
            assert node.replica.digests == first.digests
            assert node.replica.evidence is None
            self.seen.update(str(outcome.reading) for outcome in node.outcomes)
        assert first.digests == log_sum.digests
        assert replace(first.position, topic_id="") == log_sum.position
        self.check_effects(first, log_sum.batches)

    def check_effects(self, replica: Replica, batches: Sequence[Batch]) -> None:
        state = rows(replica)
        executed: dict[bytes, bytes] = {}
        for result in [result for batch in batches for result in batch.results if result.recorded]:
            assert result.call_id not in executed, "executed twice"
            executed[result.call_id] = result.response
        for proposal in self.proposals:
            count = decode_int64(state.get(("counters", b"call %d" % int.from_bytes(proposal.call_id, "big"))))
            assert count == (proposal.call_id in executed)
        assert decode_int64(state.get(("counters", b"total"))) == len(executed)
        assert ("counters", b"stolen") not in state
        for call_id, response in self.answers.items():
            assert executed.get(call_id) == response, "acknowledged, but not in the log"
        self.seen["executed"] += len(executed)
        removed = [op for batch in batches for op in batch.operations if isinstance(op, Delete) and op.cf == RETRY]
        self.seen["retry rows removed"] += len(removed)
