"""Kill and pause datanodes, leaders and clients at random while files are written, and read every acknowledged one back from every replica.

    python -m tests.chaos.datanodes --kills 100 [--writers 3] [--seed 1] [--dead-half]

Four datanodes, two pipelines over them, a broker, and client processes that write files of known contents in all ways of committing. A client
journals a file when its ``close`` has returned: that is what *acknowledged* means. Each round kills (or stops for a while) a datanode, a pipeline's
leader, two datanodes at once, or a client, and goes on when files are acknowledged again. At the end all run, the clients finish, and each
block of each acknowledged file is read from every member of its pipeline. *Lost*: a replica does not have it. *Wrong*: it has other bytes.
With ``--dead-half`` there are three datanodes with one pipeline, and each round has one of them dead for half of its time: nobody can replace it.
Each client also writes some keys again and again with writers of which most fail, and which are closed all the same (``failing_writers``).
*Replaced*: such a key does not hold its old bytes, or its fully acknowledged new ones.

Prints what happens on standard error and at the end one JSON line on standard output. Exit status 1 if anything is lost, wrong, replaced or divergent.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.records.datanode import Member
from stratolog.local.processes import Process, spawn
from tests.chaos.command import note, run_campaign
from tests.chaos.failing_writers import Overwriter, counted
from tests.support.datanodes.datanodes import ROOT, Block, Datanodes
from tests.support.faults.datanode_faults import block_problem, settle
from tests.support.local.stack import LocalKafka
from tests.support.sdk.key_world import KIB, MIB, KeyWorld

PIPELINES = {1: ["dn1", "dn2", "dn3"], 2: ["dn4", "dn3", "dn2"]}
ONE_PIPELINE = {1: ["dn1", "dn2", "dn3"]}
"""Of the campaign in which one of three datanodes is dead for half of the time."""
MIN_FILE_BYTES, MAX_FILE_BYTES = 1, 5 * MIB
PIECE_BYTES = 100 * KIB
LONGEST_PAUSE_S = 4.0
PROGRESS_S = 180.0
"""How long after a fault a file must be acknowledged again."""
OVERWRITES = 2
"""Keys that a client writes again for each new one."""
PROBLEMS = ("lost", "wrong", "replaced", "divergent")
DUE = ("datanode", "datanode", "leader", "leader", "two", "client")
"""What is hit, by weight."""


# ------------------------------------------------------------------------------------------------------- a client process


@dataclass(frozen=True)
class Fleet:
    """What a client's process knows of the datanodes."""

    pipelines: dict[int, list[str]]
    addresses: dict[str, str]

    def members(self, names: list[str]) -> list[Member]:
        return [
            Member(datanode=name, address=self.addresses[name], http_address="", rack="/default-rack") for name in names
        ]


