"""Blocks through three datanodes and a broker on this machine: the four ways of writing, and a plain produce.

    python -m benchmarks.datanode [--brokers 1] [--rounds 3] [--mib 256] [--only base clients ...]
                                  [--fsync close] [--full] [--wire clear tls]

Everything is real and runs here: one broker or three, three datanodes, 16 clients, each a process of its own. There is
no Object Manager. The plain produce sends the same bytes to a topic. With three brokers the log and that topic have
three replicas, two of them in sync before a record is acknowledged. All points are measured in turn, round after round,
on one running set of processes, so that their ratios hold whatever else the machine does; a point's figures are medians
of its rounds. The points are a base (one client, a chain, blocks of 64 MiB, packets of 64 KiB), and others that differ
from it in one respect each. Blocks are deleted after each measurement. Nothing is asserted.

Before each measurement the benchmark writes and frees as much memory as the measurement will put into the page cache,
unless ``--cold``. A virtual machine's host takes free memory back, and a page that it has to give again costs several
times what filling it costs (docs/performance.md).

Prints tables, and one JSON object a line. ``kind`` is one of:
    ``write``      `wire`, `way`, `topology`, `clients`, `block_mib`, `packet_kib`, `mb_per_second` (bytes of the
                   client: each is stored three times), `fsyncs_per_gib`, `log_appends_per_gib`, `log_bytes_per_byte`,
                   `cpu_s_per_gib` by process, stream bytes in and out and `peak_mib` of each datanode, leader first;
                   `plain_share` (way 0 of plain produce), `times_way_0`
    ``flush``, ``close``  p50 and p99 of each way, `waits` and `blocking_points` of one
    ``recovery``   from the SIGSTOP of the leader to the next PutBlock that another leader takes, and to the end of a
                   client's own write
    ``leaders``    four pipelines: one datanode leads all, or leaders are spread
Rates are in MB/s (10^6).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.processor_time import spent_by_process
from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from replicated_db.shell.kafka.kafka_log import DELIVERY_TIMEOUT_MS, FETCH_MAX_BYTES
from schemas.records.datanode import BlockId, DeleteBlocks
from schemas.security.certificates import Role
from schemas.security.tls import TlsFiles
from schemas.topics import LOG_SETTINGS
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.datanodes.datanodes import CLUSTER, Block, Datanodes, create_topics
from tests.support.local.stack import LocalKafka
from tests.support.security.certified import Certified

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MB = 1_000_000
PLAIN = -1
"""Value of ``way`` for the plain produce: no datanodes, only a producer."""
PLAIN_TOPIC = "bench-plain"
PLAIN_SETTINGS = {
    "enable.idempotence": True, "acks": "all", "linger.ms": 0, "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    "message.max.bytes": FETCH_MAX_BYTES,
}  # fmt: skip
"""The settings of the log's appender."""

