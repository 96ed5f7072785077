"""The running local stack as a drill sees it: its processes by name, what its nodes say, and waits.

A drill signals only processes of the stack's state (``stratolog.local.state``), which ``stratolog up`` has started.
Processes that the drill starts again are written there too. A wait that fails names what it waited for.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from stratolog.configuration.settings import Settings
from stratolog.drills.core.report import CouldNotRun, StepFailed
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.session import Session
from stratolog.errors import Unavailable
from stratolog.local import spawning, state
from stratolog.local.jars import kafka_jars
from stratolog.local.kafka import KafkaCluster, Listener
from stratolog.local.processes import Process, log_tail, wait_until
from stratolog.local.state import AUDIT, BROKER, NODE, StackMember, StackState
from stratolog.nodes import readiness
from stratolog.nodes.answers import node_status
from stratolog.nodes.core.leaders import Status, View, leader_of, view_of, views_in
from stratolog.nodes.node_http import http_to, url_of
from transport.waiting.deadline import Deadline

WAIT_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.05
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A stack. If ``detached``, processes that are started again outlive this one, as with ``stratolog up``."""

    settings: Settings
    detached: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(node.name for node in self.settings.nodes)

    # -- what runs -----------------------------------------------------------------------------------------------------

    def members(self) -> StackState:
        """Return the stack's processes; raises Unavailable if none runs."""
        return state.running_state(self.settings.data_dir)

    def member(self, kind: str, name: str) -> StackMember:
        """Return a process of the stack, running or not; raises CouldNotRun if the stack does not have it."""
        found = next((member for member in self.members().of(kind) if member.name == name), None)
        if found is None:
            raise CouldNotRun(f"the stack in {self.settings.data_dir} has no {kind} {name}")
        return found

    def running(self) -> list[str]:
        """Return the names of the nodes whose processes run."""
        return [member.name for member in self.members().of(NODE) if member.process.is_running()]

    def has_audit(self) -> bool:
        """Whether the stack's Spark audit runs."""
        return any(member.kind == AUDIT and member.process.is_running() for member in self.members().members)

    def check_whole(self) -> None:
        """Raise CouldNotRun unless all nodes and brokers run, every shard is led, and no replica is flagged."""
        members = self.members()
        stopped = [m.name for m in (*members.of(BROKER), *members.of(NODE)) if not m.process.is_running()]
        missing = sorted(set(self.names) - {member.name for member in members.of(NODE)})
        if stopped or missing:
            names = ", ".join([*stopped, *missing])
            raise CouldNotRun(
                f"not running: {names}; a drill begins on a whole stack: 'stratolog up' starts what is missing"
            )
        if not wait_until(lambda: readiness.is_led(self.settings), ANSWER_TIMEOUT_S):
            raise CouldNotRun("not every shard has a leader that all nodes know: see 'stratolog status'")
        flagged = [name for name in self.names for view in self.views(name) if view.get("flagged")]
        if flagged:
            raise CouldNotRun(
                f"flagged replicas on {', '.join(flagged)}: repair them first, see 'stratolog audit --once'"
            )

    # -- what nodes say ------------------------------------------------------------------------------------------------

    def views(self, name: str) -> list[View]:
        """Return what a node says of its shards; empty if it does not answer."""
        return views_in(self._status(name))

    def view(self, name: str, shard: int) -> View:
        """Return what a node says of a shard; empty if it does not answer."""
        return view_of(self._status(name), shard)

    def leader(self, shard: int, *, other_than: str = "") -> str | None:
        """Return the node that says that it leads the shard, None if there is not exactly one."""
        return leader_of({name: self._status(name) for name in self.names if name != other_than}, shard)

    def _status(self, name: str) -> Status:
        return node_status(self.settings.node(name).address)

    def get(self, name: str, path: str, timeout_s: float = ANSWER_TIMEOUT_S, /, **parameters: Any) -> dict[str, Any]:
        """GET from a node, again while it answers 503 (not now); raises StepFailed if it does not answer with 200."""
        address = self.settings.node(name).address
        deadline = Deadline.after_s(timeout_s)
        try:
            while True:
                answer = http_to(address).get(url_of(address, path), params=parameters, timeout=timeout_s)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or not deadline.has_room_for(POLL_INTERVAL_S):
                    return dict(answer.raise_for_status().json())
                time.sleep(POLL_INTERVAL_S)
        except (httpx.HTTPError, ValueError) as error:
            raise StepFailed(f"{name}: GET {path}: {error}") from error

    # -- waits ---------------------------------------------------------------------------------------------------------

    def wait(self, what: str, condition: Callable[[], T | None], timeout_s: float = WAIT_TIMEOUT_S) -> T:
        """Poll until ``condition`` gives something true and return it; raises StepFailed naming ``what``."""
        found: list[T | None] = []

        def holds() -> bool:
            found[:] = [condition()]
            return bool(found[0])

        if not wait_until(holds, timeout_s, interval_s=POLL_INTERVAL_S) or found[0] is None:
            raise StepFailed(f"not within {timeout_s:.0f} s: {what}")
        return found[0]

    def wait_leader(self, shard: int, *, other_than: str = "") -> str:
        """Wait for a leader of the shard."""
        what = f"a leader of shard {shard}" + (f" other than {other_than}" if other_than else "")
        return self.wait(what, lambda: self.leader(shard, other_than=other_than))

    def wait_led(self, names: Sequence[str] | None = None) -> None:
        """Wait until each shard has one leader, which all nodes of ``names`` know (None: all nodes)."""
        chosen = tuple(node for node in self.settings.nodes if names is None or node.name in names)
        view = replace(self.settings, nodes=chosen)
        self.wait("one leader for each shard, known to all", lambda: readiness.is_led(view))

    def wait_caught_up(self, name: str, shard: int) -> int:
        """Wait until a node has read as far as the shard's leader had when this was called; return that offset."""
        leader = self.wait_leader(shard)
        goal = int(self.wait(f"an answer from {leader}", lambda: self.view(leader, shard))["applied_offset"])
        self.wait_applied(name, shard, goal)
        return goal

    def wait_applied(self, name: str, shard: int, offset: int) -> None:
        """Wait until a node has applied the shard's log as far as ``offset``."""
        self.wait(f"{name} at offset {offset}", lambda: self.view(name, shard).get("applied_offset", -1) >= offset)

    def follower_of(self, shard: int) -> str:
        """Return a follower of the shard, if possible one that leads nothing; raises CouldNotRun if there is none."""
        leader = self.wait_leader(shard)
        leading = {self.wait_leader(other) for other in range(self.settings.shards)}
        followers = [name for name in self.names if name != leader]
        if not followers:
            raise CouldNotRun(f"{leader} is the only node: shard {shard} has no follower")
        return next((name for name in followers if name not in leading), followers[0])

    # -- faults, and their end -----------------------------------------------------------------------------------------

    def take(self, session: Session, name: str, fault: ProcessFault) -> Callable[[], None]:
        """Kill, freeze or stop a node; return what gives it back, which happens at the end of the drill at the latest.

        After SIGTERM this waits for the node's end.
        """
        process = self.member(NODE, name).process
        pauses = fault is ProcessFault.PAUSE
        give_back = session.touching(
            f"process {process.pid} of {name}: {fault.value}",
            lambda: _resume(name, process) if pauses else self._start_again(name),
        )
        if fault is ProcessFault.STOP:
            process.stop(STOP_TIMEOUT_S)
        elif pauses:
            process.signal(signal.SIGSTOP)
        else:
            process.kill()
        return give_back

    def start(self, name: str) -> Process:
        """Start a node that does not run, and wait until it answers.

        Raises Unavailable with its log's end if it does not.
        """
        started = self.spawn(name)
        address, process = started.address, started.process
        answers = wait_until(lambda: node_status(address) is not None or not process.is_running(), WAIT_TIMEOUT_S)
        if not answers or not process.is_running():
            raise Unavailable(f"node {name} does not come up again:\n{log_tail(started.log)}")
        return process

    def spawn(self, name: str, command: Sequence[str] | None = None) -> StackMember:
        """Start a node that does not run, and do not wait for it; ``command`` is another than 'stratolog node run'."""
        with state.locked(self.settings.data_dir):
            old = self.member(NODE, name)
            if old.process.is_running():
                return old
            started = spawning.spawn_node(self.settings, name, detached=self.detached, command=command)
            self._replace(started)
        return started

    def _start_again(self, name: str) -> str:
        return f"{name} was started again, as process {self.start(name).pid}"

    # -- brokers -------------------------------------------------------------------------------------------------------

    def kill_broker(self, session: Session, number: int) -> Callable[[], None]:
        """SIGKILL a broker (numbers count from 1); return what starts it again."""
        process = self.member(BROKER, f"broker-{number}").process
        start_again = session.touching(
            f"process {process.pid} of broker-{number}: SIGKILL", lambda: self._start_broker_again(number)
        )
        process.kill()
        return start_again

    def _start_broker_again(self, number: int) -> str:
        self.start_broker(number)
        return f"broker-{number} was started again"

    def start_broker(self, number: int) -> None:
        """Start a broker that does not run, and wait until all brokers are registered."""
        with state.locked(self.settings.data_dir):
            members = sorted(self.members().of(BROKER), key=lambda member: member.name)
            listeners = tuple(
                Listener(broker=int(m.address.rpartition(":")[2]), controller=m.extra["controller_port"])
                for m in members
            )
            jars = kafka_jars(self.settings.cache_dir)
            cluster = KafkaCluster(
                folder=self.settings.data_dir / "kafka",
                jars=jars,
                listeners=listeners,
                heap_mib=self.settings.broker_heap_mib,
            )
            old = members[number - 1]
            if old.process.is_running():
                return
            started = spawning.spawn_broker(self.settings, old, detached=self.detached)
            self._replace(started)
        cluster.wait_ready([started.process if m is old else m.process for m in members])

    def _replace(self, member: StackMember) -> None:
        """Write a process that was started again to the stack's state."""
        others = [m for m in self.members().members if (m.kind, m.name) != (member.kind, member.name)]
        state.write_state(self.settings.data_dir, StackState(members=(*others, member)))


def _resume(name: str, process: Process) -> str:
    process.signal(signal.SIGCONT)
    return f"{name} was resumed (SIGCONT)"
