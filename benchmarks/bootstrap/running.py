"""The stack of a benchmark, the load on it, and what is seen of both."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bootstrap.figures import MIB, Samples
from producers import Client
from stratolog.local.kafka import LONG_RUN_JVM
from stratolog.local.processes import spawn
from tests.support.local.stack import LocalKafka, TestStack

VOLUME, BUCKET = "bench", "bucket"
SHARD = 0
SAMPLE_S = 0.5
FILL_IN_FLIGHT = 4000
FILL_BYTES_IN_FLIGHT = 16 * MIB
"""Bytes of metadata in flight while a database is filled with large rows."""
READY_TIMEOUT_S = 1_800.0
"""How long one wait may take: a replay of millions of records takes minutes."""
TELL_S = 2.0
NO_INSTALL = 2**53
"""Value of ``bootstrap_records`` with which an empty replica reads the log."""


def say(text: str) -> None:
    """Tell a person what is done; figures alone go to standard output."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def running_stack(nodes: int, parent: Path | None, **settings: Any) -> Iterator[TestStack]:
    """Run one broker and the nodes, with a bucket, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="stratolog-bench-", dir=parent) as name:
        folder = Path(name)
        kafka = LocalKafka(folder / "kafka", brokers=1, jvm=LONG_RUN_JVM)
        stack = TestStack(folder, nodes=nodes, kafka=kafka, shards=1, brokers=1, **settings)
        with kafka, stack:
            with Client(stack.settings.bootstrap_servers) as client:
                client.create_volume(VOLUME)
                client.create_bucket(VOLUME, BUCKET)
            yield stack


# -- load --------------------------------------------------------------------------------------------------------------


def load_command(stack: TestStack, *words: object) -> list[str]:
    """Return the command of the load generator on the benchmark's bucket."""
    place = ["--bootstrap-servers", stack.settings.bootstrap_servers, "--volume", VOLUME, "--bucket", BUCKET]
    return [sys.executable, "-m", "producers.bulk.load", "--json", *place, *map(str, words)]


@contextmanager
def load(stack: TestStack, in_flight: int, metadata_bytes: int) -> Iterator[None]:
    """Write keys without an end, by a process of its own."""
    command = load_command(
        stack, "--in-flight", in_flight, "--metadata-bytes", metadata_bytes, "--seconds", READY_TIMEOUT_S * 10
    )
    process = spawn(command, log=stack.folder / "logs" / "load.log", detached=False)
    try:
        yield
        if not process.is_running():
            raise RuntimeError(f"the load ended early: {(stack.folder / 'logs' / 'load.log').read_text()[-2000:]}")
    finally:
        process.kill()


def fill(stack: TestStack, keys: int, metadata_bytes: int = 0) -> dict[str, Any]:
    """Write so many keys as fast as they go, and return the load generator's figures; says how far it is."""
    in_flight = FILL_IN_FLIGHT
    if metadata_bytes:
        in_flight = max(1, min(FILL_IN_FLIGHT, FILL_BYTES_IN_FLIGHT // metadata_bytes))
    output = stack.folder / "logs" / f"fill-{time.time_ns()}.log"
    command = load_command(
        stack, "--in-flight", in_flight, "--metadata-bytes", metadata_bytes, "--pairs", keys, "--size", 0,
        "--seconds", READY_TIMEOUT_S * 10, "--warm-up-seconds", 0,
    )  # fmt: skip
    leader = stack.wait_leader(SHARD)
    begun = stack.shard(leader, SHARD)["applied_index"]
    process = spawn(command, log=output, detached=False)
    told_s = time.monotonic()
    try:
        while process.is_running():
            time.sleep(SAMPLE_S)
            if time.monotonic() - told_s > TELL_S * 5:
                told_s = time.monotonic()
                done = stack.shard(leader, SHARD).get("applied_index", begun) - begun
                say(f"fills: some {done // 2:,} of {keys:,} keys")
    finally:
        process.kill()
    return figures_of(output)


def figures_of(output: Path) -> dict[str, Any]:
    """Return what the load generator has printed last; raises RuntimeError if it failed."""
    said = output.read_text()
    last = (said.strip().splitlines() or [""])[-1]
    try:
        figures: dict[str, Any] = json.loads(last)
    except ValueError as error:
        raise RuntimeError(f"the load generator ended without figures: {said[-2000:]}") from error
    if figures["failures"]:
        raise RuntimeError(f"requests failed: {figures['failures']}")
    return figures


# -- what is seen ------------------------------------------------------------------------------------------------------


class LeaderSampler:
    """Samples the leader's counters (``requests``, ``offset``) until it is closed; on a thread of its own."""

    def __init__(self, stack: TestStack, leader: str) -> None:
        self.samples = Samples()
        self._stack = stack
        self._leader = leader
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            view = self._stack.shard(self._leader, SHARD)
            if view:
                self.samples.add(time.time(), {"requests": view["applied_index"], "offset": view["applied_offset"]})

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()


def database_bytes(folder: Path) -> int:
    """Return the size of all files below a folder in bytes; a file of several names counts once."""
    found = {}
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            found[status.st_ino] = status.st_size
    return sum(found.values())


def memory_mib(pid: int) -> dict[str, float]:
    """Return a process's resident memory, and the most that it has had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS:", "VmHWM:"))}
    return {"rss_mib": round(found["VmRSS"] / 1024, 1), "peak_rss_mib": round(found["VmHWM"] / 1024, 1)}


def read_events(file: Path) -> list[dict[str, Any]]:
    """Return what a recorded node has written down."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


# -- nodes -------------------------------------------------------------------------------------------------------------


def set_settings(stack: TestStack, **changes: Any) -> None:
    """Change settings for the nodes that start from now on."""
    stack.settings = replace(stack.settings, **changes)
    stack.settings_file.write_text(stack.settings.to_toml())


def follower(stack: TestStack) -> str:
    """Return the last node that does not lead."""
    leader = stack.wait_leader(SHARD)
    return next(name for name in reversed(stack.names) if name != leader)


def wipe(stack: TestStack, node: str) -> None:
    """Stop a node, and delete its folder."""
    if node in stack.nodes:
        stack.stop_node(node)
    shutil.rmtree(stack.settings.node_folder(node))


def recorded_command(node: str, events: Path, *more: str) -> Sequence[str]:
    """Return the command of a node that writes down what its bootstrap does."""
    return [sys.executable, "-m", "benchmarks.bootstrap.recorded_node", "--events", str(events), *more, node]


def seen(stack: TestStack, node: str) -> dict[str, Any]:
    """Return what a node says of the shard; a busy one may need a second question."""
    view: dict[str, Any] = stack.wait(f"{node} says where it stands", lambda: stack.shard(node, SHARD))
    return view


def wait_caught_up(stack: TestStack, node: str, leader: str) -> float:
    """Wait until a node has applied what the leader had applied half a second before at most; return when."""
    told_s = time.monotonic()
    deadline_s = told_s + READY_TIMEOUT_S
    while True:
        wanted = seen(stack, leader)["applied_offset"]
        asked_s = time.time()
        while time.time() - asked_s < SAMPLE_S:
            view = stack.shard(node, SHARD)
            if view and view["applied_offset"] >= wanted:
                return time.time()
            time.sleep(0.05)
        if time.monotonic() - told_s > TELL_S * 5:
            told_s = time.monotonic()
            stands = f"at {view['applied_offset']:,} of {wanted:,}" if view else "not serving yet"
            say(f"waits for {node}: {stands}")
        if not stack.nodes[node].is_running() or time.monotonic() > deadline_s:
            raise RuntimeError(f"{node} did not catch up\n{stack.logs()}")