MAX_CLIENTS = 16
ONE_LEADS = (1, 2, 3, 4)
SPREAD = (5, 6, 7, 8)
"""Partitions of the pipelines that ``leaders`` compares."""
FLUSH_BYTES = MIB
REPLICAS = 3
"""Replicas of each block. A byte enters the page cache at most once for each, and once for each replica of the log."""
ASK_S = 1.0
WATCHDOG_MS = 3_000
START_AFTER_S = 0.05
CLEAR, TLS = "clear", "tls"
WIRES = (CLEAR, TLS)
AXES = ("base", "topology", "clients", "block", "packet", "latency", "leaders", "recovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of measurement: the base, except for the fields that are given."""

    way: int = 1
    topology: str = "chain"
    clients: int = 1
    block_mib: int = 64
    packet_kib: int = 64

    def axes(self) -> dict[str, Any]:
        """Return the point's fields for printing."""
        way = "plain" if self.way == PLAIN else self.way
        return {
            "way": way, "topology": self.topology, "clients": self.clients, "block_mib": self.block_mib,
            "packet_kib": 4096 if self.way in (PLAIN, 0) else self.packet_kib,
        }  # fmt: skip


@dataclass(slots=True)
class Figures:
    """Samples of one point, one value a round."""

    samples: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Add a round."""
        for name, value in sample.items():
            self.samples.setdefault(name, []).append(value)

    def medians(self) -> dict[str, Any]:
        """Return the median of each figure, and of each part of a figure that has parts."""
        return {name: _median(values) for name, values in self.samples.items()}


def _median(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {name: _median([value[name] for value in values]) for name in values[0]}
    return round(statistics.median(values), 3)


class ClientProcess:
    """A client process; call ``send`` and ``receive`` in turn."""

    def __init__(self, bootstrap_servers: str, tls: TlsFiles | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.datanode_client", CLUSTER, bootstrap_servers]
        command += [] if tls is None else [str(tls.ca), str(tls.certificate)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def send(self, command: Mapping[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for the answer; RuntimeError if the client has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"client {self.pid} has ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class System:
    """The running processes."""

    def __init__(self, nodes: Datanodes, kafka: LocalKafka, clients: Sequence[ClientProcess]) -> None:
        self.nodes = nodes
        self.kafka = kafka
        self.clients = clients
        self.containers = 0
        self.warm_to: Path | None = None
        """File that is written and deleted before each measurement."""
        self.processes = {name: psutil.Process(process.pid) for name, process in nodes.processes.items()}
        brokers = {f"broker{number}": psutil.Process(process.pid) for number, process in kafka.processes.items()}
        self.processes.update(brokers)

    # -- counting

    def cpu_s(self) -> dict[str, float]:
        """Return processor time so far by process."""
        return spent_by_process(self.processes)

    def counts(self, partitions: Iterable[int]) -> dict[str, Any]:
        """Return the counts of the datanodes and of the log so far."""
        found: dict[str, Any] = {"fsyncs": 0, "appends": 0, "log_bytes": self._log_bytes(), "in": {}, "out": {}}
        views: dict[int, int] = {}
        for name in self.nodes.names:
            status = self.nodes.status(name)
            if status is None:
                raise RuntimeError(f"{name} does not answer")
            found["fsyncs"] += status["store"]["file_fsyncs"]
            found["in"][name] = sum(status["streams"]["bytes_in"].values())
            found["out"][name] = sum(status["streams"]["bytes_out"].values())
            for view in status["pipelines"]:
                read = view["records_applied"] + view["records_void"]
                views[view["shard"]] = max(views.get(view["shard"], 0), read)
        found["appends"] = sum(views[partition] for partition in partitions)
        return found

    def _log_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.kafka.cluster.folder.glob("**/dn.log-*/*.log"))

    def reset_peaks(self) -> None:
        """Reset the kernel's peaks of memory, where it allows that."""
        for name in self.nodes.names:
            with suppress(OSError):
                Path(f"/proc/{self.processes[name].pid}/clear_refs").write_text("5")

    def peak_mib(self, first: str) -> dict[str, float]:
        """Return each datanode's peak resident memory in MiB, the leader's under ``leader``."""
        peaks, others = {}, 0
        for name in sorted(self.nodes.names, key=lambda name: name != first):
            status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
            peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
            others += name != first
            peaks["leader" if name == first else f"follower{others}"] = round(peak_kib / KIB, 1)
        return peaks

    # -- commands

    def view(self, partition: int) -> dict[str, Any]:
        """Return a pipeline in the form that clients take."""
        members = [
            {"datanode": one.datanode, "address": one.address, "http_address": one.http_address, "rack": one.rack}
            for one in self.nodes.members(self.nodes.pipelines[partition])
        ]
        return {"pipeline": f"pipeline-{partition}", "partition": partition, "members": members}

    def command(self, do: str, point: Point, partition: int, first: int, **more: Any) -> dict[str, Any]:
        """Return a command; local ids count from ``first`` in a container that is new for each measurement."""
        options = {"commit_way": point.way, "topology": point.topology, "packet_bytes": point.packet_kib * KIB}
        return {
            "do": do, "view": self.view(partition), "container_id": self.containers * 256 + partition,
            "first": first, "block_bytes": point.block_mib * MIB, "options": options, **more,
        }  # fmt: skip

    def together(self, commands: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Make each client execute one command, at the same time, and return their answers."""
        start_at = time.monotonic() + START_AFTER_S
        for client, command in zip(self.clients, commands, strict=False):
            client.send({**command, "start_at": start_at})
        return [client.receive() for client, _ in zip(self.clients, commands, strict=False)]

    def delete(self, commands: Sequence[Mapping[str, Any]]) -> None:
        """Delete the blocks that commands have made: the disk is small, and freed pages are warm."""
        for command in commands:
            partition, first = command["view"]["partition"], command["first"]
            blocks = [
                BlockId(container_id=command["container_id"], local_id=first + number)
                for number in range(command.get("blocks", 1))
            ]
            request = DeleteBlocks(partition=partition, blocks=blocks)
            self.nodes.wait("a leader deletes blocks", partial(self._asked, request))
        self.nodes.wait("blocks are deleted", lambda: not any(map(self._left, commands)))

    def _asked(self, request: DeleteBlocks) -> bool:
        """Return whether the leader accepted it. A paused leader may believe for a moment that it leads."""
        try:
            self.nodes.ask(self.nodes.wait_leader(request.partition), request)
        except BlockError:
            return False
        return True

    def _left(self, command: Mapping[str, Any]) -> bool:
        container = str(command["container_id"])
        folders = [self.nodes.data_dir(name) / "containers" / container for name in self.nodes.names]
        return any(
            (folder / f"{command['first'] + number}.block").exists()
            for folder in folders
            for number in range(command.get("blocks", 1))
        )

    # -- measuring

    def warm(self, size: int) -> None:
        """Make the kernel hold ``size`` bytes of free memory that the host has already given."""
        if self.warm_to is None:
            return
        piece = bytes(MIB)
        with self.warm_to.open("wb", buffering=0) as file:
            for _ in range(min(size, psutil.virtual_memory().available // 2) // MIB):
                file.write(piece)
        self.warm_to.unlink()

    def write(self, point: Point, mib: int, partitions: Sequence[int] = (0,)) -> dict[str, Any]:
        """Write ``mib`` MiB in all, at least one block a client, and return the figures."""
        self.containers += 1
        blocks = max(mib // point.block_mib // point.clients, 1)
        commands = [
            self.command("write", point, partitions[n % len(partitions)], 1 + n * blocks, blocks=blocks)
            for n in range(point.clients)
        ]
        if point.way == PLAIN:
            size = blocks * point.block_mib * MIB
            plain = {"do": "plain", "bytes": size, "topic": PLAIN_TOPIC, "partition": 0, "settings": PLAIN_SETTINGS}
            commands = [plain] * point.clients
        else:
            leader = self.nodes.wait_leader(partitions[0])
        self.warm((REPLICAS + len(self.kafka.processes)) * blocks * point.clients * point.block_mib * MIB)
        self.reset_peaks()
        before, cpu_before = self.counts(partitions), self.cpu_s()
        answers = self.together(commands)
        cpu_after, after = self.cpu_s(), self.counts(partitions)
        sent = sum(answer["bytes"] for answer in answers)
        seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
        gib = sent / GIB
        cpu = {name: (cpu_after[name] - cpu_before[name]) / gib for name in sorted(cpu_after)}
        figures: dict[str, Any] = {
            "mb_per_second": sent / seconds / MB,
            "cpu_s_per_gib": {**cpu, "clients": sum(answer["cpu_s"] for answer in answers) / gib},
        }
        if point.way == PLAIN:
            return figures
        self.delete(commands)
        names = {name: name == leader for name in self.nodes.names}
        return {
            **figures,
            "fsyncs_per_gib": (after["fsyncs"] - before["fsyncs"]) / gib,
            "log_appends_per_gib": (after["appends"] - before["appends"]) / gib,
            "log_bytes_per_byte": (after["log_bytes"] - before["log_bytes"]) / sent,
            "stream_bytes_in_per_byte": _by_role(names, before["in"], after["in"], sent),
            "stream_bytes_out_per_byte": _by_role(names, before["out"], after["out"], sent),
            "peak_mib": self.peak_mib(leader),
            "resumed_streams": sum(answer["resumed"] for answer in answers),
        }

    def latencies(self, point: Point, kind: str, count: int) -> dict[str, Any]:
        """Return latencies of flushes of FLUSH_BYTES, or of closes of blocks of that size, by one client alone."""
        self.containers += 1
        if kind == "flush":
            size = (count + 1) * FLUSH_BYTES
            command = self.command("flushes", point, 0, 1, flushes=count, flush_bytes=FLUSH_BYTES)
            command["block_bytes"] = size
        else:
            command = self.command("closes", point, 0, 1, blocks=count)
            command["block_bytes"] = FLUSH_BYTES
        (answer,) = self.together([command])
        self.delete([command])
        return {
            "latencies_ms": answer["latencies_ms"],
            "waits": answer["waits"] / count,
            "points": answer["points"] / count,
        }

    def recovery(self) -> dict[str, Any]:
        """Stop the leader with SIGSTOP during writes, and return how long others took to commit."""
        self.containers += 1
        nodes, container = self.nodes, self.containers
        first = Block(partition=0, container_id=container * 256, local_id=1)
        data = os.urandom(4 * MIB)
        nodes.send(first, data)
        leader = nodes.wait_leader(0)
        others = [name for name in nodes.names if name != leader]
        command = self.command("write", Point(block_mib=4), 0, 2, blocks=1)
        nodes.pause(leader)
        began_s = time.monotonic()
        try:
            self.clients[0].send(command)
            put_s = self._put_until_taken(first, data, others) - began_s
            wrote_s = self.clients[0].receive()["ended"] - began_s
        finally:
            nodes.resume(leader)
        nodes.wait_converged(0)
        self.delete([{**command, "first": 1, "blocks": 2}])
        return {"put_block_s": put_s, "client_write_s": wrote_s}

    def _put_until_taken(self, block: Block, data: bytes, names: Sequence[str]) -> float:
        request = self.nodes.put_block(block, data)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            for name in names:
                with (
                    suppress(BlockError),
                    Peer(self.nodes.address(name), own="bench", cluster=CLUSTER, timeout_s=ASK_S) as peer,
                ):
                    peer.request(request)
                    return time.monotonic()
            time.sleep(0.01)
        raise RuntimeError(f"nobody took a PutBlock in 60 s\n{self.nodes.logs()}")


def _by_role(
    leads: Mapping[str, bool], before: Mapping[str, int], after: Mapping[str, int], sent: int
) -> dict[str, float]:
    shares = {name: (after[name] - before[name]) / sent for name in leads}
    followers = [share for name, share in shares.items() if not leads[name]]
    return {
        "leader": next(share for name, share in shares.items() if leads[name]),
        "followers": sum(followers) / len(followers),
    }


def points_of(axes: Sequence[str], *, full: bool) -> list[Point]:
    """Return the points to measure, the base first."""
    base = Point()
    found = [Point(way=PLAIN), *(replace(base, way=way) for way in range(4))] if "base" in axes else []
    ways = (1, 2, 3) if full else (1,)
    if "topology" in axes:
        found += [replace(base, way=way, topology="star") for way in ways]
    if "clients" in axes:
        found += [
            replace(base, way=way, clients=n)
            for n in (4, 16)
            for way in ((PLAIN, 0, *ways) if full or n == 4 else ways)
        ]
    if "block" in axes:
        found += [replace(base, way=way, block_mib=256) for way in ((PLAIN, 0, *ways) if full else ways)]
    if "packet" in axes:
        found += [replace(base, packet_kib=kib) for kib in ((4, 16, 64, 256, 1024, 4096) if full else (4, 1024, 4096))]
    return list(dict.fromkeys(found))


def with_ratios(rows: dict[Point, Figures]) -> list[dict[str, Any]]:
    """Return one row a point, with its ratios to the plain produce and to way 0, which are medians over rounds."""
    found = []
    for point, figures in rows.items():
        row = {"kind": "write", **point.axes(), **figures.medians(), "samples": len(figures.samples["mb_per_second"])}
        rates = figures.samples["mb_per_second"]
        row["mb_per_second_best"] = round(max(rates), 1)
        for name, other in (("share_of_plain", PLAIN), ("times_way_0", 0)):
            beside = rows.get(replace(point, way=other, topology="chain", packet_kib=64))
            if beside is not None and point.way > other:
                ratios = [one / two for one, two in zip(rates, beside.samples["mb_per_second"], strict=True)]
                row[name] = round(statistics.median(ratios), 2)
        found.append(row)
    return found


def print_writes(rows: Iterable[Mapping[str, Any]], wire: str) -> None:
    """Print the figures of the writes for people; ``wire`` is how all spoke."""
    table = Table("way", "topology", "clients", "block MiB", "packet KiB", "MB/s", "best", "of plain", "x way 0",
                  "fsyncs/GiB", "appends/GiB", "log B/B", "processor s/GiB", "peak MiB", title=wire)  # fmt: skip
    for row in rows:
        cpu = row["cpu_s_per_gib"]
        table.add_row(
            str(row["way"]), row["topology"], str(row["clients"]), str(row["block_mib"]), str(row["packet_kib"]),
            f"{row['mb_per_second']:.0f}", f"{row['mb_per_second_best']:.0f}", str(row.get("share_of_plain", "")),
            str(row.get("times_way_0", "")), f"{row.get('fsyncs_per_gib', 0):.0f}",
            f"{row.get('log_appends_per_gib', 0):.0f}",
            f"{row.get('log_bytes_per_byte', 0):.2f}",
            f"{sum(cpu.values()):.2f}: " + ", ".join(f"{name} {spent:.2f}" for name, spent in cpu.items()),
            " ".join(f"{peak:.0f}" for peak in row.get("peak_mib", {}).values()),
        )  # fmt: skip
    Console(stderr=True, width=200).print(table)


def print_line(row: Mapping[str, Any]) -> None:
    """Print a JSON object, with the load average."""
    print(json.dumps({**row, "load_average": round(os.getloadavg()[0], 1)}), flush=True)


def measure_writes(systems: Mapping[str, System], points: Sequence[Point], arguments: argparse.Namespace) -> None:
    """Measure all points in turn, in each system, round after round."""
    rows = {wire: {point: Figures() for point in points} for wire in systems}
    for number in range(arguments.rounds + arguments.warm_up):
        for point in points:
            for wire, system in systems.items():
                sample = system.write(point, max(arguments.mib, point.block_mib))
                if number >= arguments.warm_up:
                    rows[wire][point].add(sample)
    for wire, measured in rows.items():
        found = with_ratios(measured)
        for row in found:
            print_line({"wire": wire, **row})
        print_writes(found, wire)


def measure_latencies(system: System, arguments: argparse.Namespace) -> None:
    """Measure flushes and closes of all ways in turn."""
    table = Table("", "way", "p50 ms", "p99 ms", "waits", "blocking points")
    for kind in ("flush", "close"):
        found: dict[int, list[dict[str, Any]]] = {way: [] for way in range(4)}
        for _ in range(arguments.rounds):
            for way, samples in found.items():
                samples.append(system.latencies(Point(way=way), kind, arguments.latencies))
        for way, samples in found.items():
            latencies = sorted(one for sample in samples for one in sample["latencies_ms"])
            row = {
                "kind": kind, "way": way, "topology": "chain", "clients": 1, "bytes": FLUSH_BYTES,
                "count": len(latencies),
                "p50_ms": round(statistics.median(latencies), 2),
                "p99_ms": round(latencies[int(len(latencies) * 0.99)], 2),
                "waits": round(statistics.mean(sample["waits"] for sample in samples), 2),
                "blocking_points": round(statistics.mean(sample["points"] for sample in samples), 2),
            }  # fmt: skip
            print_line(row)
            table.add_row(kind, *(str(row[name]) for name in ("way", "p50_ms", "p99_ms", "waits", "blocking_points")))
    Console(stderr=True).print(table)


def measure_leaders(system: System, arguments: argparse.Namespace) -> None:
    """Measure four pipelines whose leader is one datanode, and four whose leaders are spread, in turn."""
    names = system.nodes.names
    for partition in ONE_LEADS:
        system.nodes.open_pipeline(partition, names)
    for number, partition in enumerate(SPREAD):
        start = number % len(names)
        system.nodes.open_pipeline(partition, names[start:] + names[:start])
    rows: dict[tuple[str, int], Figures] = {}
    for _ in range(arguments.rounds):
        for way in (0, 1):
            for name, partitions in (("one", ONE_LEADS), ("spread", SPREAD)):
                sample = system.write(Point(way=way, clients=4), max(arguments.mib, 256), partitions)
                rows.setdefault((name, way), Figures()).add(sample)
    table = Table("leaders", "way", "MB/s", "processor s/GiB")
    for (name, way), figures in rows.items():
        row = {
            "kind": "leaders",
            "leaders": name,
            "pipelines": 4,
            **Point(way=way, clients=4).axes(),
            **figures.medians(),
        }
        print_line(row)
        cpu = ", ".join(f"{process} {spent:.2f}" for process, spent in row["cpu_s_per_gib"].items())
        table.add_row(name, str(way), f"{row['mb_per_second']:.0f}", cpu)
    Console(stderr=True).print(table)


def measure_recovery(system: System, arguments: argparse.Namespace) -> None:
    """Stop the leader several times."""
    samples = [system.recovery() for _ in range(arguments.hangs)]
    print_line(
        {
            "kind": "recovery", "watchdog_ms": WATCHDOG_MS, "times": len(samples),
            **{f"{name}_median": round(statistics.median(one[name] for one in samples), 2) for name in samples[0]},
            **{f"{name}_max": round(max(one[name] for one in samples), 2) for name in samples[0]},
        }
    )  # fmt: skip


def begin(folder: Path, wire: str, count: int, arguments: argparse.Namespace, stack: ExitStack) -> System:
    """Start brokers, datanodes and ``count`` clients that speak in clear or in TLS; ``stack`` ends them."""
    folder.mkdir()
    kafka = stack.enter_context(LocalKafka(folder / "kafka", brokers=arguments.brokers, jvm=LONG_RUN_JVM))
    in_sync = {"min.insync.replicas": "2"} if arguments.brokers > 1 else {}
    plain = NewTopic(PLAIN_TOPIC, 1, arguments.brokers, config={**LOG_SETTINGS, **in_sync})
    kafka.admin.create_topics([plain])[PLAIN_TOPIC].result(30)
    # Before the datanodes create them: with as many replicas as there are brokers.
    create_topics(kafka, partitions=max(SPREAD) + 1, replication_factor=arguments.brokers)
    certified = Certified(folder / "authority", CLUSTER) if wire == TLS else None
    nodes = Datanodes(
        folder,
        kafka,
        partitions=max(SPREAD) + 1,
        datanode_fsync=arguments.fsync,
        pipeline_watchdog_ms=WATCHDOG_MS,
        certified=certified,
    )
    stack.enter_context(nodes)
    nodes.open_pipeline(0)
    files = None if certified is None else certified.files("bench", Role.CLIENT)
    clients = [ClientProcess(kafka.bootstrap_servers, files) for _ in range(count)]
    for client in clients:
        stack.callback(client.close)
    for client in clients:
        client.receive()
    system = System(nodes, kafka, clients)
    system.warm_to = None if arguments.cold else folder / "warm"
    return system


def main() -> None:
    """Start everything, measure, print, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="and replicas of the log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count: a broker's JVM needs them")
    parser.add_argument("--mib", type=int, default=256, help="written for one sample, at least a block a client")
    parser.add_argument("--latencies", type=int, default=20, help="flushes, and closes, a round and way")
    parser.add_argument("--hangs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=AXES, default=AXES)
    parser.add_argument("--fsync", choices=("close", "never", "packet"), default="close")
    parser.add_argument("--cold", action="store_true", help="take memory as the host gives it")
    parser.add_argument("--full", action="store_true", help="all ways at each point, twice as many rounds and bytes")
    parser.add_argument(
        "--wire", nargs="+", choices=WIRES, default=[CLEAR],
        help="how datanodes and clients speak; with both, each has processes of its own, and writes run in turn",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="where everything lies: a directory on the disk to measure")
    arguments = parser.parse_args()
    if arguments.full:
        arguments.rounds, arguments.mib, arguments.hangs = 2 * arguments.rounds, 2 * arguments.mib, 3 * arguments.hangs
    points = points_of(arguments.only, full=arguments.full)
    count = max((point.clients for point in points), default=1)
    count = max(count, 4 if "leaders" in arguments.only else 1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratolog-bench-", dir=arguments.folder)))
        systems = {wire: begin(folder / wire, wire, count, arguments, stack) for wire in arguments.wire}
        system = systems[arguments.wire[0]]
        if points:
            measure_writes(systems, points, arguments)
        if "latency" in arguments.only:
            measure_latencies(system, arguments)
        if "recovery" in arguments.only:
            measure_recovery(system, arguments)
        if "leaders" in arguments.only:
            measure_leaders(system, arguments)


if __name__ == "__main__":
    main()
