"""What the campaigns of installs share: the stack under load, a node that loses its disk, and the comparison after an install."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicated_db.shell.bootstrap.candidate import candidate_folder
from schemas.records.verdict_words import INCREMENTAL
from stratolog.drills.installs.core.stages import InstallStage, ReplicaState, is_replaying
from stratolog.drills.installs.dying_node import command_of
from stratolog.drills.installs.leavings import left_behind
from stratolog.drills.kit import load as light
from stratolog.drills.kit.rebuild import database_of
from stratolog.drills.kit.taps import ReportTap, sums_of
from tests.chaos.campaign import Chaos, Fault, Load, Plan, under_load
from tests.chaos.damage import LogMark
from tests.support.faults.stack_faults import fresh_volume
from tests.support.local.stack import TestStack

SHARD = 0
LOAD = Load(clients=1, in_flight=4, rate=8.0, doors=("kafka",))
"""Light: what is counted here are faults; and the database stays small, so that each install is short."""

LATER = 5
"""Acknowledgements between two installs, so that each has something of its own."""


class InstallWorld:
    """A stack under load whose node ``victim`` installs again and again."""

    def __init__(self, chaos: Chaos, reports: ReportTap, stop: threading.Event) -> None:
        self.chaos = chaos
        self.stack = chaos.stack
        self.random = chaos.random
        self.victim = chaos.followers()[0]
        self.wrong: list[str] = []
        self.installs = 0
        self.logs_read = 0
        self._reports = reports
        self._stop = stop

    def goes_on(self) -> bool:
        """Whether nobody has asked to end: what has been done is compared then, and told."""
        return not self._stop.is_set()

    @property
    def database(self) -> Path:
        return database_of(self.stack.settings, self.victim, SHARD)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.stack.names if name != self.victim]

    # ---------------------------------------------------------------------------------- data

    def keep_a_snapshot(self) -> None:
        """Have every replica take a checkpoint that stays, in a volume of its own."""
        volume = fresh_volume(SHARD, 1)
        with self.stack.client() as client:
            client.create_volume(volume)
            client.create_bucket(volume, "kept")
            client.create_snapshot(volume, "kept", "first")

    def fill(self, names: int, name_bytes: int) -> None:
        """Write keys with long names, which no compression makes small."""
        with self.stack.client() as client:
            light.Load(client, [fresh_volume(SHARD, 1)]).put_many(names, name_bytes)

    # ----------------------------------------------------------------------------- the victim

    def need_install(self, *, keep_checkpoints: bool = False) -> None:
        """Have the victim run and caught up, then kill it and take its disk; with its checkpoints kept, its database alone."""
        self.have_back()
        self.chaos.wait_progress(LATER)
        self.stack.kill_node(self.victim)
        self.lose_disk(keep_checkpoints=keep_checkpoints)

    def lose_disk(self, *, keep_checkpoints: bool = False) -> None:
        """Delete what the victim, which does not run, has stored."""
        if keep_checkpoints:
            shutil.rmtree(self.database, ignore_errors=True)
            shutil.rmtree(candidate_folder(self.database), ignore_errors=True)
        else:
            shutil.rmtree(self.stack.settings.node_folder(self.victim), ignore_errors=True)

    def have_back(self) -> None:
        """Have all nodes run, and the victim caught up."""
        for name in self.stack.names:
            if name not in self.stack.nodes:
                self.stack.start_node(name)
        for name in self.stack.names:
            self.chaos.wait_caught_up(name)

    def compare(self, mark: LogMark) -> None:
        """Wait until the victim is back; it must have installed (or read the log, and said so), and its rows be the others'."""
        self.have_back()
        if any("so this replica reads the log" in str(line.get("message")) for line in mark.lines()):
            self.logs_read += 1
        elif self.stack.shard(self.victim, SHARD).get("installed"):
            self.installs += 1
        else:
            self.wrong.append(f"{self.victim} has neither installed nor read the log")
        self._compare_scan()
        self._compare_reports()

    def _compare_scan(self) -> None:
        """Compare a full scan of the victim with its digest at the same moment."""
        answer = self.stack.get(self.victim, f"/v1/shards/{SHARD}/digest", scrub="true").json()
        if answer["digest"] != answer["incremental"]["digest"]:
            self.wrong.append(f"{self.victim}: its rows are not those of its digest at index {answer['index']}")

    def _compare_reports(self) -> None:
        """Compare what all replicas have published at one barrier from now on."""
        since = self.chaos.applied(self.chaos.wait_leader(SHARD))
        found: Any = self.stack.wait(
            "reports of all nodes at one barrier",
            lambda: self._reports.barrier(INCREMENTAL, self.stack.names, since),
        )  # fmt: skip
        sums = {name: sums_of(report) for name, report in found.items()}
        if len({tuple(sorted(one.items())) for one in sums.values()}) != 1:
            self.wrong.append(f"digests differ at a barrier behind offset {since}")


class StackVictim:
    """A node of a test's stack; what ``stratolog.drills.installs.kills.Victim`` wants."""

    def __init__(self, stack: TestStack, name: str, database: Path) -> None:
        self._stack = stack
        self._name = name
        self.database = database
        self.log = stack.log_file(name)

    def start(self, dies_in: InstallStage | None = None) -> None:
        if self._name not in self._stack.nodes:
            self._stack.start_node(self._name, None if dies_in is None else command_of(self._name, dies_in))

    def kill(self) -> None:
        """SIGKILL; it may have died by itself meanwhile."""
        self._stack.nodes.pop(self._name).kill()

    def runs(self) -> bool:
        return self._name in self._stack.nodes and self._stack.nodes[self._name].is_running()

    def replays(self) -> bool:
        return is_replaying(self._stack.shard(self._name, SHARD))

    def left(self) -> ReplicaState:
        return left_behind(self._stack.settings, self.database, SHARD)


@contextmanager
def install_world(
    fault: Fault, folder: Path, *, seed: int, times: int, stop: threading.Event | None = None
) -> Iterator[InstallWorld]:
    """Start a stack whose empty replicas install, and clients that write. Once ``stop`` is set, a campaign ends early."""
    fault = replace(fault, settings=(*fault.settings, ("bootstrap_records", 1)))
    with under_load(Plan(fault=fault, times=times, load=LOAD, seed=seed), folder) as chaos:
        reports = ReportTap(chaos.stack.settings.bootstrap_servers, SHARD)
        try:
            yield InstallWorld(chaos, reports, stop or threading.Event())
        finally:
            reports.close()
