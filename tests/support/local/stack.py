"""A real stack for tests: Kafka brokers and Object Manager nodes, each its own process, in a directory of the test's own.

:class:`LocalKafka` is brokers with topics; :class:`TestStack` adds nodes that can be killed, paused, resumed and started
again by name, and waits for what the test needs by polling ``/status`` up to a deadline. Every process is tethered to the
test run (``stratolog.local.processes``): however the run ends, nothing stays. Ports are free ones, so that two runs at
once do not meet. A wait that fails shows the end of every log.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from producers import Client
from schemas.settings.values import DatanodeAddress, NodeAddress
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.settings import Settings
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.local.jars import kafka_jars
from stratolog.local.kafka import QUICK_START_JVM, KafkaCluster, Listener, allocate_listeners, stop_brokers
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process, log_tail, spawn, stop_all, wait_until
from stratolog.local.spawning import datanode_command, node_command, node_environment
from stratolog.local.stack import topic_plan
from stratolog.local.topics import ensure_topics
from stratolog.nodes.answers import node_answer, node_status
from stratolog.nodes.readiness import has_usable_pipeline, is_led
from tests.support.local.pausing import pause

DEFAULT_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1
HTTP_TIMEOUT_S = 10.0
SESSION_TIMEOUT_MS = 3_000
LOG_LINES = 40
NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull}
"""For the environment of nodes and datanodes: aiohttp reads the system's certificates as it is imported, a tenth of
what a node's start takes, and nobody here meets a server that has one of theirs."""

ACTIVE: list[TestStack] = []
"""Stacks that run now; ``tests/conftest.py`` shows their logs when a test fails."""


@cache
def _http() -> httpx.Client:
    return httpx.Client(timeout=HTTP_TIMEOUT_S, trust_env=False)


