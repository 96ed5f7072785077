"""Simulate clusters: ``python -m tests.simulation SEEDS START``, or ``make simulate SEEDS=100000 START=1``.

Runs one process per processor and stops at the first failure, with its seed, its trace shrunk to what it needs, and the command
that repeats it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.simulation.trace import explain, simulate

CHUNK = 100


def run_chunk(seeds: range) -> tuple[Counter[str], int | None]:
    """Run seeds; return what was seen, and the first that failed."""
    faulthandler.enable()  # should the interpreter itself fall, it says where
    seen: Counter[str] = Counter()
    for seed in seeds:
        world, failure = simulate(seed)
        seen += world.seen
        if failure is not None:
            return seen, seed
    return seen, None


def main(seeds: int, start: int) -> int:
    """Run ``seeds`` seeds from ``start`` on; return the exit code."""
    chunks = [range(first, min(first + CHUNK, start + seeds)) for first in range(start, start + seeds, CHUNK)]
    began_s, seen, done = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(max_workers=min(len(chunks), os.cpu_count() or 1)) as pool:
        for chunk, (counted, failed) in zip(chunks, pool.map(run_chunk, chunks), strict=True):
            seen += counted
            done += len(chunk)
            if failed is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                failure = simulate(failed)[1]
                print(explain(failed, failure) if failure is not None else f"seed {failed} fails, but not again")
                return 1
            if sys.stdout.isatty():
                print(f"\r{done} seeds", end="", flush=True)
    print(f"\r{done} seeds from {start} in {time.monotonic() - began_s:.0f} s: nothing wrong")
    print("\n".join(f"  {count:>10}  {what}" for what, count in sorted(seen.items())))
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--fingerprint":
        print(simulate(int(sys.argv[2]))[0].fingerprint())
        sys.exit(0)
    if len(sys.argv) != 3 or not all(argument.isdecimal() for argument in sys.argv[1:]) or int(sys.argv[1]) < 1:
        sys.exit("usage: python -m tests.simulation SEEDS START   (two whole numbers, SEEDS at least 1)")
    try:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
    except BrokenProcessPool as broken:
        sys.exit(
            f"a process of the simulation was killed ({broken}); nothing is known of the seeds that it ran: run them again"
        )
