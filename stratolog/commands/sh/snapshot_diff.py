"""``stratolog sh snapshot diff``: what changed in a bucket, with the words of ``ozone sh snapshot diff``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stratolog.commands.common.addresses import Address
from stratolog.commands.common.invocation import Invocation, JsonOption
from stratolog.commands.common.output import notes, print_json, printed
from stratolog.commands.common.tables import harmless
from stratolog.commands.common.waiting import LOOK_INTERVAL_S, WORD_AFTER_S
from stratolog.commands.sh.access import Asked, reads
from stratolog.commands.sh.options import Bucket, Consistency, Node, Session
from stratolog.commands.sh.snapshots import snapshot_names
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from producers.reads.read_views import SnapshotDiffEntry
    from producers.reads.reads import Reads
    from producers.reads.snapshot_diffs import SnapshotDiffProgress

LABELS = {"CREATE": "+", "DELETE": "-", "MODIFY": "M", "RENAME": "R"}
MAX_PAGE_SIZE = 1000
"""Most entries that are fetched at once: as many as a node gives."""

From = Annotated[
    str | None, typer.Argument(metavar="FROM", help="The older snapshot.", autocompletion=snapshot_names)
]  # fmt: skip
To = Annotated[
    str | None,
    typer.Argument(metavar="TO", help="The newer one; without, the bucket as it is now.", autocompletion=snapshot_names),
]  # fmt: skip
PageSize = Annotated[
    int, typer.Option("--page-size", "-p", min=1, max=MAX_PAGE_SIZE, help="Entries that are fetched at once.")
]
Cancel = Annotated[
    str | None, typer.Option("--cancel", "-c", metavar="JOB", help="Stop this diff, as progress names it, and no more.")
]


def diff_snapshots(
    context: typer.Context, address: Bucket, older: From = None, newer: To = None, *,
    page_size: PageSize = MAX_PAGE_SIZE, cancel: Cancel = None, consistency: Consistency = "linearizable",
    session: Session = None, node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show what changed in a bucket between two snapshots, or between a snapshot and now.

    A line for each key: '+' created, '-' deleted, 'M' modified, 'R' renamed ('old -> new'). Deletions come first, then
    renames, creations and modifications. A node compares the snapshots; Ctrl-C stops that.
    """
    if context.ensure_object(Invocation).at is not None:
        raise UsageError("a state directory (--at) is not compared: without --at the command goes to the running stack")
    if (older is None) == (cancel is None):
        raise UsageError("give the snapshot FROM which to compare, or a JOB to --cancel, one of both")
    progress = _Progress()
    with reads(context, Asked(node, session, consistency), quiet=as_json, moving=lambda: progress.moves) as found_by:
        if cancel is not None:
            _cancel(found_by, cancel, as_json)
        elif older is not None:
            with progress.shown(quiet=as_json), _cancelled_with_the_command(found_by, progress):
                pages = found_by.snapshot_diff(
                    address.volume, address.bucket, older, newer, page_size=page_size, on_progress=progress.take,
                    consistency=consistency,
                )  # fmt: skip
                first = pages.next_page()
            _print(address, (older, newer), first or [], pages.entries(), as_json=as_json)


def _cancel(found_by: Reads, job: str, as_json: bool) -> None:
    stopped = found_by.cancel_snapshot_diff(job)
    if as_json:
        print_json({"job": stopped.job, "node": stopped.node, "state": stopped.state})
    else:
        printed.results += 1
        typer.echo(f"snapshot diff {stopped.job} on {stopped.node}: {stopped.state}")


def _print(
    bucket: Address, snapshots: tuple[str, str | None], first: list[SnapshotDiffEntry],
    others: Iterator[SnapshotDiffEntry], *, as_json: bool,
) -> None:  # fmt: skip
    if not as_json:
        older, newer = snapshots
        other = "the present" if newer is None else f"snapshot: {newer}"
        typer.echo(f"Difference between snapshot: {older} and {other} of {bucket}")
    for entries in (first, others):
        for entry in entries:
            if as_json:
                print_json(asdict(entry))
            else:
                printed.results += 1
                typer.echo(_line(entry))


def _line(entry: SnapshotDiffEntry) -> str:
    r"""Return an entry as Ozone prints it.

    >>> from producers.reads.read_views import SnapshotDiffEntry
    >>> _line(SnapshotDiffEntry(kind="RENAME", key="a", to_key="b"))
    'R\t./a -> ./b'
    """
    to = "" if entry.to_key is None else f" -> ./{harmless(entry.to_key)}"
    return f"{LABELS.get(entry.kind, entry.kind)}\t./{harmless(entry.key)}{to}"


class _Progress:
    """Tells how far a diff is: a spinner on a terminal.

    Elsewhere it is a line after WORD_AFTER_S, and then every LOOK_INTERVAL_S.
    """

    def __init__(self) -> None:
        self.moves = 0
        """Grows whenever a node has said how far it is."""
        self.job = ""
        self._tell: Callable[[str], None] = _nothing

    def take(self, progress: SnapshotDiffProgress) -> None:
        """Take what a node says."""
        self.moves += 1
        self.job = progress.job
        self._tell(f"snapshot diff {progress.job}: {progress}")

    @contextmanager
    def shown(self, *, quiet: bool) -> Iterator[None]:
        """Show it while the code within runs."""
        if quiet:
            yield
        elif notes.is_terminal:
            with notes.status("snapshot diff") as spinner:
                self._tell = spinner.update
                yield
        else:
            self._tell = _spaced(lambda text: notes.print(text, markup=False, highlight=False, soft_wrap=True))
            yield
        self._tell = _nothing


def _nothing(_: str) -> None:
    pass


def _spaced(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what says a text, the first one after WORD_AFTER_S and then one every LOOK_INTERVAL_S."""
    due_s = time.monotonic() + WORD_AFTER_S

    def tell(text: str) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + LOOK_INTERVAL_S
            say(text)

    return tell


@contextmanager
def _cancelled_with_the_command(found_by: Reads, progress: _Progress) -> Iterator[None]:
    """Stop the job at Ctrl-C: nobody would read its entries."""
    from producers.errors import StratologError

    try:
        yield
    except KeyboardInterrupt:
        if progress.job:
            with suppress(StratologError):
                found_by.cancel_snapshot_diff(progress.job)
        raise
