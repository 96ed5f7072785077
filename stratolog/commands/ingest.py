"""``stratolog ingest DIR``: the files of a tree become keys (``producers.bulk.ingest``), with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from producers.bulk.ingest import MAX_IN_FLIGHT, IngestSummary, ingest, ingest_contents
from producers.bulk.ingest import Progress as Step
from producers.bulk.tree_layout import DEFAULT_VOLUMES, MAX_VOLUMES, LayoutRule, OneBucket, TreeLayout
from stratolog.cluster.connection import client_of
from stratolog.commands.common.addresses import Address, bucket_address, shown_size
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, notes, print_json, print_table
from stratolog.commands.common.waiting import waiting
from stratolog.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from stratolog.configuration.settings import Settings

LINE_INTERVAL_S = 5.0
"""Least time between two lines of progress, where there is no terminal."""
SHOWN_PROBLEMS = 10
"""At most so many failures, and so many skipped files, are printed for people; ``--json`` names more."""

SHOWN_PLACES = 12
"""At most so many volumes with their buckets are printed for people; ``--json`` names all."""
WIDE, MIDDLING, NARROW = 110, 76, 60
"""Least widths of a terminal at which the bar shows everything, all but the rate, only the number of files.

A narrower terminal gets no bar.
"""

MIB = 1024 * 1024

MaxInFlight = Annotated[int, typer.Option(min=1, max=100_000, help="Keys that are written at the same time.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ingest")(command)


def command(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, readable=True, help="The tree's root.")
    ],
    *,
    max_in_flight: MaxInFlight = MAX_IN_FLIGHT,
    bucket: Annotated[
        Address | None,
        typer.Option(
            "--bucket", "-b", parser=bucket_address, metavar="/VOLUME/BUCKET",
            help=(
                "Put every file into this bucket, which is made if need be, instead of volumes and buckets of its "
                "own."
            ),
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Without --bucket: volumes are named PREFIX-0, PREFIX-1, ...")] = "tree",
    volumes: Annotated[
        int, typer.Option(min=1, max=MAX_VOLUMES, help="Without --bucket: number of volumes.")
    ] = DEFAULT_VOLUMES,
    contents: Annotated[bool, typer.Option("--contents", help="Write the files' bytes too, to the datanodes.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make a key of every file below DIR, with size, modification time and SHA-256.

    A key's name is the file's path within DIR. With --bucket all go there. Else the volume follows from the file's
    directory, so that the tree spreads over volumes PREFIX-0 to PREFIX-15 and thereby over the shards, and the bucket
    from the first part of the path ("root" for files directly in DIR); what was used is printed at the end. Links and
    special files are skipped and named. Running it again replaces keys by equal ones. Exit status 1 if a file could not
    be ingested.
    """
    try:
        layout = TreeLayout(prefix=prefix, volumes=volumes)
    except ValueError as error:
        raise UsageError(str(error)) from error
    rule = layout if bucket is None else OneBucket(volume=bucket.volume, bucket=bucket.bucket)
    summary = run_ingest(
        connected_settings_of(context), directory, layout=rule, max_in_flight=max_in_flight, quiet=as_json,
        contents=contents,
    )  # fmt: skip
    if as_json:
        print_json({**asdict(summary), "complete": summary.complete})
    else:
        print_summary(summary)
    if not summary.complete:
        raise typer.Exit(EXIT_FAILED)


def run_ingest(
    settings: Settings, directory: Path, *, layout: LayoutRule, max_in_flight: int, quiet: bool,
    contents: bool = False, leave_out: Collection[str] = (),
) -> IngestSummary:  # fmt: skip
    """Ingest a tree, with its files' ``contents`` or without; show progress on standard error unless ``quiet``.

    Raises as ``producers.bulk.ingest`` does.
    """
    last: list[Step] = []

    def requests() -> int:
        return last[-1].requests if last else 0

    with (
        waiting(settings, "ingest", lambda: _so_far(last), quiet=quiet, bytes_too=contents, moving=requests),
        client_of(settings, in_flight=max_in_flight) as client,
        _progress(quiet) as on_progress,
    ):

        def both(step: Step) -> None:
            last[:] = [step]
            if on_progress is not None:
                on_progress(step)

        if contents:
            return ingest_contents(client, directory, layout=layout, progress=both, leave_out=leave_out)
        return ingest(client, directory, layout=layout, progress=both, max_in_flight=max_in_flight, leave_out=leave_out)


