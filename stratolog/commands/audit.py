"""``stratolog audit``: Spark's verdict, computed at once (``--once``) or read from the running audit (``--follow``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from schemas.codecs.block_rows import block_of_key
from schemas.settings.declaring import slice_of
from schemas.settings.table import AuditSettings
from spark_streaming import dashboard
from spark_streaming.records.core.freshness import judged
from spark_streaming.records.report_times import ReportTimes
from spark_streaming.windows.core.reading_windows import LatestWindows
from stratolog.cluster.reach import check_brokers
from stratolog.cluster.verdicts import VerdictReader, readable
from stratolog.cluster.window_stats import read_windows
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, notes, print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.commands.common.window_tables import print_windows
from stratolog.errors import EXIT_FAILED, Unavailable, UsageError
from stratolog.extras import check_spark
from stratolog.local.jars import spark_jars
from stratolog.local.processes import log_tail
from transport.topics.core.latest_verdicts import LatestVerdicts
from transport.waiting.deadline import Deadline

if TYPE_CHECKING:
    from schemas.records.messages import Verdict
    from spark_streaming.records.core.freshness import JudgedVerdict
    from stratolog.configuration.settings import Settings

BATCH_JOB = "spark_streaming.jobs.audit_batch"
BATCH_TIMEOUT_S = 3600.0
STOP_TIMEOUT_S = 20.0
ROOT = Path(__file__).resolve().parents[2]
"""Where our packages are, for a child in another directory."""
SILENCE_S = 60.0
"""Without a terminal, ``--follow`` says at this interval that replicas report and no verdict comes."""
FOLLOW_SINCE_MS = 5 * 60_000
"""Without a terminal, ``--follow`` begins with verdicts of this age: a scrub happens once a minute or so."""

Json = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(command)


def command(
    context: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Compute a verdict now, the long way, and say how it is.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the running audit's verdicts until interrupted.")
    ] = False,
    windows: Annotated[
        bool, typer.Option("--windows", help="Show throughput, latency and lag, as the running audit counts them.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(min=0.1, max=1440, help="--windows looks at what was counted in so many minutes.")
    ] = 5.0,
    report_timeout_s: Annotated[
        float, typer.Option(min=1.0, help="How long --once waits for a replica's report before 'unknown'.")
    ] = 20.0,
    blocks: Annotated[
        bool,
        typer.Option("--blocks", help="With --once: also demand that every datanode has reported equal stored bytes."),
    ] = False,
    semantics: Annotated[
        bool,
        typer.Option("--semantics", help="With --once: also check what rows mean together, and answers' results."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether the replicas hold what the log says: Spark recomputes it from the log alone.

    --once: exit status 0 only if every replica of every shard and pipeline is equal, the oracle agrees, and no datanode
    has reported stored bytes that are not the log's. --follow: of each replica the latest verdict with its age. It is
    'stale' if replicas have reported since and nobody has judged them. With --json every verdict, one a line.
    --windows: the newest full window of each shard and pipeline; with --json all windows of the time, one a line.
    """
    if once + follow + windows != 1:
        raise UsageError("give one of --once, --follow and --windows")
    if (blocks or semantics) and not once:
        raise UsageError("--blocks and --semantics go with --once")
    settings = connected_settings_of(context)
    check_brokers(settings)
    if follow:
        _follow(settings, as_json)
        return
    if windows:
        _show_windows(settings, minutes, as_json=as_json)
        return
    with progress(as_json) as report, interruptible("there is no verdict; nothing was changed"):
        report("Spark reads the log and recomputes (half a minute or more)")
        result = audit_once(
            settings, report_timeout_ms=int(report_timeout_s * 1000), require_blocks=blocks, semantics=semantics
        )
    if as_json:
        print_json(result)
    else:
        print_result(result)
    if not result["ok"]:
        raise typer.Exit(EXIT_FAILED)


