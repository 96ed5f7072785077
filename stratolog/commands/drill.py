"""``stratolog drill list`` and ``stratolog drill NAME``: recovery drills on the running stack (``stratolog.drills``).

Steps are printed with their timings as they end, to standard error; the findings and the verdict to standard output, or
the whole report as JSON (``--json``, ``--report FILE``). Exit status 0 only if the drill passed, 1 if it failed, 3 if
it could not run.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.cluster.core.findings import Finding
from stratolog.cluster.leadership import check_shard
from stratolog.cluster.reach import check_brokers
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, notes, print_json, print_table
from stratolog.commands.common.tables import yes_or_no
from stratolog.commands.common.waiting import interruptible
from stratolog.drills.core.report import COULD_NOT_RUN, PASSED, DrillReport, DrillStep
from stratolog.drills.kit import catalogue
from stratolog.drills.kit.catalogue import DrillPlace
from stratolog.errors import EXIT_FAILED, EXIT_UNAVAILABLE, UsageError
from stratolog.security.private_files import private_umask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratolog.configuration.settings import Settings
    from stratolog.drills.kit.cluster import Cluster
    from stratolog.drills.kit.session import Session

ShardOption = Annotated[int, typer.Option("--shard", min=0, help="The shard that the drill is about.")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", dir_okay=False, metavar="FILE", help="Write the report there too, as JSON.")
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help=(
            "Recovery drills: inflict a fault on the running local stack and see that it recovers. No drill "
            "endangers data."
        ),
    )
    group.command("list")(list_drills)
    for name, command in COMMANDS.items():
        group.command(name, help=catalogue.find(name).does)(command)
    app.add_typer(group, name="drill")


def list_drills(*, as_json: JsonOption = False) -> None:
    """List the drills: what each does and what it touches."""
    if as_json:
        for drill in catalogue.DRILLS:
            print_json({"name": drill.name, "does": drill.does, "touches": drill.touches, "needs": drill.needs})
        return
    rows = [(drill.name, drill.does, drill.touches, drill.needs or None) for drill in catalogue.DRILLS]
    print_table("Drills", ("drill", "does", "touches", "needs"), rows, ("needs", "touches"))


# -- the drills --------------------------------------------------------------------------------------------------------


def _about_a_shard(name: str) -> Callable[..., None]:
    """Return the command of a drill that is about one shard and has no options of its own."""

    def command(
        context: typer.Context, *, shard: ShardOption = 0, report: ReportOption = None, as_json: JsonOption = False
    ) -> None:
        _run(context, name, shard, partial(_drill_about_a_shard, name), report, as_json)

    return command


def _drill_about_a_shard(name: str, session: Session, cluster: Cluster, shard: int) -> None:
    from stratolog.drills.bodies import ABOUT_A_SHARD

    ABOUT_A_SHARD[name](session, cluster, shard)


def replay(
    context: typer.Context, *, shard: ShardOption = 0,
    start: Annotated[
        int | None,
        typer.Option(
            "--from", min=0,
            help="Begin at a checkpoint taken at or before this offset; 0 or nothing: at the first record.",
        ),
    ] = None,
    stop: Annotated[int | None, typer.Option("--to", min=0, help="The last offset; without, the last barrier.")] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Have Spark's batch oracle recompute the rows too; half a minute or more.")
    ] = False,
    report: ReportOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    from stratolog.drills import replay as drill

    wanted = drill.Range(start=start, stop=stop, oracle=oracle)
    _run(
        context,
        "replay",
        shard,
        lambda session, cluster, number: drill.run(session, cluster, number, wanted),
        report,
        as_json,
    )


def point_in_time(
    context: typer.Context, *,
    index: Annotated[
        int | None, typer.Option(min=0, help="As of this managed index, of one shard: give --shard too.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="ISO", help="As of this time, as 2026-05-01T12:00:00Z; without a zone it is local time."),
    ] = None,
    shard: Annotated[int | None, typer.Option(min=0, help="Only this shard; without, all of them.")] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The directory to make; without, one in the stack's data directory."),
    ] = None,
    report: ReportOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    from stratolog.drills import point_in_time as drill
    from stratolog.drills.kit.cluster import Cluster

    settings = connected_settings_of(context)
    if (index is None) == (time is None):
        raise UsageError("give either --index or --time")
    if shard is None and index is not None and settings.shards > 1:
        raise UsageError("an index is one shard's: give --shard too")
    check_shard(settings, shard or 0)
    _check_file(report)
    try:
        time_ms = None if time is None else drill.time_of(time)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--time {time!r} is not a time such as 2026-05-01T12:00:00Z") from error
    moment = drill.Moment(index=index, time_ms=time_ms, into=None if into is None else into.expanduser().absolute())
    shards = range(settings.shards) if shard is None else [shard]
    cluster = Cluster(settings=settings)

    def begin(session: Session) -> None:
        check_brokers(settings)
        drill.run(session, cluster, shards, moment)

    _finish(_told(settings, "point-in-time", shard, begin, as_json), report, as_json)


def _beside_the_stack(name: str) -> Callable[..., None]:
    """Return the command of a drill that touches nothing of the running stack."""

    def command(context: typer.Context, *, report: ReportOption = None, as_json: JsonOption = False) -> None:
        from stratolog.drills.kit.cluster import Cluster

        settings = connected_settings_of(context)
        _check_file(report)
        settings.data_dir.mkdir(parents=True, exist_ok=True)  # no stack need have been there ever
        cluster = Cluster(settings=settings)
        begin = partial(_drill_beside_the_stack, name, cluster)
        _finish(_told(settings, name, None, begin, as_json), report, as_json)

    return command


def _drill_beside_the_stack(name: str, cluster: Cluster, session: Session) -> None:
    from stratolog.drills.bodies import BESIDE_THE_STACK

    BESIDE_THE_STACK[name](session, cluster)


COMMANDS: Mapping[str, Callable[..., None]] = {
    **{name: _about_a_shard(name) for name in catalogue.names_at(DrillPlace.SHARD)},
    "replay": replay, "point-in-time": point_in_time,
    **{name: _beside_the_stack(name) for name in catalogue.names_at(DrillPlace.BESIDE)},
}  # fmt: skip
"""The commands of ``stratolog drill`` by the name of the drill."""

# -- what they share ---------------------------------------------------------------------------------------------------


def _run(
    context: typer.Context, name: str, shard: int, drill: Callable[[Session, Cluster, int], None], report: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run a drill about one shard, print and write its report, and end with its exit status."""
    from stratolog.drills.kit.cluster import Cluster

    settings = connected_settings_of(context)
    check_shard(settings, shard)
    _check_file(report)
    cluster = Cluster(settings=settings)

    def begin(session: Session) -> None:
        check_brokers(settings)
        drill(session, cluster, shard)

    _finish(_told(settings, name, shard, begin, as_json), report, as_json)


