"""Speed of a datanode's block store: packet sizes and fsync policies, interleaved, on one disk.

    python -m benchmarks.block_store [--folder DIR] [--mib 256] [--rounds 5]
                                     [--packets 4096 65536 1048576] [--fsync close never packet]

Each case writes one block of `--mib` MiB in packets of one size, flushes it and deletes it. The packets' CRC32C is
known, as for packets that came over the wire. A *round* runs all cases once, in an order that changes from round to
round; each case's figure is its median. `plain` writes the same packets by `pwrite` alone, with one fsync at the end:
the cost of disk and kernel in any case. `vectored` hands over up to 64 packets as one write. Under `packet` a case
writes as many packets as take about that long, 256 at most. Prints a table, and one JSON object a line: `store`,
`fsync`, `packet_bytes`, `mb_per_second`, `cpu_us_per_packet`, `fsyncs_per_gib`. Then the same for reading back: `read`
(with checksums computed), and `checksums` (a restart: every cell read once).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.fsync import CLOSE, FSYNC_POLICIES, NEVER, PACKET
from schemas.records.packets import CELL_BYTES

MIB = 1024 * 1024
MAX_SYNCED_PACKETS = 256
VECTOR_BYTES = 256 * 1024
VECTOR_PACKETS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that is measured."""

    store: str
    fsync: str
    packet_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Measurements of one run of a case."""

    size: int
    packets: int
    seconds: float
    cpu_seconds: float
    fsyncs: int


def measured(size: int, packets: int, fsyncs: Callable[[], int], work: Callable[[], None]) -> Figures:
    """Run something and measure it."""
    before, cpu, began = fsyncs(), time.process_time(), time.perf_counter()
    work()
    return Figures(
        size=size, packets=packets, seconds=time.perf_counter() - began, cpu_seconds=time.process_time() - cpu,
        fsyncs=fsyncs() - before,
    )  # fmt: skip


def write_plain(folder: Path, packet: memoryview, count: int) -> Figures:
    """Write packets with the kernel's calls alone."""
    path = folder / "plain"

    def work() -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        for number in range(count):
            os.pwrite(descriptor, packet, number * len(packet))
        os.fdatasync(descriptor)
        os.close(descriptor)

    figures = measured(len(packet) * count, count, lambda: 0, work)
    path.unlink()
    return figures


def write_store(folder: Path, case: Case, packet: memoryview, count: int) -> Figures:
    """Write packets with the block store."""
    store, crc = BlockStore(folder / "data", fsync=case.fsync), crc32c(packet)
    at_once = min(VECTOR_PACKETS, max(1, VECTOR_BYTES // len(packet))) if case.store == "vectored" else 1

    def work() -> None:
        with store.open_writer(1, 1, 0, CELL_BYTES) as writer:
            for number in range(0, count, at_once):
                packets = [(packet, crc)] * min(at_once, count - number)
                writer.write_packets(number * len(packet), packets)
            writer.flush()

    figures = measured(len(packet) * count, count, lambda: store.fsyncs.files, work)
    store.delete(1, 1)
    return figures


def run(folder: Path, case: Case, mib: int) -> Figures:
    """Run one case once."""
    packet = memoryview(random.Random(1).randbytes(case.packet_bytes))
    count = mib * MIB // len(packet)
    if case.store == "plain":
        return write_plain(folder, packet, count)
    return write_store(folder, case, packet, min(count, MAX_SYNCED_PACKETS) if case.fsync == PACKET else count)


def restart(folder: Path) -> None:
    """Find a block again and learn its checksums."""
    BlockStore(folder, fsync=NEVER).stored_length(1, 1)


def read_all(store: BlockStore, size: int) -> None:
    """Read a block cell by cell."""
    for _ in store.read(1, 1, 0, size):
        pass


def read_back(folder: Path, mib: int, rounds: int) -> list[dict[str, Any]]:
    """Measure reading a block from the page cache, and the reads of a restart."""
    store, data = BlockStore(folder / "data", fsync=NEVER), memoryview(random.Random(1).randbytes(MIB))
    with store.open_writer(1, 1, 0, CELL_BYTES) as writer:
        for number in range(mib):
            writer.write(number * MIB, data)
    size = mib * MIB
    runs: dict[str, list[Figures]] = {"read": [], "checksums": []}
    for _ in range(rounds):
        runs["checksums"].append(measured(size, size // CELL_BYTES, int, partial(restart, folder / "data")))
        runs["read"].append(measured(size, size // CELL_BYTES, int, partial(read_all, store, size)))
    store.delete(1, 1)
    return [row(Case(store=name, fsync=NEVER, packet_bytes=CELL_BYTES), found) for name, found in runs.items()]


def row(case: Case, runs: list[Figures]) -> dict[str, Any]:
    """Return a case's figures: medians over its runs."""
    return {
        "store": case.store,
        "fsync": case.fsync,
        "packet_bytes": case.packet_bytes,
        "mb_per_second": round(statistics.median(one.size / one.seconds for one in runs) / 1e6, 1),
        "cpu_us_per_packet": round(statistics.median(one.cpu_seconds / one.packets for one in runs) * 1e6, 1),
        "fsyncs_per_gib": round(statistics.median(one.fsyncs / one.size for one in runs) * (1 << 30), 1),
    }


def cases_of(packets: list[int], policies: list[str]) -> list[Case]:
    """Return all cases."""
    cases = [Case(store="plain", fsync=CLOSE, packet_bytes=size) for size in packets]
    cases += [Case(store="blocks", fsync=policy, packet_bytes=size) for policy in policies for size in packets]
    small = [size for size in packets if 2 * size <= VECTOR_BYTES]
    return cases + [
        Case(store="vectored", fsync=policy, packet_bytes=size)
        for policy in policies if policy != PACKET for size in small
    ]  # fmt: skip


def main() -> None:
    """Measure, print a table for people and lines for programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (a temporary directory)")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packets", type=int, nargs="+", default=[4096, 65536, MIB])
    parser.add_argument("--fsync", nargs="+", choices=FSYNC_POLICIES, default=list(FSYNC_POLICIES))
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stratolog-blocks-", dir=asked.folder))
    cases = cases_of(asked.packets, asked.fsync)
    runs: dict[Case, list[Figures]] = {case: [] for case in cases}
    try:
        for number in range(asked.rounds):
            for case in random.Random(number).sample(cases, len(cases)):
                runs[case].append(run(folder, case, asked.mib))
        rows = [row(case, runs[case]) for case in cases] + read_back(folder, asked.mib, asked.rounds)
    finally:
        shutil.rmtree(folder)
    table = Table("store", "fsync", "packet", "MB/s", "processor us/packet", "fsyncs/GiB")
    for one in rows:
        print(json.dumps(one))
        table.add_row(*(str(value) for value in one.values()))
    Console(stderr=True).print(table)


if __name__ == "__main__":
    main()