def write_files(number: int, addresses: dict[str, str], pipelines: dict[int, list[str]], path: Path) -> None:
    """Write files until SIGTERM, one after the other, and journal each that is acknowledged."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    fleet: Any = Fleet(pipelines, addresses)
    world = KeyWorld(fleet, number=number)
    chance = random.Random(number)
    overwriter = Overwriter(world, number, random.Random(-number))
    with path.open("a") as journal:
        while not stop.is_set():
            for _ in range(OVERWRITES):
                journal.write(json.dumps(overwriter.turn()) + "\n")
                journal.flush()
            seed = chance.randrange(2**60)
            length = chance.randint(MIN_FILE_BYTES, MAX_FILE_BYTES)
            data, key = random.Random(seed).randbytes(length), f"k{seed}"
            with world.client.open(
                f"/v/b/{key}", "wb", options=world.options(commit_way=chance.choice([0, 1, 2, 3]))
            ) as file:
                for at in range(0, length, PIECE_BYTES):
                    file.write(data[at : at + PIECE_BYTES])
                    if chance.random() < 0.05:
                        file.hsync()
            blocks = [[b.container_id, b.local_id, b.offset, b.length, b.bcs_id] for b in world.blocks(key)]
            journal.write(json.dumps({"seed": seed, "length": length, "blocks": blocks}) + "\n")
            journal.flush()
    world.close()


# ------------------------------------------------------------------------------------------------------------ the campaign


class Campaign:
    """Faults, one after the other, on datanodes that clients write to."""

    def __init__(self, nodes: Datanodes, folder: Path, *, writers: int, seed: int, dead_half: bool = False) -> None:
        self.nodes = nodes
        self._dead_half = dead_half
        self.hit: Counter[str] = Counter()
        self._folder = folder
        self._chance = random.Random(seed)
        self._started = 0
        self._writers: list[Process] = []
        for _ in range(writers):
            self._start_writer()

    def _start_writer(self) -> None:
        self._started += 1
        addresses = json.dumps({name: self.nodes.address(name) for name in self.nodes.names})
        command = [sys.executable, "-m", "tests.chaos.datanodes", "--client", str(self._started)]
        command += ["--dead-half"] * self._dead_half + [
            "--addresses",
            addresses,
            "--journal",
            str(self._journal(self._started)),
        ]
        log = self._folder / "logs" / f"writer{self._started}.log"
        self._writers.append(spawn(command, log=log, detached=False, cwd=ROOT))

    def _journal(self, number: int) -> Path:
        return self._folder / f"journal{number}"

    def acknowledged(self) -> list[dict[str, Any]]:
        """Return the files that were acknowledged."""
        return [line for line in self.journalled() if "blocks" in line]

    def journalled(self) -> list[dict[str, Any]]:
        """Return what all clients have journalled; a line that its client was killed in is none."""
        found = []
        for number in range(1, self._started + 1):
            with suppress(FileNotFoundError):
                lines = self._journal(number).read_text().splitlines(keepends=True)
                found += [json.loads(line) for line in lines if line.endswith("\n")]
        return found

    def round(self) -> None:
        """Inject one fault, undo it, and wait until files are acknowledged again."""
        nodes, chance = self.nodes, self._chance
        what = "half" if self._dead_half else chance.choice(DUE)
        if what == "half":
            self._have_one_dead()
        elif what == "client":
            self._writers.pop(chance.randrange(len(self._writers))).kill()
            self._start_writer()
            self.hit["client kills"] += 1
        else:
            victims = self._victims(what)
            pause = chance.random() < 0.3
            self.hit[f"{what}: {'pauses' if pause else 'kills'}"] += 1
            for name in victims:
                (nodes.pause if pause else nodes.kill)(name)
            time.sleep(chance.uniform(0, LONGEST_PAUSE_S))
            for name in victims:
                (nodes.resume if pause else nodes.start)(name)
        before = len(self.acknowledged())
        nodes.wait("files are acknowledged again", lambda: len(self.acknowledged()) > before, PROGRESS_S)

    def _have_one_dead(self) -> None:
        """Have one datanode dead for a while, and then alive for as long."""
        victim, begun_s = self._victims("datanode")[0], time.monotonic()
        self.hit[f"{victim} dead"] += 1
        self.nodes.kill(victim)
        time.sleep(self._chance.uniform(0, LONGEST_PAUSE_S))
        self.nodes.start(victim)
        time.sleep(time.monotonic() - begun_s)

    def _victims(self, what: str) -> list[str]:
        if what == "leader":
            return [self.nodes.wait_leader(self._chance.choice(list(self.nodes.pipelines)))]
        return self._chance.sample(self.nodes.names, 2 if what == "two" else 1)

    def finish(self) -> None:
        """Have everybody run, and the clients end."""
        settle(self.nodes)
        for writer in self._writers:
            writer.signal(signal.SIGTERM)
        for writer in self._writers:
            if not writer.wait(PROGRESS_S):
                raise AssertionError(f"a client does not end\n{self.nodes.logs()}")

    def judge(self) -> Iterator[tuple[str, str]]:
        """Yield (``lost``, ``wrong``, ``replaced`` or ``divergent``, what) for all that does not hold."""
        for line in self.journalled():
            if "problem" in line:
                yield "replaced", str(line)
        for found in self.acknowledged():
            data = random.Random(found["seed"]).randbytes(found["length"])
            if sum(block[3] for block in found["blocks"]) != len(data):
                yield "lost", f"{found} has not all bytes"
            for container_id, local_id, offset, length, bcs_id in found["blocks"]:
                block = Block(container_id % 256, container_id, local_id)
                for name in self.nodes.pipelines[block.partition]:
                    if (
                        problem := block_problem(self.nodes, name, block, data[offset : offset + length], bcs_id)
                    ) is not None:
                        yield problem
        for partition in self.nodes.pipelines:
            try:
                self.nodes.wait_converged(partition)
            except AssertionError as error:
                yield "divergent", str(error)


def run(folder: Path, *, kills: int, writers: int, seed: int, dead_half: bool = False) -> dict[str, Any]:
    """Run a campaign and return its figures."""
    with ExitStack() as started:
        kafka = started.enter_context(LocalKafka(folder / "kafka"))
        pipelines = ONE_PIPELINE if dead_half else PIPELINES
        nodes = started.enter_context(Datanodes(folder, kafka, count=3 if dead_half else 4))
        for partition, names in pipelines.items():
            nodes.open_pipeline(partition, names)
        campaign = Campaign(nodes, folder, writers=writers, seed=seed, dead_half=dead_half)
        try:
            for number in range(1, kills + 1):
                campaign.round()
                if number % 10 == 0:
                    note(f"{number} of {kills}: {len(campaign.acknowledged())} files; {dict(campaign.hit)}")
        finally:
            campaign.finish()
        files = campaign.acknowledged()
        note(f"comparing {len(files)} files")
        problems: Counter[str] = Counter()
        for kind, what in campaign.judge():
            problems[kind] += 1
            note(f"{kind}: {what}")
    return {
        "faults": kills, "hit": dict(campaign.hit), "acknowledged_files": len(files),
        "acknowledged_bytes": sum(found["length"] for found in files),
        "failed_writers": counted(campaign.journalled())["failed"],
        **{kind: problems[kind] for kind in PROBLEMS},
    }  # fmt: skip


def main() -> int:
    """Run a campaign, or be one of its clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="faults to inject")
    parser.add_argument("--writers", type=int, default=3, help="client processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dead-half", action="store_true", help="one of three datanodes is dead for half of the time")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        write_files(
            options.client, options.addresses, ONE_PIPELINE if options.dead_half else PIPELINES, options.journal
        )
        return 0

    def body(folder: Path) -> tuple[dict[str, Any], bool]:
        figures = run(
            folder, kills=options.kills, writers=options.writers, seed=options.seed, dead_half=options.dead_half
        )
        return figures, not any(figures[kind] for kind in PROBLEMS)

    return 0 if run_campaign("tests.chaos.datanodes", {}, body, "datanodes") else 1


if __name__ == "__main__":
    sys.exit(main())
