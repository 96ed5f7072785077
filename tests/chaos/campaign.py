"""A campaign: a real stack under load, one kind of fault again and again, and at the end the judge.

:class:`Chaos` is what a fault gets into its hands: the stack, the client processes, a seeded source of randomness, and waits. Rules
for all faults:

1. Each round injects its fault once, repairs what it broke, and returns; the next may then begin. What must hold is asserted.
2. Progress is measured from outside: acknowledgements in the clients' journals. A fault is over when writes are acknowledged again.
3. No time is asserted. Waits are generous; what runs out of them is a failure with every log's end.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from producers import Client
from producers.requests.keys import ensure_places
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.core.journal import Journal
from stratolog.drills.kit.core.judging import Aftermath
from stratolog.drills.kit.faults import LostLeader, lose_leader
from stratolog.drills.kit.journal_file import JournalTail, read_journal
from stratolog.drills.kit.session import Session
from stratolog.local.kafka import LONG_RUN_JVM, QUICK_START_JVM, Listener
from stratolog.local.processes import Process, log_tail, spawn
from tests.chaos.judge import judge
from tests.support.faults.netns import Network
from tests.support.faults.stack_faults import fresh_volume
from tests.support.local.stack import LocalKafka, TestStack

BUCKET = "chaos"
BROKER_PORT, CONTROLLER_PORT, NODE_PORT = 9092, 9093, 9871
"""On hosts of their own everybody has the usual ports."""
PATIENCE_S = 180.0
STOP_CLIENT_S = 240.0
BARRIER_INTERVAL_MS = 500
PROGRESS = 30
"""So many acknowledgements more show that writes go on."""


DOORS = ("kafka", "direct", "both")
"""The ways to the leader: through the brokers, straight to it, and both in one client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How the clients write: processes, chains of requests in each, keys per second in each (0 = as fast as they are answered)."""

    clients: int = len(DOORS)
    in_flight: int = 16
    rate: float = 60.0
    doors: tuple[str, ...] = DOORS
    """By which door each client process sends, in turn. With as many clients each door has one."""
    forks_s: float = 0.0
    """How often each client process forks one that goes on with its client (``tests.chaos.forks``); 0 = never."""


BURST = Load(in_flight=200, rate=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault.

    ``inject`` does one round. ``surroundings`` is entered before the nodes start and left after they ended (a mount, say);
    ``why_not`` returns why the fault cannot be injected here, empty if it can.
    """

    name: str
    inject: Callable[[Chaos, int], None]
    brokers: int = 3
    hosts: bool = False
    """Whether brokers and nodes have network namespaces of their own."""
    load: Load = Load()
    settings: tuple[tuple[str, Any], ...] = ()
    surroundings: Callable[[TestStack], AbstractContextManager[Any]] = nullcontext
    why_not: Callable[[], str] = str