def audit_once(
    settings: Settings, *, report_timeout_ms: int, require_blocks: bool = False, semantics: bool = False
) -> Json:  # fmt: skip
    """Run the batch audit in a process of its own; return its result (``spark_streaming.jobs.audit_batch``).

    Raises UsageError for a time-out out of range; Unavailable, with the end of the process's log, without a result.
    """
    check_spark()
    settings = settings.with_values(audit_report_timeout_ms=report_timeout_ms)
    with tempfile.TemporaryDirectory(prefix="stratolog-audit-") as scratch:
        folder = Path(scratch)
        config = {
            "bootstrap_servers": settings.connection.servers,
            "kafka": dict(settings.kafka),
            "work_dir": str(folder / "work"),
            "jars": [str(jar) for jar in spark_jars(settings.cache_dir)],
            **slice_of(AuditSettings, settings),
            "require_blocks": require_blocks,
            "semantics": semantics,
            "cluster": settings.cluster,
        }
        path = folder / "audit.json"
        path.write_text(json.dumps(config))
        output, log = folder / "output", folder / "log"
        with output.open("wb") as out, log.open("wb") as err:
            _run([sys.executable, "-m", BATCH_JOB, "--config", str(path)], folder, out, err)
        lines = output.read_text().splitlines()
        try:
            result = json.loads(lines[-1])
        except (IndexError, ValueError) as error:
            raise Unavailable(f"the Spark audit gave no result:\n{log_tail(log)}") from error
    return dict(result)


def _run(command: Sequence[str], folder: Path, out: IO[bytes], err: IO[bytes]) -> None:
    """Run a child to its end in ``folder``, where Spark may leave files; the child does not outlive this command."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        child.wait(BATCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the Spark audit took more than {BATCH_TIMEOUT_S:.0f} s") from error
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def print_result(result: Json) -> None:
    """Print the batch audit's result, for people."""
    _print_partitions(result["shards"], "shard")
    if result["pipelines"]:
        _print_partitions(result["pipelines"], "pipeline")
        _print_blocks(result["pipelines"])
    for kind, entries in (("shard", result["shards"]), ("pipeline", result["pipelines"])):
        for entry in entries:
            for detail in _details(entry, f"{kind} {entry['shard']}"):
                console.print(detail, markup=False, highlight=False, soft_wrap=True)
    _print_semantics(result.get("semantics"))
    console.print("equal" if result["ok"] else "NOT EQUAL", style="bold green" if result["ok"] else "bold red")


def _print_semantics(meaning: Json | None) -> None:
    """Print what rows say of each other, if that was asked for."""
    if meaning is None:
        return
    rows = [(one["check"], one["shard"], one["subject"], one["said"], one["found"]) for one in meaning["findings"]]
    if rows:
        print_table("Rows that contradict each other", ("check", "shard", "what", "said", "found"), rows, ("shard",))
    else:
        console.print("no rows contradict each other")
    for line in meaning["left_out"]:
        console.print(f"not checked: {line}", markup=False, highlight=False, soft_wrap=True)


def _print_partitions(entries: Sequence[Json], kind: str) -> None:
    """Print the results for shards, or for pipelines."""
    rows = [
        (
            entry["shard"], entry["index"], replica["node"], replica["verdict"], replica["basis"],
            replica["differing_slots"] or None, replica["reason"] or None,
        )
        for entry in entries
        for replica in entry["replicas"]
    ]  # fmt: skip
    columns = (kind, "index", "node", "verdict", "basis", "slots", "reason")
    print_table(f"Verdicts at the last barrier of each {kind}", columns, rows, ("slots", "basis", "index", "reason"))
    partitions = [
        (
            entry["shard"], entry["index"], entry["log_digest"], entry["oracle_digest"], entry["oracle_rows"],
            _agreement(entry), entry["broken"],
        )
        for entry in entries
    ]  # fmt: skip
    columns = (kind, "index", "digest of the log", "digest of the oracle", "rows", "agree", "broken")
    less = ("index", "rows", "digest of the log", "digest of the oracle")
    print_table("The log's sums, and the rows recomputed the long way", columns, partitions, less)


def _agreement(entry: Json) -> str:
    """Say whether the oracle agrees, or why it cannot."""
    if entry["oracle_agrees"] is None:
        return f"n/a (from base at index {entry['base']['index']})" if entry.get("base") else "n/a (late validation)"
    return "yes" if entry["oracle_agrees"] else "NO"


def _print_blocks(entries: Sequence[Json]) -> None:
    """Print the results for the datanodes' stored bytes."""
    rows = [
        (
            entry["shard"], entry["blocks"]["index"], member["node"], member["verdict"], entry["blocks"]["containers"],
            len(member["containers"]) or None, member["reason"] or None,
        )
        for entry in entries
        for member in entry["blocks"]["members"]
    ]  # fmt: skip
    columns = ("pipeline", "index", "node", "verdict", "containers", "differing", "reason")
    less = ("index", "containers", "reason")
    print_table("Stored bytes of blocks, against the checksums in the log", columns, rows, less)


