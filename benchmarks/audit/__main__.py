"""What the running audit costs, on a broker of this machine.

    python -m benchmarks.audit [--only idle delay backlog writes] [--operations 600000] [--shards 2] [--folder DIR]

======= ==============================================================================================================
idle    the share of a core and the memory of all its processes, over a minute in which nothing is written. It is
        measured twice: once the first verdicts are there, and after the minutes that Spark needs to settle.
delay   seconds from a barrier's append to the verdict on each of its three replicas, at a barrier a second for each
        shard, under `--rate` operations/s.
backlog operations of a log that lies there when the audit starts: audited in a second of one core, and of the clock.
        It is counted from a quarter of them on, when Spark has warmed up. Rows that batches derive for retries are
        audited beside (`changes`), and not counted.
writes  requests/s of createKey + commitKey with 4,000 in flight on a stack of three nodes, in turns: without the audit,
        with it, and with it at the niceness of the nodes.
======= ==============================================================================================================

The log is made by the tests' builder as a leader under load writes it: twenty keys created and committed in a batch.
Standard output has one JSON object a line; the tables and progress go to standard error. Nothing is asserted about
time, but `diverged` fails the part. A replica may be `unknown` for a while; `unknown` counts how often that was said.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.audit.backlog import LoadedLog
from benchmarks.audit.figures import Progress, percentile, rate_of
from benchmarks.audit.running import AuditProcess, Topics, audit, now_s
from benchmarks.audit.writes import measure_writes
from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, UNKNOWN
from stratolog.cluster.verdicts import VerdictReader
from tests.support.local.stack import LocalKafka
from tests.support.logs.logbuilder import REPLICAS

PARTS = ("idle", "delay", "backlog", "writes")
KEYS_A_BATCH = 20
BATCHES_A_BARRIER = 40
IDLE_SECONDS = 60
SETTLE_SECONDS = 120
START_SECONDS = 180
WARM_BARRIERS = 20
DELAY_BARRIERS = 60
PATIENCE_SECONDS = 600
MIB = 1024**2


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--operations", type=int, default=600_000, help="of the backlog")
    parser.add_argument("--rate", type=int, default=500, help="operations/s of each shard while delays are measured")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds before the second look at idle")
    parser.add_argument("--folder", type=Path, help="for brokers, checkpoints and logs; default: a temporary one")
    parser.add_argument("--set", default="{}", help="settings of the audit, as JSON")
    return parser.parse_args(arguments)


class Bench:
    """One broker and one audit for each part."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._settings: dict[str, Any] = json.loads(options.set)
        self.rows: list[dict[str, Any]] = []
        self.unknown = 0

    def emit(self, **row: Any) -> None:
        print(json.dumps(row), flush=True)
        self.rows.append(row)

    def run(self, part: str) -> None:
        """Measure one part."""
        if part == "writes":
            self.writes()
            return
        folder = self._folder / part
        folder.mkdir(parents=True)
        with LocalKafka(folder / "kafka", brokers=1) as kafka:
            topics = Topics(kafka, self._options.shards)
            logs = [LoadedLog(shard=n, shards=self._options.shards) for n in range(self._options.shards)]
            for log in logs:
                log.start()
            measures: dict[str, Callable[..., None]] = {
                "idle": self.idle, "delay": self.delay, "backlog": self.backlog,
            }  # fmt: skip
            with closing(VerdictReader(topics.servers)) as verdicts:
                measures[part](folder, topics, logs, verdicts)

    def writes(self) -> None:
        """Measure what the audit takes of the write throughput."""
        for row in measure_writes(self._folder / "writes", self._settings, say):
            self.emit(part="writes", **row)

    def _equal(self, found: Sequence[Verdict]) -> list[Verdict]:
        """Return the verdicts `equal`, and count the `unknown` ones; AssertionError for one that is `diverged`."""
        diverged = [one for one in found if one.verdict == DIVERGED]
        if diverged:
            raise AssertionError(f"a healthy replica is diverged: {diverged[0]}")
        self.unknown += sum(one.verdict == UNKNOWN for one in found)
        return [one for one in found if one.verdict == EQUAL]

    def _until(
        self, running: AuditProcess, verdicts: VerdictReader, wanted: set[tuple[int, int]],
        seen: Sequence[Verdict] = (),
    ) -> Iterator[list[Verdict]]:  # fmt: skip
        """Yield what is `equal` until all replicas are, or were in `seen`, at the wanted (shard, barrier offset)."""
        deadline = now_s() + START_SECONDS + PATIENCE_SECONDS
        left = {(*place, node) for place in wanted for node in REPLICAS}
        left -= {(one.shard, one.barrier_offset, one.node) for one in seen}
        while left:
            running.check()
            if now_s() > deadline:
                raise TimeoutError(f"no verdicts at {sorted(left)}")
            found = self._equal(verdicts.poll(0.2))
            left -= {(one.shard, one.barrier_offset, one.node) for one in found}
            yield found

    # Idle.

    def idle(self, folder: Path, topics: Topics, logs: list[LoadedLog], verdicts: VerdictReader) -> None:
        with audit(folder, topics.servers, shards=self._options.shards, **self._settings) as running:
            self._first_verdicts(running, topics, logs, verdicts)
            for wait_s in (0.0, self._options.settle):
                _watch(running, wait_s)
                self._idle_minute(running, wait_s)

    def _idle_minute(self, running: AuditProcess, waited_s: float) -> None:
        cpu_s, began_s = running.cpu_s(), now_s()
        batch = running.health().get("batch_id")
        _watch(running, IDLE_SECONDS)
        cores = (running.cpu_s() - cpu_s) / (now_s() - began_s)
        rss, pss = running.memory_bytes()
        self.emit(
            part="idle", waited_s=waited_s, cores=round(cores, 3), rss_mib=rss // MIB, pss_mib=pss // MIB,
            micro_batches=running.health().get("batch_id", 0) - (batch or 0),
        )  # fmt: skip

    def _first_verdicts(
        self, running: AuditProcess, topics: Topics, logs: list[LoadedLog], verdicts: VerdictReader
    ) -> None:
        for log in logs:
            log.write(KEYS_A_BATCH)
            _, reports = log.reported_barrier()
            topics.send(log, reports)
        began_s = now_s()
        wanted = {(log.shard, len(log.values) - 1) for log in logs}
        for _ in self._until(running, verdicts, wanted):
            pass
        self.emit(part="start", seconds=round(now_s() - began_s, 1))

    # Delays.

    def delay(self, folder: Path, topics: Topics, logs: list[LoadedLog], verdicts: VerdictReader) -> None:
        batches = max(1, self._options.rate // (3 * KEYS_A_BATCH))
        sent: dict[tuple[int, int], float] = {}
        delays: list[float] = []

        def note(found: Sequence[Verdict]) -> None:
            delays.extend(now_s() - sent[one.shard, one.barrier_offset] for one in found)

        with audit(folder, topics.servers, shards=self._options.shards, **self._settings) as running:
            self._first_verdicts(running, topics, logs, verdicts)
            for number in range(WARM_BARRIERS + DELAY_BARRIERS):
                if number == WARM_BARRIERS:
                    delays.clear()
                    cpu_s, began_s, operations = running.cpu_s(), now_s(), sum(log.operations for log in logs)
                next_s = now_s() + 1.0
                for log in logs:
                    for _ in range(batches):
                        log.write(KEYS_A_BATCH)
                    at, reports = log.reported_barrier()
                    sent[log.shard, at.offset] = now_s()
                    topics.send(log, reports)
                seen: list[Verdict] = []  # the verdicts on the last barriers may come before the last second ends
                while (left_s := next_s - now_s()) > 0:
                    found = self._equal(verdicts.poll(left_s))
                    note(found)
                    seen += found
            cores = (running.cpu_s() - cpu_s) / (now_s() - began_s)
            done = sum(log.operations for log in logs) - operations
            for found in self._until(running, verdicts, {(log.shard, len(log.values) - 1) for log in logs}, seen):
                note(found)
        self.emit(
            part="delay", operations_per_s=round(done / DELAY_BARRIERS), verdicts=len(delays), cores=round(cores, 3),
            p50_s=round(percentile(delays, 0.5), 2), p99_s=round(percentile(delays, 0.99), 2),
            most_s=round(max(delays), 2), unknown=self.unknown,
        )  # fmt: skip

    # A backlog.

    def backlog(self, folder: Path, topics: Topics, logs: list[LoadedLog], verdicts: VerdictReader) -> None:
        behind: dict[tuple[int, int], int] = {}
        say(f"a backlog of {self._options.operations} operations is written")
        while (total := sum(log.operations for log in logs)) < self._options.operations:
            for log in logs:
                for _ in range(BATCHES_A_BARRIER):
                    log.write(KEYS_A_BATCH)
                at, reports = log.reported_barrier()
                behind[log.shard, at.offset] = log.operations
                topics.send(log, reports)
        samples: list[Progress] = []
        reached = dict.fromkeys(range(len(logs)), 0)
        with audit(folder, topics.servers, shards=self._options.shards, **self._settings) as running:
            began_s = now_s()
            for found in self._until(running, verdicts, {(log.shard, len(log.values) - 1) for log in logs}):
                for one in found:
                    reached[one.shard] = max(reached[one.shard], behind[one.shard, one.barrier_offset])
                samples.append(Progress(now_s(), sum(reached.values()), running.cpu_s()))
            whole_s, cpu_s = now_s() - began_s, running.cpu_s()
            rss, pss = running.memory_bytes()
        rate = rate_of([one for one in samples if one.operations])
        self.emit(
            part="backlog", operations=total, changes=sum(log.changes for log in logs),
            operations_per_core_s=rate.per_core_s, operations_per_s=rate.per_s, seconds_with_start=round(whole_s, 1),
            cpu_s_with_start=round(cpu_s, 1), rss_mib=rss // MIB, pss_mib=pss // MIB, unknown=self.unknown,
        )  # fmt: skip


def _watch(running: AuditProcess, seconds: float) -> None:
    """Let time pass, and look at the processes meanwhile: one that ends takes its figures with it."""
    deadline = now_s() + seconds
    while (left_s := deadline - now_s()) > 0:
        time.sleep(min(left_s, 2.0))
        running.check()
        running.cpu_s()


def print_tables(rows: Sequence[dict[str, Any]]) -> None:
    for part in dict.fromkeys(row["part"] for row in rows):
        found = [row for row in rows if row["part"] == part]
        table = Table(*found[0], title=part)
        for row in found:
            table.add_row(*map(str, row.values()))
        Console(stderr=True, width=200).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="stratolog-audit-", dir=options.folder) as name:
        bench = Bench(options, Path(name))
        for part in options.only:
            bench.run(part)
    print_tables(bench.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
