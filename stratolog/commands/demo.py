"""``stratolog demo``: a real directory tree through the whole stack, and Spark's verdict on the replicas.

The stack is the local stack of ``stratolog up``, in a data directory of its own (``DATA_DIR/demo``), made anew each
time. Without ``--keep`` its processes are tethered to this one: they end when this process ends, for whatever reason.
The questions are in ``stratolog.cluster.checks``; exit status 0 only if the answer to every question is yes.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from producers.bulk.ingest import MAX_IN_FLIGHT, IngestSummary
from producers.bulk.tree_layout import TreeLayout
from schemas.records.verdict_words import INCREMENTAL, SCRUBBED
from schemas.security.tls import scheme_of
from schemas.topics import OM_LOG
from stratolog.cluster import checks
from stratolog.cluster.checks import ReplicaStanding
from stratolog.cluster.core.findings import Finding
from stratolog.cluster.verdicts import VerdictReader
from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, notes, print_json, print_table, progress
from stratolog.commands.common.tables import yes_or_no
from stratolog.commands.common.waiting import interruptible
from stratolog.commands.ingest import MaxInFlight, print_summary, run_ingest
from stratolog.commands.stack import check_installed
from stratolog.configuration.settings import Settings, default_datanodes
from stratolog.errors import EXIT_FAILED, UserError
from stratolog.extras import check_spark
from stratolog.local import stack, state
from transport.topics.core.latest_verdicts import LatestVerdicts

SCRUB_INTERVAL_MS = 10_000
"""Replicas of the demo scan themselves in full this often, so that the last verdict rests on a scan too."""
FOLDER = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is ingested: a directory, without some directories within it."""

    path: Path
    leave_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What a demo found."""

    tree: Path
    summary: IngestSummary
    leaders: dict[int, str]
    replicas: list[ReplicaStanding]
    latest: LatestVerdicts
    checks: list[Finding]

    @property
    def holds(self) -> bool:
        """Whether every question was answered with yes."""
        return all(check.holds for check in self.checks)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(command)


def command(
    context: typer.Context,
    *,
    tree: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, readable=True, help="What is ingested; else Python's own library."),
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="Kafka brokers: 1, or 3 with replication.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running, and say how to reach it.")] = False,
    max_in_flight: MaxInFlight = MAX_IN_FLIGHT,
    contents: Annotated[
        bool, typer.Option(help="Write the files' bytes to three datanodes and read them back; else metadata alone.")
    ] = True,
    verdict_timeout_s: Annotated[
        float, typer.Option(min=1.0, help="How long to wait for Spark's verdict; later is 'unknown', which fails.")
    ] = 180.0,
    as_json: JsonOption = False,
) -> None:
    """Ingest a real tree into a fresh stack, and have every replica compared with the tree, the others and the log.

    Starts Kafka, three nodes, three datanodes and the Spark audit, and stops all of it again. Exit status 0 only if
    every replica lists the tree exactly, every file reads back from each datanode, all digests are equal, and Spark,
    from the log alone, says so.
    """
    check_spark()
    given = settings_of(context)
    datanodes = (given.datanodes or default_datanodes(checks.REPLICAS)) if contents else ()
    settings = given.with_values(
        data_dir=given.data_dir / FOLDER, brokers=brokers, audit=True, scrub_interval_ms=SCRUB_INTERVAL_MS,
        datanode_scrub_interval_ms=SCRUB_INTERVAL_MS, datanodes=datanodes,
        ui=keep and given.ui,  # nobody looks at what is stopped again
    )  # fmt: skip
    check_installed(settings)
    # The tree is Python's own library, where Python caches compiled modules. No process of ours may change the tree.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    source = Source(path=tree.absolute()) if tree is not None else _python_library()
    ended = (
        f"there is no result; {'the stack may still run' if keep else 'the stack is stopped again'}: "
        f"{settings.data_dir}"
    )
    with interruptible(ended), _fresh_stack(settings, keep=keep, quiet=as_json) as (effective, on_finished):
        outcome = _Demo(effective, source, max_in_flight, verdict_timeout_s, quiet=as_json).run()
        if as_json:
            print_json(_as_json(outcome))
        else:
            _print(outcome)
        on_finished(outcome.holds)
    if not outcome.holds:
        raise typer.Exit(EXIT_FAILED)


def _python_library() -> Source:
    """Return Python's own library, without what was installed into it."""
    library = Path(sysconfig.get_paths()["stdlib"]).absolute()
    return Source(path=library, leave_out=("site-packages", "dist-packages"))


@contextmanager
def _fresh_stack(settings: Settings, *, keep: bool, quiet: bool) -> Iterator[tuple[Settings, Callable[[bool], None]]]:
    """Start a stack without data; stop it at the end, unless ``keep``.

    Its logs and data stay if the demo failed (did not report that all holds). The next demo deletes them.
    """
    known = state.read_state(settings.data_dir)
    if known is not None and known.running():
        raise UserError(f"a demo's stack still runs in {settings.data_dir}: stop it with {_command(settings, 'down')}")
    succeeded = False

    def on_finished(holds: bool) -> None:
        nonlocal succeeded
        succeeded = holds

    stack.down(settings, remove_data=True)
    with progress(quiet) as report:
        started = stack.up(settings, detached=keep, report=report)
    # All addresses are those of this stack, whichever of them the user gave.
    effective = replace(started, explicit=frozenset())
    try:
        yield effective, on_finished
    finally:
        if keep:
            _say_how_to_reach(effective)
        else:
            with progress(quiet) as report:
                stack.down(settings, remove_data=succeeded, report=report)
            if succeeded:
                with suppress(OSError):
                    settings.data_dir.parent.rmdir()  # stays if anything else is in it
            elif not quiet:
                _note(f"logs are in {settings.data_dir}")


