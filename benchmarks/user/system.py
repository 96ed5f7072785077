"""The whole stack on this machine, with its audit, and what its processes take."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import NewTopic

from benchmarks.audit.running import AuditProcess, audit
from benchmarks.processor_time import spent_by_process
from benchmarks.user.commands import BUCKET, VOLUME, UserCommand, read_key
from producers import Client
from stratolog.local.kafka import LONG_RUN_JVM
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process, log_tail, spawn, stop_all
from tests.support.local.stack import LocalKafka, TestStack

MIB = 1024**2
RUN_TIMEOUT_S = 600
PLAIN_TOPIC = "bench-plain"
AUDIT_READS_UP_S = 300
STOP_S = 20.0
RELAY_START_S = 30.0


class UserSystem:
    """A stack of three Object Managers and three datanodes, and an audit."""

    def __init__(self, stack: TestStack, folder: Path) -> None:
        self.stack = stack
        self._folder = folder
        self.audit: AuditProcess | None = None
        self._runs = 0
        named = {**stack.nodes, **stack.datanodes}
        named.update({f"broker{number}": process for number, process in stack.kafka.processes.items()})
        self._processes = {name: psutil.Process(process.pid) for name, process in named.items()}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The addresses of the Object Managers."""
        return tuple(self.stack.address(name) for name in self.stack.names)

    @contextmanager
    def audited(self) -> Iterator[AuditProcess]:
        """Run the audit as ``stratolog up`` does, until the block ends; it has read what there is as that begins.

        One that still reads up takes all the processor time that it gets.
        """
        settings = self.stack.settings
        with audit(self._folder / "audit", settings.bootstrap_servers, shards=settings.shards) as running:
            self.audit = running
            self._read_up(running)
            yield running
            self.audit = None

    def _read_up(self, running: AuditProcess) -> None:
        """Wait until the audit has read what there is."""
        until_s = time.monotonic() + AUDIT_READS_UP_S
        while running.is_behind(self.stack.settings.bootstrap_servers):
            running.check()
            if time.monotonic() > until_s:
                raise RuntimeError(
                    f"the audit is behind after {AUDIT_READS_UP_S} s:\n{running.log.read_text()[-3000:]}"
                )
            time.sleep(0.5)

    def prepare(self, sizes: dict[int, int]) -> None:
        """Make the places, the topic of the plain produce, and for each size so many files to be read."""
        brokers = len(self.stack.kafka.processes)
        in_sync = {"min.insync.replicas": str(min(brokers, 2))}
        for made in self.stack.kafka.admin.create_topics([NewTopic(PLAIN_TOPIC, 1, brokers, config=in_sync)]).values():
            made.result()
        with Client(self.stack.settings.bootstrap_servers, nodes=self.nodes) as client:
            client.create_volume(VOLUME)
            client.create_bucket(VOLUME, BUCKET)
            for size, count in sizes.items():
                for number in range(count):
                    with client.open(f"/{VOLUME}/{BUCKET}/{read_key(size, number)}", "wb", size=size) as file:
                        file.write(bytes(size))

    def cpu_s(self) -> dict[str, float]:
        """Return seconds of processor time so far, by process; those of the audit's processes are one."""
        found = spent_by_process(self._processes)
        return found if self.audit is None else {**found, "audit": self.audit.cpu_s()}

    @contextmanager
    def relay(self) -> Iterator[str]:
        """Run a bare relay until the block ends; yield its address."""
        (port,) = free_ports(1)
        command = [
            sys.executable,
            "-m",
            "benchmarks.user.bare_relay",
            self.stack.settings.bootstrap_servers,
            PLAIN_TOPIC,
        ]
        log = self._folder / "relay.log"
        process = spawn([*command, str(port)], log=log, detached=False)
        self._processes["relay"] = psutil.Process(process.pid)
        try:
            until_s = time.monotonic() + RELAY_START_S
            while "open" not in log.read_text():
                if time.monotonic() > until_s or not process.is_running():
                    raise RuntimeError(f"the relay does not start: {log_tail(log, 20)}")
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            del self._processes["relay"]
            stop_all([process], STOP_S)

    def memory_mib(self) -> dict[str, float]:
        """Return resident memory by process, pages that the audit's processes share counted once."""
        found = {name: process.memory_info().rss for name, process in self._processes.items()}
        if self.audit is not None:
            found["audit"] = self.audit.memory_bytes()[1]
        return {name: round(size / MIB, 1) for name, size in found.items()}

    def idle(self, seconds: float) -> dict[str, Any]:
        """Return the share of a core that each process takes while nothing is asked of it."""
        before = self.cpu_s()
        time.sleep(seconds)
        after = self.cpu_s()
        shares = {name: round((after[name] - before[name]) / seconds, 4) for name in after}
        return {"cores": round(sum(shares.values()), 3), "by_process": shares, "memory_mib": self.memory_mib()}

    def measure(self, command: UserCommand) -> dict[str, Any]:
        """Let a user do it. ``cpu_ms`` is processor time per operation, of all processes and by process.

        It begins when the audit has read what there is: what it reads up is no cost of this work. ``audit_behind`` says
        whether it has to read up what was done here.
        """
        if self.audit is not None:
            self._read_up(self.audit)
        self._runs += 1
        told = json.dumps({**command.told(), "run": self._runs})
        before, begun_s = self.cpu_s(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.user.load", told], check=False, capture_output=True, text=True,
            timeout=RUN_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{command.what} failed:\n{done.stderr[-3000:]}")
        after, lasted_s = self.cpu_s(), time.monotonic() - begun_s
        figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        # The warm-up took processor time too: it is spread over the operations that it did, at the measured rate.
        operations = max(figures["per_second"] * min(lasted_s, command.seconds + command.warm_up_seconds), 1)
        spent = {name: round((after[name] - before[name]) * 1000 / operations, 3) for name in after}
        spent["client"] = figures.pop("client_cpu_ms")
        if self.audit is not None:
            figures["audit_behind"] = self.audit.is_behind(self.stack.settings.bootstrap_servers)
        return {**figures, "cpu_ms": round(sum(spent.values()), 3), "cpu_ms_by_process": spent}


@contextmanager
def user_system(folder: Path, brokers: int) -> Iterator[UserSystem]:
    """Start everything but the audit; stop it in the end."""
    kafka = LocalKafka(folder / "kafka", brokers=brokers, jvm=LONG_RUN_JVM)
    stack = TestStack(folder, kafka=kafka, datanodes=3, brokers=brokers)
    with kafka, stack:
        yield UserSystem(stack, folder)


def bare(folder: Path, brokers: int, followers: int, settle_s: float, seconds: float) -> dict[str, Any]:
    """Return what brokers, and Faust followers without duties, take at rest: no stack made of them can take less."""
    with LocalKafka(folder, brokers=brokers, jvm=LONG_RUN_JVM) as kafka, ExitStack() as open_:
        following: list[Process] = []
        open_.callback(stop_all, following, STOP_S)
        following.extend(_bare_followers(kafka, folder, followers))
        started = {f"broker{number}": process for number, process in kafka.processes.items()}
        started.update({f"follower{number}": process for number, process in enumerate(following, 1)})
        time.sleep(settle_s)
        processes = {name: psutil.Process(process.pid) for name, process in started.items()}
        before = spent_by_process(processes)
        time.sleep(seconds)
        after = spent_by_process(processes)
        if ended := [name for name, process in started.items() if not process.is_running()]:
            raise RuntimeError(f"{', '.join(ended)} ended: {[log_tail(path, 20) for path in folder.glob('*/log')]}")
    shares = {name: round((after[name] - before[name]) / seconds, 4) for name in after}
    return {"followers": followers, "cores": round(sum(shares.values()), 3), "by_process": shares}


def _bare_followers(kafka: LocalKafka, folder: Path, count: int) -> Iterator[Process]:
    """Start followers of two topics that stay empty."""
    topics = ("bare.log", "bare.audit")
    if count:
        for made in kafka.admin.create_topics([NewTopic(topic, 1, len(kafka.processes)) for topic in topics]).values():
            made.result()
    for number, port in enumerate(free_ports(count), 1):
        own = folder / f"follower{number}"
        own.mkdir()
        command = [sys.executable, "-m", "benchmarks.user.bare_follower", kafka.bootstrap_servers, *topics, str(own)]
        yield spawn([*command, str(port)], log=own / "log", detached=False)
