"""Bootstrap, snapshots and large databases, on a real stack of this machine.

    python -m benchmarks.bootstrap [--only transfer circle snapshot replay restart] [--scale 1] [--folder DIR]

========= ============================================================================================================
transfer  a database of 2 GiB with 5 snapshots under write load; a follower loses its disk and installs. Bytes and
          seconds of each round, and the leader's requests/s before, meanwhile and afterwards. `full copies` is the same
          with a candidate that has no content in any round.
circle    the same under a throttle at which full copies never get smaller, because of what is written meanwhile.
snapshot  1,000,000 keys: how long a snapshot takes, and how long requests take that are under way then.
replay    5,000,000 keys: a follower without a disk replays the log from offset 0, against an install.
restart   10,000,000 keys: until a restarted node serves, and its memory.
========= ============================================================================================================

``--scale 0.01`` makes everything a hundredth as large; ``--keys`` sets the number of keys of the last three parts.
Standard output has one JSON object a line; tables and progress go to standard error. Nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bootstrap import keys as many
from benchmarks.bootstrap import transfer as large
from benchmarks.bootstrap.figures import Sizes, scaled
from benchmarks.bootstrap.running import say

MOST_COLUMNS = 9
LARGE_PARTS = ("transfer", "circle")
KEYS_PARTS = ("snapshot", "replay", "restart")


class FigureLog:
    """The figures of a run: each is printed at once, and all in tables at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.failed: list[str] = []

    def emit(self, row: dict[str, Any]) -> None:
        """Take one figure."""
        print(json.dumps(row), flush=True)
        self.rows.append(row)

    def attempt(self, part: str, measure: Callable[[], None]) -> None:
        """Measure a part; if that fails, say so, and let the other parts be measured."""
        try:
            measure()
        except Exception:
            say(f"{part} failed:\n{traceback.format_exc()}")
            self.failed.append(part)

    def print_tables(self) -> None:
        """Print a table for each kind of figure."""
        for part in dict.fromkeys(row["part"] for row in self.rows):
            rows = [row for row in self.rows if row["part"] == part]
            for columns in dict.fromkeys(tuple(row) for row in rows):
                Console(stderr=True, width=200).print(_table([row for row in rows if tuple(row) == columns]))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return rows with the same columns as a table; one with many columns lies on its side."""
    part, *columns = rows[0]
    if len(columns) <= MOST_COLUMNS:
        table = Table(*columns, title=str(rows[0][part]))
        for row in rows:
            table.add_row(*(_shown(row[name]) for name in columns))
        return table
    table = Table(title=str(rows[0][part]), show_header=False)
    for name in columns:
        table.add_row(name, *(_shown(row[name]) for row in rows))
    return table


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def run(parts: Sequence[str], sizes: Sizes, given: argparse.Namespace, figures: FigureLog) -> None:
    """Measure the parts; those about one database share it."""
    spec = large.TransferSpec(
        in_flight=given.in_flight, metadata_bytes=given.metadata_bytes, window_s=given.window, warm_up_s=given.warm_up,
        repeats=given.repeats,
    )  # fmt: skip
    if any(part in parts for part in LARGE_PARTS):
        with large.large_database(sizes, given.folder, figures.emit) as database:
            if "transfer" in parts:
                figures.attempt("transfer", lambda: large.transfer(database, spec))
            if "circle" in parts:
                figures.attempt("circle", lambda: large.circle(database, sizes, spec))
    if any(part in parts for part in KEYS_PARTS):
        with ExitStack() as stack:
            keys = stack.enter_context(many.many_keys(given.folder, figures.emit))
            if "snapshot" in parts:
                probe = many.SnapshotSpec(
                    in_flight=given.probe_in_flight, snapshots=given.snapshots, interval_s=given.snapshot_interval
                )
                figures.attempt("snapshot", lambda: many.snapshot(keys, sizes, probe, figures.emit))
            if "replay" in parts:
                figures.attempt("replay", lambda: many.replay(keys, sizes, given.repeats, figures.emit))
            if "restart" in parts:
                figures.attempt("restart", lambda: many.restart(keys, sizes, given.repeats, figures.emit))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = (*LARGE_PARTS, *KEYS_PARTS)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--keys", type=int, help="number of keys of snapshot, replay and restart")
    parser.add_argument(
        "--folder", type=Path, help="where the stack's data go (without: the system's temporary folder)"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=500, help="requests in flight while a follower installs")
    parser.add_argument("--metadata-bytes", type=int, default=128, help="random metadata of each key of that load")
    parser.add_argument("--window", type=float, default=12.0, help="seconds of a window before and after an install")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds of load before the first window")
    parser.add_argument("--throttle", type=int, help="bytes/s of the circle")
    parser.add_argument("--snapshots", type=int, default=15)
    parser.add_argument("--snapshot-interval", type=float, default=4.0, help="seconds between two snapshots")
    parser.add_argument("--probe-in-flight", type=int, default=50, help="requests in flight while snapshots are taken")
    return parser.parse_args(arguments)


def sizes_of(given: argparse.Namespace) -> Sizes:
    """Return the sizes that the command line asks for."""
    sizes = scaled(given.scale)
    if given.keys is not None:
        sizes = replace(sizes, snapshot_keys=given.keys, replay_keys=given.keys, restart_keys=given.keys)
    if given.throttle is not None:
        sizes = replace(sizes, throttle_bytes_per_s=given.throttle)
    return sizes


def main() -> int:
    """Measure and print; return 1 if a part failed."""
    given = parse()
    figures = FigureLog()
    begun_s = time.monotonic()
    try:
        run(given.only, sizes_of(given), given, figures)
    finally:
        figures.print_tables()
        say(f"{', '.join(given.only)}: {time.monotonic() - begun_s:.0f} s")
    return 1 if figures.failed else 0


if __name__ == "__main__":
    sys.exit(main())