class _Demo:
    """The demo on a running stack."""

    def __init__(
        self, settings: Settings, source: Source, max_in_flight: int, verdict_timeout_s: float, *, quiet: bool
    ) -> None:
        self.settings = settings
        self.source = source
        self.max_in_flight = max_in_flight
        self.verdict_timeout_s = verdict_timeout_s
        self.quiet = quiet
        self.layout = TreeLayout()

    def run(self) -> DemoOutcome:
        """Ingest, compare, and wait for the verdict."""
        settings = self.settings
        with progress(self.quiet) as report:
            spread = checks.check_spread(settings, report=report)
        self._note(f"{spread.seen}; ingesting {self.source.path}")
        contents = bool(settings.datanodes)
        summary = run_ingest(
            settings, self.source.path, layout=self.layout, max_in_flight=self.max_in_flight, quiet=self.quiet,
            contents=contents, leave_out=self.source.leave_out,
        )  # fmt: skip
        with progress(self.quiet) as report:
            found = [spread, checks.check_ingest(summary)]
            report("waiting until the replicas have converged")
            found.append(checks.check_converged(settings))
            report("comparing every replica's listing with the tree")
            found += checks.check_listings(settings, self.source.path, self.layout, self.source.leave_out)
            if contents:
                report("reading every file back from each datanode")
                found.append(checks.check_contents(settings, self.layout))
            report("comparing full scans and digests")
            found += [checks.check_digests(settings, shard) for shard in range(settings.shards)]
            report("waiting for Spark's verdict on the last index")
            with VerdictReader(settings.connection) as reader:
                judged, latest = checks.await_verdicts(settings, reader, timeout_s=self.verdict_timeout_s)
        return DemoOutcome(
            tree=self.source.path, summary=summary, leaders=checks.leaders(settings),
            replicas=checks.replicas(settings), latest=latest, checks=[*found, *judged],
        )  # fmt: skip

    def _note(self, text: str) -> None:
        if not self.quiet:
            _note(text)


# -- output ------------------------------------------------------------------------------------------------------------


def _print(outcome: DemoOutcome) -> None:
    """Print the summary for people: what was done, where the replicas stand, what Spark says, and every question."""
    print_summary(outcome.summary)
    rows = [
        (
            replica.shard, replica.node, replica.role, replica.index, replica.digest,
            _verdict(outcome.latest, replica, INCREMENTAL), _verdict(outcome.latest, replica, SCRUBBED),
        )
        for replica in outcome.replicas
    ]  # fmt: skip
    columns = ("shard", "node", "role", "index", "digest", "Spark", "full scan")
    print_table("Replicas, and Spark's verdict on each", columns, rows, ("role", "digest", "index"))
    answers = [(yes_or_no(holds=check.holds), check.question) for check in outcome.checks]
    print_table("Does it hold?", ("", "what"), answers)
    failed = [check for check in outcome.checks if not check.holds]
    for check in failed:
        console.print(f"NO: {check.question}: {check.seen}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} of {len(outcome.checks)} do not hold", style="bold red")
    else:
        console.print("the tree, the replicas and the log agree", style="bold green")


def _verdict(latest: LatestVerdicts, replica: ReplicaStanding, basis: str) -> str:
    """Return the latest verdict on a replica in a word, and its index if that is not where the replica stands."""
    verdict = latest.of(OM_LOG, replica.shard, replica.node, basis)
    if verdict is None:
        return "unknown"
    return verdict.verdict if verdict.index == replica.index else f"{verdict.verdict} at {verdict.index}"


def _as_json(outcome: DemoOutcome) -> dict[str, Any]:
    """Return the outcome as plain values."""
    verdicts = [
        {
            "shard": verdict.shard, "node": verdict.node, "basis": verdict.basis, "verdict": verdict.verdict,
            "index": verdict.index, "barrier_offset": verdict.barrier_offset, "reason": verdict.reason,
        }
        for verdict in outcome.latest
    ]  # fmt: skip
    return {
        "ok": outcome.holds,
        "tree": str(outcome.tree),
        "ingest": asdict(outcome.summary),
        "leaders": {str(shard): node for shard, node in outcome.leaders.items()},
        "replicas": [asdict(replica) for replica in outcome.replicas],
        "verdicts": verdicts,
        "checks": [{"name": one.question, "holds": one.holds, "found": one.seen} for one in outcome.checks],
    }


def _say_how_to_reach(settings: Settings) -> None:
    for what, arguments in (
        ("look at it", "status"),
        ("follow the audit", "audit --follow"),
        ("see throughput, latency and lag", "audit --windows"),
        ("stop it", "down --remove-data"),
    ):
        _note(f"{what}: {_command(settings, arguments)}")
    if (address := _dashboard_of(settings)) is not None:
        _note(
            f"see it in a browser: {scheme_of(settings.tls())}://{address}/ (with a link that may start drills: {_command(settings, 'ui')})"
        )


def _dashboard_of(settings: Settings) -> str | None:
    known = state.read_state(settings.data_dir)
    members = () if known is None else known.of(state.UI)
    return next((member.address for member in members if member.process.is_running()), None)


def _note(text: str) -> None:
    notes.print(text, markup=False, highlight=False, soft_wrap=True)


def _command(settings: Settings, arguments: str) -> str:
    """Return how to type another command on the demo's stack."""
    called = Path(sys.argv[0])
    program = "stratolog" if shutil.which("stratolog") else str(called)
    if called.name == "__main__.py":
        program = f"{sys.executable} -m stratolog"
    return f"STRATOLOG_DATA_DIR={settings.data_dir} {program} {arguments}"