class Chaos:
    """A stack under load."""

    def __init__(
        self, stack: TestStack, folder: Path, load: Load, *, seed: int, network: Network | None = None
    ) -> None:
        self.stack = stack
        self._network = network
        self.random = random.Random(seed)
        self.shards = range(stack.settings.shards)
        self._folder = folder
        self._load = load
        self.clients: dict[int, Process] = {}
        self._tails: dict[int, JournalTail] = {}
        self._volumes = [fresh_volume(shard, len(self.shards)) for shard in self.shards]

    @property
    def network(self) -> Network:
        """The hosts that brokers and nodes are on; only for faults that ask for ``hosts``."""
        assert self._network is not None, "everything is on one host"
        return self._network

    def inject(self, fault: Fault, round_number: int) -> None:
        """Inject a fault once; fails if what must hold does not hold, or a node has ended by itself."""
        fault.inject(self, round_number)
        self.check_alive()

    def conclude(self) -> Aftermath:
        """End the clients, start what does not run, and compare everything."""
        journals = self.stop_clients()
        for name in self.stack.names:
            if name not in self.stack.nodes:
                self.stack.start_node(name)
        findings = judge(self.stack, journals)
        self.check_alive()
        return findings

    # ------------------------------------------------------------------------------------------------ clients

    def start_clients(self) -> None:
        """Make the places to write to, and start all client processes."""
        with Client(self.stack.settings.bootstrap_servers, caller="chaos") as client:
            ensure_places(client, [(volume, BUCKET) for volume in self._volumes])
        for _ in range(max(self._load.clients, len(self.shards))):
            self.start_client()
        self.wait_progress()

    def _door(self, door: str) -> list[str]:
        settings = self.stack.settings
        nodes = ["--nodes", ",".join(f"{node.host}:{node.port}" for node in settings.nodes)]
        brokers = ["--bootstrap-servers", settings.bootstrap_servers]
        return {"kafka": brokers, "direct": nodes, "both": brokers + nodes}[door]

    def start_client(self, load: Load | None = None) -> int:
        """Start one more client process, with a journal of its own; return its number."""
        load = load or self._load
        number = len(self._tails) + 1
        volume = self._volumes[number % len(self._volumes)]
        command: list[str | Path] = [
            sys.executable, "-m", "tests.chaos.writer",
            "--volume", volume, "--bucket", BUCKET, "--journal", self.journal_file(number),
            "--in-flight", str(load.in_flight), "--rate", str(load.rate), "--forks", str(load.forks_s),
            *self._door(load.doors[number % len(load.doors)]),
        ]  # fmt: skip
        self._tails[number] = JournalTail(self.journal_file(number))
        self.clients[number] = spawn(command, log=self._folder / "clients.log", detached=False)
        return number

    def journal_file(self, number: int) -> Path:
        return self._folder / "journals" / f"client-{number}.journal"

    def kill_client(self, number: int) -> int:
        """SIGKILL a client; return how many of its requests had no outcome."""
        self.clients.pop(number).kill()
        self._tails[number].poll()
        return self._tails[number].unanswered

    @contextmanager
    def burst(self, load: Load = BURST) -> Iterator[None]:
        """Have one more client, that writes as fast as it is answered, for a while."""
        number = self.start_client(load)
        try:
            yield
        finally:
            self.clients[number].signal(signal.SIGTERM)
            if not self.clients[number].wait(STOP_CLIENT_S):
                raise AssertionError(f"client {number} does not end\n{self.client_log()}\n{self.stack.logs()}")
            del self.clients[number]

    def stop_clients(self) -> list[Journal]:
        """Let every client end what it has in flight; return all journals."""
        for process in self.clients.values():
            process.signal(signal.SIGTERM)
        for number, process in self.clients.items():
            if not process.wait(STOP_CLIENT_S):
                raise AssertionError(f"client {number} does not end\n{self.client_log()}\n{self.stack.logs()}")
        self.clients.clear()
        found = [read_journal(path) for path in sorted((self._folder / "journals").glob("*.journal"))]
        return [journal for journal in found if journal is not None]

    def client_log(self) -> str:
        return log_tail(self._folder / "clients.log")

    def acknowledged(self, clients: list[int] | None = None) -> int:
        """Return how many requests (of some clients) have been acknowledged so far."""
        return sum(tail.poll() for number, tail in self._tails.items() if clients is None or number in clients)

    # -------------------------------------------------------------------------------------------------- waits

    def wait_progress(self, more: int = PROGRESS) -> None:
        """Wait until every shard has acknowledged so many requests more, to clients that run."""
        for residue in range(len(self._volumes)):
            numbers = [number for number in self.clients if number % len(self._volumes) == residue]
            wanted = self.acknowledged(numbers) + more

            def come(numbers: list[int] = numbers, wanted: int = wanted) -> bool:
                ended = [number for number in numbers if not self.clients[number].is_running()]
                assert not ended, f"client {ended} ended by itself\n{self.client_log()}"
                return self.acknowledged(numbers) >= wanted

            self.stack.wait(f"{more} more acknowledgements on {self._volumes[residue]}", come)

    def wait_leader(self, shard: int = 0, *, other_than: str = "") -> str:
        return self.stack.wait_leader(shard, other_than=other_than)

    def lose_leader(self, shard: int, fault: ProcessFault, writes: Callable[[], None] = lambda: None) -> LostLeader:
        """Take a shard's leader away until another one leads, as a drill does; its steps are told to nobody."""
        return lose_leader(Session(), self.stack, shard, fault, writes)

    def followers(self, shard: int = 0) -> list[str]:
        """Return the running nodes that do not lead the shard."""
        leader = self.wait_leader(shard)
        return [name for name in self.stack.nodes if name != leader]

    def wait_caught_up(self, node: str) -> None:
        """Wait until a node has applied what the leader had applied just now; the load goes on."""
        for shard in self.shards:
            self._wait_caught_up(node, shard)

    def _wait_caught_up(self, node: str, shard: int) -> None:
        goal = self.applied(self.wait_leader(shard), shard)

        def reached() -> bool:
            assert self.stack.nodes[node].is_running(), f"{node} ended by itself\n{self.stack.logs()}"
            return self.applied(node, shard) >= goal

        self.stack.wait(f"{node} has applied offset {goal} of shard {shard}", reached)

    def applied(self, node: str, shard: int = 0) -> int:
        """Return the offset of the last record that a node says to have applied, -1 if it says nothing."""
        return int(self.stack.shard(node, shard).get("applied_offset", -1))

    def wait_spare(self) -> None:
        """Wait until a node that does not lead has caught up: it is to go on when the leader is lost."""
        for shard in self.shards:
            self._wait_spare(shard)

    def _wait_spare(self, shard: int) -> None:
        goal = self.applied(self.wait_leader(shard), shard)

        def found() -> bool:
            return any(self.applied(name, shard) >= goal for name in self.followers(shard))

        self.stack.wait(f"a follower has applied offset {goal} of shard {shard}", found)

    def wait_all_caught_up(self) -> None:
        for name in list(self.stack.nodes):
            self.wait_caught_up(name)

    def check_alive(self) -> None:
        """Fail if a node has ended that nobody has killed."""
        ended = [name for name, process in self.stack.nodes.items() if not process.is_running()]
        assert not ended, f"ended by itself: {', '.join(ended)}\n{self.stack.logs()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: a fault so many times, at least until so many requests are acknowledged."""

    fault: Fault
    times: int = 1
    acknowledged: int = 0
    brokers: int = 1
    shards: int = 1
    session_timeout_ms: int = 2_000
    load: Load = Load()
    seed: int = 1


