"""Records histories of a real stack under faults, one fault each, and has them checked.

    python -m tests.linearizability.campaign --histories 200 --seed 1 --out DIR     what `make linearizability` does

Three nodes, two shards, one broker. A history has two fresh volumes, one on each shard, three writers (one through the brokers, one
straight to the leader, one by both ways) and a reader on each node at ``linearizable``, over HTTP and by the direct door. Its fault hits one shard's leader (or a node that leads nothing) in the middle of it; it goes on until the shard's volume
has been written again, and ends with a reading of everything on every node that runs. Faults take turns, moments are
random, from the seed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from producers import Client
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.faults import lose_leader
from stratolog.drills.kit.session import Session
from tests.chaos.campaign import DOORS
from tests.chaos.run import doors
from tests.linearizability.checker import LINEARIZABLE, CheckerError, Verdict, build, check
from tests.linearizability.history import History
from tests.linearizability.recorder import BUCKETS, Reader, Writer, crowd
from tests.support.faults.stack_faults import bystander, fresh_volume
from tests.support.local.stack import TestStack

SHARDS = 2
SESSION_TIMEOUT_MS = 1_500
WRITERS_DEADLINE_MS = (1_000, 30_000, 30_000)
KAFKA, DIRECT, BOTH = DOORS
WRITERS_DOORS = (DIRECT, KAFKA, BOTH)
"""By which door each writer sends, in turn."""
CALM_S = (0.2, 0.7)
"""How long a history runs before its fault."""
LEAST_AFTER_S = 0.7
WRITTEN_AGAIN = 15
"""So many writes to the shard that was hit must have succeeded after the fault before a history ends."""
SETTINGS: dict[str, Any] = {"shards": SHARDS, "barrier_interval_ms": 500, "session_timeout_ms": SESSION_TIMEOUT_MS}

# ------------------------------------------------------------------------------------------------------------- faults


def inject(stack: TestStack, shard: int, fault: ProcessFault) -> None:
    """Take a leader away until another leads. One that was frozen wakes, and believes for a moment that it still does."""
    lose_leader(Session(), stack, shard, fault).give_back()


def kill_follower(stack: TestStack, _shard: int) -> None:
    stack.take(None, bystander(stack), ProcessFault.KILL)()


Fault = Callable[[TestStack, int], None]
FAULTS: dict[str, Fault] = {
    "leader SIGKILL": partial(inject, fault=ProcessFault.KILL),
    "leader SIGSTOP, SIGCONT": partial(inject, fault=ProcessFault.PAUSE),
    "leader SIGTERM": partial(inject, fault=ProcessFault.STOP),
    "follower SIGKILL": kill_follower,
}

# --------------------------------------------------------------------------------------------------------- recording


@dataclass(slots=True)
class Tally:
    """What was seen under one fault."""

    histories: int = 0
    operations: int = 0
    reads: int = 0
    by_door: int = 0
    by_pages: int = 0
    puts: int = 0
    unknown: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)


class Campaign:
    """Histories of one running stack."""

    def __init__(self, stack: TestStack, clients: Sequence[Client], *, out: Path, program: Path, seed: int) -> None:
        self.tallies: dict[str, Tally] = {}
        self.bad: list[Verdict] = []
        self._stack = stack
        self._clients = clients
        self._out = out
        self._program = program
        self._rng = random.Random(seed)
        self._seed = seed
        self._by_door = 0
        """Reads of the last history that took the direct door."""
        self._by_pages = 0
        """Listings among them that were answered in more pages than one."""

    def run(self, histories: int) -> Iterator[tuple[str, Verdict]]:
        """Record and check so many histories, faults in turn; yield (fault, verdict) of each."""
        for number in range(histories):
            fault = list(FAULTS)[number % len(FAULTS)]
            # A killed node that has just come back has not been given a shard yet: let it be there first.
            self._stack.wait_led()
            if fault.startswith("follower"):
                self._stack.wait("a node that leads nothing", self._has_bystander)
            history = self.record(fault)
            verdict = self.judge(history, f"seed{self._seed}-{number:04d}")
            tally = self.tallies.setdefault(fault, Tally())
            tally.histories += 1
            tally.operations += verdict.operations
            tally.reads += sum(bool(one.node) for one in history.operations)
            tally.by_door += self._by_door
            tally.by_pages += self._by_pages
            tally.puts += sum(one.op == "put_key" and one.code == "OK" for one in history.operations)
            tally.unknown += verdict.unknown_outcomes
            tally.verdicts[verdict.verdict] += 1
            yield fault, verdict

    def _has_bystander(self) -> bool:
        leading = {name for shard in range(SHARDS) for name in self._stack.leaders(shard)}
        return len(self._stack.nodes) > len(leading)

    def record(self, fault: str) -> History:
        """Record one history with one fault in it."""
        stack, rng = self._stack, self._rng
        shard = rng.randrange(SHARDS)
        history, volumes = self.begin()
        readers = self.readers(history, volumes)
        with crowd(self.writers(history, volumes), readers):
            time.sleep(rng.uniform(*CALM_S))
            FAULTS[fault](stack, shard)
            healed_ns = time.monotonic_ns()
            time.sleep(LEAST_AFTER_S)
            again = f"{WRITTEN_AGAIN} more writes to shard {shard}"
            stack.wait(again, lambda: history.written_since(healed_ns, volumes[shard]) >= WRITTEN_AGAIN)
        for reader in readers:
            if reader.node in stack.nodes:
                reader.read_all()
            reader.close()
        self._by_door = sum(reader.by_door for reader in readers)
        self._by_pages = sum(reader.by_pages for reader in readers)
        return history

    def begin(self) -> tuple[History, list[str]]:
        """Return a new history and the volumes it is about, one on each shard, which are there with their buckets."""
        shards = self._stack.settings.shards
        history = History()
        volumes = [fresh_volume(shard, shards) for shard in range(shards)]
        writer = self.writers(history, volumes)[-1]
        for volume in volumes:
            writer.write("create_volume", {"volume": volume})
            for bucket in BUCKETS:
                writer.write("create_bucket", {"volume": volume, "bucket": bucket})
        return history, volumes

    def writers(self, history: History, volumes: Sequence[str]) -> list[Writer]:
        sizes = count(1)
        return [
            Writer(
                number=number, client=client, history=history, volumes=volumes, sizes=sizes,
                rng=random.Random(self._rng.random()),
            )
            for number, client in enumerate(self._clients)
        ]  # fmt: skip

    def readers(self, history: History, volumes: Sequence[str], consistency: str = "linearizable") -> list[Reader]:
        first = len(self._clients)
        return [
            Reader(
                number=number, node=name, address=self._stack.address(name), history=history, volumes=volumes,
                rng=random.Random(self._rng.random()), consistency=consistency,
            )
            for number, name in enumerate(self._stack.names, start=first)
        ]  # fmt: skip

    def judge(self, history: History, name: str) -> Verdict:
        """Check a history; its file stays if it is not linearizable."""
        path = history.save(self._out / f"{name}.jsonl")
        verdict = check(self._program, [path], report=self._out)[0]
        if verdict.verdict == LINEARIZABLE:
            path.unlink()
        else:
            self.bad.append(verdict)
        return verdict

    def table(self) -> str:
        """Return what was seen, a line for each fault."""
        rows = [
            f"{'fault':26} {'histories':>9} {'operations':>10} {'reads':>8} {'by door':>8} {'by pages':>8} {'put_key':>8} {'unknown':>8}  verdicts"
        ]
        rows += [
            f"{fault:26} {tally.histories:>9} {tally.operations:>10} {tally.reads:>8} {tally.by_door:>8} "
            f"{tally.by_pages:>8} {tally.puts:>8} {tally.unknown:>8}  "
            + ", ".join(f"{number} {verdict}" for verdict, number in tally.verdicts.items())
            for fault, tally in self.tallies.items()
        ]
        return "\n".join(rows)


@contextmanager
def clients_of(
    stack: TestStack, deadlines_ms: Sequence[int] = WRITERS_DEADLINE_MS, by: Sequence[str] = WRITERS_DOORS
) -> Iterator[list[Client]]:
    """Open the writers' clients."""
    nodes = [stack.address(name) for name in stack.names]
    with ExitStack() as opened:
        found = []
        for number, deadline_ms in enumerate(deadlines_ms):
            door = by[number % len(by)]
            client = Client(
                "" if door == DIRECT else stack.settings.bootstrap_servers, nodes=[] if door == KAFKA else nodes,
                caller="recorder", deadline_ms=deadline_ms,
            )  # fmt: skip
            client.close_timeout_ms = 1_000
            found.append(opened.enter_context(client))
        yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign on a stack of its own; return the exit status."""
    parser = argparse.ArgumentParser(description="Record histories under faults and check that they are linearizable.")
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where histories that fail, and the reports on them, are kept")
    parser.add_argument(
        "--doors", type=doors, default=WRITERS_DOORS,
        help=f"the writers' ways to the leader, in turn, the first one's deadline being short: some of {', '.join(DOORS)}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    out = options.out or Path(tempfile.mkdtemp(prefix="linearizability-"))
    begin_s = time.monotonic()
    try:
        program = build(out / "bin")
    except CheckerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stack = TestStack(out / "stack", nodes=3, **SETTINGS)
    with stack, clients_of(stack, by=options.doors) as clients:
        campaign = Campaign(stack, clients, out=out, program=program, seed=options.seed)
        for number, (fault, verdict) in enumerate(campaign.run(options.histories), start=1):
            if verdict.verdict != LINEARIZABLE or number % 10 == 0 or number == options.histories:
                print(
                    f"{number:>4}/{options.histories} {time.monotonic() - begin_s:6.0f} s  {fault}: {verdict.verdict}, "
                    f"{verdict.operations} operations", flush=True,
                )  # fmt: skip
    print(campaign.table())
    for bad in campaign.bad:
        print(f"{bad.history}: {bad.verdict}: {bad.illegal}", file=sys.stderr)
    if campaign.bad:
        print(f"kept in {out}", file=sys.stderr)
    elif options.out is None:
        shutil.rmtree(out)
    return 1 if campaign.bad else 0


if __name__ == "__main__":
    sys.exit(main())
