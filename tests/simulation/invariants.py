"""What must always hold (design, section 10), checked at every step against what the log means (``truth``).

1. An acknowledged write is in every later linearizable read: a read sees at least the index of every answer that had left
   and of every read that had ended before it began, and the very row that the log gives at its position.
   Should the brokers lose the log's tail, what was acknowledged of it is lost with it, and no later reader is held to it. An answer or
   a read that ends after such a loss may rest on the lost tail only if its report, or its question, is from before the loss: it is
   then checked against the log of that time (``lost``) as strictly, and binds nobody.
   A node that had read the lost tail without noticing the loss may then take what is void in the log for what counts, and claim on that
   (decision 0016). No other node follows it; its answers from then on must be what it has logged itself.
2. A request has one effect and one first answer (``truth``), and what leaves a node is that answer, effective and applied there.
3. Replicas at one record have one digest, equal to the log's; at a barrier it is published so, at a scrub a full scan agrees.
4. Nothing stale has an effect, no answer is wrong: the above, for every node, whoever believes to lead.
5. A damaged row is found by the first operation that touches it; nobody else finds evidence.
6. A replica stops only for a reason; a replica that is ahead of the log, or has missed part of it, never goes on.
7. Queues are bounded.
8. A call is answered the way it came: through Kafka, or by the connection that brought it. When a leadership ends, no call of its direct door
   is left without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from om_processors.intake.direct_calls import DirectCalls
from om_processors.namespace.snapshots import is_checkpoint_of_snapshot
from replicated_db.core.applying.counted import MAX_COUNTED
from replicated_db.core.applying.replica import Offered
from replicated_db.core.leading.leader import Reply
from replicated_db.core.ports import OffsetOutOfRange
from replicated_db.core.tables.column_families import RETRY_EXPIRY
from schemas.codecs.codec import decode
from schemas.column_families import SNAPSHOT_TABLE
from schemas.records.log import Batch
from schemas.result_codes import NOT_LEADER, PREPARED, REQUEST_TOO_LARGE
from tests.simulation.cluster import LIMITS, Knocker, Node, Watch
from tests.simulation.truth import Moment, Truth, Violation

MOST_IN_FLIGHT = LIMITS.max_in_flight + 5
"""Batches in flight, the one being sealed, a tick, a barrier, and Genesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A linearizable read when it began: of which row, what had been acknowledged, and how often the log had lost its tail."""

    row: tuple[str, bytes]
    acknowledged: int
    losses: int


class Invariants(Watch):
    """Listens to all nodes."""

    def __init__(
        self, truth: Callable[[], Truth], deliver: Callable[[bytes, bytes], None], hear: Callable[..., None]
    ) -> None:
        self._truth = truth
        self._deliver = deliver
        self._hear = hear
        self.acknowledged = 0
        self.diverged: dict[str, str] = {}
        """Nodes that have applied what the log has lost since; they must stop, and their answers may be of a lost past."""
        self.misled: set[str] = set()
        """Diverged nodes that stand on a record which is void in the log (decision 0016)."""
        self.tainted: dict[str, tuple[str, bytes]] = {}
        """Nodes with a damaged row that no operation has touched yet, or that have found it."""
        self.may_stop: dict[str, str] = {}
        self.lost: list[Truth] = []
        """What the log meant right before each loss of its tail."""
        self.left_after_losses: list[int] = []
        """The log's last index right after each loss of its tail: nobody can read more of what was acknowledged before."""
        self.may_halt: tuple[str, ...] = ()
        self._checked: dict[str, Any] = {}
        self._compared: dict[tuple[str, str], Any] = {}
        """By node and name: the checkpoint that was compared with the log last."""
        self._ways: dict[tuple[bytes, bytes], set[bool]] = {}
        """By client and call: whether it was answered directly, and whether through Kafka."""

    @property
    def truth(self) -> Truth:
        return self._truth()

    # -- the log's tail is lost --------------------------------------------------------------------------------------

    def lose(self, now: Truth) -> None:
        """The log has lost its tail; ``now`` is what it means without it."""
        self.lost.append(self.truth)
        self.left_after_losses.append(now.index)
        self.acknowledged = min(self.acknowledged, now.index)

    def _eras(self) -> list[Truth]:
        """Return what the log meant before the first loss, before the second, …, and means now."""
        return [*self.lost, self.truth]

    def restore(self, node: Node) -> None:
        """A node's process has begun anew, and what it has on its disk is in the log: all is asked of it again."""
        self.diverged.pop(node.name, None)
        self.misled.discard(node.name)
        self.may_stop.pop(node.name, None)

    # -- answers -----------------------------------------------------------------------------------------------------

    def replied(self, node: Node, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._check_answer(node, reply)
            self._check_way(node, reply)
            if not isinstance(reply.proposal.reply_to, DirectCalls):
                self._deliver(reply.proposal.client_id, reply.response)

    def _check_answer(self, node: Node, reply: Reply) -> None:
        proposal = reply.proposal
        call = (proposal.client_id, int.from_bytes(proposal.call_id, "big"))
        if self._is_refused_while_prepared(reply):
            return
        position = node.replica.position
        claim = (position.term, position.nonce)
        if node.name in self.misled and self.truth.logs_without_effect(
            *claim, call, proposal.request_hash, reply.response, position.offset
        ):
            self.truth.seen["answer of a misled node"] += 1
            return
        eras = self._eras() if node.name in self.diverged else [self.truth]
        indexes = [era.answers.get((call, proposal.request_hash), {}).get(reply.response) for era in eras]
        index = next((found for found in reversed(indexes) if found is not None), None)
        if index is None:
            raise Violation(f"{node.name} answers call {call[1]} of {call[0].hex()} with what is not in the log: "
                            f"{decode(reply.response)}")  # fmt: skip
        if node.replica.position.index < index:
            raise Violation(f"{node.name} answers index {index} before it has applied it")
        if indexes[-1] is None:
            self.truth.seen["answer of a lost tail"] += 1
        else:
            self.acknowledged = max(self.acknowledged, index)

    def _is_refused_while_prepared(self, reply: Reply) -> bool:
        """A prepared shard's refusal is in no log: the client asks again. A command is never refused so."""
        if PREPARED.encode() not in reply.response or decode(reply.response).status != PREPARED:
            return False
        if reply.proposal.when_prepared:
            raise Violation(f"a command is refused because the shard is prepared: {reply.proposal.body}")
        self.truth.seen["refused while prepared"] += 1
        return True

    def _check_way(self, node: Node, reply: Reply) -> None:
        """Only a request of ``om.requests`` has a position, and only such a one is answered through Kafka."""
        proposal = reply.proposal
        is_direct = isinstance(proposal.reply_to, DirectCalls)
        if is_direct is not (proposal.position is None):
            ways = ("through Kafka", "by the direct door")
            raise Violation(f"{node.name} answers {ways[is_direct]} what came {ways[not is_direct]}: {proposal.body}")
        ways_of_call = self._ways.setdefault((proposal.client_id, proposal.call_id), set())
        if ways_of_call == {not is_direct}:
            self.truth.seen["one call answered through both doors"] += 1
        ways_of_call.add(is_direct)

    def answered_directly(self, node: Node, way: Knocker, response: bytes) -> None:
        """By the direct door goes what was checked just before, or a refusal because the leadership has ended."""
        decoded = decode(response)
        if decoded.client_id != way.client_id or not way.asked[decoded.call_id]:
            raise Violation(f"{node.name} answers call {decoded.call_id} of {decoded.client_id.hex()} by a connection of "
                            f"{way.client_id.hex()} that does not wait for it")  # fmt: skip
        way.asked[decoded.call_id] -= 1
        if decoded.status == NOT_LEADER:
            self.truth.seen["told that the leadership ended"] += 1
        self._deliver(decoded.client_id, response)

    def closed(self, node: Node, connections: Sequence[Knocker]) -> None:
        """A leadership has ended: whoever waits at its direct door must have been told."""
        for way in connections:
            if left := +way.asked:
                raise Violation(f"{node.name} leads no more and leaves direct calls of {way.client_id.hex()} without an "
                                f"answer: {sorted(left)}")  # fmt: skip

    def refused_at_once(self, node: Node, reply: Reply) -> None:
        if decode(reply.response).status != REQUEST_TOO_LARGE:
            raise Violation(f"{node.name} refuses at once what depends on state: {decode(reply.response)}")

    def check_read(self, node: Node, asked: Question) -> None:
        """A linearizable read ends here and now."""
        position = node.replica.position
        if node.name in self.misled and self.truth.leads_nobody(position.term, position.nonce) and position.seq:
            self.truth.seen["read at a misled node"] += 1
            return
        eras = self._eras()
        found, moment = self._state_read(node, eras)
        if found < asked.losses:
            raise Violation(
                f"a linearizable read at {node.name} began after a loss of the log's tail and sees what was lost"
            )
        required = min([asked.acknowledged, *self.left_after_losses[asked.losses : found]])
        index = node.replica.position.index
        if index < required:
            raise Violation(f"a linearizable read at {node.name} sees index {index}, but {required} was acknowledged")
        row = eras[found].row_at(asked.row, moment.offset)
        if node.name not in self.tainted and node.replica.rows.get(*asked.row) != row:
            raise Violation(
                f"a linearizable read at {node.name} sees another {asked.row} than the log gives at {moment.offset}"
            )
        if eras[found] is self.truth:
            self.acknowledged = max(self.acknowledged, index)
        else:
            self.truth.seen["read of a lost tail"] += 1

    def _state_read(self, node: Node, eras: Sequence[Truth]) -> tuple[int, Moment]:
        """Return the newest log (its place in ``eras``) that gives what is read at a node now, and the moment in it."""
        position = node.replica.position
        total = None if node.name in self.tainted else node.replica.digests.total()
        allowed = range(len(eras)) if node.name in self.diverged else range(len(eras) - 1, len(eras))
        for place in reversed(allowed):
            moment = eras[place].moment_of(position.offset, position.chain, position.index, total)
            if moment is not None:
                return place, moment
        raise Violation(f"a linearizable read at {node.name} sees a state of index {position.index} that no log gave")

    # -- replicas ----------------------------------------------------------------------------------------------------

    def published(self, node: Node, outcome: Offered) -> None:
        self._hear(node, outcome)
        if node.name in self.diverged:
            return
        if isinstance(outcome.record, Batch):
            self._check_evidence(node, outcome)
        moment = self.truth.moments.get(outcome.position.offset)
        if outcome.digests is not None and node.name not in self.tainted:
            if moment is None or outcome.digests.total() != moment.total:
                raise Violation(f"{node.name} publishes another digest at {outcome.position.offset} than the log gives")
            if outcome.snapshot is not None and node.replica.scan(outcome.snapshot) != outcome.digests:
                raise Violation(f"{node.name}: a full scan at {outcome.position.offset} differs from its digest")
        if outcome.snapshot is not None:
            self.truth.seen["scrub"] += 1
            outcome.snapshot.close()

    def _check_evidence(self, node: Node, outcome: Offered) -> None:
        damaged = self.tainted.get(node.name)
        if outcome.evidence is not None and damaged is None:
            raise Violation(f"{node.name} finds evidence, but nobody's rows were touched: {outcome.evidence}")
        if damaged is None or node.replica.evidence is not None:
            return
        assert isinstance(outcome.record, Batch)
        if any((getattr(one, "cf", ""), getattr(one, "key", b"")) == damaged for one in outcome.record.operations):
            raise Violation(f"{node.name}: an operation has touched the damaged {damaged}, and it found nothing")

    def check_nodes(self, nodes: Sequence[Node]) -> None:
        """Compare every replica that has moved with the log."""
        if self.truth.halted is not None and self.truth.reading not in self.may_halt:
            raise Violation(f"the record at {self.truth.halted} stops every reader for good: {self.truth.reading}")
        for node in nodes:
            position = node.replica.position
            if node.name in self.diverged and self.truth.void.get(position.offset) == position.record_hash:
                self.misled.add(node.name)
            if not node.up or node.name in self.diverged or self._checked.get(node.name) is position:
                continue
            self._checked[node.name] = position
            if position.offset >= 0:
                self._check_position(node)

    def _check_position(self, node: Node) -> None:
        position = node.replica.position
        moment = self.truth.moments.get(position.offset)
        if moment is None:
            raise Violation(f"{node.name} has applied the record at {position.offset}, which has no effect")
        if (moment.term, moment.seq, moment.index, moment.chain) != (
            position.term, position.seq, position.index, position.chain,
        ):  # fmt: skip
            raise Violation(f"{node.name} stands elsewhere at {position.offset} than the log says: {position}")
        if node.name not in self.tainted:
            if node.replica.digests.total() != moment.total:
                raise Violation(f"{node.name} has another digest at {position.offset} than the log gives")
            if node.replica.evidence is not None:
                raise Violation(f"{node.name} is flagged, but nobody's rows were touched: {node.replica.evidence}")
            self._check_checkpoints(node)
        if len(node.replica._counted) > MAX_COUNTED:
            raise Violation(f"{node.name} remembers {len(node.replica._counted)} records")

    def _check_checkpoints(self, node: Node) -> None:
        """What a replica keeps of a snapshot that it has a row of has the digest that the log gives right before it.

        It may be gone only if it was purged: a power failure may bring the row back, and not the directory.
        """
        for _, value in node.replica.rows.iterate(SNAPSHOT_TABLE, b""):
            name = decode(value).checkpoint
            kept = node.store.checkpoints.get(name)
            if kept is None:
                if not any(name in era.purged for era in self._eras()):
                    raise Violation(f"{node.name} lacks {name}")
                self.truth.seen["checkpoint gone before its row"] += 1
            elif self._compared.get((node.name, name)) is not kept:
                self._compared[node.name, name] = kept
                index, total = self.truth.checkpoints[name]
                if node.replica.scan(kept).total() != total:
                    raise Violation(f"{node.name} keeps other rows in {name} than the log gives below index {index}")
                self.truth.seen["checkpoint compared"] += 1

    def check_whole(self, node: Node) -> None:
        """Compare every row: at the end. Only checkpoints of snapshots that there are have been kept then."""
        node.cleanup.turn()
        rows = {decode(value).checkpoint for _, value in node.replica.rows.iterate(SNAPSHOT_TABLE, b"")}
        surplus = {name for name in node.store.checkpoint_names() if is_checkpoint_of_snapshot(name)} - rows
        if surplus and not node.replica.late.unwritten:
            raise Violation(f"{node.name} keeps {surplus}, which no row names")
        node.replica.flush()
        found = {(cf, key): value for cf in node.replica.families.names for key, value in node.store.iterate(cf, b"")}
        if found != self.truth.rows:
            raise Violation(f"{node.name} holds other rows than the log gives")
        if node.replica.scan(node.store) != node.replica.digests:
            raise Violation(f"{node.name}: a full scan differs from its digest")
        # A batch makes two at most: of its answers, and of its floors.
        if sum(1 for _ in node.store.iterate(RETRY_EXPIRY, b"")) > 2 * len(self.truth.moments):
            raise Violation(f"{node.name} keeps more expiry rows than the batches can have made")

    # -- stops -------------------------------------------------------------------------------------------------------

    def stopped(self, node: Node, error: BaseException) -> None:
        self.truth.seen[f"stop: {type(error).__name__}"] += 1
        cut_off = node.log.end is not None
        if (
            self.truth.halted is not None
            or self.may_stop.pop(node.name, None) is not None
            or node.name in self.diverged
        ):
            return
        if cut_off and (isinstance(error, OffsetOutOfRange) or "the log ends before" in str(error)):
            return
        if self.left_after_losses and "was read here but did not count" in str(error):
            return  # a read index of before the loss
        raise Violation(f"{node.name} stops without a reason: {type(error).__name__}: {error}")

    def check_queues(self, most_in_flight: int, node: str) -> None:
        if most_in_flight > MOST_IN_FLIGHT:
            raise Violation(f"{most_in_flight} records of {node} in flight at once, over {MOST_IN_FLIGHT}")