def run(plan: Plan, folder: Path, note: Callable[[str], None], stop: Event) -> tuple[int, Aftermath, float]:
    """Run a campaign in ``folder``; return (rounds, what the judge found, seconds of faults under load).

    Once ``stop`` is set the round that runs is the last one.

    Raises AssertionError, with the ends of all logs, if something that must hold does not hold.
    """
    with under_load(plan, folder) as chaos:
        begun_s = time.monotonic()
        rounds = 0
        while not stop.is_set() and (rounds < plan.times or chaos.acknowledged() < plan.acknowledged):
            rounds += 1
            round_begun_s = time.monotonic()
            chaos.inject(plan.fault, rounds)
            note(f"round {rounds}: {time.monotonic() - round_begun_s:.1f} s, {chaos.acknowledged()} acknowledged")
        seconds = time.monotonic() - begun_s
        note("the clients end, and everything is compared")
        findings = chaos.conclude()
    return rounds, findings, seconds


@contextmanager
def under_load(plan: Plan, folder: Path) -> Iterator[Chaos]:
    """Start the stack that a plan needs, and clients that write."""
    with ExitStack() as started:
        network = started.enter_context(Network()) if plan.fault.hosts else None
        stack = started.enter_context(stack_of(plan, folder, network))
        chaos = Chaos(stack, folder, plan.load, seed=plan.seed, network=network)
        chaos.start_clients()
        yield chaos


@contextmanager
def stack_of(plan: Plan, folder: Path, network: Network | None) -> Iterator[TestStack]:
    """Start the stack that a fault needs: on hosts of ``network`` (brokers ``kafka1``…, nodes ``om1``…), else all on this machine."""
    with ExitStack() as started:
        jvm = QUICK_START_JVM if plan.times <= 1 and not plan.acknowledged else LONG_RUN_JVM
        listeners = () if network is None else broker_hosts(network, plan.brokers)
        kafka = started.enter_context(LocalKafka(folder / "kafka", brokers=plan.brokers, jvm=jvm, listeners=listeners))
        stack = TestStack(
            folder, kafka=kafka, shards=plan.shards, brokers=plan.brokers, session_timeout_ms=plan.session_timeout_ms,
            barrier_interval_ms=BARRIER_INTERVAL_MS,
        )  # fmt: skip
        stack.patience_s = PATIENCE_S
        stack.settings = replace(stack.settings, **dict(plan.fault.settings))
        if network is not None:
            _put_nodes_on_hosts(network, stack)
        started.enter_context(plan.fault.surroundings(stack))
        yield started.enter_context(stack)


def broker_hosts(network: Network, brokers: int) -> tuple[Listener, ...]:
    hosts = [network.add(f"kafka{number}") for number in range(1, brokers + 1)]
    return tuple(
        Listener(broker=BROKER_PORT, controller=CONTROLLER_PORT, host=host.address, launcher=host.launcher)
        for host in hosts
    )


def _put_nodes_on_hosts(network: Network, stack: TestStack) -> None:
    nodes = []
    for node in stack.settings.nodes:
        host = network.add(node.name)
        stack.launchers[node.name] = host.launcher
        nodes.append(replace(node, host=host.address, port=NODE_PORT))
    # Their addresses are not this machine's, but nobody else reaches that network.
    stack.settings = replace(stack.settings, nodes=tuple(nodes), auth_none_anywhere=True)