def _so_far(last: list[Step]) -> str:
    """Say what an interrupted ingest has done."""
    done = f"{last[-1].files:,} of {last[-1].files_total:,} files are done" if last else "no file is done"
    return f"{done}; give the command again: what is there is replaced by equal keys"


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Step], None] | None]:
    """Show how far an ingest is: a bar on a terminal, a line now and then elsewhere."""
    if quiet:
        yield None
        return
    if not notes.is_terminal:
        yield _Lines()
        return
    with bar_on(notes) as on_progress:
        yield on_progress


@contextmanager
def bar_on(console: Console) -> Iterator[Callable[[Step], None]]:
    """Show a bar that leaves room for its words, however narrow the terminal."""
    columns: list[ProgressColumn] = [TextColumn("ingest"), TextColumn("{task.fields[done]}")]
    if console.width >= NARROW:
        columns.insert(1, BarColumn(bar_width=max(8, min(40, console.width - 70))))
        columns.append(TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("ingest", total=None, done="looking at the tree")

        def on_progress(step: Step) -> None:
            bar.update(task, total=step.files_total, completed=step.files, done=_done(step, console.width))

        yield on_progress


class _Lines:
    """Progress where there is no terminal."""

    def __init__(self) -> None:
        self._told_s = 0.0

    def __call__(self, step: Step) -> None:
        done = step.files >= step.files_total
        if done or step.elapsed_s - self._told_s >= LINE_INTERVAL_S:
            self._told_s = step.elapsed_s
            notes.print(f"{_done(step)}, {_time_left_s(step):.0f} s left", highlight=False, soft_wrap=True)


def _done(step: Step, width: int = WIDE) -> str:
    """Say how far the ingest is, in as many words as there is room for."""
    files = f"{step.files:,} of {step.files_total:,} files"
    if width < MIDDLING:
        return files
    rate = f", {step.requests / max(step.elapsed_s, 1e-9):,.0f} requests/s" if width >= WIDE else ""
    return f"{files}, {shown_size(step.bytes)}{rate}"


def _time_left_s(step: Step) -> float:
    return step.elapsed_s * (step.files_total - step.files) / max(step.files, 1)


def _throughput(summary: IngestSummary) -> str:
    """Say how fast the keys were written; MiB/s only if bytes were written."""
    rates = [f"{summary.files_per_second:,.1f} files/s"]
    if summary.bytes_per_second:
        rates.append(f"{summary.bytes_per_second / MIB:,.2f} MiB/s")
    return ", ".join([*rates, f"{summary.requests_per_second:,.0f} requests/s"])


def print_summary(summary: IngestSummary) -> None:
    """Print what an ingest did, for people."""
    buckets: dict[str, list[str]] = {}
    for volume, bucket in summary.places:
        buckets.setdefault(volume, []).append(bucket)
    lines = [
        ("keys", f"{summary.keys:,}"),
        ("bytes of the files", f"{shown_size(summary.bytes)} ({summary.bytes:,})"),
        ("volumes, buckets", f"{len(buckets)}, {len(summary.places)}"),
        ("requests", f"{summary.requests:,} in {summary.seconds:.1f} s"),
        ("throughput", _throughput(summary)),
        ("latency", f"p50 {summary.p50_ms:.1f} ms, p99 {summary.p99_ms:.1f} ms, max {summary.max_ms:.1f} ms"),
        ("skipped files", f"{summary.skipped_files:,}"),
        ("failed files", f"{summary.failed_files:,}"),
    ]
    print_table("Ingest", ("what", "figure"), lines)
    for volume in list(buckets)[:SHOWN_PLACES]:
        said = f"/{volume}: {', '.join(buckets[volume])}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if len(buckets) > SHOWN_PLACES:
        console.print(
            f"... and {len(buckets) - SHOWN_PLACES:,} more volumes: 'stratolog sh volume list'", highlight=False
        )
    problems = [(item.relative_path, f"skipped: {item.reason}") for item in summary.skipped[:SHOWN_PROBLEMS]]
    problems += [
        (item.relative_path, f"failed: {item.status}: {item.message}") for item in summary.failures[:SHOWN_PROBLEMS]
    ]
    for path, what in problems:
        console.print(f"{path}: {what}", markup=False, highlight=False, soft_wrap=True)
    unnamed = summary.skipped_files + summary.failed_files - len(problems)
    if unnamed > 0:
        console.print(f"... and {unnamed:,} more", highlight=False)