def _check_file(file: Path | None) -> None:
    """Raise UsageError if a report could not be written, before anything is done."""
    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError(f"the report cannot be written to {file}: there is no directory {file.absolute().parent}")


def _told(
    settings: Settings, name: str, shard: int | None, drill: Callable[[Session], None], as_json: bool
) -> DrillReport:  # fmt: skip
    """Run a drill, and print its steps as they end."""
    from stratolog.drills.kit.session import Session, run

    with private_umask(), _ended_in_order(), _telling(as_json) as (tell, begin):
        session = Session(tell, begin)
        with interruptible(lambda: _what_was_touched(session)):
            return run(name, shard, drill, data_dir=settings.data_dir, session=session)


def _what_was_touched(session: Session) -> str:
    """Say what an interrupted drill has touched, and how that was put back."""
    if not session.touched:
        return "nothing of the stack was touched"
    words = [*(f"touched: {text}" for text in session.touched), *(f"restored: {text}" for text in session.restored)]
    return "\n".join(["there is no verdict", *words])


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end the drill as an interrupt does, with everything put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _telling(quiet: bool) -> Iterator[tuple[Callable[[DrillStep | Finding], None], Callable[[str], None]]]:
    """Yield two functions: one prints a step or finding that has ended, one shows on a terminal a step that begins."""
    if quiet:
        yield lambda _: None, lambda _: None
    elif notes.is_terminal:
        with notes.status("starting") as spinner:
            yield _print_line, spinner.update
    else:
        yield _print_line, lambda _: None


def _print_line(line: DrillStep | Finding) -> None:
    if isinstance(line, DrillStep):
        found = f": {line.found}" if line.found else ""
        text = f"{line.at_s:8.2f} s  {line.text}{found} ({line.took_s:.2f} s)"
    else:
        text = f"{'':10}  {'yes' if line.holds else 'NO'}: {line.question}: {line.seen}"
    notes.print(
        text, markup=False, highlight=False, soft_wrap=True, style=None if isinstance(line, DrillStep) else _style(line)
    )


def _style(finding: Finding) -> str:
    return "green" if finding.holds else "bold red"


def _finish(report: DrillReport, file: Path | None, as_json: bool) -> None:
    """Print the verdict, write the report, end with the exit status."""
    if file is not None:
        try:
            file.write_text(json.dumps(report.as_json(), indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"the report cannot be written to {file}: {error.strerror}") from error
    if as_json:
        print_json(report.as_json())
    else:
        _print_report(report)
    if report.verdict == COULD_NOT_RUN:
        raise typer.Exit(EXIT_UNAVAILABLE)
    if not report.has_passed:
        raise typer.Exit(EXIT_FAILED)


def _print_report(report: DrillReport) -> None:
    answers: list[tuple[Any, ...]] = [
        (yes_or_no(holds=finding.holds), finding.question, finding.seen) for finding in report.findings
    ]
    if answers:
        print_table(f"Drill {report.drill}", ("", "does it hold?", "seen"), answers)
    for name, value in report.figures.items():
        console.print(f"{name}: {value:g}", highlight=False)
    for what in (*(f"touched: {text}" for text in report.touched), *(f"restored: {text}" for text in report.restored)):
        console.print(what, markup=False, highlight=False, soft_wrap=True)
    style = {PASSED: "bold green", COULD_NOT_RUN: "bold yellow"}.get(report.verdict, "bold red")
    console.print(
        f"{report.verdict}, after {report.took_s:.1f} s: {report.reason}", style=style, markup=False, soft_wrap=True
    )
