"""What a user does all day, measured: one small file, one lookup, one request, and a stack at rest.

    python -m benchmarks.user [--brokers 1 3] [--only idle put get lookup request] [--seconds 10] [--clients 1 16]
                              [--no-audit] [--compile 120]

======= ==============================================================================================================
idle    cores that the stack takes while nothing is asked of it, without the audit and with it, by process; before
        that the same of brokers alone, and of brokers with six Faust followers that have no duties
put     files of 4 KiB, 32 KiB and 1 MiB, written through ``client.open(…, "wb")``
get     files of 4 KiB and 32 KiB, read back
lookup  ``client.key_info`` at each consistency level, and ``client.key_infos`` of 100 keys, through one node
request CreateKey at one in flight: straight to the leader, through the brokers, and beside them in turns a bare produce
        with ``acks=all`` of one record at a time, at once and each millisecond, and a relay that does with a request
        what a leader must do at least (``bare_relay``)
======= ==============================================================================================================

Everything is real and runs here: brokers, three Object Managers, three datanodes, the audit, and the user in a process
of its own with ``--clients`` threads. Before the first figure the stack does some work of each kind for ``--compile``
seconds: until then a broker's compiler takes up to a quarter of a core, also at rest. It does so again once the audit
runs, for Spark's compiler. Standard output has one JSON
object a line: `what`, `brokers`, `size`, `clients`, `per_second`, `p50_ms`, `p99_ms`, `cpu_ms` (of all processes, per
operation), `cpu_ms_by_process`; the first line is the machine (``benchmarks/machine.py``). A table goes to standard
error. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.user.commands import CREATE, GET, LOOKUP, LOOKUPS, PRODUCE, PUT, RELAY, UserCommand
from benchmarks.user.system import PLAIN_TOPIC, UserSystem, bare, user_system

KIB, MIB = 1024, 1024**2
PARTS = ("idle", "put", "get", "lookup", "request")
LEVELS = ("stale", "session", "linearizable")
PUT_SIZES = (4 * KIB, 32 * KIB, MIB)
READ_FILES = {4 * KIB: 500, 32 * KIB: 500}
IDLE_S = 60.0
SETTLE_S = 120.0
"""Seconds without work before the stack counts as idle."""
BARE_FOLLOWERS = 6
"""As many Faust followers as the stack has: of three Object Managers and three datanodes."""
COMPILE_S = 120.0
"""Seconds of mixed work before the first figure. The JVMs of peers are given as long."""
COMPILE_CLIENTS = 16
TURNS = 3
"""Turns of the one request and the plain produce."""
PAUSE_S = 0.001
"""How long the paced produce rests between two records: about as long as a request's other steps take."""

Emit = Callable[..., None]


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", type=int, nargs="+", choices=(1, 3), default=[1, 3])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of load before each measurement")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16], help="threads of the user")
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds before the stack counts as idle")
    parser.add_argument(
        "--compile", type=float, default=COMPILE_S, help="seconds of mixed work before the first figure"
    )
    parser.add_argument("--no-audit", action="store_true")
    return parser.parse_args(arguments)


