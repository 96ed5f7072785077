"""What block tokens cost: blocks through three datanodes in TLS, with a token for each block and without, in turn.

    python -m benchmarks.block_tokens [--rounds 4] [--mib 128] [--blocks 64 1]

Everything is real and runs here: one broker, three datanodes that demand tokens, and one writer in this process. With
tokens it is a client, which makes a token for each block itself, as there is no Object Manager; without, an operator,
who needs none. Rounds of both follow one another on the same processes. Nothing is asserted.

Prints one JSON object a line: `tokens` (on, off), `block_mib`, `mb_per_second` (10^6 bytes of the writer), and
`cpu_s_per_gib` by process, each the median of its rounds, and `least_cpu_s_per_gib`, the least of all processes
together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.datanode_client import PIECE_BYTES, put_pieces
from benchmarks.processor_time import spent_by_process
from producers.blocks.block_tokens import NO_TOKENS, TokenSource
from producers.blocks.block_writer import BlockWriter
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import Datanodes as Connections
from producers.blocks.stream_options import StreamOptions
from producers.reads.read_views import BlockName
from schemas.access.block_tokens import READ_BLOCK, TOKEN_LIFETIME_MS, WRITE_BLOCK, BlockToken, issued_token
from schemas.records.datanode import BlockId, BlockTokenKey, BlockTokenKeys, DeleteBlocks
from schemas.records.rows import BlockLocation
from schemas.security.certificates import Role
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.datanodes.datanodes import CLUSTER, Datanodes
from tests.support.local.secret import SECRET
from tests.support.local.stack import LocalKafka
from tests.support.security.certified import Certified

MB, MIB, GIB = 1_000_000, 1024**2, 1024**3
KEY = BlockTokenKey(key_id=1, key=SECRET.block_token_key(1), until_ms=2**60)
PIECE = os.urandom(PIECE_BYTES)
ON, OFF = "on", "off"


class MadeToken:
    """The token of one block."""

    def __init__(self, location: BlockLocation) -> None:
        token = BlockToken(
            key_id=KEY.key_id, container_id=location.container_id, local_id=location.local_id,
            operations=READ_BLOCK | WRITE_BLOCK, length=location.length,
            expires_ms=int(time.time() * 1000) + TOKEN_LIFETIME_MS,
        )  # fmt: skip
        self._token = issued_token(token, KEY)

    def of(self, block: BlockName) -> bytes:  # noqa: ARG002 - as TokenSource
        """Return the token."""
        return self._token

    def refused(self, block: BlockName, status: str) -> bool:  # noqa: ARG002 - as TokenSource
        """Raise for a refused token: that is no measurement."""
        if status.startswith("BLOCK_TOKEN"):
            raise RuntimeError(f"a datanode refused a token: {status}")
        return False


class Bench:
    """The datanodes, and connections to them as a client and as an operator."""

    def __init__(self, nodes: Datanodes, certified: Certified) -> None:
        self._nodes = nodes
        roles = {ON: Role.CLIENT, OFF: Role.ADMIN}
        self._connections = {
            how: Connections(cluster=CLUSTER, peer="bench", tls=certified.tls("bench", role))
            for how, role in roles.items()
        }
        self._view = PipelineView(
            pipeline="pipeline-0", partition=0, state="OPEN", members=tuple(nodes.members(nodes.pipelines[0]))
        )
        self._processes = {name: psutil.Process(process.pid) for name, process in nodes.processes.items()}
        self._processes["writer"] = psutil.Process()
        self._containers = 0

    def write(self, how: str, block_mib: int, mib: int) -> dict[str, Any]:
        """Write blocks, delete them, and return rate and processor time."""
        self._containers += 1
        container_id, count, size = self._containers * 256, max(mib // block_mib, 1), block_mib * MIB
        before, began_s = spent_by_process(self._processes), time.monotonic()
        for number in range(1, count + 1):
            self._block(how, container_id, number, size)
        seconds, after = time.monotonic() - began_s, spent_by_process(self._processes)
        blocks = [BlockId(container_id=container_id, local_id=number) for number in range(1, count + 1)]
        self._nodes.ask(self._nodes.wait_leader(0), DeleteBlocks(partition=0, blocks=blocks))
        gib = count * size / GIB
        cpu = {name: (after[name] - before[name]) / gib for name in after}
        return {"mb_per_second": count * size / seconds / MB, "cpu": cpu}

    def _block(self, how: str, container_id: int, number: int, size: int) -> None:
        location = BlockLocation(
            container_id=container_id, local_id=number, offset=0, length=size, pipeline=self._view.pipeline
        )
        tokens: TokenSource = MadeToken(location) if how == ON else NO_TOKENS
        writer = BlockWriter(location, self._view, self._connections[how], StreamOptions(), tokens=tokens)
        put_pieces(writer, [PIECE], size)
        writer.finish()
        writer.settle()


def main() -> None:
    """Start everything, measure, print, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="after one that does not count")
    parser.add_argument("--mib", type=int, default=128, help="written for one sample")
    parser.add_argument("--blocks", type=int, nargs="+", default=[64, 1], help="sizes of blocks in MiB")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratolog-bench-")))
        kafka = stack.enter_context(LocalKafka(folder / "kafka", brokers=1, jvm=LONG_RUN_JVM))
        certified = Certified(folder / "authority", CLUSTER)
        nodes = stack.enter_context(Datanodes(folder, kafka, certified=certified, block_tokens=True))
        nodes.open_pipeline(0)
        for name in nodes.names:
            nodes.ask(name, BlockTokenKeys(newest=KEY.key_id, keys=[KEY]))
        bench = Bench(nodes, certified)
        samples: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for number in range(arguments.rounds + 1):
            for block_mib in arguments.blocks:
                for how in (OFF, ON) if number % 2 else (ON, OFF):
                    sample = bench.write(how, block_mib, arguments.mib)
                    if number:
                        samples.setdefault((how, block_mib), []).append(sample)
        for (how, block_mib), found in samples.items():
            row = {
                "tokens": how, "block_mib": block_mib, "samples": len(found),
                "mb_per_second": round(statistics.median(one["mb_per_second"] for one in found), 1),
                "cpu_s_per_gib": {
                    name: round(statistics.median(one["cpu"][name] for one in found), 2) for name in found[0]["cpu"]
                },
                "least_cpu_s_per_gib": round(min(sum(one["cpu"].values()) for one in found), 2),
                "load_average": round(os.getloadavg()[0], 1),
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
