"""What the fault tests of datanodes share: a ledger of what was acknowledged, and the means to inject a fault.

At the end of every case :meth:`Ledger.check` has all datanodes run again and says of every block that was acknowledged so far: each replica's
watch is satisfied, its bytes are the right ones, no committed length has shrunk, and the members' replicas have one digest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from datanode_processors.errors import BlockError
from schemas.codecs.codec import encode
from schemas.records.log import LeaderClaim
from schemas.topics import DN_LOG
from tests.support.datanodes.datanodes import Block, Datanodes
from tests.support.local.waiting import eventually
from tests.support.sdk.key_world import KeyWorld, block_of

CLIENT = "client"
"""What the SDK calls itself to datanodes."""
WATCH_MS = 30_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Ledger:
    """Blocks that were acknowledged (their watch was satisfied), with their bytes until they have been compared once."""

    def __init__(self, nodes: Datanodes) -> None:
        self._nodes = nodes
        self._lengths: dict[Block, int] = {}
        self._fresh: dict[Block, bytes] = {}

    def add(self, block: Block, data: bytes) -> None:
        """Take note of a block whose first ``len(data)`` bytes are acknowledged."""
        self._lengths[block] = max(len(data), self._lengths.get(block, 0))
        self._fresh[block] = data

    def add_key(self, world: KeyWorld, key: str, data: bytes) -> None:
        """Take note of a key that was closed; its client reads it back first."""
        with world.client.open(f"/v/b/{key}") as file:
            assert file.read() == data, f"{key} is read back wrong"
        locations = world.blocks(key)
        assert sum(location.length for location in locations) == len(data)
        for location in locations:
            self.add(block_of(location), data[location.offset : location.offset + location.length])

    def forget(self, block: Block) -> None:
        """Take note of a deletion."""
        self._lengths.pop(block, None)
        self._fresh.pop(block, None)

    def check(self) -> None:
        """Compare everything; returns with all datanodes running."""
        nodes = self._nodes
        settle(nodes)
        for block, data in self._fresh.items():
            for name in nodes.pipelines[block.partition]:
                problem = block_problem(nodes, name, block, data)
                assert problem is None, f"{problem}\n{nodes.logs()}"
                assert nodes.block_file(name, block).read_bytes()[: len(data)] == data, f"{block}'s file on {name}"
        self._fresh.clear()
        for block, length in self._lengths.items():
            for name in nodes.pipelines[block.partition]:
                found = nodes.info(name, block)
                assert found is not None, f"{block} is lost on {name}"
                assert found.length >= length, f"{block} has shrunk on {name}"
        for partition in nodes.pipelines:
            nodes.wait_converged(partition)


def block_problem(
    nodes: Datanodes, name: str, block: Block, data: bytes, bcs_id: int = 0
) -> tuple[str, str] | None:  # fmt: skip
    """Compare an acknowledged block with one replica of it; return (``lost`` or ``wrong``, what), None if it is right."""
    try:
        (watched,) = nodes.watch(block, len(data), bcs_id=bcs_id, names=[name], timeout_ms=WATCH_MS)
        if not watched.satisfied:
            return "lost", f"{block} on {name}: {watched}"
        if nodes.read(name, block, len(data), bcs_id=bcs_id) != data:
            return "wrong", f"{block} on {name}"
    except BlockError as error:
        return "lost", f"{block} on {name}: {error}"
    return None


def settle(nodes: Datanodes) -> None:
    """Have all datanodes run, and every pipeline led."""
    for name in nodes.names:
        if name in nodes.processes:
            nodes.resume(name)
        else:
            nodes.start(name, wait=False)
    for name in nodes.names:
        nodes.wait_up(name)
    for partition in nodes.pipelines:
        nodes.wait_leader(partition)


def move_leadership(nodes: Datanodes, partition: int, heir: str) -> None:
    """Have ``heir`` lead a pipeline though nobody dies or stops: a claim in its name, which it follows up with its own."""
    leader = nodes.wait_leader(partition)
    assert leader != heir
    claim = LeaderClaim(
        term=nodes.pipeline(leader, partition)["term"] + 1, nonce=os.urandom(16), node=heir, address=nodes.address(heir),
        claimed_at_ms=time.time_ns() // 1_000_000,
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": nodes.kafka.bootstrap_servers})
    producer.produce(DN_LOG, encode(claim), partition=partition)
    assert producer.flush(30) == 0
    nodes.wait(f"{heir} leads", lambda: nodes.leader(partition) == heir)


def client_bytes(nodes: Datanodes) -> dict[str, int]:
    """Return how many bytes clients have sent to each running datanode since it started."""
    return {name: nodes.get(name, "/status")["streams"]["bytes_in"].get(CLIENT, 0) for name in nodes.processes}


def sent_since(nodes: Datanodes, before: dict[str, int]) -> int:
    """Return how many bytes clients have sent since ``before`` to the datanodes that still run."""
    now = client_bytes(nodes)
    return sum(count - before[name] for name, count in now.items())


def streams_of(nodes: Datanodes, name: str) -> dict[str, int]:
    """Return a datanode's counts of streams."""
    found: dict[str, int] = nodes.get(name, "/status")["streams"]
    return found


def unhealthy(nodes: Datanodes, name: str, partition: int) -> int:
    """Return how many blocks a datanode says are unhealthy."""
    return int(nodes.pipeline(name, partition).get("unhealthy_blocks", -1))


def resident_bytes(nodes: Datanodes, name: str) -> int:
    """Return the memory that a datanode's process holds."""
    pages = Path(f"/proc/{nodes.processes[name].pid}/statm").read_text().split()[1]
    return int(pages) * _PAGE_BYTES


@contextmanager
def paused(nodes: Datanodes, *names: str) -> Iterator[None]:
    """SIGSTOP datanodes for the time of the block."""
    for name in names:
        nodes.pause(name)
    try:
        yield
    finally:
        for name in names:
            nodes.resume(name)


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """As ``eventually``, but for what takes datanodes longer."""
    eventually(condition, timeout_s)