class UserBench:
    """The parts, on one running stack."""

    def __init__(self, system: UserSystem, options: argparse.Namespace, emit: Emit) -> None:
        self._system = system
        self._options = options
        self._emit = emit
        self._brokers = system.stack.settings.bootstrap_servers

    def _measure(self, command: UserCommand, **shown: Any) -> None:
        row = {"what": command.what, "size": command.size, "clients": command.clients, **shown}
        self._emit(**row, **self._system.measure(command))

    def _command(self, what: str, clients: int, **more: Any) -> UserCommand:
        timing = {"seconds": self._options.seconds, "warm_up_seconds": self._options.warm_up}
        nodes = {"nodes": self._system.nodes}
        return UserCommand(what=what, clients=clients, **{**timing, **nodes, **more})

    def idle(self, *, audited: bool) -> None:
        """Rest, and look."""
        say(f"resting for {self._options.settle:.0f} s")
        time.sleep(self._options.settle)
        self._emit(what="idle", audit=audited, **self._system.idle(IDLE_S))

    def compile(self, seconds: float) -> None:
        """Let the stack do some work of each kind, so that its JVMs compile what work needs; show nothing of it."""
        (small, count), (large, _) = READ_FILES.items()
        work = (
            self._command(PUT, COMPILE_CLIENTS, size=small),
            self._command(PUT, COMPILE_CLIENTS, size=large),
            self._command(CREATE, COMPILE_CLIENTS, nodes=(), brokers=self._brokers),
            self._command(LOOKUP, COMPILE_CLIENTS, size=small, keys=count, consistency="linearizable"),
        )
        for command in work:
            self._system.measure(replace(command, warm_up_seconds=0.0, seconds=seconds / len(work)))

    def put(self) -> None:
        """Write files."""
        for size in PUT_SIZES:
            for clients in self._options.clients:
                self._measure(self._command(PUT, clients, size=size))

    def get(self) -> None:
        """Read files."""
        for size, count in READ_FILES.items():
            for clients in self._options.clients:
                self._measure(self._command(GET, clients, size=size, keys=count))

    def lookup(self) -> None:
        """Look keys up, one at a time and many at a time, through one node."""
        (size, count), *_ = READ_FILES.items()
        for level in LEVELS:
            for what in (LOOKUP, LOOKUPS):
                for clients in self._options.clients:
                    more = {"size": size, "keys": count, "consistency": level, "nodes": self._system.nodes[:1]}
                    self._measure(self._command(what, clients, **more), consistency=level)

    def request(self) -> None:
        """One request at a time, through either door, beside the plain produce.

        A producer that sends the next record at once finds threads and caches warm. So it is also measured at the pace
        of requests.
        """
        plain = self._command(PRODUCE, 1, nodes=(), brokers=self._brokers, topic=PLAIN_TOPIC)
        with self._system.relay() as relay:
            relayed = self._command(RELAY, 1, nodes=(relay,))
            for turn in range(TURNS):
                for door, command in (
                    ("none", plain),
                    ("none, paced", replace(plain, pause_s=PAUSE_S)),
                    ("none, relayed", relayed),
                    ("none, relayed, paced", replace(relayed, pause_s=PAUSE_S)),
                    ("direct", self._command(CREATE, 1)),
                    ("kafka", self._command(CREATE, 1, nodes=(), brokers=self._brokers)),
                ):
                    self._measure(command, door=door, turn=turn)


def run(brokers: int, options: argparse.Namespace, emit: Emit) -> None:
    """Measure all parts on a stack with so many brokers."""
    with tempfile.TemporaryDirectory(prefix="stratolog-bench-user-") as folder, ExitStack() as open_:
        if "idle" in options.only:
            for followers in (0, BARE_FOLLOWERS):
                say(f"brokers and {followers} bare followers, resting for {options.settle:.0f} s")
                place = Path(folder) / f"bare-{followers}"
                emit(what="bare", **bare(place, brokers, followers, options.settle, IDLE_S))
        say(f"starting a stack with {brokers} broker{'s' if brokers > 1 else ''}")
        system = open_.enter_context(user_system(Path(folder), brokers))
        system.prepare(READ_FILES)
        bench = UserBench(system, options, emit)
        if options.compile:
            say(f"mixed work for {options.compile:.0f} s")
            bench.compile(options.compile)
        if "idle" in options.only:
            bench.idle(audited=False)
        if not options.no_audit:
            say("starting the audit")
            open_.enter_context(system.audited())
            if "idle" in options.only:
                bench.idle(audited=True)
            if options.compile:
                say(f"mixed work for {options.compile:.0f} s, with the audit")
                bench.compile(options.compile)
        for part in ("put", "get", "lookup", "request"):
            if part in options.only:
                say(part)
                getattr(bench, part)()


def shown(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """Yield the tables for people."""
    rest = Table("brokers", "with the audit", "cores at rest", "by process")
    work = Table("brokers", "what", "size", "clients", "per second", "p50 ms", "p99 ms", "processor ms")
    for row in rows:
        if row["what"] in ("idle", "bare"):
            spent = ", ".join(f"{name} {share}" for name, share in row["by_process"].items())
            alone = f"brokers and {row.get('followers')} bare followers alone"
            audited = {None: alone, False: "no", True: "yes"}[row.get("audit")]
            rest.add_row(str(row["brokers"]), audited, str(row["cores"]), spent)
            continue
        words = " ".join(str(row[name]) for name in ("what", "consistency", "door") if name in row)
        work.add_row(
            str(row["brokers"]), words, f"{row['size']:,}", str(row["clients"]), f"{row['per_second']:,.0f}",
            f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", f"{row['cpu_ms']:.2f}",
        )  # fmt: skip
    yield from (table for table in (rest, work) if table.row_count)


def main() -> None:
    """Measure, print."""
    options = parse()
    print(json.dumps({"what": "machine", **machine()}), flush=True)
    rows: list[dict[str, Any]] = []
    for brokers in options.brokers:

        def emit(brokers: int = brokers, **row: Any) -> None:
            rows.append({"brokers": brokers, **row})
            print(json.dumps(rows[-1]), flush=True)

        run(brokers, options, emit)
    for table in shown(rows):
        Console(stderr=True).print(table)


if __name__ == "__main__":
    main()
