"""A simulated cluster that tells what happens: records as they land, how each replica reads them, answers that leave.

A scenario (``scenarios``) scripts it step by step. What is told comes from the product: readings, chains and
indexes are those that ``Replica.offer`` returns, answers those that pass the outbox. The judge (``invariants``)
looks on.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.leading.leader import Reply
from replicated_db.core.ports import Entry
from schemas.codecs.codec import decode
from schemas.column_families import VOLUME_TABLE
from schemas.records.log import Barrier, Batch, Delete, LeaderClaim, LogRecord, Merge, Mode, Put, RequestBatch
from schemas.records.messages import RequestBody
from tests.simulation.broker import Appender
from tests.simulation.cluster import Node
from tests.simulation.invariants import Question
from tests.simulation.world import World

WIDTH = 120
TURNS = 40
"""Port calls that a node is given at once: enough for it to do all that it can."""

INDENT = " " * 7


def short(value: bytes) -> str:
    """Return what is shown of a chain."""
    return value[:4].hex()


def call_name(client_id: bytes, call_id: bytes) -> str:
    """Return how a call is named: the second one of client 1 is ``1/2``."""
    return f"{client_id[0]}/{int.from_bytes(call_id, 'big')}"


class Stage:
    """A cluster, what a scenario does to it, and what has been told of it."""

    def __init__(self) -> None:
        self.world = World()
        self.nodes = self.world.nodes
        self._told: list[str] = []
        self._step: list[str | int] = []
        """What has happened in this step: lines, and offsets of records that landed or were read."""
        self._landed: dict[int, LogRecord] = {}
        self._readings: dict[int, dict[str, list[str]]] = {}
        log, watch = self.world.log, self.world.invariants
        self._judge_landing, log.on_append = log.on_append, self._on_landing
        self._judge_replies, watch.replied = watch.replied, self._on_replies  # type: ignore[method-assign]
        self._judge_stop, watch.stopped = watch.stopped, self._on_stop  # type: ignore[method-assign]
        self.run()

    # -- what a scenario does ----------------------------------------------------------------------------------------

    def step(self, sentence: str) -> None:
        """Begin a step, with what is done in it."""
        self._end_step()
        self._told += ["", *textwrap.wrap(f"* {sentence}", WIDTH, subsequent_indent="  ")]

    def run(self, *names: str) -> None:
        """Let these nodes, or all, do what they can, one after the other; who is paused or down does nothing."""
        running = {name for name, node in self.nodes.items() if node.running}
        for name in names or tuple(self.nodes):
            led = self.nodes[name].leading
            for other, node in self.nodes.items():
                node.running = other == name and other in running and node.up
            self.world.run(0, TURNS)
            if led is not None and self.nodes[name].leading is None and self.nodes[name].up:
                self.tell(f"{name} leads no more: {self.nodes[name].reason}")
        for name, node in self.nodes.items():
            node.running = name in running and node.up

    def run_together(self) -> None:
        """Let all nodes go on, in turns."""
        self.world.run(0, TURNS * len(self.nodes))

    def in_flight(self, name: str) -> Appender:
        """Return the appender of a node that leads or has claimed."""
        return next(appender for appender in self.world.log.appenders if appender.node == name)

    def settle(self, name: str) -> None:
        """Let all that a leader appends land and be reported, until it has nothing to append; then everybody reads."""
        self.run(name)
        while self.nodes[name].leading and self.in_flight(name).in_flight:
            self.in_flight(name).deliver()
            self.run(name)
        self.run()

    def lead(self, name: str) -> None:
        """Tell a node that the shard is its own, and let its claim and first records land."""
        self.nodes[name].lead()
        self.settle(name)

    def call(self, body: RequestBody, client: int = 1) -> bytes:
        """Have a client send a request; return its bytes."""
        self.world.begin(self.world.clients[client - 1], body)
        return self.world.past_requests[-1]

    def show_in_flight(self, name: str) -> None:
        """Tell what a node has appended and no broker has yet."""
        for _, value in self.in_flight(name).in_flight:
            head, *rest = record_lines("--", decode(value))
            calls = [line.strip(" |") for line in rest if "| call" in line]
            self.tell("; ".join([f"in flight from {name}: {' '.join(head.strip(' -').split())}", *calls]))

    def read(self, name: str) -> None:
        """Begin a linearizable read at a node; what comes of it is told, and judged, when it ends."""
        judge = self.world.invariants
        asked = Question(row=(VOLUME_TABLE, b"/vol"), acknowledged=judge.acknowledged, losses=len(judge.lost))

        def done(node: Node, result: str) -> None:
            self.tell(f"the read at {node.name} ends: {result}, at index {node.replica.position.index}")
            if result == "read":
                judge.check_read(node, asked)

        self.nodes[name].read(self.nodes, done)

    def tell(self, line: str) -> None:
        """Tell something in a line of its own."""
        self._step.append(line)

    def finish(self) -> str:
        """Return what was told. Then the faults cease, and the judge compares everything, row by row."""
        self._end_step()
        told = "\n".join(self._told) + "\n"
        self.world.heal()
        return told

    # -- what happens ------------------------------------------------------------------------------------------------

    def _on_landing(self, entry: Entry) -> None:
        self._landed[entry.offset] = decode(entry.value)
        self._step.append(entry.offset)
        self._judge_landing(entry)

    def on_offer(self, node: str, offset: int, outcome: Offered) -> None:
        """A replica has read a record."""
        if outcome.reading is None:
            return
        said = outcome.reading.value
        if outcome.reading.takes_effect:
            said += f"; then the chain is {short(outcome.position.chain)}, the index {outcome.position.index}"
        if offset not in self._step:
            self._step.append(offset)
        self._readings.setdefault(offset, {}).setdefault(said, []).append(node)
        if (found := outcome.evidence) is not None:
            self.tell(f"{node} flags itself: what the log says of {found.cf} {_text(found.key)} is not what it holds")

    def _on_replies(self, node: Node, replies: Sequence[Reply]) -> None:
        for reply in replies:
            call = call_name(reply.proposal.client_id, reply.proposal.call_id)
            response = decode(reply.response)
            self.tell(f"{node.name} answers call {call}: {response.status}, index {response.index}")
        self._judge_replies(node, replies)

    def _on_stop(self, node: Node, error: BaseException) -> None:
        self.tell(f"{node.name} stops its process: {type(error).__name__}: {error}")
        self._judge_stop(node, error)

    # -- how it is told ----------------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        self.world.invariants.check_nodes(list(self.nodes.values()))
        for one in self._step:
            lines = [one] if isinstance(one, str) else self._record(one)
            for line in lines:
                indent = " " * (len(line) - len(line.lstrip()) or 2)
                self._told += textwrap.wrap(
                    line.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
                )
        self._step.clear()
        self._landed.clear()
        self._readings.clear()

    def _record(self, offset: int) -> list[str]:
        record = self._landed.get(offset)
        lines = [f"  {offset:>2}, which landed before"] if record is None else record_lines(offset, record)
        readings = self._readings.get(offset, {})
        return lines + [f"{INDENT}{', '.join(sorted(nodes))}: {said}" for said, nodes in readings.items()]


def transcript(play: Callable[[Stage], None]) -> str:
    """Play a scenario; return what it is about, from its docstring, and what was told."""
    title = play.__name__.replace("_", " ")
    about = textwrap.wrap(" ".join((play.__doc__ or "").split()), WIDTH)
    with on_stage() as stage:
        play(stage)
        return "\n".join([title.capitalize(), "=" * len(title), *about, stage.finish()])


def record_lines(offset: int | str, record: LogRecord) -> list[str]:
    """Return a record of the log: its header, then what it carries."""
    head = f"  {offset:>2}  {type(record).__name__:<12} term {record.term}, nonce {record.nonce[-1]}"
    if isinstance(record, LeaderClaim):
        return [f"{head}, of {record.node}"]
    head += f", seq {record.seq}, prev_chain {short(record.prev_chain)}"
    if isinstance(record, Batch):
        changes = [_operation(one) for one in record.operations]
        results = [
            f"call {call_name(one.client_id, one.call_id)}, {one.request_type}: {decode(one.response).status}"
            for one in record.results
        ]
    elif isinstance(record, RequestBatch):
        changes = []
        results = [
            f"call {call_name(one.client_id, one.call_id)}, {one.request_type}: to be executed by every replica"
            for one in record.requests
        ]
    else:
        about = f", index {record.index}" if isinstance(record, Barrier) else ""
        return [head + (f", {record.request_type}: {record.mode}" if isinstance(record, Mode) else about)]
    head += f", indexes {record.first_index}..{record.last_index}"
    return [head, *(f"{INDENT}| {line}" for line in [*changes, *results])]


def _operation(operation: object) -> str:
    if isinstance(operation, Put | Delete):
        before = "absent before" if operation.prev is None else f"replaces {operation.prev & 0xFFFFFFFF:08x}"
        return f"{type(operation).__name__} {operation.cf} {_text(operation.key)}, {before}"
    if isinstance(operation, Merge):
        return f"Merge {operation.cf} {_text(operation.key)}, {operation.operator}"
    return type(operation).__name__


def _text(key: bytes) -> str:
    return key.decode() if key.isascii() and key.decode().isprintable() else short(key) + "…"


@contextmanager
def on_stage() -> Iterator[Stage]:
    """Set up a cluster; while the block runs, every record that a replica is offered is told."""
    offer = Replica.offer
    stage: Stage | None = None

    def told(self: Replica, offset: int, *rest: object) -> Offered:
        outcome = offer(self, offset, *rest)  # type: ignore[arg-type]
        if stage is not None:
            stage.on_offer(self.identity.node, offset, outcome)
        return outcome

    with patch.object(Replica, "offer", told):
        stage = Stage()
        try:
            yield stage
        finally:
            stage.world.close()