def _details(entry: Json, name: str) -> Iterator[str]:
    """Name what is wrong in a shard or pipeline."""
    for replica in entry["replicas"]:
        for difference in replica["differences"]:
            yield f"{name}, {replica['node']}: {difference['cf']} bucket {difference['bucket']} differs"
        if replica["evidence"]:
            yield f"{name}, {replica['node']}: evidence {json.dumps(replica['evidence'])}"
    for row in entry["false_counters"]:
        yield f"{name}: row {row['cf']} {row['key']} is claimed falsely"
    for member in entry["blocks"]["members"] if "blocks" in entry else ():
        for container in member["containers"]:
            named = ", ".join(_block_name(key) for key in container["blocks"]) or "blocks not named by the datanode"
            yield f"{name}, {member['node']}: container {container['container_id']} differs: {named}"
    if not entry["replicas"]:
        yield f"{name}: its log names no replicas"


def _block_name(key: str) -> str:
    """Return a block's two numbers from its key in hexadecimal."""
    container_id, local_id = block_of_key(bytes.fromhex(key))
    return f"block {container_id}/{local_id}"


def _show_windows(settings: Settings, minutes: float, *, as_json: bool) -> None:
    """Show windows of throughput, latency and lag."""
    now_ms = time.time_ns() // 1_000_000
    latest = LatestWindows()
    latest.take(read_windows(settings.connection, now_ms - int(minutes * 60_000)))
    if as_json:
        for place in sorted(latest.windows):
            print_json(asdict(latest.windows[place]))
    elif newest := latest.of_each_partition():
        print_windows(newest, now_ms)
    else:
        console.print(f"no windows were counted in {minutes:g} minutes: nothing was written, or no audit runs")


# -- following ---------------------------------------------------------------------------------------------------------


def _follow(settings: Settings, as_json: bool) -> None:
    """Show verdicts until interrupted: a live table on a terminal, else the new ones as they come."""
    if console.is_terminal and not as_json:
        with readable(settings.connection):
            dashboard.follow(settings.connection, console=console)
        return
    since_ms = time.time_ns() // 1_000_000 - FOLLOW_SINCE_MS
    times, latest, said_at_s = ReportTimes(settings.connection), LatestVerdicts(), time.monotonic()
    with VerdictReader(settings.connection, since_ms=since_ms) as reader:
        try:
            for verdicts in reader.until(Deadline.never()):
                latest.take(verdicts)
                _show(verdicts, times, as_json=as_json)
                if not verdicts and time.monotonic() - said_at_s >= SILENCE_S:
                    said_at_s = time.monotonic()
                    _say_silence(latest, times)
        except KeyboardInterrupt:
            return


def _show(verdicts: Sequence[Verdict], times: ReportTimes, *, as_json: bool) -> None:
    """Print new verdicts, each with its age, where there is no terminal to redraw."""
    if not verdicts:
        return
    shown = judged(verdicts, times.newest_ms(), time.time_ns() // 1_000_000)
    if not as_json:
        _print_verdicts(shown)
        return
    for one in shown:
        print_json(_plain(asdict(one.verdict)) | {"age_ms": one.age_ms, "stale": one.is_stale})


def _say_silence(latest: LatestVerdicts, times: ReportTimes) -> None:
    reported_ms = times.newest_ms()
    shown = judged(latest, reported_ms, time.time_ns() // 1_000_000)
    words = dashboard.silence_words(shown, reported_ms)
    if words is None and reported_ms and not shown:
        words = "replicas report, and there is no verdict: does the audit run?"
    if words is not None:
        notes.print(words, markup=False, highlight=False, soft_wrap=True)


def _print_verdicts(shown: Sequence[JudgedVerdict]) -> None:
    columns = ("log", "shard", "replica", "basis", "verdict", "index", "barrier", "slots", "reason")
    rows = [
        (
            one.verdict.log, one.verdict.shard, one.verdict.node or None, one.verdict.basis, one.words,
            one.verdict.index, one.verdict.barrier_offset, one.verdict.differing_slots or None,
            one.verdict.reason or None,
        )
        for one in shown
    ]  # fmt: skip
    print_table("Audit: replicas against the log", columns, rows)


def _plain(value: Any) -> Any:
    """Return ``value`` with bytes as hexadecimal text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