class LocalKafka:
    """Brokers in ``folder``; broker numbers count from 1."""

    def __init__(
        self, folder: Path, *, brokers: int = 1, jvm: tuple[str, ...] = QUICK_START_JVM,
        listeners: tuple[Listener, ...] = (),
    ) -> None:  # fmt: skip
        listeners = listeners or allocate_listeners(brokers)
        self.cluster = KafkaCluster(folder=folder, jars=kafka_jars(), listeners=listeners, jvm=jvm)
        self.processes: dict[int, Process] = {}
        self._admins: dict[str, AdminClient] = {}

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def start(self) -> Self:
        started = self.cluster.start(detached=False)
        self.processes = dict(enumerate(started, start=1))
        try:
            self.cluster.wait_ready(started)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def admin(self) -> AdminClient:
        """The one admin client of these brokers: a client that is thrown away takes its pending answers with it."""
        if self.bootstrap_servers not in self._admins:
            self._admins[self.bootstrap_servers] = AdminClient(
                {"bootstrap.servers": self.bootstrap_servers, "reconnect.backoff.max.ms": 500, "log_level": 0}
            )
        return self._admins[self.bootstrap_servers]

    def kill_broker(self, number: int) -> None:
        self.processes.pop(number).kill()

    def pause_broker(self, number: int) -> None:
        """SIGSTOP; returns once the broker has stopped."""
        pause(self.processes[number].pid)

    def resume_broker(self, number: int) -> None:
        self.processes[number].signal(signal.SIGCONT)

    def start_broker(self, number: int) -> None:
        """Start a broker again and wait until all that should run do."""
        self.processes[number] = self.cluster.start_broker(number, detached=False)
        self.cluster.wait_ready(list(self.processes.values()))

    def start_brokers(self) -> None:
        """Start all brokers again, after all were killed, and wait until they run."""
        started = self.cluster.start(detached=False)
        self.processes = dict(enumerate(started, start=1))
        self.cluster.wait_ready(started)

    def close(self) -> None:
        stop_brokers(list(self.processes.values()), gracefully=False)
        self.processes.clear()
        self._admins.clear()
        shutil.rmtree(self.cluster.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class TestStack:
    """Brokers, topics and nodes ``om1``..., from ``settings`` given by keyword (those of ``stratolog.configuration.settings``)."""

    __test__ = False  # not a test case, in spite of the name

    def __init__(
        self, folder: Path, *, nodes: int = 3, datanodes: int = 0, kafka: LocalKafka | None = None, **settings: Any
    ) -> None:
        self.folder = folder
        self._owns_kafka = kafka is None
        self.kafka = kafka or LocalKafka(folder / "kafka", brokers=settings.get("brokers", 1))
        ports = free_ports(nodes + 2 * datanodes)
        spare = iter(ports[nodes:])
        self.settings = replace(
            Settings(
                bootstrap_servers=self.kafka.bootstrap_servers,
                nodes=tuple(
                    NodeAddress(name=f"om{n}", host="127.0.0.1", port=port)
                    for n, port in enumerate(ports[:nodes], start=1)
                ),
                datanodes=tuple(
                    DatanodeAddress(name=f"dn{n}", host="127.0.0.1", port=next(spare), http_port=next(spare))
                    for n in range(1, datanodes + 1)
                ),
                datanode_reserve_bytes=0,
                deleted_block_grace_ms=0,  # what is deleted goes at once, unless a test is about the grace
                data_dir=folder,
                session_timeout_ms=SESSION_TIMEOUT_MS,
            ),
            **settings,
        )
        self.settings_file = folder / "stratolog.toml"
        make_secret(self.settings.secret_file)
        self.nodes: dict[str, Process] = {}
        self.datanodes: dict[str, Process] = {}
        self.launchers: dict[str, tuple[str, ...]] = {}
        """Words to put before a node's command, as in ``ip netns exec NAME``."""
        self.patience_s = DEFAULT_TIMEOUT_S
        """How long a wait may last that is not told."""

    # ------------------------------------------------------------------------------------------- life

    def start(self, *, wait: bool = True) -> Self:
        """Start everything; with ``wait``, return once each shard has a leader that all nodes know."""
        ACTIVE.append(self)
        try:
            if self._owns_kafka:
                self.kafka.start()
            ensure_topics(self.settings.bootstrap_servers, topic_plan(self.settings))
            self.folder.mkdir(parents=True, exist_ok=True)
            self.settings_file.write_text(self.settings.to_toml())
            for node in self.settings.nodes:
                self.start_node(node.name)
            for datanode in self.settings.datanodes:
                self.start_datanode(datanode.name)
            if wait:
                self.wait_led()
                if self.settings.datanodes:
                    self.wait_pipeline()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop everything and delete its data; the nodes' logs stay with the test's other files."""
        for process in self.nodes.values():
            process.kill()
        for process in self.datanodes.values():
            process.kill()
        self.nodes.clear()
        self.datanodes.clear()
        if self._owns_kafka:
            self.kafka.close()
        for folder in ("nodes", "datanodes"):
            shutil.rmtree(self.settings.data_dir / folder, ignore_errors=True)
        if self in ACTIVE:
            ACTIVE.remove(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ nodes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.settings.nodes)

    def address(self, name: str) -> str:
        return self.settings.node(name).address

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start_node(self, name: str, command: Sequence[str] | None = None) -> Process:
        """Start a node that does not run; ``command`` is another one than 'stratolog node run'."""
        if name in self.nodes and self.nodes[name].is_running():
            raise AssertionError(f"{name} runs already")
        environment = {**node_environment(self.settings_file), **NO_AUTHORITIES}
        words = [*self.launchers.get(name, ()), *(command or node_command(name))]
        process = spawn(words, log=self.log_file(name), detached=False, env=environment)
        self.nodes[name] = process
        return process

    def kill_node(self, name: str) -> None:
        """SIGKILL; returns once the process is gone."""
        self.nodes.pop(name).kill()

    def stop_node(self, name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """SIGTERM; returns once the process is gone; an AssertionError if it did not obey."""
        process = self.nodes.pop(name)
        process.signal(signal.SIGTERM)
        if not process.wait(timeout_s):
            process.kill()
            raise AssertionError(f"{name} did not stop in {timeout_s:.0f} s\n{self.logs()}")

    def pause_node(self, name: str) -> None:
        """SIGSTOP; returns once the node has stopped."""
        assert self.nodes[name].is_running(), f"{name} is gone\n{self.logs()}"
        pause(self.nodes[name].pid)

    def resume_node(self, name: str) -> None:
        """SIGCONT."""
        assert self.nodes[name].signal(signal.SIGCONT), f"{name} is gone\n{self.logs()}"

    def take(self, _session: object, name: str, fault: ProcessFault) -> Callable[[], object]:
        """Inflict a fault on a node, as the drills' ``Cluster`` does; return what gives it back."""
        if fault is ProcessFault.PAUSE:
            self.pause_node(name)
            return lambda: self.resume_node(name)
        (self.stop_node if fault is ProcessFault.STOP else self.kill_node)(name)
        return lambda: self.start_node(name)

    def stop_nodes(self) -> None:
        """Stop all nodes, the brokers stay."""
        stop_all(list(self.nodes.values()), DEFAULT_TIMEOUT_S)
        self.nodes.clear()

    # -------------------------------------------------------------------------------------- datanodes

    def start_datanode(self, name: str) -> Process:
        """Start a datanode that does not run."""
        if name in self.datanodes and self.datanodes[name].is_running():
            raise AssertionError(f"{name} runs already")
        words = [*self.launchers.get(name, ()), *datanode_command(name)]
        environment = {**node_environment(self.settings_file), **NO_AUTHORITIES}
        self.datanodes[name] = spawn(words, log=self.log_file(name), detached=False, env=environment)
        return self.datanodes[name]

    def kill_datanode(self, name: str) -> None:
        """SIGKILL; returns once the process is gone."""
        self.datanodes.pop(name).kill()

    def stop_datanode(self, name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """SIGTERM; returns once the process is gone; an AssertionError if it did not obey."""
        process = self.datanodes.pop(name)
        process.signal(signal.SIGTERM)
        if not process.wait(timeout_s):
            process.kill()
            raise AssertionError(f"{name} did not stop in {timeout_s:.0f} s\n{self.logs()}")

    def pipelines(self, node: str = "") -> list[dict[str, Any]]:
        """Return the pipelines as an Object Manager node tells them, empty if it does not answer."""
        found = node_answer(self.address(node or next(iter(self.nodes))), "/v1/pipelines?consistency=stale")
        return [] if found is None else found["pipelines"]

    def datanode(self, name: str, node: str = "") -> dict[str, Any]:
        """Return what an Object Manager node tells of a datanode, empty if it does not answer."""
        found = node_answer(self.address(node or next(iter(self.nodes))), "/v1/datanodes?consistency=stale") or {}
        return next((one for one in found.get("datanodes", ()) if one["datanode"] == name), {})

    def wait_pipeline(self, timeout_s: float = 0.0) -> None:
        """Wait until every running node sees a pipeline that takes blocks."""
        running = replace(self.settings, nodes=tuple(node for node in self.settings.nodes if node.name in self.nodes))
        self.wait(
            "a pipeline that takes blocks, seen by all",
            lambda: has_usable_pipeline(running) or self._check_alive(),
            timeout_s,
        )

    # ------------------------------------------------------------------------------------- what they say

    def status(self, name: str) -> dict[str, Any] | None:
        """Return a node's ``/status``, None if it does not answer."""
        return node_status(self.address(name))

    def shard(self, name: str, shard: int) -> dict[str, Any]:
        """Return what a node says of a shard; empty if it does not answer or does not know it."""
        found = self.status(name) or {}
        return next((view for view in found.get("shards", []) if view["shard"] == shard), {})

    view = shard
    """By the name that the drills' ``Cluster`` has for it."""

    def get(self, name: str, path: str, **parameters: Any) -> httpx.Response:
        """GET from a node's HTTP server."""
        return _http().get(f"http://{self.address(name)}{path}", params=parameters)

    def client(self, **options: Any) -> Client:
        """Return a client of the SDK that reads from all nodes; close it."""
        urls = [self.address(name) for name in self.names]
        options = {"cluster_secret": self.settings.secret(), **options}
        return Client(self.settings.bootstrap_servers, read_from=urls, **options)

    def leaders(self, shard: int) -> list[str]:
        """Return the running nodes that say of themselves that they lead the shard (a paused one says nothing)."""
        return [name for name in self.nodes if self.shard(name, shard).get("role") == "leader"]

    # -------------------------------------------------------------------------------------------- waits

    def wait(self, what: str, condition: Callable[[], Any], timeout_s: float = 0.0) -> Any:
        """Poll until ``condition`` returns something true, and return that; AssertionError with logs if it never does.

        Without ``timeout_s``, here and in the waits below, it is ``patience_s``.
        """
        timeout_s = timeout_s or self.patience_s
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [condition()]
            return bool(found[0])

        if not wait_until(holds, timeout_s, interval_s=POLL_INTERVAL_S):
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.logs()}")
        return found[0]

    def wait_led(self, timeout_s: float = 0.0) -> None:
        """Wait until each shard has one leader that all running nodes know."""
        running = tuple(node for node in self.settings.nodes if node.name in self.nodes)
        view = replace(self.settings, nodes=running)
        self.wait("one leader for each shard, known to all", lambda: is_led(view) or self._check_alive(), timeout_s)

    def wait_leader(self, shard: int, *, other_than: str | None = None, timeout_s: float = 0.0) -> str:
        """Wait for a leader of the shard (another one than ``other_than``), and return its name."""

        def found() -> str | None:
            return next((name for name in self.leaders(shard) if name != other_than), None)

        what = f"a leader of shard {shard}" + (f" other than {other_than}" if other_than else "")
        return str(self.wait(what, found, timeout_s))

    def wait_converged(self, timeout_s: float = 0.0) -> dict[int, dict[str, Any]]:
        """Wait until all running nodes stand at one index with one digest per shard; return one view per shard."""

        def views() -> dict[int, dict[str, Any]] | None:
            result = {}
            for shard in range(self.settings.shards):
                found = [self.shard(name, shard) for name in self.nodes]
                if not all(found) or len({(view["applied_index"], view["digest"]) for view in found}) != 1:
                    return None
                result[shard] = found[0]
            return result

        converged: dict[int, dict[str, Any]] = self.wait("equal index and digest on all nodes", views, timeout_s)
        return converged

    def _check_alive(self) -> bool:
        """Fail at once, instead of at the deadline, if a node that should run has ended."""
        processes = {**self.nodes, **self.datanodes}
        ended = [name for name, process in processes.items() if not process.is_running()]
        if ended:
            raise AssertionError(f"ended by itself: {', '.join(ended)}\n{self.logs()}")
        return False

    def logs(self, lines: int = LOG_LINES) -> str:
        """Return the end of every log."""
        return "\n".join(f"--- {name}\n{tail}" for name, tail in self.log_tails(lines).items())

    def log_tails(self, lines: int = LOG_LINES) -> Mapping[str, str]:
        """Return the end of each log by the process's name."""
        names = (*self.names, *(node.name for node in self.settings.datanodes))
        nodes = {name: log_tail(self.log_file(name), lines) for name in names}
        brokers = {
            f"broker-{number}": log_tail(self.kafka.cluster.log_file(number), lines // 2)
            for number in range(1, self.settings.brokers + 1)
        }
        return {**nodes, **brokers}


def make_topics(stack: TestStack) -> None:
    """Make topics that were deleted; while a broker is still deleting an old one it says that it exists."""

    def made() -> bool:
        try:
            ensure_topics(stack.settings.bootstrap_servers, topic_plan(stack.settings))
        except KafkaException:
            return False
        return True

    assert wait_until(made, DEFAULT_TIMEOUT_S)
